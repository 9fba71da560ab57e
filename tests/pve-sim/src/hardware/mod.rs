//! What lies under the API: the bytes of volumes and the devices that guests see. Must not know PVE's rules.

mod guest_tree;
mod loop_device;

use std::fmt::Debug;

use crate::state::{Device, VmNumber};

pub(crate) use loop_device::LoopHardware;

/// A volume for the hardware: storage, PVE node (if local) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Backing {
    pub(crate) storage: String,
    pub(crate) node: Option<String>,
    pub(crate) name: String,
}

/// Storage and guests' disks. Errors are texts for the log: PVE would show what its tools say.
pub(crate) trait Hardware: Debug + Send + Sync {
    fn create(&self, backing: &Backing, bytes: u64) -> Result<(), String>;
    /// Makes sure that a volume of the scenario has bytes; those of an earlier run stay.
    fn adopt(&self, backing: &Backing, bytes: u64) -> Result<(), String>;
    fn resize(&self, backing: &Backing, bytes: u64) -> Result<(), String>;
    /// Deletes the bytes, in use or not.
    fn remove(&self, backing: &Backing) -> Result<(), String>;
    /// Deletes a thick volume: its bytes show up again in the next one of its place.
    fn recycle(&self, backing: &Backing) -> Result<(), String>;
    /// Copies one volume's bytes into another.
    fn copy(&self, from: &Backing, to: &Backing) -> Result<(), String>;
    fn rename(&self, from: &Backing, to: &Backing) -> Result<(), String>;
    /// Moves a plugged disk's bytes below the running guest.
    fn mirror(&self, vmid: VmNumber, slot: &str) -> Result<(), String>;
    /// The machine comes up, with this SMBIOS uuid.
    fn boot(&self, vmid: VmNumber, uuid: &str) -> Result<(), String>;
    /// Gives the disk to the guest.
    fn plug(
        &self,
        vmid: VmNumber,
        slot: &str,
        device: &Device,
        backing: &Backing,
    ) -> Result<(), String>;
    /// Takes the disk away from the guest, used or not.
    fn unplug(&self, vmid: VmNumber, slot: &str);
    /// Tells the guest a new size.
    fn grow(&self, vmid: VmNumber, slot: &str, bytes: u64);
    /// Takes everything away that is still plugged.
    fn shutdown(&self);
}

/// No bytes and no devices: only the API is simulated.
#[derive(Debug, Default)]
pub(crate) struct MemoryHardware;

impl Hardware for MemoryHardware {
    fn create(&self, _: &Backing, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn adopt(&self, _: &Backing, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn resize(&self, _: &Backing, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn remove(&self, _: &Backing) -> Result<(), String> {
        Ok(())
    }

    fn recycle(&self, _: &Backing) -> Result<(), String> {
        Ok(())
    }

    fn copy(&self, _: &Backing, _: &Backing) -> Result<(), String> {
        Ok(())
    }

    fn rename(&self, _: &Backing, _: &Backing) -> Result<(), String> {
        Ok(())
    }

    fn mirror(&self, _: VmNumber, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn boot(&self, _: VmNumber, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn plug(&self, _: VmNumber, _: &str, _: &Device, _: &Backing) -> Result<(), String> {
        Ok(())
    }

    fn unplug(&self, _: VmNumber, _: &str) {}

    fn grow(&self, _: VmNumber, _: &str, _: u64) {}

    fn shutdown(&self) {}
}
