//! A Node's `spec.providerID`: `proxmox://<uuid>` of Cluster API, `proxmox://<region>/<vmid>` of everyone else, and
//! what other providers write.

use crate::ids::{Region, Uuid, VmId};

/// What makes an id one of ours. Cluster API compares whole ids letter by letter, so neither case nor spaces are forgiven.
const SCHEME: &str = "proxmox://";

/// What a Node's provider id says. It can't be changed once it is set, and whoever made the Node chose it: the VM that
/// it names is a hint that has to be proved on PVE.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProviderId {
    /// `proxmox://<uuid>`, in whatever case it was written.
    Uuid(Uuid),
    /// `proxmox://<place>/<vmid>`.
    Place {
        /// A region, or the PVE node in ids of other tools; may be empty.
        place: String,
        /// Where to look first.
        vmid: VmId,
    },
    /// Begins with `proxmox://` and is nothing that is known here.
    Unreadable,
    /// Another provider's Node, or no id at all.
    Foreign,
}

impl ProviderId {
    /// Reads any text; a place is empty or has the grammar of a [`Region`], which that of a PVE node is part of.
    pub fn read(text: &str) -> Self {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Self::Foreign;
        };
        let Some((place, vmid)) = rest.split_once('/') else {
            return rest.parse().map_or(Self::Unreadable, Self::Uuid);
        };
        let known = place.is_empty() || place.parse::<Region>().is_ok();
        match vmid.parse() {
            Ok(vmid) if known => Self::Place {
                place: place.to_owned(),
                vmid,
            },
            _ => Self::Unreadable,
        }
    }

    /// Whether the Node is a VM of Proxmox VE, readable or not.
    pub fn is_ours(&self) -> bool {
        !matches!(self, Self::Foreign)
    }
}

/// The id that Cluster API writes on its Machine and looks for on the Node, letter by letter: `proxmox://<uuid>` in
/// lower case.
pub fn of_uuid(uuid: &Uuid) -> String {
    format!("{SCHEME}{uuid}")
}

/// The id of a VM that anyone else made: `proxmox://<region>/<vmid>`.
pub fn of_place(region: &Region, vmid: VmId) -> String {
    format!("{SCHEME}{region}/{vmid}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID: &str = "abcdef00-1111-2222-3333-444455556666";

    fn place(place: &str, vmid: u32) -> ProviderId {
        ProviderId::Place {
            place: place.to_owned(),
            vmid: vmid.try_into().unwrap(),
        }
    }

    #[test]
    fn both_forms_are_read_and_a_uuid_in_any_case() {
        let uuid = ProviderId::Uuid(UUID.parse().unwrap());
        for (text, id) in [
            (format!("proxmox://{UUID}"), uuid.clone()),
            (format!("proxmox://{}", UUID.to_ascii_uppercase()), uuid),
            ("proxmox://dc-1.a_b/104".to_owned(), place("dc-1.a_b", 104)),
            ("proxmox:///104".to_owned(), place("", 104)),
        ] {
            assert_eq!(ProviderId::read(&text), id, "{text}");
            assert!(id.is_ours(), "{text}");
        }
    }

    #[test]
    fn an_id_with_our_scheme_that_nobody_knows_stays_ours() {
        for rest in [
            "",
            "/",
            "104",
            "dc1/",
            "dc1/99",
            "dc1/0104",
            "dc1/104/",
            "dc1/pve-1/104",
            "dc 1/104",
            "../104",
            "dc1/104 ",
            " dc1/104",
            "/dc1/104",
            "00000000-0000-0000-0000-000000000000",
            "abcdef0011112222333344445555666677",
        ] {
            let id = ProviderId::read(&format!("proxmox://{rest}"));
            assert_eq!(id, ProviderId::Unreadable, "{rest:?}");
            assert!(id.is_ours());
        }
    }

    #[test]
    fn another_scheme_is_another_provider_however_near_it_comes() {
        for text in [
            "",
            "proxmox",
            "proxmox:/dc1/104",
            "proxmoxfoo://dc1/104",
            "Proxmox://dc1/104",
            " proxmox://dc1/104",
            "hcloud://104",
            "kubevirt://tenant-vm",
            UUID,
        ] {
            let id = ProviderId::read(text);
            assert_eq!(id, ProviderId::Foreign, "{text:?}");
            assert!(!id.is_ours());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(
            uuid in "[0-9a-fA-F]{7}[1-9](-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
            region in "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
            vmid in 100_u32..=999_999_999,
        ) {
            let uuid: Uuid = uuid.parse().unwrap();
            let written = of_uuid(&uuid);
            prop_assert_eq!(&written, &written.to_ascii_lowercase());
            prop_assert_eq!(ProviderId::read(&written), ProviderId::Uuid(uuid));
            let parsed: Region = region.parse().unwrap();
            let written = of_place(&parsed, vmid.try_into().unwrap());
            prop_assert_eq!(ProviderId::read(&written), place(&region, vmid));
        }
    }
}
