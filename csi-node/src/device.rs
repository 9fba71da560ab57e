//! Finds the disk of a volume and proves that it is the one.
//!
//! Guarantees: a [`VerifiedDevice`] is the only disk of the machine with the volume's WWN, has the size that the
//! volume needs, and is opened through a device node of its own number.
//! Assumptions: sysfs tells the truth; links below `/dev/disk` may not (udev is late, or there is none), so they are
//! not looked at.
//! Errors: a disk that is not there yet is retryable and said so; every doubt is an error.

use std::time::Duration;

use pve_model::handoff::PublishContext;
use pve_model::size::Bytes;
use pve_model::volume_id::VolumeId;
use pve_model::wwn::Wwn;
use tokio::time::Instant;

use crate::error::{Error, Unfit};
use crate::host::{Access, Device, Disk, Host};

const FIRST_LOOK: Duration = Duration::from_millis(50);
const SLOWEST_LOOK: Duration = Duration::from_millis(250);

/// The disk that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub wwn: Wwn,
    /// Its least size, if known.
    pub size: Option<Bytes>,
}

/// A disk that is proved to be the volume's.
#[derive(Debug, Clone)]
pub struct VerifiedDevice(Device);

// === impl Wanted ===

impl Wanted {
    /// What the controller's hand-off says, which must be about `volume`: a name is either the volume's own or one
    /// that the former driver made from a slot.
    pub fn new(volume: &VolumeId, context: &PublishContext) -> Result<Self, Error> {
        let wwn = context.wwn;
        if wwn != Wwn::of(volume) && !wwn.is_slot_made() {
            return Err(Error::ForeignContext { wwn });
        }
        Ok(Self {
            wwn,
            size: context.size,
        })
    }

    /// Whether only a name from a slot, in which another volume may sit by now, speaks for the disk.
    pub fn is_doubtful(&self) -> bool {
        self.wwn.is_slot_made() && self.size.is_none()
    }
}

// === impl VerifiedDevice ===

impl VerifiedDevice {
    /// The open device.
    pub fn device(&self) -> &Device {
        &self.0
    }

    /// Whether it may be written.
    pub fn access(&self) -> Access {
        self.0.disk.access
    }

    /// What is built on it. A raw block volume may well be divided or carry a volume group: that is its user's.
    pub fn occupation(&self) -> Option<Unfit> {
        let disk = &self.0.disk;
        match disk.holders.first() {
            Some(holder) => Some(Unfit::Held(holder.clone())),
            None => (!disk.partitions.is_empty()).then_some(Unfit::Partitioned),
        }
    }

    /// Refuses a disk for which only the name of a slot speaks, unless what is on it does, too.
    pub fn trust(&self, wanted: Wanted) -> Result<(), Error> {
        if wanted.is_doubtful() {
            return Err(self.unfit(Unfit::Unproved));
        }
        Ok(())
    }

    /// The error that it can't be used.
    pub fn unfit(&self, why: Unfit) -> Error {
        unfit(&self.0.disk, why)
    }

    /// Proves once more that disk and device node belong together and that the name is the same.
    pub async fn verify_again(&self, host: &dyn Host, wanted: Wanted) -> Result<(), Error> {
        let again = only(host.disks().await?, wanted.wwn)?;
        if again.as_ref().map(|disk| disk.number) != Some(self.0.disk.number) {
            return Err(self.unfit(Unfit::Changed));
        }
        host.open(&self.0.disk).await?;
        Ok(())
    }
}

