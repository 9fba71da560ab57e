//! What ControllerPublish tells NodeStage: one typed struct, one spelling of its keys.
//!
//! A controller of version N works with node plugins of N − 1 and N + 1: keys are only added, unknown ones are
//! ignored, and each key that was added later may be missing.

use std::collections::HashMap;

use crate::ids::ParseIdError;
use crate::size::Bytes;
use crate::wwn::Wwn;

const DEVICE_PATH: &str = "DevicePath";
const LUN: &str = "lun";
const SIZE: &str = "size";

/// CSI `publish_context`: where and what the disk is in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishContext {
    /// The name that the VM's config gives the disk, whoever attached it.
    pub wwn: Wwn,
    /// SCSI LUN, the slot number.
    pub lun: Option<u8>,
    /// Size of the disk when it was published; the former driver does not say it.
    pub size: Option<Bytes>,
}

impl PublishContext {
    /// The map of the wire: `DevicePath`, `lun`, `size` (bytes).
    pub fn to_map(self) -> HashMap<String, String> {
        let optional = [
            (LUN, self.lun.map(|lun| lun.to_string())),
            (SIZE, self.size.map(|size| size.get().to_string())),
        ];
        optional
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .chain([(DEVICE_PATH.to_owned(), self.wwn.by_id_path())])
            .collect()
    }

    /// Reads the map. `DevicePath` must be there and name a WWN; the others must be numbers where they are there.
    pub fn from_map(map: &HashMap<String, String>) -> Result<Self, ParseIdError> {
        let path = map
            .get(DEVICE_PATH)
            .ok_or(ParseIdError("publish context"))?;
        let lun = map
            .get(LUN)
            .map(|lun| lun.parse().map_err(|_| ParseIdError("lun")))
            .transpose()?;
        let size = map
            .get(SIZE)
            .map(|size| size.parse().map_err(|_| ParseIdError("size")))
            .transpose()?;
        Ok(Self {
            wwn: Wwn::from_by_id_path(path)?,
            lun,
            size: size.map(Bytes::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let sent = PublishContext {
            wwn: "0x5c42a611aadbf50e".parse().unwrap(),
            lun: Some(7),
            size: Some(Bytes::GIB),
        };
        let map = sent.to_map();
        assert_eq!(
            map.get("DevicePath").unwrap(),
            "/dev/disk/by-id/wwn-0x5c42a611aadbf50e"
        );
        assert_eq!(map.get("lun").unwrap(), "7");
        assert_eq!(map.get("size").unwrap(), "1073741824");
        assert_eq!(PublishContext::from_map(&map), Ok(sent));
    }

    #[test]
    fn the_former_drivers_context_is_honoured_and_a_later_ones_too() {
        let former = [
            ("DevicePath", "/dev/disk/by-id/wwn-0x5056432d49443031"),
            ("lun", "1"),
            ("newer", "x"),
        ];
        let map = former.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let context = PublishContext::from_map(&map).unwrap();
        assert!(context.wwn.is_slot_made());
        assert_eq!((context.lun, context.size), (Some(1), None));
    }

    #[test]
    fn a_path_that_names_no_wwn_is_refused() {
        for path in [
            "/dev/sda",
            "/dev/disk/by-id/wwn-0x5/../../sda",
            "",
            "/dev/disk/by-id/wwn-0x5c42a611aadbf50e-part1",
        ] {
            let map = HashMap::from([("DevicePath".to_owned(), path.to_owned())]);
            assert!(PublishContext::from_map(&map).is_err(), "{path}");
        }
        assert!(PublishContext::from_map(&HashMap::new()).is_err());
    }
}
