//! What is still there, and what stands in the way of its end.

use super::index::{Index, Ours};
use super::{Fate, Left, Memory};
use crate::cluster::{Attachment, Meta, Pod, Text, Volume};

/// Finalizers that go by themselves once nothing uses the object any more.
const OWN_FINALIZERS: [&str; 4] = [
    "kubernetes.io/pvc-protection",
    "kubernetes.io/pv-protection",
    "external-provisioner.volume.kubernetes.io/finalizer",
    // The driver's name follows.
    "external-attacher/",
];
/// Reasons of one kind that are told of one object.
const TOLD: usize = 3;

/// All of this driver's that was seen.
pub(super) fn left(index: &Index<'_>, memory: &Memory) -> Vec<Left> {
    let volumes = index.volumes.values();
    let volumes = volumes.map(|volume| of_volume(volume, index, memory));
    let bare = index.claims.values().filter(|ours| ours.volume.is_none());
    let bare = bare.filter(|ours| !ours.is_harmless(memory));
    let claims = bare.map(|ours| {
        let why = of_claim(ours, index, memory);
        let (fate, why) = if ours.is_given_up(memory) {
            (Fate::Stuck, format!("{why}, and it may get a disk yet"))
        } else {
            (Fate::Waiting, why)
        };
        Left {
            fate,
            kind: "PersistentVolumeClaim",
            name: ours.id.to_string(),
            handle: None,
            why,
        }
    });
    let strays = index.attachments.get(&None).into_iter().flatten();
    let strays = strays.map(|one| Left {
        fate: Fate::Waiting,
        kind: "VolumeAttachment",
        name: one.metadata.name.to_string(),
        handle: None,
        why: format!(
            "its PersistentVolume is not there; {}",
            attached(one, index, memory)
        ),
    });
    volumes.chain(claims).chain(strays).collect()
}

fn of_volume(volume: &Volume, index: &Index<'_>, memory: &Memory) -> Left {
    let (fate, why) = fate_of(volume, index, memory);
    Left {
        fate,
        kind: "PersistentVolume",
        name: volume.metadata.name.to_string(),
        handle: volume
            .spec
            .csi
            .as_ref()
            .map(|one| one.volume_handle.clone()),
        why,
    }
}

fn fate_of(volume: &Volume, index: &Index<'_>, memory: &Memory) -> (Fate, String) {
    let name = &volume.metadata.name;
    let claim = index.claim_of.get(name).and_then(|id| index.claims.get(id));
    if let Some(claim) = claim {
        return (Fate::Waiting, of_claim(claim, index, memory));
    }
    if let Some(all) = index.attachments.get(&Some(name)) {
        return (
            Fate::Waiting,
            several(all.iter().map(|one| attached(one, index, memory))),
        );
    }
    let policy = volume.spec.persistent_volume_reclaim_policy.as_ref();
    let policy = policy.map_or("Retain", Text::as_str);
    let phase = volume.status.phase.as_ref().map_or("Pending", Text::as_str);
    let claimed = volume.spec.claim_ref.as_ref();
    match policy {
        "Retain" => (Fate::Retained, "its reclaim policy is Retain".to_owned()),
        "Delete" if claimed.is_none_or(|claim| claim.uid.is_none()) => {
            let why = "no claim ever had it, so nothing deletes its disk";
            (Fate::Stuck, why.to_owned())
        }
        "Delete" => {
            let waits = finalizers(&volume.metadata);
            let why = format!("its disk is not deleted yet (it is {phase}{waits})");
            (Fate::Waiting, why)
        }
        _ => (
            Fate::Stuck,
            format!("its reclaim policy is {}", Text::from(policy)),
        ),
    }
}

fn of_claim(ours: &Ours<'_>, index: &Index<'_>, memory: &Memory) -> String {
    let id = &ours.id;
    if let Some(refused) = memory.refused_claims.get(id) {
        return format!("its claim {id} can't be deleted: {refused}");
    }
    let meta = &ours.claim.metadata;
    if !meta.is_ending() {
        let owner = super::index::owner(meta);
        return match memory.deleted.get(id) {
            Some(times) => format!("its claim {id} was made anew {times} times{owner}"),
            None => format!("its claim {id} is not deleted yet"),
        };
    }
    match index.holders.get(id).map(Vec::as_slice) {
        Some(pods @ [_, ..]) => several(pods.iter().map(|pod| of_pod(pod, index, memory))),
        _ => format!("its claim {id} is ending{}", finalizers(meta)),
    }
}

fn of_pod(pod: &Pod, index: &Index<'_>, memory: &Memory) -> String {
    let meta = &pod.metadata;
    let namespace = meta.namespace.as_ref().map_or("", |name| name.as_str());
    let what = format!("Pod {namespace}/{}", meta.name);
    let uid = meta.uid.as_ref();
    if let Some(refused) = uid.and_then(|uid| memory.refused_pods.get(uid)) {
        return format!("{what} can't be deleted: {refused}");
    }
    if !meta.is_ending() {
        return format!("{what} is not deleted yet");
    }
    let waits = finalizers(meta);
    let Some(node) = &pod.spec.node_name else {
        return format!("{what} is ending{waits}");
    };
    match index.nodes.get(node) {
        None => format!("{what} is ending, its Node {node} is not there{waits}"),
        Some(found) if !found.is_ready() => {
            format!("{what} is ending, its Node {node} is not ready{waits}")
        }
        Some(_) => format!("{what} is ending on Node {node}{waits}"),
    }
}

fn attached(one: &Attachment, index: &Index<'_>, memory: &Memory) -> String {
    let node = &one.spec.node_name;
    if let Some(refused) = memory.refused_attachments.get(&one.metadata.name) {
        return format!(
            "it is attached to Node {node}, and its VolumeAttachment can't be deleted: {refused}"
        );
    }
    if one.metadata.is_ending() {
        let waits = finalizers(&one.metadata);
        format!("it is being detached from Node {node}{waits}")
    } else if index.nodes.contains_key(node) {
        format!("it is attached to Node {node}")
    } else {
        format!("it is attached to Node {node}, which is not there")
    }
}

/// Finalizers of others, which may never go.
fn finalizers(meta: &Meta) -> String {
    let own = |text: &&str| OWN_FINALIZERS.iter().any(|own| text.starts_with(own));
    let all = meta.finalizers.iter().map(Text::as_str);
    let foreign: Vec<&str> = all.filter(|text| !own(text)).collect();
    if foreign.is_empty() {
        return String::new();
    }
    let shown = foreign.iter().take(TOLD).copied().collect::<Vec<_>>();
    format!(", held by the finalizer {}", shown.join(", "))
}

fn several(reasons: impl ExactSizeIterator<Item = String>) -> String {
    let more = reasons.len().saturating_sub(TOLD);
    let text = reasons.take(TOLD).collect::<Vec<_>>().join("; ");
    match more {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}
