//! What this process knows of the disks in VMs, for when a host can't be asked: PVE proxies every question about a VM to
//! the host that has it, so that a dead host makes all its VMs possible holders of every shared volume.
//!
//! **Guarantees:** a VM is called no holder only if it was read without the volume, or the volume was made by this process;
//! and in both cases only if this process has not begun an attach of the volume to it since. An attach counts from before
//! it is asked for until it was seen to be undone.
//! **Assumptions:** no other hands attach the volume ([0007](../../docs/adr/0007-one-active-controller.md)), and none roll a
//! VM back to a snapshot that holds it: a VM that has snapshots counts only as far as it never had the volume.
//! Nothing survives a restart, and whatever is forgotten makes a VM a possible holder again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pve_client::{VmEntry, VmPending};
use pve_model::{PveNode, Uuid, VmId};
use tokio::time::{Duration, Instant};

/// VMs, disks in them and attaches that are kept in mind, some 100 bytes each; beyond it all is forgotten.
const MOST: usize = if cfg!(test) { 512 } else { 16_384 };
/// Volumes of which is known that this process made them; beyond it the oldest are forgotten.
const MOST_MADE: usize = if cfg!(test) { 256 } else { 8_192 };
/// How long PVE may take to carry out a write whose answer was lost (`guests.rs`), by this process or the one before it.
const LATE: Duration = Duration::from_mins(1);

/// What is known of one region's VMs. Clones share it.
#[derive(Debug, Clone)]
pub struct Witness(Arc<Mutex<Memory>>);

#[derive(Debug)]
struct Memory {
    vms: BTreeMap<VmId, Seen>,
    attaches: BTreeMap<String, BTreeMap<VmId, Attach>>,
    made: BTreeMap<String, Instant>,
    silent: BTreeMap<PveNode, Silence>,
    /// What was asked for before that may still take place unseen.
    blank_since: Instant,
}

/// A VM as it was last read.
#[derive(Debug)]
struct Seen {
    asked: Instant,
    name: Option<String>,
    uuid: Option<Uuid>,
    disks: BTreeSet<String>,
    snapshots: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attach {
    /// Asked for at that time, and not seen to be undone.
    Begun(Instant),
    /// The VM had the volume once: a snapshot may hold it.
    Undone,
}

/// A host that did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// Since when this process knows.
    pub since: Instant,
    /// When it was last asked in vain.
    pub asked: Instant,
}

/// Why a VM is no holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// It was read at that time without the volume, and this process did not attach it there since.
    Read(Instant),
    /// This process made the volume and never attached it there.
    Made,
}

/// Why a VM may be a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// This process attached the volume to it, or tried to.
    Attached,
    /// It had the volume when it was last read.
    Held,
    /// It has snapshots, and had the volume once or may have had it.
    Snapshots,
    /// Nothing is known.
    Unread,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attached => "this controller attached the volume to it",
            Self::Held => "it had the volume when it was last read",
            Self::Snapshots => "a snapshot of it may hold the volume",
            Self::Unread => "this controller has not seen what it has",
        })
    }
}

// === impl Witness ===

impl Default for Witness {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Memory::blank())))
    }
}

impl Witness {
    /// Forgets everything: what another process has asked for until now may still take place unseen.
    pub fn forget(&self) {
        *self.memory() = Memory::blank();
    }

    /// A VM was read; `asked` is from before the request.
    pub fn read(&self, guest: &VmEntry, pending: &VmPending, asked: Instant) {
        let seen = Seen {
            asked,
            name: guest.name.clone(),
            uuid: pending.smbios_uuid(),
            disks: pending.disks(),
            // `parent` names the snapshot that the VM's state is based on (`AbstractConfig.pm`, snapshot_create).
            snapshots: pending.current("parent").is_some(),
        };
        self.memory().saw(guest.vmid, seen);
    }

