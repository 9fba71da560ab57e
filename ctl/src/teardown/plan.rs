//! What of a tenant's cluster is deleted next, and what stays and why: decided from what was seen, without asking anyone.

mod index;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use self::index::Index;
use crate::cluster::{Attachment, Claim, ClaimId, Class, ClusterNode, Name, Pod, Text, Volume};

/// How often a claim that is made anew is deleted again: one without a volume that gets none, and any other.
pub(super) const MOST_PENDING: u32 = 5;
pub(super) const MOST_BOUND: u32 = 20;

/// All that is looked at.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) classes: Vec<Class>,
    pub(super) claims: Vec<Claim>,
    pub(super) volumes: Vec<Volume>,
    pub(super) attachments: Vec<Attachment>,
    pub(super) pods: Vec<Pod>,
    pub(super) nodes: Vec<ClusterNode>,
}

/// What was done before.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Deletions that the server has accepted.
    pub(super) deleted: BTreeMap<ClaimId, u32>,
    /// The last answer to a deletion that it has not, of a claim.
    pub(super) refused_claims: BTreeMap<ClaimId, String>,
    /// And of a Pod, by UID.
    pub(super) refused_pods: BTreeMap<Text, String>,
    /// And of an attachment, by name.
    pub(super) refused_attachments: BTreeMap<Name, String>,
    /// Since when a Pod is known to be ending, by UID.
    pub(super) ending: BTreeMap<Text, Instant>,
    /// Whether the controller makes no new disks, for as long as it takes to know it.
    pub(super) switched: bool,
}

/// What a plan is made by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    /// The driver's name.
    pub(super) driver: &'a str,
    /// Time that a Pod on a Node that is not there or not ready has to end by itself.
    pub(super) patience: Duration,
    /// When the plan is made.
    pub(super) now: Instant,
}

/// A claim to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimStep {
    pub(super) id: ClaimId,
    pub(super) uid: Option<Text>,
    /// Whether it has no volume: one may be in creation, even with the switch on, which not every controller knows.
    pub(super) bare: bool,
}

/// A Pod to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodStep {
    pub(super) namespace: Name,
    pub(super) name: Name,
    pub(super) uid: Option<Text>,
    /// The claims that it holds; it is left alone until one of them is deleted.
    pub(super) claims: Vec<ClaimId>,
    /// Its kubelet is not heard of: it is taken out of the API without it.
    pub(super) force: bool,
}

/// An attachment to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttachmentStep {
    pub(super) name: Name,
    pub(super) uid: Option<Text>,
}

/// How something stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fate {
    /// It should go by itself.
    Waiting,
    /// It does not go by itself.
    Stuck,
    /// It stays because its policy says so.
    Retained,
}

/// Something that is still there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Left {
    pub(super) fate: Fate,
    pub(super) kind: &'static str,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handle: Option<Text>,
    pub(super) why: String,
}

/// What comes next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) claims: Vec<ClaimStep>,
    pub(super) pods: Vec<PodStep>,
    pub(super) attachments: Vec<AttachmentStep>,
    pub(super) left: Vec<Left>,
    /// Claims that are made anew and have no volume: of no consequence.
    pub(super) remade: Vec<String>,
    /// Whether there is another claim without a volume, ending or not: one may be in creation.
    pub(super) open: bool,
}

// === impl Plan ===

impl Plan {
    /// What is to be done about what was seen.
    ///
    /// Guarantees: only claims of this driver and Pods that mount them are touched. A claim is one of this driver if the
    /// volume that it is bound to is, or if it has none and its class or its annotation says so. Pods that no Node was
    /// chosen for are left alone: they hold no claim (kube-controller-manager's `pvcprotection`), and their owners would
    /// only make them anew.
    pub(super) fn of(seen: &Seen, memory: &Memory, rules: Rules<'_>) -> Self {
        let index = Index::of(seen, rules.driver);
        let mut plan = Self::default();
        for claim in index.claims.values() {
            plan.add_claim(claim, memory);
        }
        plan.add_pods(&index, memory, rules);
        plan.add_attachments(&index);
        let open = |claim: &index::Ours<'_>| claim.volume.is_none() && !claim.is_harmless(memory);
        plan.open = index.claims.values().any(open);
        plan.left = reasons::left(&index, memory);
        plan.left.sort();
        plan
    }

    /// Whether nothing is left that should go.
    pub(super) fn is_finished(&self) -> bool {
        self.left.iter().all(|left| left.fate != Fate::Waiting)
    }

    fn add_claim(&mut self, claim: &index::Ours<'_>, memory: &Memory) {
        let meta = &claim.claim.metadata;
        if meta.is_ending() {
            return;
        }
        let times = memory.deleted.get(&claim.id).copied().unwrap_or_default();
        if claim.is_given_up(memory) {
            if claim.is_harmless(memory) {
                let owner = index::owner(meta);
                let text = format!("{} was made anew {times} times{owner}", claim.id);
                self.remade.push(text);
            }
            return;
        }
        self.claims.push(ClaimStep {
            id: claim.id.clone(),
            uid: meta.uid.clone(),
            bare: claim.volume.is_none(),
        });
    }

    /// Attachments to Nodes that are not there, of volumes that have no claim any more. kube-controller-manager would wait for
    /// six minutes for the Node to say that nothing is mounted (`ReconcilerMaxWaitForUnmountDuration`).
    fn add_attachments(&mut self, index: &Index<'_>) {
        let unclaimed = index
            .attachments
            .iter()
            .filter(|(volume, _)| volume.is_none_or(|volume| !index.claim_of.contains_key(volume)));
        let all = unclaimed.flat_map(|(_, attachments)| attachments);
        let lost = all.filter(|one| {
            !one.metadata.is_ending() && !index.nodes.contains_key(&one.spec.node_name)
        });
        self.attachments.extend(lost.map(|one| AttachmentStep {
            name: one.metadata.name.clone(),
            uid: one.metadata.uid.clone(),
        }));
    }

    fn add_pods(&mut self, index: &Index<'_>, memory: &Memory, rules: Rules<'_>) {
        let mut done = BTreeSet::new();
        for pod in index.holders.values().flatten() {
            let Some(namespace) = pod.metadata.namespace.clone() else {
                continue;
            };
            if !done.insert((namespace.clone(), pod.metadata.name.clone())) {
                continue;
            }
            let force = pod.metadata.is_ending();
            if force && !is_overdue(pod, index, memory, rules) {
                continue;
            }
            let claims = pod.claims().filter(|id| index.claims.contains_key(id));
            self.pods.push(PodStep {
                namespace,
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                claims: claims.collect(),
                force,
            });
        }
    }
}

/// Whether an ending Pod's kubelet is not heard of and had its time. The disk may still be in the VM then: it is deleted
/// only once the controller has proved on Proxmox VE that none has it.
fn is_overdue(pod: &Pod, index: &Index<'_>, memory: &Memory, rules: Rules<'_>) -> bool {
    let uid = pod.metadata.uid.as_ref();
    let since = uid.and_then(|uid| memory.ending.get(uid));
    let waited = since.is_some_and(|since| rules.now.duration_since(*since) >= rules.patience);
    let node = pod.spec.node_name.as_ref();
    waited && !node.is_some_and(|name| index.nodes.get(name).is_some_and(|node| node.is_ready()))
}

#[cfg(test)]
mod creation_tests;
#[cfg(test)]
mod tests;
