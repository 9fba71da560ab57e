//! What the process remembers about VMs between RPCs, and the locks that order its work on them.
//!
//! Locks are taken in the order volume (by `service`) → VM → PVE node, each with a deadline. Everything remembered may be
//! lost at any time: it saves requests and avoids spoiled slots, it proves nothing.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pve_model::{KubeNode, PveNode, Slot, Uuid, VmId};
use pve_runtime::keyed_lock::{Guard, KeyedLock};
use tokio::time::Instant;

use crate::error::Error;
use crate::sightings::Sightings;
use crate::sizes::Sizes;
use crate::slots::Memory;
use crate::witness::Witness;

/// Notes beyond which all are dropped; VMIDs come and go with each rollout of a tenant's workers.
const MAX_NOTES: usize = 4096;
/// First pause after a guest did not let a disk go; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How long PVE may take to carry out a write whose answer was lost: its proxy gives up after 30 s (`AnyEvent.pm` 835) while
/// the work goes on, which waits 10 s for the config's lock and then plugs.
const LATE: Duration = Duration::from_mins(1);

/// What a [`NodeHints`] answers with.
pub type Hint<'a> = Pin<Box<dyn Future<Output = Option<Uuid>> + Send + 'a>>;

/// Turns the name of a Node, all that a node id of the former driver says, into a UUID. The answer is the tenant's
/// word: it says where to look, and the VM's config then proves the UUID.
pub trait NodeHints: Send + Sync + fmt::Debug {
    /// The system UUID that the tenant's API server has for the Node; none if it has none or can't be asked.
    fn system_uuid<'a>(&'a self, name: &'a KubeNode) -> Hint<'a>;
}

/// Without a tenant kubeconfig names lead nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHints;

impl NodeHints for NoHints {
    fn system_uuid<'a>(&'a self, _: &'a KubeNode) -> Hint<'a> {
        Box::pin(std::future::ready(None))
    }
}

/// Locks and memory of one region's VMs. Clones share them, so that a config that is read anew keeps them.
#[derive(Debug, Clone)]
pub struct Guests {
    /// Workers that were seen.
    pub sightings: Sightings,
    /// Sizes of disks that were seen.
    pub sizes: Sizes,
    /// What was seen of VMs and done to them, for when they can't be asked.
    pub witness: Witness,
    hints: Arc<dyn NodeHints>,
    vms: KeyedLock<VmId>,
    hosts: KeyedLock<PveNode>,
    notes: Arc<Mutex<HashMap<VmId, Note>>>,
}

/// What is remembered about one VM.
#[derive(Debug, Clone, Default)]
struct Note {
    uuid: Option<Uuid>,
    /// Process id of the QEMU that was looked at last.
    process: Option<u32>,
    memory: Memory,
    strikes: u32,
    paused_until: Option<Instant>,
    /// Disks whose attach was asked for and never answered.
    unanswered: HashMap<String, Unanswered>,
}

/// A write without answer.
#[derive(Debug, Clone)]
struct Unanswered {
    asked: Instant,
    /// Of the config for which it was meant; PVE refuses it for any other.
    digest: String,
    /// Whether the disk was attached by a later write, so that its being there says nothing of this one.
    repeated: bool,
}

impl Default for Guests {
    fn default() -> Self {
        Self::new(Arc::new(NoHints))
    }
}

impl Guests {
    /// Nothing is remembered, nothing locked.
    pub fn new(hints: Arc<dyn NodeHints>) -> Self {
        Self {
            sightings: Sightings::default(),
            witness: Witness::default(),
            sizes: Sizes::default(),
            hints,
            vms: KeyedLock::default(),
            hosts: KeyedLock::default(),
            notes: Arc::default(),
        }
    }

    /// What the tenant says is the UUID of its Node.
    pub async fn hint(&self, name: &KubeNode) -> Option<Uuid> {
        self.hints.system_uuid(name).await
    }

    /// Queues for a VM: ten volumes may be attached to one at a time.
    pub async fn lock_vm(&self, vmid: VmId, deadline: Instant) -> Result<Guard<VmId>, Error> {
        let busy = |_| {
            Error::Busy(
                "other volumes are being attached to the same Node or detached from it; it will be tried again",
            )
        };
        self.vms.lock_until(vmid, deadline).await.map_err(busy)
    }

    /// Queues for a host: PVE has 3 blocking workers on each, shared by all tenants, and a hotplug holds one.
    pub async fn lock_host(
        &self,
        host: &PveNode,
        deadline: Instant,
    ) -> Result<Guard<PveNode>, Error> {
        let busy = |_| {
            Error::Busy(
                "other volumes are being attached or detached on the same host; it will be tried again",
            )
        };
        self.hosts
            .lock_until(host.clone(), deadline)
            .await
            .map_err(busy)
    }

