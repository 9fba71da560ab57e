//! Removes what a probe made, in every case, and what others left.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use super::manifest::{LABEL, PREFIX};
use super::steps::Probe;
use crate::cluster::{ApiError, Choice, Claim, Cluster, Deletion, Meta, Name, Pod, Text, Volume};

/// How long it may take.
pub(super) const CLEANUP: Duration = Duration::from_secs(90);
/// A request that was given up may still be carried out for a while, and a volume may be in creation when its claim is
/// deleted: so long nothing must turn up.
const QUIET: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
/// One that does not say how long it is used.
const UNKNOWN_USE: i64 = 24 * 3600;

impl Probe<'_> {
    /// Deletes all of this run and waits until it is gone; else what is left. After a failure it looks for longer.
    pub(super) async fn clean_up(&mut self, failed: bool) -> Result<(), String> {
        let mut left = "nothing could be looked at".to_owned();
        let end = timeout(CLEANUP, async {
            let mut since = None;
            loop {
                left = match self.sweep().await {
                    Ok(left) if left.is_empty() => {
                        let since = *since.get_or_insert_with(Instant::now);
                        if !failed || since.elapsed() >= QUIET {
                            return;
                        }
                        continue_after_pause().await;
                        continue;
                    }
                    Ok(left) => format!("left are {}", left.join(", ")),
                    Err(error) => format!("what is left can't be told: {error}"),
                };
                since = None;
                continue_after_pause().await;
            }
        });
        let done = end.await;
        done.map_err(|_| format!("not within {} s: {left}", CLEANUP.as_secs()))
    }

    /// Deletes what there is of this run; the names of what there was.
    async fn sweep(&mut self) -> Result<Vec<String>, ApiError> {
        let selector = self.run.selector();
        let (claims, pods) = (self.claims_path(), self.pods_path());
        let chosen = Choice::Labels(&selector);
        let mut left = Vec::new();
        for pod in self.cluster.list::<Pod>(&pods, chosen).await? {
            left.push(format!("Pod {}", pod.metadata.name));
            delete(&self.cluster, &pods, &pod.metadata, Some(1)).await?;
        }
        for claim in self.cluster.list::<Claim>(&claims, chosen).await? {
            left.push(format!("PersistentVolumeClaim {}", claim.metadata.name));
            self.saw_claim(&claim);
            delete(&self.cluster, &claims, &claim.metadata, None).await?;
        }
        if let Some(name) = &self.volume {
            let path = "/api/v1/persistentvolumes";
            let found: Option<Volume> = self.cluster.find(path, name.as_str()).await?;
            left.extend(found.map(|volume| format!("PersistentVolume {}", volume.metadata.name)));
        }
        Ok(left)
    }

    /// Deletes what earlier probes have left in this namespace: objects that are older than they said to be used. `now` is
    /// what the API server takes for now.
    pub(super) async fn remove_leftovers(&self, now: Timestamp) -> Result<usize, ApiError> {
        let (claims, pods) = (self.claims_path(), self.pods_path());
        let chosen = Choice::Labels(LABEL);
        let mut count = 0;
        for pod in self.cluster.list::<Pod>(&pods, chosen).await? {
            if is_leftover(&pod.metadata, now) {
                delete(&self.cluster, &pods, &pod.metadata, Some(1)).await?;
                count += 1;
            }
        }
        for claim in self.cluster.list::<Claim>(&claims, chosen).await? {
            if is_leftover(&claim.metadata, now) {
                delete(&self.cluster, &claims, &claim.metadata, None).await?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// csi-provisioner calls a volume after the UID of its claim: one in creation is looked for by that.
    pub(super) fn saw_claim(&mut self, claim: &Claim) {
        let named = claim.spec.volume_name.clone();
        let uid = claim.metadata.uid.as_ref();
        let made = || uid.and_then(|uid| format!("pvc-{uid}").parse().ok());
        if let Some(name) = named.or_else(made) {
            self.volume = Some(name);
        }
    }
}

async fn continue_after_pause() {
    sleep(PAUSE).await;
}

/// Whether it is of a probe that must have ended.
pub(super) fn is_leftover(meta: &Meta, now: Timestamp) -> bool {
    let made = created(meta);
    let used = meta.annotations.seconds.as_ref();
    let used = used.and_then(|text| text.as_str().parse::<u32>().ok());
    let used = used.map_or(UNKNOWN_USE, i64::from);
    let age = made.map(|made| now.as_second() - made.as_second());
    meta.name.as_str().starts_with(PREFIX) && age.is_some_and(|age| age > used)
}

/// When the API server says that it made it.
pub(super) fn created(meta: &Meta) -> Option<Timestamp> {
    let text = meta.creation_timestamp.as_ref().map(Text::as_str)?;
    text.parse().ok()
}

async fn delete(
    cluster: &Cluster,
    path: &str,
    meta: &Meta,
    grace: Option<u32>,
) -> Result<(), ApiError> {
    let deletion = Deletion {
        path,
        name: Name::as_str(&meta.name),
        uid: meta.uid.as_ref().map(Text::as_str),
        grace,
    };
    cluster.delete(deletion).await?;
    Ok(())
}