/// Waits until `deadline` for the disk, then proves it.
pub async fn find(
    host: &dyn Host,
    wanted: Wanted,
    deadline: Instant,
) -> Result<VerifiedDevice, Error> {
    let start = Instant::now();
    let mut pause = FIRST_LOOK;
    loop {
        // A disk that has just been plugged shows no size until its capacity has been read.
        let disk = only(host.disks().await?, wanted.wwn)?.filter(|disk| disk.size > Bytes::ZERO);
        if let Some(disk) = disk {
            return prove(host, disk, wanted).await;
        }
        if Instant::now() + pause > deadline {
            return Err(Error::DeviceMissing {
                wwn: wanted.wwn,
                waited: start.elapsed(),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(SLOWEST_LOOK);
    }
}

/// The one disk of this name. Two of them are an error: neither is proved.
pub(crate) fn only(disks: Vec<Disk>, wwn: Wwn) -> Result<Option<Disk>, Error> {
    let mut matching: Vec<Disk> = disks.into_iter().filter(|disk| disk.has(wwn)).collect();
    if matching.len() > 1 {
        let names: Vec<&str> = matching.iter().map(|disk| disk.name.as_str()).collect();
        return Err(Error::DeviceAmbiguous {
            wwn,
            count: matching.len(),
            names: names.join(", "),
        });
    }
    Ok(matching.pop())
}

async fn prove(host: &dyn Host, disk: Disk, wanted: Wanted) -> Result<VerifiedDevice, Error> {
    if let Some(why) = objection(&disk, wanted) {
        return Err(unfit(&disk, why));
    }
    let device = host.open(&disk).await?;
    if device.size != disk.size {
        return Err(unfit(&disk, Unfit::SizeChanging));
    }
    Ok(VerifiedDevice(device))
}

/// What speaks against a disk. It may have grown since it was published; under a name that came from a slot any
/// other size means another volume.
fn objection(disk: &Disk, wanted: Wanted) -> Option<Unfit> {
    let found = disk.size;
    match wanted.size {
        Some(wanted) if found < wanted => Some(Unfit::Small { found, wanted }),
        Some(size) if found != size && wanted.wwn.is_slot_made() => Some(Unfit::OtherSize {
            found,
            wanted: size,
        }),
        Some(_) | None => None,
    }
}

fn unfit(disk: &Disk, why: Unfit) -> Error {
    Error::DeviceUnfit {
        disk: disk.name.clone(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::{FakeHost, disk};

    const OWN: &str = "0x5c42a611aadbf50e";
    const SLOT: &str = "0x5056432d49443031";

    fn wanted(wwn: &str, size: Option<Bytes>) -> Wanted {
        Wanted {
            wwn: wwn.parse().unwrap(),
            size,
        }
    }

    async fn find_in(host: &FakeHost, wanted: Wanted) -> Result<VerifiedDevice, Error> {
        find(host, wanted, Instant::now() + Duration::from_secs(20)).await
    }

    #[test]
    fn a_context_that_names_another_volume_is_refused() {
        let volume: VolumeId = "r1/pve1/local-lvm/vm-9999-pvc-1".parse().unwrap();
        let other: VolumeId = "r1/pve1/local-lvm/vm-9999-pvc-2".parse().unwrap();
        let context = |wwn| PublishContext {
            wwn,
            lun: None,
            size: None,
        };
        assert!(Wanted::new(&volume, &context(Wwn::of(&volume))).is_ok());
        assert!(Wanted::new(&volume, &context(SLOT.parse().unwrap())).is_ok());
        let refused = Wanted::new(&volume, &context(Wwn::of(&other)));
        assert!(matches!(refused, Err(Error::ForeignContext { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn b10_a_disk_that_appears_late_is_found_and_one_that_never_does_is_retryable() {
        let host = FakeHost::default();
        let late = tokio::time::sleep(Duration::from_secs(5));
        let (found, ()) = tokio::join!(find_in(&host, wanted(OWN, None)), async {
            late.await;
            host.set_disks(vec![disk("sdb", 16, OWN)]);
        });
        assert_eq!(found.unwrap().device().disk.name, "sdb");

        host.set_disks(vec![disk("sda", 0, SLOT)]);
        let start = Instant::now();
        let missing = find_in(&host, wanted(OWN, None)).await.unwrap_err();
        assert!(matches!(missing, Error::DeviceMissing { .. }));
        assert_eq!(missing.code(), tonic::Code::Unavailable);
        assert!(start.elapsed() <= Duration::from_secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_without_capacity_is_waited_for() {
        let mut empty = disk("sdb", 16, OWN);
        empty.size = Bytes::ZERO;
        let host = FakeHost::default();
        host.set_disks(vec![empty]);
        let missing = find_in(&host, wanted(OWN, None)).await;
        assert!(matches!(missing, Err(Error::DeviceMissing { .. })));
    }

    #[test]
    fn b09_a_slots_name_without_a_size_is_doubtful() {
        let doubtful = |wwn, size| wanted(wwn, size).is_doubtful();
        assert!(doubtful(SLOT, None));
        assert!(!doubtful(SLOT, Some(Bytes::GIB)));
        assert!(!doubtful(OWN, None));
    }

    #[tokio::test(start_paused = true)]
    async fn b09_every_doubt_about_the_disk_refuses_it() {
        let gib = Bytes::GIB;
        let fits = || disk("sdb", 16, OWN);
        let slot = || disk("sdb", 16, SLOT);
        let cases: [(Vec<Disk>, Wanted, bool); 7] = [
            (vec![fits()], wanted(OWN, Some(gib)), true),
            (vec![fits()], wanted(OWN, Some(Bytes::MIB)), true),
            (
                vec![fits()],
                wanted(OWN, Some(Bytes::new(gib.get() + 1))),
                false,
            ),
            (vec![fits(), disk("sdc", 32, OWN)], wanted(OWN, None), false),
            (vec![slot()], wanted(SLOT, Some(gib)), true),
            (vec![slot()], wanted(SLOT, Some(Bytes::MIB)), false),
            (
                vec![slot(), disk("sdc", 32, SLOT)],
                wanted(SLOT, Some(gib)),
                false,
            ),
        ];
        for (index, (disks, wanted, good)) in cases.into_iter().enumerate() {
            let host = FakeHost::default();
            host.set_disks(disks);
            assert_eq!(find_in(&host, wanted).await.is_ok(), good, "case {index}");
        }
    }
}
