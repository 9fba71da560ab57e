//! What must hold of any text that is read as a handle or a node id: for tests here, and for the targets under `fuzz/`.

#![expect(
    clippy::missing_panics_doc,
    reason = "a check panics where something does not hold"
)]

use crate::ids::{KubeNode, PveNode, Region, StorageId, VmId};
use crate::{DiskName, NodeId, ProviderId, VolumeId, provider_id};

/// The longest handle of the grammar: region, host and storage at their longest, and a disk in its folder.
const HANDLE_MAX: usize = 63 + 63 + 100 + 3 + 10 + "vm-999999999-".len() + 126 + ".qcow2".len();

/// The longest node id: a Node's name and a VMID.
const NODE_ID_MAX: usize = 253 + 1 + 9;

/// A handle that is accepted comes out as it went in, is of the grammar in each of its parts, and names one disk.
pub fn volume_id(text: &str) {
    let Ok(id) = text.parse::<VolumeId>() else {
        return;
    };
    assert_eq!(
        id.to_string(),
        text,
        "printing is not the inverse of parsing"
    );
    assert!(text.len() <= HANDLE_MAX, "{} bytes", text.len());
    let inert = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
    assert!(
        text.bytes().all(inert),
        "a separator of a URL or a drive string"
    );
    assert!(text.split('/').all(|part| part != "." && part != ".."));
    assert_eq!(
        text.split('/').count(),
        4 + usize::from(id.disk.format().is_some())
    );
    assert_eq!(
        id.region.as_str().parse::<Region>().as_ref(),
        Ok(&id.region)
    );
    assert_eq!(
        id.storage.as_str().parse::<StorageId>().as_ref(),
        Ok(&id.storage)
    );
    let host = |node: &PveNode| node.as_str().parse::<PveNode>().as_ref() == Ok(node);
    assert!(id.pve_node.as_ref().is_none_or(host));
    assert_eq!(
        id.disk.to_string().parse::<DiskName>().as_ref(),
        Ok(&id.disk)
    );
    let file = id.disk.file_name();
    assert!(file.starts_with(&format!("vm-{}-", id.disk.owner())) && !file.contains('/'));
    let stem = id.disk.format().map_or(file.as_str(), |format| {
        file.strip_suffix(format.as_str())
            .and_then(|stem| stem.strip_suffix('.'))
            .unwrap_or("")
    });
    // On lvmthin the deletion of `a` takes everything along that looks like a snapshot of it: `a_b`.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    assert!(!stem.is_empty() && stem.bytes().all(plain), "{stem:?}");
    assert!((100..=999_999_999).contains(&id.disk.owner().get()));
    assert_eq!(
        id.volid().split_once(':'),
        Some((id.storage.as_str(), &*id.disk.to_string()))
    );
}

/// A node id that is accepted means the same again when it is printed, and only a UUID is written otherwise: in lower
/// case.
pub fn node_id(text: &str) {
    let Ok(id) = text.parse::<NodeId>() else {
        return;
    };
    let printed = id.to_string();
    assert_eq!(printed.parse::<NodeId>().as_ref(), Ok(&id));
    assert!(text.len() <= NODE_ID_MAX, "{} bytes", text.len());
    let (head, vmid) = match &id {
        NodeId::Vm { uuid, vmid } => {
            assert_eq!(printed, text.to_ascii_lowercase());
            assert!(
                uuid.as_str()
                    .bytes()
                    .all(|b| b.is_ascii_hexdigit() || b == b'-')
            );
            assert!(
                uuid.as_str().bytes().any(|b| !matches!(b, b'0' | b'-')),
                "not set"
            );
            (uuid.as_str(), vmid)
        }
        NodeId::Former { name, vmid } => {
            assert_eq!(printed, text);
            assert_eq!(name.as_str().parse::<KubeNode>().as_ref(), Ok(name));
            (name.as_str(), vmid)
        }
    };
    assert!(!head.contains('/') && head.bytes().all(|b| b.is_ascii_graphic()));
    let expected = printed
        .split_once('/')
        .map(|(_, number)| number.parse::<VmId>());
    assert_eq!(expected.transpose(), Ok(*vmid));
}

/// A provider id is ours exactly if it begins with our scheme, and what is read of one is what a writer of it means.
pub fn provider_id(text: &str) {
    let id = ProviderId::read(text);
    assert_eq!(id.is_ours(), text.starts_with("proxmox://"));
    match &id {
        ProviderId::Uuid(uuid) => {
            let written = provider_id::of_uuid(uuid);
            assert_eq!(written, text.to_ascii_lowercase());
            assert_eq!(ProviderId::read(&written), id);
        }
        ProviderId::Place { place, vmid } => {
            let region = place.parse::<Region>();
            let written = region.map(|region| provider_id::of_place(&region, *vmid));
            assert_eq!(
                written.unwrap_or_else(|_| format!("proxmox:///{vmid}")),
                text
            );
        }
        ProviderId::Unreadable | ProviderId::Foreign => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    /// Every committed input of a fuzz target.
    fn corpus(target: &str) -> Vec<String> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus")
            .join(target);
        let files = std::fs::read_dir(&folder).unwrap();
        let texts: Vec<String> = files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect();
        assert!(
            texts.len() >= 10,
            "{} has {} inputs",
            folder.display(),
            texts.len()
        );
        texts
    }

    #[test]
    fn the_corpora_of_the_fuzz_targets_hold_and_some_of_each_is_accepted() {
        let handles = corpus("volume_id");
        for text in &handles {
            volume_id(text);
        }
        assert!(
            handles
                .iter()
                .filter(|text| text.parse::<VolumeId>().is_ok())
                .count()
                >= 5
        );
        let nodes = corpus("node_id");
        for text in &nodes {
            node_id(text);
        }
        assert!(
            nodes
                .iter()
                .filter(|text| text.parse::<NodeId>().is_ok())
                .count()
                >= 5
        );
        let ids = corpus("provider_id");
        for text in &ids {
            provider_id(text);
        }
        let known = |text: &&String| {
            matches!(
                ProviderId::read(text),
                ProviderId::Uuid(_) | ProviderId::Place { .. }
            )
        };
        assert!(ids.iter().filter(known).count() >= 4);
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_handle_or_a_node_id(text in "\\PC{0,90}") {
            volume_id(&text);
            node_id(&text);
            provider_id(&text);
        }

        #[test]
        fn what_looks_like_a_handle_is_refused_or_kept(
            text in "[A-Za-z0-9][A-Za-z0-9._-]{0,4}/[a-z0-9.-]{0,3}/[a-z][a-zA-Z0-9._-]{1,4}/(100/)?(vm|base)-(100|[0-9]{2,10})-[A-Za-z0-9][A-Za-z0-9._/-]{0,9}(\\.raw|\\.qcow2|)",
        ) {
            volume_id(&text);
        }

        #[test]
        fn what_looks_like_a_node_id_is_refused_or_kept(
            text in "([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0f]{8}-0000-0000-0000-000000000000|[a-z0-9.-]{1,255})(/[0-9+]{0,11}){0,2}",
        ) {
            node_id(&text);
        }

        #[test]
        fn what_looks_like_a_provider_id_is_read_as_it_was_meant(
            text in "(proxmox|Proxmox|proxmoxa)(://|:/)([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0f]{8}-0000-0000-0000-000000000000|[A-Za-z0-9._ -]{0,65})(/[0-9+]{0,11}){0,2}",
        ) {
            provider_id(&text);
        }
    }
}
