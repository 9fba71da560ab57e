//! Looks, deletes and looks again, until nothing is left that should go or the time is over.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use pve_kube::capacity::remove_stale;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::TeardownArguments;
use super::plan::{AttachmentStep, ClaimStep, Fate, Left, Memory, Plan, PodStep, Rules, Seen};
use super::report::{Outcome, Report, refusal};
use super::switch::{IN_FORCE, Switch};
use crate::cluster::{ApiError, Choice, Claim, ClaimId, Cluster, Deleted, Deletion, Text};

const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// Between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// How long an API server that does not answer at all is asked again.
const FIRST_ANSWER: Duration = Duration::from_mins(1);
/// Deletions at the same time.
const AT_ONCE: usize = 8;
/// What an ending Pod has beyond its grace.
const MARGIN: Duration = Duration::from_secs(15);
/// What is done after the time is over may take so long yet.
const LAST: Duration = Duration::from_secs(5);
/// Looks, one after the other, that have to show nothing left.
const LOOKS: u32 = 2;

/// One run.
pub(super) struct Teardown<'a> {
    cluster: Cluster,
    arguments: &'a TeardownArguments,
    begin: Instant,
    switch: Switch,
    memory: Memory,
    report: Report,
    /// Nothing is deleted or written.
    dry: bool,
    /// Whether anything of a driver of that name was seen.
    met: bool,
    /// When a claim without a volume was last seen or deleted.
    open: Instant,
}

impl<'a> Teardown<'a> {
    pub(super) fn new(cluster: Cluster, arguments: &'a TeardownArguments, begin: Instant) -> Self {
        Self {
            cluster,
            arguments,
            begin,
            switch: Switch::default(),
            memory: Memory::default(),
            report: Report::default(),
            dry: arguments.dry_run,
            met: false,
            open: begin,
        }
    }

    /// Only looks, for this reason.
    pub(super) fn only_looking(mut self, why: Option<String>) -> Self {
        self.dry |= why.is_some();
        self.report.notes.extend(why);
        self
    }

