//! What belongs to what.

use std::collections::{BTreeMap, BTreeSet};

use super::{MOST_BOUND, MOST_PENDING, Memory, Seen};
use crate::cluster::{Attachment, Claim, ClaimId, ClusterNode, Meta, Name, Pod, Text, Volume};

/// What was seen of this driver's, by what it is looked for.
pub(super) struct Index<'a> {
    /// Claims of this driver.
    pub(super) claims: BTreeMap<ClaimId, Ours<'a>>,
    /// Volumes of this driver.
    pub(super) volumes: BTreeMap<&'a Name, &'a Volume>,
    /// The claim of a volume.
    pub(super) claim_of: BTreeMap<&'a Name, ClaimId>,
    /// The Pods on Nodes that mount a claim of this driver.
    pub(super) holders: BTreeMap<ClaimId, Vec<&'a Pod>>,
    /// Attachments by this driver; of a volume, or of none that is known.
    pub(super) attachments: BTreeMap<Option<&'a Name>, Vec<&'a Attachment>>,
    /// All Nodes.
    pub(super) nodes: BTreeMap<&'a Name, &'a ClusterNode>,
}

/// A claim of this driver.
pub(super) struct Ours<'a> {
    pub(super) id: ClaimId,
    pub(super) claim: &'a Claim,
    pub(super) volume: Option<&'a Volume>,
}

// === impl Ours ===

impl Ours<'_> {
    /// Whether it was made anew so often that it is not deleted any more.
    pub(super) fn is_given_up(&self, memory: &Memory) -> bool {
        let most = if self.volume.is_none() && memory.switched {
            MOST_PENDING
        } else {
            MOST_BOUND
        };
        let times = memory.deleted.get(&self.id);
        !self.claim.metadata.is_ending() && times.is_some_and(|times| *times >= most)
    }

    /// Whether it may stay: it has no volume and gets none. Without the switch it may yet have one, when a Pod is there for it.
    pub(super) fn is_harmless(&self, memory: &Memory) -> bool {
        self.volume.is_none() && memory.switched && self.is_given_up(memory)
    }
}

// === impl Index ===

impl<'a> Index<'a> {
    pub(super) fn of(seen: &'a Seen, driver: &str) -> Self {
        let of_driver = |volume: &&Volume| {
            let source = volume.spec.csi.as_ref();
            source.is_some_and(|source| source.driver.as_str() == driver)
        };
        let volumes = seen.volumes.iter().filter(of_driver);
        let volumes: BTreeMap<_, _> = volumes.map(|one| (&one.metadata.name, one)).collect();
        let claims = claims(seen, &volumes, driver);
        let claim_of = claims.values().filter_map(|ours| {
            let volume = ours.volume?;
            Some((&volume.metadata.name, ours.id.clone()))
        });
        let claim_of = claim_of.collect();
        let attached = seen.attachments.iter();
        let attached = attached.filter(|one| one.spec.attacher.as_str() == driver);
        let mut attachments: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for one in attached {
            let name = one.spec.source.persistent_volume_name.as_ref();
            let name = name.filter(|name| volumes.contains_key(name));
            attachments.entry(name).or_default().push(one);
        }
        let nodes = seen.nodes.iter();
        Self {
            holders: holders(seen, &claims),
            nodes: nodes.map(|node| (&node.metadata.name, node)).collect(),
            claims,
            volumes,
            claim_of,
            attachments,
        }
    }
}

fn claims<'a>(
    seen: &'a Seen,
    volumes: &BTreeMap<&'a Name, &'a Volume>,
    driver: &str,
) -> BTreeMap<ClaimId, Ours<'a>> {
    let classes = seen.classes.iter();
    let classes = classes.filter(|class| class.provisioner.as_str() == driver);
    let classes: BTreeSet<&Name> = classes.map(|class| &class.metadata.name).collect();
    let all: BTreeSet<&Name> = seen.volumes.iter().map(|one| &one.metadata.name).collect();
    let by_uid = volumes.values().filter_map(|volume| {
        let uid = volume.spec.claim_ref.as_ref()?.uid.as_ref()?;
        Some((uid, *volume))
    });
    let by_uid: BTreeMap<&Text, &Volume> = by_uid.collect();
    let ours = seen.claims.iter().filter_map(|claim| {
        let spec = &claim.spec;
        let uid = claim.metadata.uid.as_ref();
        // While it is being bound, only the volume names the other.
        let volume = match &spec.volume_name {
            Some(name) => volumes.get(name).copied(),
            None => uid.and_then(|uid| by_uid.get(uid).copied()),
        };
        let class = spec.storage_class_name.as_ref();
        let named = is_named(&claim.metadata, driver);
        let ours = match &spec.volume_name {
            Some(name) => volume.is_some() || (named && !all.contains(name)),
            None => volume.is_some() || named || class.is_some_and(|name| classes.contains(name)),
        };
        let id = claim.id().filter(|_| ours)?;
        Some((id.clone(), Ours { id, claim, volume }))
    });
    ours.collect()
}

fn is_named(meta: &Meta, driver: &str) -> bool {
    let annotations = &meta.annotations;
    let former = annotations.beta_provisioner.as_ref();
    let by = annotations.provisioner.as_ref().or(former);
    by.is_some_and(|by| by.as_str() == driver)
}

fn holders<'a>(
    seen: &'a Seen,
    claims: &BTreeMap<ClaimId, Ours<'a>>,
) -> BTreeMap<ClaimId, Vec<&'a Pod>> {
    let mut holders: BTreeMap<ClaimId, Vec<&Pod>> = BTreeMap::new();
    for pod in &seen.pods {
        let on_node = pod.spec.node_name.is_some();
        for id in pod.claims().filter(|_| on_node) {
            if claims.contains_key(&id) {
                holders.entry(id).or_default().push(pod);
            }
        }
    }
    holders
}

/// ` by StatefulSet db`, if somebody controls it.
pub(super) fn owner(meta: &Meta) -> String {
    let mut owners = meta.owner_references.iter();
    let controller = owners.find(|owner| owner.controller);
    controller.map_or_else(String::new, |owner| {
        format!(" by {} {}", owner.kind, owner.name)
    })
}
