//! What was done and what stays, for people and programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::Serialize;

use super::plan::{Fate, Left, Plan, Seen};
use crate::cluster::{ApiError, Name, Text};
use crate::text::{line, table};

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// Nothing is left but what is retained.
    Done,
    /// Something is left that does not go by itself.
    Left,
    /// The time was over.
    Timeout,
    /// It was told to end.
    Interrupted,
    /// The API server can't be asked: nothing is known.
    #[default]
    Unreachable,
    /// There is no Secret with a kubeconfig: nothing is known.
    NoKubeconfig,
    /// The kubeconfig is refused: nothing is known.
    Refused,
    /// The tenant has nothing of a driver of that name.
    UnknownDriver,
    /// Nothing was to be done.
    DryRun,
    /// New disks are made again.
    Undone,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) outcome: Outcome,
    pub(super) summary: String,
    /// Why nothing is known of the present state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<String>,
    pub(super) switch: String,
    #[serde(rename = "claimsDeleted")]
    pub(super) claims: BTreeSet<String>,
    #[serde(rename = "podsDeleted")]
    pub(super) pods: BTreeSet<String>,
    #[serde(rename = "podsTakenOut")]
    pub(super) forced: BTreeSet<String>,
    #[serde(rename = "volumesGone")]
    gone: BTreeMap<Name, Option<Text>>,
    pub(super) left: Vec<Left>,
    pub(super) notes: Vec<String>,
    #[serde(rename = "capacitiesRemoved")]
    pub(super) capacities: usize,
    pub(super) seconds: u64,
    #[serde(skip)]
    pub(super) answered: bool,
    #[serde(skip)]
    known: BTreeMap<Name, Option<Text>>,
    #[serde(skip)]
    remade: Vec<String>,
    #[serde(skip)]
    told: String,
}

// === impl Outcome ===

impl Outcome {
    /// Whether nothing more is to be done.
    pub(super) fn is_good(self) -> bool {
        matches!(self, Self::Done | Self::DryRun | Self::Undone)
    }
}

// === impl Report ===

impl Report {
    /// Of a run that could not begin.
    pub(super) fn bare(outcome: Outcome, why: &impl Display) -> Self {
        Self {
            outcome,
            unknown: Some(why.to_string()),
            switch: "not turned on".to_owned(),
            ..Self::default()
        }
    }

    /// Of a run that only took back what it had told the controller.
    pub(super) fn undone() -> Self {
        Self {
            outcome: Outcome::Undone,
            switch: "off".to_owned(),
            ..Self::default()
        }
    }

    /// Keeps what a look has shown.
    pub(super) fn saw(&mut self, seen: &Seen, plan: &Plan, driver: &str) {
        let ours = seen.volumes.iter().filter_map(|volume| {
            let source = volume.spec.csi.as_ref()?;
            let handle = Some(source.volume_handle.clone());
            (source.driver.as_str() == driver).then(|| (volume.metadata.name.clone(), handle))
        });
        let now: BTreeMap<_, _> = ours.collect();
        self.known.extend(now.clone());
        let gone = self
            .known
            .iter()
            .filter(|(name, _)| !now.contains_key(*name));
        self.gone = gone
            .map(|(name, handle)| (name.clone(), handle.clone()))
            .collect();
        self.left.clone_from(&plan.left);
        self.remade.clone_from(&plan.remade);
        self.progress();
    }

    /// What a dry run has to tell.
    pub(super) fn would(&mut self, plan: &Plan) {
        self.claims = plan.claims.iter().map(|step| step.id.to_string()).collect();
        let pods = plan.pods.iter();
        self.pods = pods
            .map(|step| format!("{}/{}", step.namespace, step.name))
            .collect();
    }

    /// A line on standard error whenever something has changed.
    fn progress(&mut self) {
        let waiting = self.left.iter().filter(|left| left.fate == Fate::Waiting);
        let line = format!(
            "pvectl: {} left, {} volumes gone; deleted {} claims and {} Pods",
            waiting.count(),
            self.gone.len(),
            self.claims.len(),
            self.pods.len()
        );
        if line != self.told {
            eprintln!("{line}");
            self.told = line;
        }
    }

    /// For programs.
    pub(super) fn json(&mut self) -> String {
        self.close();
        let text = serde_json::to_string_pretty(self);
        text.map_or_else(
            |error| format!("{{\"error\": \"{error}\"}}\n"),
            |text| text + "\n",
        )
    }

