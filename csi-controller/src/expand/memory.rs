//! Which VM had a volume last, and whether growing it was left half-way. May be lost at any time: it saves requests, and
//! is proved before it counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pve_model::VolumeId;

use crate::vm::Wanted;

/// Volumes that are kept in mind; with more of them, all are forgotten.
const MOST: usize = 16_384;

/// What is remembered of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The VM that had it.
    pub holder: Wanted,
    /// Whether the last growth may have been left half-way.
    pub doubtful: bool,
}

/// The notes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<HashMap<VolumeId, Note>>>);

impl Memory {
    /// The volume was seen in that VM.
    pub fn held(&self, volume: &VolumeId, holder: Wanted) {
        let mut notes = self.notes();
        let doubtful = notes.get(volume).is_some_and(|note| note.doubtful);
        if notes.len() >= MOST && !notes.contains_key(volume) {
            notes.clear();
        }
        notes.insert(volume.clone(), Note { holder, doubtful });
    }

    /// How far growing it has come is not known, or is known again.
    pub fn doubt(&self, volume: &VolumeId, doubtful: bool) {
        if let Some(note) = self.notes().get_mut(volume) {
            note.doubtful = doubtful;
        }
    }

    /// No VM has it, as far as is known.
    pub fn released(&self, volume: &VolumeId) {
        self.notes().remove(volume);
    }

    /// What is remembered.
    pub fn of(&self, volume: &VolumeId) -> Option<Note> {
        self.notes().get(volume).cloned()
    }

    fn notes(&self) -> MutexGuard<'_, HashMap<VolumeId, Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(vmid: u32) -> Wanted {
        Wanted {
            uuid: "abcdef00-1111-2222-3333-444455556666".parse().unwrap(),
            vmid: vmid.try_into().ok(),
        }
    }

    #[test]
    fn a_doubt_lasts_until_it_is_settled_or_the_volume_is_detached() {
        let memory = Memory::default();
        let volume: VolumeId = "r1//shared/vm-9999-a".parse().unwrap();
        memory.doubt(&volume, true);
        assert_eq!(memory.of(&volume), None);
        memory.held(&volume, holder(101));
        memory.clone().doubt(&volume, true);
        memory.held(&volume, holder(102));
        let note = memory.of(&volume).unwrap();
        assert_eq!((note.holder, note.doubtful), (holder(102), true));
        memory.doubt(&volume, false);
        assert!(!memory.of(&volume).unwrap().doubtful);
        memory.released(&volume);
        assert_eq!(memory.of(&volume), None);
    }

    #[test]
    fn what_is_kept_in_mind_has_a_bound() {
        let memory = Memory::default();
        for n in 0..=MOST {
            let volume = format!("r1//shared/vm-9999-{n}").parse().unwrap();
            memory.held(&volume, holder(101));
        }
        assert_eq!(memory.notes().len(), 1);
    }
}
