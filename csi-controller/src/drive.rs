//! The drive line of an attach: what the PV asks for, within what the operator allows, on what the VM has.
//!
//! Pure. Reads no PVE answer and decides no slot.

use std::cmp::min;

use pve_client::Drive;
use pve_model::{Bytes, Parameters, Slot, VolumeId, Wwn};
use pve_runtime::config::StoragePolicy;

use crate::error::Error;
use crate::slots::{Controller, Row, Seat};

/// What a volume asks of its drive, checked against the operator's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    volid: String,
    wwn: Wwn,
    read_only: ReadOnly,
    options: Vec<(&'static str, String)>,
    iothread: bool,
}

/// The sentence for a PV that asks for more than the operator allows now.
const CEILING: &str =
    "the volume asks for a drive option that the operator of the storage does not allow";

impl Wish {
    /// The options of `volume`. `allow` and `limits` bind at each attach, not only when the volume was made: the PV is
    /// the tenant's to write.
    pub fn new(
        volume: &VolumeId,
        parameters: &Parameters,
        read_only: ReadOnly,
        policy: &StoragePolicy,
    ) -> Result<Self, Error> {
        let refuse = |detail: String| {
            Err(Error::Unsupported {
                tenant: CEILING,
                detail,
            })
        };
        let mut options = vec![
            ("backup", flag(parameters.backup)),
            ("replicate", flag(false)),
        ];
        if parameters.backup && !policy.allow.backup {
            return refuse(format!("backup on {}", volume.storage));
        }
        if let Some(cache) = parameters.cache {
            if !policy.allow.cache(cache) {
                return refuse(format!("cache={} on {}", cache.as_str(), volume.storage));
            }
            options.push(("cache", cache.as_str().to_owned()));
        }
        if let Some(aio) = parameters.aio {
            if !policy.allow.aio(aio) {
                return refuse(format!("aio={} on {}", aio.as_str(), volume.storage));
            }
            options.push(("aio", aio.as_str().to_owned()));
        }
        if parameters.ssd {
            options.extend([("ssd", flag(true)), ("discard", "on".to_owned())]);
        }
        let rates = [
            (
                ["iops_rd", "iops_wr"],
                lower(parameters.iops, policy.limits.iops),
            ),
            (
                ["mbps_rd", "mbps_wr"],
                lower(parameters.mbps, policy.limits.mbps),
            ),
        ];
        for (keys, rate) in rates {
            if let Some(rate) = rate {
                options.extend(keys.map(|key| (key, rate.to_string())));
            }
        }
        if read_only == ReadOnly::Yes {
            options.push(("ro", flag(true)));
        }
        let wwn = Wwn::of(volume);
        options.push(("wwn", wwn.to_string()));
        Ok(Self {
            wwn,
            read_only,
            volid: volume.volid(),
            options,
            iothread: parameters.iothread != Some(false),
        })
    }

    /// The name under which the guest sees the disk.
    pub fn wwn(&self) -> Wwn {
        self.wwn
    }

    /// The row of the config once it is written to that slot. PVE fills the size in; ours is a least size.
    pub fn row(&self, slot: Slot, size: Option<Bytes>) -> Row {
        let seat = Seat {
            volid: self.volid.clone(),
            wwn: Some(self.wwn),
            size,
            read_only: self.read_only == ReadOnly::Yes,
        };
        Row {
            slot,
            now: Some(seat.clone()),
            next: Some(seat),
            changing: false,
        }
    }

    /// PVE's name of the disk.
    pub fn volid(&self) -> &str {
        &self.volid
    }

    /// The value of `scsiN=`. `iothread` is ignored with a warning on any controller but `virtio-scsi-single`
    /// (`QemuServer.pm` 3603), so it is not sent there.
    pub fn on(&self, controller: &Controller) -> Result<String, Error> {
        let wrong = |error: pve_client::ParseDriveError| Error::Internal(error.to_string());
        let mut drive = Drive::new(&self.volid).map_err(wrong)?;
        for (key, value) in &self.options {
            drive.set(key, value).map_err(wrong)?;
        }
        if self.iothread && *controller == Controller::PerDisk {
            drive.set("iothread", &flag(true)).map_err(wrong)?;
        }
        Ok(drive.to_string())
    }
}

/// Whether the guest may write to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// `ro=1`.
    Yes,
    /// Writable.
    No,
}