    /// What is remembered about the slots of the VM.
    pub fn memory(&self, vmid: VmId, uuid: &Uuid) -> Memory {
        self.with(vmid, uuid, |note| Memory {
            looked: note.process.is_some(),
            ..note.memory.clone()
        })
    }

    /// A slot was given.
    pub fn gave(&self, vmid: VmId, uuid: &Uuid, slot: Slot) {
        self.with(vmid, uuid, |note| note.memory.last = slot.index());
    }

    /// A slot is spoiled until QEMU is started anew.
    pub fn poison(&self, vmid: VmId, uuid: &Uuid, slots: impl IntoIterator<Item = Slot>) {
        self.with(vmid, uuid, |note| note.memory.poisoned.extend(slots));
    }

    /// QEMU was looked at: another process than before knows nothing of old left-overs, and an orphan that it has let
    /// go of is none any more.
    pub fn saw(&self, vmid: VmId, uuid: &Uuid, process: Option<u32>, devices: &BTreeSet<Slot>) {
        self.with(vmid, uuid, |note| {
            if process.is_none() || note.process.is_some_and(|before| Some(before) != process) {
                note.memory.poisoned = BTreeSet::new();
                note.memory.orphans = BTreeSet::new();
            }
            note.memory.orphans.retain(|slot| devices.contains(slot));
            note.process = process;
        });
    }

    /// QEMU has disks in these slots that the config does not explain.
    pub fn orphaned(&self, vmid: VmId, uuid: &Uuid, slots: impl IntoIterator<Item = Slot>) {
        self.with(vmid, uuid, |note| note.memory.orphans.extend(slots));
    }

    /// The config that was read with them was older than they were.
    pub fn explained(&self, vmid: VmId, uuid: &Uuid, slots: impl IntoIterator<Item = Slot>) {
        self.with(vmid, uuid, |note| {
            for slot in slots {
                note.memory.orphans.remove(&slot);
            }
        });
    }

    /// An attach of the disk was asked for, and PVE did not say what came of it.
    pub fn unanswered(&self, vmid: VmId, uuid: &Uuid, volid: String, digest: &str) {
        let write = Unanswered {
            asked: Instant::now(),
            digest: digest.to_owned(),
            repeated: false,
        };
        self.with(vmid, uuid, |note| {
            note.unanswered
                .retain(|_, write| write.asked.elapsed() < LATE);
            note.unanswered.insert(volid, write);
        });
    }

    /// The attach was asked for again, and answered.
    pub fn repeated(&self, vmid: VmId, uuid: &Uuid, volid: &str) {
        self.with(vmid, uuid, |note| {
            if let Some(write) = note.unanswered.get_mut(volid) {
                write.repeated = true;
            }
        });
    }

    /// The disk is there: an attach without answer that was not repeated is what has put it there.
    pub fn found(&self, vmid: VmId, uuid: &Uuid, volid: &str) {
        self.with(vmid, uuid, |note| {
            if note.unanswered.get(volid).is_some_and(|w| !w.repeated) {
                note.unanswered.remove(volid);
            }
        });
    }

    /// Whether PVE may attach the disk yet to a VM whose config has that digest, although nothing is seen of it. The digest is
    /// of the text: a config that is as it was before takes what was meant for it then.
    pub fn may_come(&self, vmid: VmId, uuid: &Uuid, volid: &str, digest: &str) -> bool {
        self.with(vmid, uuid, |note| {
            let write = note.unanswered.get(volid);
            write.is_some_and(|write| write.asked.elapsed() < LATE && write.digest == digest)
        })
    }

    /// The guest did not let a disk go: the next tries have to wait.
    pub fn strike(&self, vmid: VmId, uuid: &Uuid) {
        self.with(vmid, uuid, |note| {
            let pause = FIRST_PAUSE
                .saturating_mul(1 << note.strikes.min(6))
                .min(LONGEST_PAUSE);
            note.strikes = note.strikes.saturating_add(1);
            note.paused_until = Some(Instant::now() + pause);
        });
    }

    /// The guest let a disk go.
    pub fn forgive(&self, vmid: VmId, uuid: &Uuid) {
        self.with(vmid, uuid, |note| {
            note.strikes = 0;
            note.paused_until = None;
        });
    }

    /// Whether the guest has to be left in peace for now.
    pub fn paused(&self, vmid: VmId, uuid: &Uuid) -> bool {
        self.with(vmid, uuid, |note| {
            note.paused_until
                .is_some_and(|until| until > Instant::now())
        })
    }

