//! What the tenant is told of a cause.

use super::{Exhausted, Foreign};

impl Foreign {
    pub(super) const fn tenant(self) -> &'static str {
        match self {
            Self::Region => "the volume belongs to a region that is not this cluster's",
            Self::Storage => "the volume lies on a storage that is not this cluster's",
            Self::PveNode => "the volume lies on a host that is not this cluster's",
            Self::Owner => "the volume belongs to someone else",
        }
    }
}

impl Exhausted {
    pub(super) const fn tenant(self) -> &'static str {
        match self {
            Self::Space => "not enough free space on the storage there",
            Self::Quota => "the quota of the storage is used up",
            Self::VolumeSize => "the volume is larger than the operator allows on this storage",
            Self::Storage => "the storage is not available on the hosts that were asked for",
            Self::Slots => "the Node has no free slot for another volume",
        }
    }
}
