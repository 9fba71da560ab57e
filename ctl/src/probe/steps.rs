//! The steps, each until it is done or the time is over.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ProbeArguments;
use super::cleanup::created;
use super::disk::Pve;
use super::manifest::{Role, Run};
use super::report::{Report, Row, Verdict};
use crate::cluster::{
    ApiError, Choice, Claim, Class, Cluster, Deletion, Item, Meta, Name, Pod, Text, Volume,
};

const PAUSE: Duration = Duration::from_millis(500);
/// To find out why a step went on for too long.
const STORY: Duration = Duration::from_secs(10);
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// The steps in their order, and what looks on Proxmox VE.
const STEPS: [(&str, bool); 7] = [
    ("class is there", false),
    ("claim is bound", false),
    ("Pod writes and reads", false),
    ("disk is on Proxmox VE", true),
    ("other Pod reads", false),
    ("volume is deleted", false),
    ("disk is gone", true),
];

/// One probe at work.
pub(super) struct Probe<'a> {
    pub(super) cluster: Cluster,
    pub(super) run: Run,
    /// The volume, once it is known, or the name that it will have.
    pub(super) volume: Option<Name>,
    arguments: &'a ProbeArguments,
    pve: Option<Pve>,
    handle: Option<Text>,
    rows: Vec<Row>,
    /// Objects whose Events tell why something does not go on.
    about: Vec<Text>,
}

/// A step that failed, in words.
type Step = Result<String, String>;

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    message: Option<Text>,
    #[serde(default, rename = "type")]
    kind: Option<Text>,
}

impl Item for Event {
    fn weight(&self) -> usize {
        600
    }
}

impl<'a> Probe<'a> {
    pub(super) fn new(
        cluster: Cluster,
        arguments: &'a ProbeArguments,
        pve: Option<Pve>,
        run: Run,
    ) -> Self {
        Self {
            cluster,
            run,
            volume: None,
            arguments,
            pve,
            handle: None,
            rows: Vec::new(),
            about: Vec::new(),
        }
    }