impl ReadOnly {
    /// CSI's flag as a word.
    pub const fn of(readonly: bool) -> Self {
        if readonly { Self::Yes } else { Self::No }
    }
}

fn flag(on: bool) -> String {
    u8::from(on).to_string()
}

fn lower(wanted: Option<u32>, ceiling: Option<u32>) -> Option<u32> {
    match (wanted, ceiling) {
        (Some(wanted), Some(ceiling)) => Some(min(wanted, ceiling)),
        (wanted, ceiling) => wanted.or(ceiling),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pve_model::params::{AioMode, CacheMode};
    use pve_runtime::config::{Allow, Limits};

    use super::*;

    fn drive(
        parameters: &Parameters,
        policy: &StoragePolicy,
        controller: &Controller,
    ) -> Result<String, Error> {
        let volume = "r1/pve1/local-lvm/vm-9999-pvc-1".parse().unwrap();
        Wish::new(&volume, parameters, ReadOnly::No, policy)?.on(controller)
    }

    #[test]
    fn a_plain_volume_gets_the_defaults_and_its_own_wwn() {
        let (wish, policy) = (Parameters::default(), StoragePolicy::default());
        assert_eq!(
            drive(&wish, &policy, &Controller::PerDisk).unwrap(),
            "local-lvm:vm-9999-pvc-1,backup=0,replicate=0,wwn=0x5c42a611aadbf50e,iothread=1"
        );
        assert_eq!(
            drive(&wish, &policy, &Controller::Shared).unwrap(),
            "local-lvm:vm-9999-pvc-1,backup=0,replicate=0,wwn=0x5c42a611aadbf50e",
            "iothread works with virtio-scsi-single only"
        );
    }

    #[test]
    fn everything_that_is_asked_for_reaches_the_drive() {
        let volume = "r1/pve1/local/9999/vm-9999-pvc-1.raw".parse().unwrap();
        let parameters = Parameters {
            cache: Some(CacheMode::WriteBack),
            aio: Some(AioMode::Threads),
            ssd: true,
            backup: true,
            iothread: Some(false),
            iops: Some(300),
            mbps: Some(20),
            ..Parameters::default()
        };
        let wish = Wish::new(
            &volume,
            &parameters,
            ReadOnly::Yes,
            &StoragePolicy::default(),
        )
        .unwrap();
        assert_eq!(
            wish.on(&Controller::PerDisk).unwrap(),
            format!(
                "local:9999/vm-9999-pvc-1.raw,backup=1,replicate=0,cache=writeback,aio=threads,ssd=1,discard=on,\
                 iops_rd=300,iops_wr=300,mbps_rd=20,mbps_wr=20,ro=1,wwn={}",
                Wwn::of(&volume)
            )
        );
    }

    #[test]
    fn the_operators_limits_are_applied_as_minimum() {
        let policy = StoragePolicy {
            limits: Limits {
                iops: Some(100),
                mbps: Some(50),
            },
            ..StoragePolicy::default()
        };
        for (wanted, given) in [(None, 100), (Some(40), 40), (Some(100_000), 100)] {
            let parameters = Parameters {
                iops: wanted,
                ..Parameters::default()
            };
            let line = drive(&parameters, &policy, &Controller::Shared).unwrap();
            assert!(
                line.contains(&format!(
                    ",iops_rd={given},iops_wr={given},mbps_rd=50,mbps_wr=50,"
                )),
                "{line}"
            );
        }
    }

    #[test]
    fn what_the_operator_does_not_allow_is_refused_at_each_attach() {
        let policy = StoragePolicy {
            allow: Allow {
                cache: Some(BTreeSet::from([CacheMode::None])),
                aio: Some(BTreeSet::new()),
                backup: false,
                formats: None,
            },
            ..StoragePolicy::default()
        };
        let ask = |change: fn(&mut Parameters)| {
            let mut parameters = Parameters::default();
            change(&mut parameters);
            drive(&parameters, &policy, &Controller::Shared)
        };
        for refused in [
            ask(|p| p.cache = Some(CacheMode::Unsafe)),
            ask(|p| p.aio = Some(AioMode::Native)),
            ask(|p| p.backup = true),
        ] {
            assert!(
                matches!(refused, Err(Error::Unsupported { .. })),
                "{refused:?}"
            );
        }
        assert!(ask(|p| p.cache = Some(CacheMode::None)).is_ok());
        assert!(ask(|_| {}).is_ok());
    }
}
