//! `ControllerExpandVolume`.

use csi_proto::csi::v1::{CapacityRange, ControllerExpandVolumeRequest};
use pve_model::{Bytes, VolumeId};

use super::fields::{self, Modes};
use super::{SizeRange, existing};
use crate::error::Error;

/// `ControllerExpandVolume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// How big it has to be. Without a least size nothing has to grow.
    pub size: SizeRange,
}

/// Reads the message. The capability is optional; what it says changes nothing here.
pub fn expand(request: &ControllerExpandVolumeRequest) -> Result<ExpandRequest, Error> {
    fields::no_secrets(&request.secrets)?;
    let volume = fields::handle(&request.volume_id)?;
    if let Some(capability) = &request.volume_capability {
        fields::capabilities(std::slice::from_ref(capability), Modes::Existing)?;
    }
    let Some(range) = &request.capacity_range else {
        return Err(Error::Invalid("capacity_range is required".to_owned()));
    };
    let size = size(range)?;
    Ok(ExpandRequest {
        volume: existing(volume)?,
        size,
    })
}

fn size(range: &CapacityRange) -> Result<SizeRange, Error> {
    if range.required_bytes == 0 && range.limit_bytes > 0 {
        // No default applies to a volume that is there.
        return Ok(SizeRange {
            wanted: Bytes::ZERO,
            least: Bytes::ZERO,
            most: Bytes::try_from(range.limit_bytes).ok(),
        });
    }
    fields::size(Some(range))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use csi_proto::csi::v1::{
        VolumeCapability,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    };
    use tonic::Code;

    use super::*;
    use crate::error::Rpc;

    const HANDLE: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";

    fn request(required_bytes: i64, limit_bytes: i64) -> ControllerExpandVolumeRequest {
        ControllerExpandVolumeRequest {
            volume_id: HANDLE.to_owned(),
            capacity_range: Some(CapacityRange {
                required_bytes,
                limit_bytes,
            }),
            ..Default::default()
        }
    }

    fn code(request: &ControllerExpandVolumeRequest) -> Code {
        expand(request).map_or_else(
            |error| error.code(Rpc::ControllerExpandVolume),
            |_| Code::Ok,
        )
    }

    fn capability(access_type: Option<AccessType>, mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_type,
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn sizes_are_whole_mebibytes_within_the_range_that_was_asked_for() {
        const MIB: i64 = 1 << 20;
        for (sentence, required, limit, expected) in [
            ("a whole size", 64 * MIB, 0, Ok((64, 64 * MIB, None))),
            (
                "one byte more",
                64 * MIB + 1,
                0,
                Ok((65, 64 * MIB + 1, None)),
            ),
            (
                "a limit above it",
                64 * MIB + 1,
                65 * MIB,
                Ok((65, 64 * MIB + 1, Some(65 * MIB))),
            ),
            (
                "a limit below the whole size",
                64 * MIB + 1,
                65 * MIB - 1,
                Err(Code::OutOfRange),
            ),
            (
                "a limit below the size",
                64 * MIB,
                63 * MIB,
                Err(Code::InvalidArgument),
            ),
            ("a limit alone", 0, MIB, Ok((0, 0, Some(MIB)))),
            ("the smallest limit", 0, 1, Ok((0, 0, Some(1)))),
            ("no size at all", 0, 0, Err(Code::InvalidArgument)),
            ("a negative size", -1, 0, Err(Code::InvalidArgument)),
            ("a negative limit", MIB, -1, Err(Code::InvalidArgument)),
            (
                "two negatives",
                i64::MIN,
                i64::MIN,
                Err(Code::InvalidArgument),
            ),
            ("the largest number", i64::MAX, 0, Err(Code::OutOfRange)),
            (
                "the largest whole size",
                i64::MAX - (MIB - 1),
                i64::MAX,
                Ok((
                    (i64::MAX >> 20) as u64,
                    i64::MAX - (MIB - 1),
                    Some(i64::MAX),
                )),
            ),
        ] {
            let found = expand(&request(required, limit))
                .map(|request| {
                    let plain = |bytes: Bytes| bytes.to_i64().unwrap();
                    let SizeRange {
                        wanted,
                        least,
                        most,
                    } = request.size;
                    (wanted.units(Bytes::MIB), plain(least), most.map(plain))
                })
                .map_err(|error| error.code(Rpc::ControllerExpandVolume));
            assert_eq!(found, expected, "{sentence}");
        }
    }

    #[test]
    fn every_field_is_read_and_a_capability_may_be_left_out() {
        type Change = fn(&mut ControllerExpandVolumeRequest);
        let block = || Some(AccessType::Block(BlockVolume {}));
        assert_eq!(code(&request(1 << 30, 0)), Code::Ok);
        for mode in [Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter] {
            let mut asked = request(1 << 30, 0);
            asked.volume_capability = Some(capability(block(), mode));
            assert_eq!(code(&asked), Code::Ok, "{mode:?}");
        }
        let rows: [(&str, Code, Change); 8] = [
            ("no handle", Code::InvalidArgument, |r| r.volume_id.clear()),
            ("no handle of ours", Code::NotFound, |r| {
                "reallyfakevolumeid".clone_into(&mut r.volume_id);
            }),
            ("a malformed handle", Code::InvalidArgument, |r| {
                r.volume_id.push_str(",size=9G");
            }),
            ("secrets", Code::InvalidArgument, |r| {
                r.secrets = HashMap::from([("key".to_owned(), "x".to_owned())]);
            }),
            ("no range", Code::InvalidArgument, |r| {
                r.capacity_range = None;
            }),
            ("a mode for many Nodes", Code::InvalidArgument, |r| {
                let mount = AccessType::Mount(MountVolume::default());
                r.volume_capability = Some(capability(Some(mount), Mode::MultiNodeMultiWriter));
            }),
            ("no access type", Code::InvalidArgument, |r| {
                r.volume_capability = Some(capability(None, Mode::SingleNodeWriter));
            }),
            ("a file system of a former PV", Code::Ok, |r| {
                let mount = AccessType::Mount(MountVolume {
                    fs_type: "xfs".to_owned(),
                    ..MountVolume::default()
                });
                r.volume_capability = Some(capability(Some(mount), Mode::SingleNodeWriter));
            }),
        ];
        for (sentence, expected, change) in rows {
            let mut asked = request(1 << 30, 0);
            change(&mut asked);
            assert_eq!(code(&asked), expected, "{sentence}");
        }
    }
}