    /// All of it.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Report {
        let deadline = Instant::now() + self.arguments.timeout;
        let mut failed = false;
        for (index, (step, on_pve)) in STEPS.into_iter().enumerate() {
            let begin = Instant::now();
            let (verdict, detail) = if failed {
                (Verdict::NotReached, String::new())
            } else if on_pve && self.pve.is_none() {
                (Verdict::NotAsked, "no --cloud-config".to_owned())
            } else {
                let outcome = tokio::select! {
                    outcome = self.step(index) => outcome,
                    () = tokio::time::sleep_until(deadline) => Err("the time is over".to_owned()),
                    () = shutdown.cancelled() => Err("interrupted".to_owned()),
                };
                match outcome {
                    Ok(detail) => (Verdict::Ok, detail),
                    Err(why) => (Verdict::Failed, self.with_story(why).await),
                }
            };
            failed |= verdict == Verdict::Failed;
            let seconds = begin.elapsed();
            self.rows.push(Row {
                step,
                verdict,
                seconds,
                detail,
            });
        }
        let begin = Instant::now();
        let (verdict, detail) = match self.clean_up(failed).await {
            Ok(()) => (Verdict::Ok, String::new()),
            Err(why) => (Verdict::Failed, why),
        };
        let (step, seconds) = ("nothing is left", begin.elapsed());
        self.rows.push(Row {
            step,
            verdict,
            seconds,
            detail,
        });
        self.report()
    }

    fn report(self) -> Report {
        let mut report = Report {
            ok: false,
            class: self.arguments.storage_class.to_string(),
            namespace: self.arguments.namespace.to_string(),
            run: self.run.id,
            handle: self.handle,
            steps: self.rows,
        };
        report.ok = report.is_good();
        report
    }

    async fn step(&mut self, index: usize) -> Step {
        match index {
            0 => self.class().await,
            1 => self.bound().await,
            2 => self.succeeded(Role::Writer).await,
            3 => self.on_pve().await,
            4 => self.read_back().await,
            5 => self.deleted().await,
            _ => self.gone().await,
        }
    }

    async fn class(&mut self) -> Step {
        let name = &self.arguments.storage_class;
        let class: Option<Class> = told(self.cluster.find(CLASSES, name.as_str()).await)?;
        let class = class.ok_or_else(|| format!("there is no StorageClass {name}"))?;
        let driver = class.provisioner.as_str();
        if driver != self.arguments.driver_name {
            return Err(format!("its volumes are made by {driver}"));
        }
        match class.reclaim_policy.as_ref().map_or("Delete", Text::as_str) {
            "Delete" => Ok(String::new()),
            other => Err(format!(
                "its reclaim policy is {other}: the disk would stay"
            )),
        }
    }

    /// Claim and Pod together: a class may wait for the Pod.
    async fn bound(&mut self) -> Step {
        let path = self.claims_path();
        let claim: Claim = told(self.cluster.create(&path, &self.run.claim()).await)?;
        self.saw_claim(&claim);
        self.about.extend(claim.metadata.uid.clone());
        let leftovers = match created(&claim.metadata) {
            Some(now) => told(self.remove_leftovers(now).await)?,
            None => 0,
        };
        self.make_pod(Role::Writer).await?;
        let name = self.run.claim_name();
        loop {
            if let Ok(Some(claim)) = self.cluster.find::<Claim>(&path, &name).await {
                self.saw_claim(&claim);
                let phase = claim.status.phase.as_ref().map_or("", Text::as_str);
                match (phase, &claim.spec.volume_name) {
                    ("Bound", Some(volume)) => return self.found(volume, leftovers).await,
                    ("Lost", _) => return Err("the claim is Lost".to_owned()),
                    _ => {}
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn found(&mut self, name: &Name, leftovers: usize) -> Step {
        let volume: Option<Volume> = told(self.cluster.find(VOLUMES, name.as_str()).await)?;
        let source = volume.and_then(|volume| volume.spec.csi);
        let source = source.ok_or_else(|| format!("{name} is no CSI volume"))?;
        if source.driver.as_str() != self.arguments.driver_name {
            return Err(format!("{name} is a volume of {}", source.driver));
        }
        let mut detail = source.volume_handle.to_string();
        if leftovers > 0 {
            detail.push_str("; deleted objects that earlier probes left: ");
            detail.push_str(&leftovers.to_string());
        }
        self.handle = Some(source.volume_handle);
        Ok(detail)
    }

    async fn make_pod(&mut self, role: Role) -> Result<(), String> {
        let pod: Pod = told(
            self.cluster
                .create(&self.pods_path(), &self.run.pod(role))
                .await,
        )?;
        self.about.extend(pod.metadata.uid);
        Ok(())
    }

    async fn succeeded(&mut self, role: Role) -> Step {
        let (path, name) = (self.pods_path(), self.run.pod_name(role));
        loop {
            if let Ok(pod) = self.cluster.find::<Pod>(&path, &name).await {
                let pod = pod.ok_or("somebody has deleted the Pod")?;
                let phase = pod.status.phase.as_ref().map_or("", Text::as_str);
                let on = pod.spec.node_name.as_ref();
                let on = on.map_or_else(String::new, |node| format!("on Node {node}"));
                match phase {
                    "Succeeded" => return Ok(on),
                    "Failed" => return Err(format!("the Pod has failed {on}")),
                    _ => {}
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn on_pve(&mut self) -> Step {
        let (pve, handle) = self.place()?;
        pve.is_there(handle).await
    }

    async fn read_back(&mut self) -> Step {
        let pods = self.pods_path();
        self.delete(&pods, &self.run.pod_name(Role::Writer)).await?;
        self.make_pod(Role::Reader).await?;
        self.succeeded(Role::Reader).await
    }

    async fn deleted(&mut self) -> Step {
        let pods = self.pods_path();
        self.delete(&pods, &self.run.pod_name(Role::Reader)).await?;
        self.delete(&self.claims_path(), &self.run.claim_name())
            .await?;
        let volume = self.volume.clone().ok_or("the volume has no name")?;
        self.wait_gone::<Volume>(VOLUMES, volume.as_str()).await;
        Ok(String::new())
    }

    async fn gone(&mut self) -> Step {
        let (pve, handle) = self.place()?;
        // Its PersistentVolume is gone, so it has to be gone already.
        if pve.is_gone(handle).await? {
            Ok(String::new())
        } else {
            Err("it is there, although the volume is deleted".to_owned())
        }
    }

    fn place(&self) -> Result<(&Pve, &str), String> {
        let pve = self.pve.as_ref().ok_or("no --cloud-config")?;
        let handle = self.handle.as_ref().ok_or("the volume has no handle")?;
        Ok((pve, handle.as_str()))
    }

    async fn delete(&self, path: &str, name: &str) -> Result<(), String> {
        let deletion = Deletion {
            path,
            name,
            uid: None,
            grace: None,
        };
        told(self.cluster.delete(deletion).await)?;
        self.wait_gone::<Thing>(path, name).await;
        Ok(())
    }

    async fn wait_gone<T: serde::de::DeserializeOwned>(&self, path: &str, name: &str) {
        while !matches!(self.cluster.find::<T>(path, name).await, Ok(None)) {
            sleep(PAUSE).await;
        }
    }

    /// The last warning about what is being made, if there is one.
    async fn with_story(&self, why: String) -> String {
        let story = timeout(STORY, async {
            let path = format!("/api/v1/namespaces/{}/events", self.arguments.namespace);
            let mut last = None;
            for uid in &self.about {
                let fields = format!("involvedObject.uid={uid}");
                let events = self
                    .cluster
                    .list::<Event>(&path, Choice::Fields(&fields))
                    .await;
                let warning = |one: &Event| {
                    one.kind
                        .as_ref()
                        .is_some_and(|kind| kind.as_str() == "Warning")
                };
                let warnings = events.unwrap_or_default().into_iter().filter(warning);
                last = warnings.filter_map(|one| one.message).next_back().or(last);
            }
            last
        });
        match story.await {
            Ok(Some(message)) => format!("{why}; last warning: {message}"),
            Ok(None) | Err(_) => why,
        }
    }

    pub(super) fn claims_path(&self) -> String {
        format!(
            "/api/v1/namespaces/{}/persistentvolumeclaims",
            self.arguments.namespace
        )
    }

    pub(super) fn pods_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.arguments.namespace)
    }
}

/// Any object.
#[derive(Deserialize)]
struct Thing {
    #[expect(dead_code, reason = "what has none is no object")]
    metadata: Meta,
}

fn told<T>(outcome: Result<T, ApiError>) -> Result<T, String> {
    outcome.map_err(|error| match error.status() {
        Some(403) => "the API server forbids it (403)".to_owned(),
        Some(status) => format!("the API server answers {status}"),
        None => error.to_string(),
    })
}