    /// All of it.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Report {
        let rest = self.arguments.timeout.saturating_sub(self.begin.elapsed());
        let deadline = self.begin + self.arguments.timeout;
        let outcome = tokio::select! {
            outcome = self.rounds() => outcome,
            () = sleep(rest) => self.ended(Outcome::Timeout),
            () = shutdown.cancelled() => self.ended(Outcome::Interrupted),
        };
        self.report.outcome = outcome;
        self.report.switch = self.switch.text();
        if outcome == Outcome::Timeout && !self.dry && !self.is_settled() {
            let note = "a volume may be in creation: the time was over before --settle was";
            self.report.notes.push(note.to_owned());
        }
        let at_end = matches!(
            outcome,
            Outcome::Done | Outcome::Left | Outcome::Timeout | Outcome::UnknownDriver
        );
        if at_end && !self.dry {
            self.remove_capacities(deadline).await;
        }
        self.report
    }

    /// What is told of a run that was cut off: without an answer ever, nothing is known.
    fn ended(&self, otherwise: Outcome) -> Outcome {
        if self.report.unknown.is_some() || !self.report.answered {
            Outcome::Unreachable
        } else {
            otherwise
        }
    }

    async fn rounds(&mut self) -> Outcome {
        let mut empty = 0;
        loop {
            match self.round().await {
                Ok(finished) => {
                    self.report.answered = true;
                    self.report.unknown = None;
                    if self.dry && self.is_known() {
                        return Outcome::DryRun;
                    }
                    empty = if finished { empty + 1 } else { 0 };
                }
                Err(error) => {
                    self.report.unknown = Some(format!("the tenant's API server: {error}"));
                    if !self.report.answered && self.begin.elapsed() >= FIRST_ANSWER {
                        return Outcome::Unreachable;
                    }
                    empty = 0;
                }
            }
            if empty >= LOOKS && !self.is_known() {
                return Outcome::UnknownDriver;
            }
            if empty >= LOOKS && self.is_settled() {
                let stuck = |left: &Left| left.fate != Fate::Retained;
                return if self.report.left.iter().any(stuck) {
                    Outcome::Left
                } else {
                    Outcome::Done
                };
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether the tenant has or had anything of a driver of that name.
    fn is_known(&self) -> bool {
        self.met || !self.switch.has_no_driver()
    }

    /// Whether no volume can be in creation any more. One is not seen: its claim is gone at once when it is deleted, which
    /// may have been before this run, by a former one or with its namespace. So nothing that was seen makes this shorter.
    fn is_settled(&self) -> bool {
        let switched = self.switch.since().unwrap_or(self.begin) + IN_FORCE;
        Instant::now() >= switched.max(self.open) + self.arguments.settle
    }

    /// One look and what follows of it; whether nothing is left that should go.
    async fn round(&mut self) -> Result<bool, ApiError> {
        let driver = &self.arguments.driver_name;
        if self.dry {
            self.switch.look(&self.cluster, driver).await?;
        } else {
            self.switch.keep_on(&self.cluster, driver).await?;
        }
        self.memory.switched = self.switch.is_in_force();
        let seen = look(&self.cluster).await?;
        let now = Instant::now();
        self.remember(&seen, now);
        let rules = Rules {
            driver,
            patience: self.arguments.pod_grace + MARGIN,
            now,
        };
        let plan = Plan::of(&seen, &self.memory, rules);
        self.report.saw(&seen, &plan, driver);
        self.met |= has_any(&seen, &plan, driver);
        if plan.open {
            self.open = now;
        }
        if self.dry {
            self.report.would(&plan);
            return Ok(true);
        }
        let finished = plan.is_finished();
        self.act(plan, &seen).await;
        Ok(finished)
    }

    fn remember(&mut self, seen: &Seen, now: Instant) {
        for pod in &seen.pods {
            if let (true, Some(uid)) = (pod.metadata.is_ending(), &pod.metadata.uid) {
                self.memory.ending.entry(uid.clone()).or_insert(now);
            }
        }
        let claims: BTreeSet<_> = seen.claims.iter().filter_map(Claim::id).collect();
        self.memory
            .refused_claims
            .retain(|id, _| claims.contains(id));
    }

    async fn act(&mut self, plan: Plan, seen: &Seen) {
        let ending = seen
            .claims
            .iter()
            .filter(|claim| claim.metadata.is_ending());
        let mut ending: BTreeSet<ClaimId> = ending.filter_map(Claim::id).collect();
        for (step, outcome) in delete_claims(&self.cluster, plan.claims).await {
            match outcome {
                Ok(deleted) => {
                    if step.bare {
                        self.open = Instant::now();
                    }
                    self.memory.refused_claims.remove(&step.id);
                    if deleted == Deleted::Accepted {
                        *self.memory.deleted.entry(step.id.clone()).or_default() += 1;
                        self.report.claims.insert(step.id.to_string());
                    }
                    ending.insert(step.id);
                }
                Err(error) => {
                    self.memory.refused_claims.insert(step.id, refusal(&error));
                }
            }
        }
        self.delete_attachments(plan.attachments).await;
        let ready = |step: &PodStep| step.claims.iter().any(|id| ending.contains(id));
        let pods = plan.pods.into_iter().filter(ready).collect();
        self.delete_pods(pods).await;
    }

    async fn delete_attachments(&mut self, steps: Vec<AttachmentStep>) {
        for step in steps {
            let deletion = Deletion {
                path: ATTACHMENTS,
                name: step.name.as_str(),
                uid: step.uid.as_ref().map(Text::as_str),
                grace: None,
            };
            match self.cluster.delete(deletion).await {
                Ok(_) => drop(self.memory.refused_attachments.remove(&step.name)),
                Err(error) => {
                    let refused = refusal(&error);
                    self.memory.refused_attachments.insert(step.name, refused);
                }
            }
        }
    }

    async fn delete_pods(&mut self, steps: Vec<PodStep>) {
        let grace = u32::try_from(self.arguments.pod_grace.as_secs()).unwrap_or(u32::MAX);
        for (step, outcome) in delete_pods(&self.cluster, steps, grace).await {
            let name = format!("{}/{}", step.namespace, step.name);
            match (outcome, step.uid) {
                (Ok(Deleted::Accepted), uid) => {
                    if let Some(uid) = uid {
                        self.memory.refused_pods.remove(&uid);
                        self.memory.ending.entry(uid).or_insert_with(Instant::now);
                    }
                    let told = if step.force {
                        &mut self.report.forced
                    } else {
                        &mut self.report.pods
                    };
                    told.insert(name);
                }
                (Ok(Deleted::Gone), _) | (Err(_), None) => {}
                (Err(error), Some(uid)) => {
                    self.memory.refused_pods.insert(uid, refusal(&error));
                }
            }
        }
    }

    /// Nobody else removes them, and without the driver they would mislead the scheduler.
    async fn remove_capacities(&mut self, deadline: Instant) {
        let deadline = deadline.max(Instant::now() + LAST);
        let driver = &self.arguments.driver_name;
        match remove_stale(self.cluster.client(), driver, deadline).await {
            Ok(count) => self.report.capacities = count,
            Err(error) => self.report.notes.push(error.to_string()),
        }
    }
}

/// Whether there is anything of this driver's.
fn has_any(seen: &Seen, plan: &Plan, driver: &str) -> bool {
    let classes = seen.classes.iter();
    let mut classes = classes.filter(|class| class.provisioner.as_str() == driver);
    classes.next().is_some() || !plan.claims.is_empty() || !plan.left.is_empty()
}

/// Claims before volumes: one that is bound meanwhile is seen with its volume.
async fn look(cluster: &Cluster) -> Result<Seen, ApiError> {
    Ok(Seen {
        claims: cluster
            .list("/api/v1/persistentvolumeclaims", Choice::All)
            .await?,
        volumes: cluster
            .list("/api/v1/persistentvolumes", Choice::All)
            .await?,
        attachments: cluster.list(ATTACHMENTS, Choice::All).await?,
        pods: cluster.list("/api/v1/pods", Choice::All).await?,
        classes: cluster
            .list("/apis/storage.k8s.io/v1/storageclasses", Choice::All)
            .await?,
        nodes: cluster.list("/api/v1/nodes", Choice::All).await?,
    })
}

async fn delete_claims(
    cluster: &Cluster,
    steps: Vec<ClaimStep>,
) -> Vec<(ClaimStep, Result<Deleted, ApiError>)> {
    let all = stream::iter(steps).map(async |step: ClaimStep| {
        let path = format!(
            "/api/v1/namespaces/{}/persistentvolumeclaims",
            step.id.namespace
        );
        let deletion = Deletion {
            path: &path,
            name: step.id.name.as_str(),
            uid: step.uid.as_ref().map(Text::as_str),
            grace: None,
        };
        let outcome = cluster.delete(deletion).await;
        (step, outcome)
    });
    all.buffer_unordered(AT_ONCE).collect().await
}

async fn delete_pods(
    cluster: &Cluster,
    steps: Vec<PodStep>,
    grace: u32,
) -> Vec<(PodStep, Result<Deleted, ApiError>)> {
    let all = stream::iter(steps).map(async |step: PodStep| {
        let path = format!("/api/v1/namespaces/{}/pods", step.namespace);
        let deletion = Deletion {
            path: &path,
            name: step.name.as_str(),
            uid: step.uid.as_ref().map(Text::as_str),
            grace: Some(if step.force { 0 } else { grace }),
        };
        let outcome = cluster.delete(deletion).await;
        (step, outcome)
    });
    all.buffer_unordered(AT_ONCE).collect().await
}