    fn with<T>(&self, vmid: VmId, uuid: &Uuid, act: impl FnOnce(&mut Note) -> T) -> T {
        let mut notes = self.notes();
        if notes.len() >= MAX_NOTES && !notes.contains_key(&vmid) {
            notes.clear();
        }
        let note = notes.entry(vmid).or_default();
        // A VMID is reused within minutes.
        if note.uuid.as_ref() != Some(uuid) {
            *note = Note {
                uuid: Some(uuid.clone()),
                ..Note::default()
            };
        }
        act(note)
    }

    fn notes(&self) -> MutexGuard<'_, HashMap<VmId, Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn vm() -> (VmId, Uuid) {
        (
            "104".parse().unwrap(),
            "abcdef00-1111-2222-3333-444455556666".parse().unwrap(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_attach_without_answer_may_come_for_a_minute_while_the_config_is_as_it_was() {
        let (vmid, uuid) = vm();
        let guests = Guests::default();
        let may_come = |volid| guests.may_come(vmid, &uuid, volid, "d1");
        guests.unanswered(vmid, &uuid, "s:vm-9-a".to_owned(), "d1");
        assert!(may_come("s:vm-9-a") && !may_come("s:vm-9-b"));
        assert!(!guests.may_come(vmid, &uuid, "s:vm-9-a", "d2"));
        guests.repeated(vmid, &uuid, "s:vm-9-a");
        guests.found(vmid, &uuid, "s:vm-9-a");
        advance(Duration::from_secs(59)).await;
        assert!(may_come("s:vm-9-a"));
        advance(Duration::from_secs(2)).await;
        assert!(!may_come("s:vm-9-a"));
        guests.unanswered(vmid, &uuid, "s:vm-9-a".to_owned(), "d1");
        guests.found(vmid, &uuid, "s:vm-9-a");
        assert!(!may_come("s:vm-9-a"), "it has come");
    }

    #[test]
    fn a_spoiled_slot_is_remembered_until_qemu_is_another_process_or_the_vm_another_vm() {
        let (vmid, uuid) = vm();
        let slot: Slot = "scsi2".parse().unwrap();
        let poisoned =
            |guests: &Guests, uuid: &Uuid| guests.memory(vmid, uuid).poisoned.contains(&slot);
        let guests = Guests::default();
        let saw = |process| guests.saw(vmid, &uuid, process, &BTreeSet::new());
        saw(Some(4711));
        guests.poison(vmid, &uuid, [slot]);
        saw(Some(4711));
        assert!(poisoned(&guests, &uuid));
        saw(Some(4712));
        assert!(!poisoned(&guests, &uuid), "another process");
        guests.poison(vmid, &uuid, [slot]);
        saw(None);
        assert!(!poisoned(&guests, &uuid), "the VM was stopped");
        guests.poison(vmid, &uuid, [slot]);
        let reused: Uuid = "abcdef00-1111-2222-3333-444455550000".parse().unwrap();
        assert!(!poisoned(&guests, &reused), "another VM of the same VMID");
    }

    #[test]
    fn an_orphan_is_remembered_while_the_same_qemu_has_it() {
        let (vmid, uuid) = vm();
        let slot: Slot = "scsi2".parse().unwrap();
        let guests = Guests::default();
        let orphaned = |process, devices: &BTreeSet<Slot>| {
            guests.orphaned(vmid, &uuid, [slot]);
            guests.saw(vmid, &uuid, process, devices);
            guests.memory(vmid, &uuid).orphans.contains(&slot)
        };
        assert!(!guests.memory(vmid, &uuid).looked);
        assert!(orphaned(Some(4711), &[slot].into()));
        assert!(guests.memory(vmid, &uuid).looked);
        assert!(!orphaned(Some(4711), &[].into()), "QEMU let it go");
        assert!(!orphaned(Some(4712), &[slot].into()), "another process");
        guests.orphaned(vmid, &uuid, [slot]);
        guests.explained(vmid, &uuid, [slot]);
        assert_eq!(guests.memory(vmid, &uuid).orphans, [].into());
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_guest_is_left_in_peace_for_longer_each_time() {
        let (vmid, uuid) = vm();
        let guests = Guests::default();
        for seconds in [5, 10, 20, 40, 60, 60] {
            guests.strike(vmid, &uuid);
            advance(Duration::from_secs(seconds - 1)).await;
            assert!(guests.paused(vmid, &uuid), "{seconds}");
            advance(Duration::from_secs(1)).await;
            assert!(!guests.paused(vmid, &uuid), "{seconds}");
        }
        guests.strike(vmid, &uuid);
        guests.forgive(vmid, &uuid);
        assert!(!guests.paused(vmid, &uuid));
    }
}
