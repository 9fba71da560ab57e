//! How often policy said no: a tenant that tries doors shows here.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::error::{Error, Exhausted, Foreign, VmRefusal};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    why: &'static str,
}

/// Counts refusals by kind. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    counts: Family<Why, Counter>,
}

impl Refusals {
    /// Numbers that `registry` shows, under its prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let refusals = Self::default();
        registry.register(
            "refusals",
            "Requests that policy or their own form forbids",
            refusals.counts.clone(),
        );
        refusals
    }

    /// Counts the error if it is a refusal.
    pub fn count(&self, error: &Error) {
        if let Some(why) = error.refusal() {
            self.counts.get_or_create(&Why { why }).inc();
        }
    }
}

impl Error {
    /// What kind of refusal it is, if policy or the request is the cause and nothing was done: a closed set, for counting.
    pub const fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Invalid(_) | Self::OutOfRange(_) => Some("request"),
            Self::Foreign { why, .. } => Some(why.label()),
            Self::VmRefused { why, .. } => Some(why.label()),
            Self::Exhausted {
                why: Exhausted::Quota | Exhausted::VolumeSize,
                ..
            } => Some("quota"),
            Self::InUse(_) | Self::HeldBy { .. } => Some("in_use"),
            Self::WrongHost(_) => Some("wrong_host"),
            _ => None,
        }
    }
}

impl VmRefusal {
    const fn label(self) -> &'static str {
        match self {
            Self::Pool => "vm_pool",
            Self::Template => "vm_template",
            Self::Owner => "vm_owner",
            Self::Duplicate => "vm_duplicate",
            Self::PveNode => "vm_host",
        }
    }
}

impl Foreign {
    const fn label(self) -> &'static str {
        match self {
            Self::Region => "foreign_region",
            Self::Storage => "foreign_storage",
            Self::PveNode => "foreign_host",
            Self::Owner => "foreign_owner",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn what_policy_forbids_is_counted_and_what_failed_is_not() {
        let mut registry = Registry::with_prefix("proxmox_csi");
        let refusals = Refusals::register(&mut registry);
        let foreign = |why| Error::Foreign {
            volume: "r9//a/b".to_owned(),
            why,
        };
        let exhausted = |why| Error::Exhausted {
            why,
            detail: String::new(),
        };
        for error in [
            foreign(Foreign::Owner),
            foreign(Foreign::Owner),
            exhausted(Exhausted::Quota),
            exhausted(Exhausted::Space),
            Error::Internal(String::new()),
        ] {
            refusals.count(&error);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 2, "{text}");
        for line in [
            "proxmox_csi_refusals_total{why=\"foreign_owner\"} 2",
            "proxmox_csi_refusals_total{why=\"quota\"} 1",
        ] {
            assert!(lines.contains(&line), "{line} is not in\n{text}");
        }
    }
}