    /// For people.
    pub(super) fn text(&mut self) -> String {
        self.close();
        let mut text = format!("{}\n", self.summary);
        if let Some(unknown) = &self.unknown {
            line(&mut text, format_args!("{unknown}"));
        }
        line(&mut text, format_args!("switch: {}", self.switch));
        for (what, names) in [
            ("claims deleted", &self.claims),
            ("Pods deleted", &self.pods),
            ("Pods taken out without their kubelet", &self.forced),
        ] {
            if !names.is_empty() {
                let names = names.iter().cloned().collect::<Vec<_>>().join(" ");
                line(&mut text, format_args!("{what}: {names}"));
            }
        }
        for (name, handle) in &self.gone {
            let handle = handle.as_ref().map_or("", Text::as_str);
            line(&mut text, format_args!("gone: {name} {handle}"));
        }
        if self.capacities > 0 {
            line(
                &mut text,
                format_args!("CSIStorageCapacity objects removed: {}", self.capacities),
            );
        }
        for note in &self.notes {
            line(&mut text, format_args!("note: {note}"));
        }
        if !self.left.is_empty() {
            let rows = self.left.iter().map(|left| {
                let handle = left.handle.as_ref().map_or("-", Text::as_str);
                let stays = match left.fate {
                    Fate::Retained => "retained",
                    Fate::Waiting | Fate::Stuck => "LEFT",
                };
                [
                    stays.to_owned(),
                    left.kind.to_owned(),
                    left.name.clone(),
                    handle.to_owned(),
                    left.why.clone(),
                ]
            });
            let rows: Vec<_> = rows.collect();
            text.push_str(&table(["STAYS", "KIND", "NAME", "HANDLE", "WHY"], &rows));
        }
        text
    }

    fn close(&mut self) {
        for text in std::mem::take(&mut self.remade) {
            let note =
                format!("the claim {text} and has no volume: of no consequence for Proxmox VE");
            self.notes.push(note);
        }
        let retained = self.left.iter().filter(|left| left.fate == Fate::Retained);
        let retained = retained.count();
        let other = self.left.len() - retained;
        let (gone, after) = (self.gone.len(), self.seconds);
        let stays = match (other, retained) {
            (0, 0) => "nothing stays".to_owned(),
            (0, kept) => format!("{kept} retained volumes stay"),
            (left, 0) => format!("{left} objects stay"),
            (left, kept) => format!("{left} objects and {kept} retained volumes stay"),
        };
        self.summary = match self.outcome {
            Outcome::Done => format!("done after {after} s: {gone} volumes are gone, {stays}"),
            Outcome::Left => format!("not all could go: {gone} volumes are gone, {stays}"),
            Outcome::Timeout => format!("the time ({after} s) is over: {gone} volumes are gone, {stays}"),
            Outcome::Interrupted => format!("interrupted after {after} s: {gone} volumes are gone, {stays}"),
            Outcome::Unreachable if self.answered => {
                format!("the API server can't be asked any more; when it last answered: {gone} volumes were gone, {stays}")
            }
            Outcome::Unreachable => {
                "the API server can't be asked: whether the tenant has volumes is not known".to_owned()
            }
            Outcome::NoKubeconfig => {
                "there is no kubeconfig: whether disks are left only Proxmox VE knows (pvectl orphans)".to_owned()
            }
            Outcome::Refused => {
                "the kubeconfig is refused: whether the tenant has volumes is not known".to_owned()
            }
            Outcome::UnknownDriver => {
                "the tenant has neither a CSIDriver nor a StorageClass nor a volume of that driver: is it the name?".to_owned()
            }
            Outcome::Undone => "new disks are made again; what was deleted stays deleted".to_owned(),
            Outcome::DryRun => format!(
                "nothing was done: {} claims would be deleted, then {} Pods",
                self.claims.len(),
                self.pods.len()
            ),
        };
    }
}

/// Why the API server does not do it, as far as its status says: its words are the tenant's.
pub(super) fn refusal(error: &ApiError) -> String {
    match error.status() {
        Some(403) => {
            "the API server forbids it (403: a missing right, or an admission webhook)".to_owned()
        }
        Some(status @ (400 | 422 | 500..)) => {
            format!("the API server fails at it ({status}: an admission webhook?)")
        }
        Some(status) => format!("the API server answers {status}"),
        None => error.to_string(),
    }
}
