//! The sizes of disks that this process has seen. A disk only grows, so that each is a least size; what is not known is
//! simply not told to the node plugin.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pve_model::Bytes;

/// Disks that are kept in mind; with more of them, all are forgotten.
const MOST: usize = 16_384;

/// Least sizes by PVE's whole name of the disk, in bytes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Sizes(Arc<Mutex<HashMap<String, Bytes>>>);

impl Sizes {
    /// The disk was seen with this size.
    pub fn saw(&self, volid: &str, size: Bytes) {
        let mut sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.len() >= MOST && !sizes.contains_key(volid) {
            sizes.clear();
        }
        sizes.insert(volid.to_owned(), size);
    }

    /// The disk does not exist any more; its name may come back.
    pub fn forget(&self, volid: &str) {
        let mut sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.remove(volid);
    }

    /// What the disk has at least.
    pub fn least(&self, volid: &str) -> Option<Bytes> {
        let sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.get(volid).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kept_until_the_disk_is_gone_and_have_a_bound() {
        let sizes = Sizes::default();
        sizes.saw("s:a", Bytes::MIB);
        sizes.clone().saw("s:a", Bytes::GIB);
        assert_eq!(sizes.least("s:a"), Some(Bytes::GIB));
        sizes.forget("s:a");
        assert_eq!(sizes.least("s:a"), None);
        for n in 0..=MOST {
            sizes.saw(&n.to_string(), Bytes::MIB);
        }
        assert_eq!(sizes.least("0"), None);
        assert_eq!(sizes.least(&MOST.to_string()), Some(Bytes::MIB));
    }
}
