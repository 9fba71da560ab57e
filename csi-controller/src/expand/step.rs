//! What a volume's two sizes say together, and the one next step that follows. Pure.
//!
//! PVE grows in three steps: the storage, QEMU, the config's `size=`, which is the size that was *asked for*. Any of them
//! may be the last that happened. Asked for the size that the storage has already, PVE does nothing, so that QEMU would
//! never be told: what stopped half-way is grown by one unit more.

use pve_model::{Bus, Bytes, DiskName, Slot};

use crate::slots::{Picture, Refusal, Row, Seat};
use crate::validate::SizeRange;

/// The unit of LVM's volumes, unless a volume group was made with another one.
const EXTENT: Bytes = Bytes::new(4 << 20);
/// The largest unit in common use, that of volume groups of old installers. A multiple of it is rounded by none.
const ROUND: Bytes = Bytes::new(32 << 20);

/// What is known of a volume's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sizes {
    /// `size=` of the drive: what QEMU was told last.
    pub(super) drive: Option<Bytes>,
    /// What the storage says; none: not looked yet.
    pub(super) storage: Option<Bytes>,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Read what the storage has.
    Look,
    /// Nothing is to be done: the real size.
    Done(Bytes),
    /// Ask PVE for this size.
    Grow(Bytes),
    /// No size above the present one is within the limit.
    Never,
}

/// Why a drive can't be resized now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unfit {
    /// The VM does not hold the volume.
    NotThere,
    /// An attach or detach waits for its end.
    Half,
    /// Nothing that waiting would change.
    Refused(Refusal),
}

/// The sizes that a disk of that name can have are multiples of this, as far as its name tells. Files have a suffix; they are
/// rounded to KiB, and PVE is told MiB.
pub(super) fn unit(disk: &DiskName) -> Bytes {
    if is_file(disk) { Bytes::MIB } else { EXTENT }
}

fn is_file(disk: &DiskName) -> bool {
    disk.format().is_some()
}

/// Whether a storage makes exactly that size out of it, so that what PVE has written into the config is what it has.
pub(super) fn is_exact(disk: &DiskName, size: Bytes) -> bool {
    is_file(disk) || size.round_up(ROUND) == Some(size)
}

/// The next step towards `wanted` with sizes in multiples of `unit`.
pub(super) fn step(wanted: &SizeRange, unit: Bytes, sizes: Sizes) -> Step {
    let Some(storage) = sizes.storage else {
        return match sizes.drive {
            Some(drive) if drive < wanted.least => grow(wanted, unit, drive),
            Some(_) | None => Step::Look,
        };
    };
    if storage >= wanted.least && sizes.drive == Some(storage) {
        return match wanted.most {
            Some(most) if storage > most => Step::Never,
            Some(_) | None => Step::Done(storage),
        };
    }
    grow(wanted, unit, storage)
}

/// The smallest size that is wanted and above the present one.
fn grow(wanted: &SizeRange, unit: Bytes, present: Bytes) -> Step {
    let more = present.checked_add(Bytes::new(1));
    let target = more
        .map(|more| more.max(wanted.wanted))
        .and_then(|size| size.round_up(unit))
        .filter(|size| size.to_i64().is_some());
    match target {
        Some(target) if wanted.most.is_none_or(|most| target <= most) => Step::Grow(target),
        Some(_) | None => Step::Never,
    }
}

/// A unit that explains why `asked` became `made`.
pub(super) fn larger_unit(unit: Bytes, asked: Bytes, made: Bytes) -> Bytes {
    let excess = made.saturating_sub(asked).get();
    let explains = excess
        .checked_add(1)
        .and_then(u64::checked_next_power_of_two);
    unit.max(Bytes::new(explains.unwrap_or_default()))
}

/// The drive of a VM that has the volume, alone, for good and not to boot from.
pub(super) fn drive<'a>(picture: &'a Picture, volid: &str) -> Result<(Slot, &'a Seat), Unfit> {
    let holding = picture.holding(volid);
    if let Some(row) = holding.iter().find(|row| picture.boot.contains(&row.slot)) {
        return Err(Unfit::Refused(Refusal::BootDisk(row.slot)));
    }
    let settled = |row: &Row| -> bool {
        let is = |seat: &Option<Seat>| seat.as_ref().is_some_and(|seat| seat.volid == volid);
        is(&row.now) && is(&row.next) && !row.changing
    };
    if !holding.iter().all(|row| settled(row)) {
        return Err(Unfit::Half);
    }
    match holding.as_slice() {
        [] => Err(Unfit::NotThere),
        [row] if row.slot.bus() != Bus::Scsi => Err(Unfit::Refused(Refusal::NotScsi(row.slot))),
        [row] => match &row.now {
            Some(seat) => Ok((row.slot, seat)),
            None => Err(Unfit::Half),
        },
        [first, second, ..] => Err(Unfit::Refused(Refusal::Twice(first.slot, second.slot))),
    }
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