    /// This process made the volume: nobody has it.
    pub fn made(&self, volid: String) {
        let mut memory = self.memory();
        memory.made.insert(volid, Instant::now());
        if memory.made.len() > MOST_MADE {
            let oldest = memory.made.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(volid, _)| volid.clone());
            oldest.map(|volid| memory.made.remove(&volid));
        }
    }

    /// PVE is about to be told to attach the volume to the VM.
    pub fn attaching(&self, volid: String, vmid: VmId) {
        let mut memory = self.memory();
        let begun = Attach::Begun(Instant::now());
        memory
            .attaches
            .entry(volid)
            .or_default()
            .insert(vmid, begun);
        memory.bound();
    }

    /// The VM was seen not to have the volume, and no attach is under way.
    pub fn detached(&self, volid: &str, vmid: VmId) {
        let mut memory = self.memory();
        if let Some(seen) = memory.vms.get_mut(&vmid) {
            seen.disks.remove(volid);
        }
        memory.undo(volid, vmid);
    }

    /// The volume does not exist any more. Its name may come back, and a config that names it still would then name the
    /// new one: what was not seen to be undone stays in mind.
    pub fn removed(&self, volid: &str) {
        let mut memory = self.memory();
        memory.made.remove(volid);
        if let Some(vms) = memory.attaches.get_mut(volid) {
            vms.retain(|_, attach| *attach != Attach::Undone);
        }
        memory.attaches.retain(|_, vms| !vms.is_empty());
    }

    /// The VM was proved not to exist any more.
    pub fn gone(&self, vmid: VmId) {
        let mut memory = self.memory();
        memory.vms.remove(&vmid);
        for attaches in memory.attaches.values_mut() {
            attaches.remove(&vmid);
        }
    }

    /// The host did not answer.
    pub fn silent(&self, host: &PveNode) {
        let asked = Instant::now();
        let first = Silence {
            since: asked,
            asked,
        };
        let mut memory = self.memory();
        if memory.silent.len() >= MOST {
            memory.silent.clear();
        }
        memory.silent.entry(host.clone()).or_insert(first).asked = asked;
    }

    /// The host answered. True if it did not before.
    pub fn answered(&self, host: &PveNode) -> bool {
        self.memory().silent.remove(host).is_some()
    }

    /// Whether the host did not answer when it was last asked.
    pub fn silence(&self, host: &PveNode) -> Option<Silence> {
        self.memory().silent.get(host).copied()
    }

    /// The identity that the VM had when it was last read.
    pub fn uuid(&self, vmid: VmId) -> Option<Uuid> {
        self.memory().vms.get(&vmid)?.uuid.clone()
    }

    /// Whether the VM can't have the volume, although it can't be read now.
    pub fn excludes(&self, volid: &str, guest: &VmEntry) -> Result<Proof, Doubt> {
        self.memory().excludes(volid, guest)
    }

    /// Disks that more than one VM had when they were read, all since `since`.
    pub fn in_two(&self, since: Instant) -> Vec<(String, Vec<VmId>)> {
        self.memory().in_two(since)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Memory ===

impl Memory {
    fn blank() -> Self {
        Self {
            vms: BTreeMap::new(),
            attaches: BTreeMap::new(),
            made: BTreeMap::new(),
            silent: BTreeMap::new(),
            blank_since: Instant::now(),
        }
    }

    fn saw(&mut self, vmid: VmId, seen: Seen) {
        let settled = |attach: &Attach| match attach {
            Attach::Begun(at) => seen.asked > *at + LATE,
            Attach::Undone => false,
        };
        let undone: Vec<String> = self
            .attaches
            .iter()
            .filter(|(volid, vms)| {
                vms.get(&vmid).is_some_and(settled) && !seen.disks.contains(*volid)
            })
            .map(|(volid, _)| volid.clone())
            .collect();
        let older = |known: &Seen| known.asked <= seen.asked;
        if self.vms.get(&vmid).is_none_or(older) {
            self.vms.insert(vmid, seen);
        }
        for volid in undone {
            self.undo(&volid, vmid);
        }
        self.bound();
    }

    /// Remembers that the VM had the volume as long as a snapshot may say so.
    fn undo(&mut self, volid: &str, vmid: VmId) {
        let Some(vms) = self.attaches.get_mut(volid) else {
            return;
        };
        if self.vms.get(&vmid).is_some_and(|seen| !seen.snapshots) {
            vms.remove(&vmid);
        } else if let Some(attach) = vms.get_mut(&vmid) {
            *attach = Attach::Undone;
        }
        if vms.is_empty() {
            self.attaches.remove(volid);
        }
    }

    fn excludes(&self, volid: &str, guest: &VmEntry) -> Result<Proof, Doubt> {
        let attach = self
            .attaches
            .get(volid)
            .and_then(|vms| vms.get(&guest.vmid));
        if let Some(Attach::Begun(_)) = attach {
            return Err(Doubt::Attached);
        }
        let made = self.made.contains_key(volid) && attach.is_none();
        let seen = self.vms.get(&guest.vmid);
        if seen.is_some_and(|seen| seen.disks.contains(volid)) {
            return Err(Doubt::Held);
        }
        match seen.filter(|seen| self.counts(seen, guest)) {
            Some(seen) if !seen.snapshots => Ok(Proof::Read(seen.asked)),
            _ if made => Ok(Proof::Made),
            Some(_) => Err(Doubt::Snapshots),
            None => Err(Doubt::Unread),
        }
    }

    /// Whether what was read is of the VM that is listed, and from after the time in which writes of before may come late.
    fn counts(&self, seen: &Seen, guest: &VmEntry) -> bool {
        // The name is missing for minutes after a host died, which is no other VM.
        let same = match (&seen.name, &guest.name) {
            (Some(then), Some(now)) => then == now,
            _ => true,
        };
        same && seen.asked >= self.blank_since + LATE
    }

    fn in_two(&self, since: Instant) -> Vec<(String, Vec<VmId>)> {
        let mut having: BTreeMap<&str, Vec<VmId>> = BTreeMap::new();
        for (vmid, seen) in self.vms.iter().filter(|(_, seen)| seen.asked >= since) {
            for volid in &seen.disks {
                having.entry(volid).or_default().push(*vmid);
            }
        }
        having.retain(|_, vms| vms.len() > 1);
        let owned = |(volid, vms): (&str, Vec<VmId>)| (volid.to_owned(), vms);
        having.into_iter().map(owned).collect()
    }

    fn bound(&mut self) {
        let disks: usize = self.vms.values().map(|seen| 1 + seen.disks.len()).sum();
        let attaches: usize = self.attaches.values().map(BTreeMap::len).sum();
        if disks + attaches > MOST {
            tracing::warn!(
                "too many VMs and disks to keep in mind; what is known of them is forgotten"
            );
            let silent = std::mem::take(&mut self.silent);
            *self = Self {
                silent,
                ..Self::blank()
            };
        }
    }
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
