//! What the operator states about hosts and VMs that can't be asked: `fences.yaml`, read again for each decision that needs
//! it. A file that is not right states nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use pve_model::Region;
use pve_runtime::config::{Fence, FenceFile, Fenced};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// How often statements decided, and how often their file could not be used. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct FenceMetrics {
    used: Family<Kind, Counter>,
    refused: Counter,
}

/// The operator's statements. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Fences(Arc<Source>);

#[derive(Debug, Default)]
struct Source {
    path: Option<PathBuf>,
    metrics: FenceMetrics,
    complaint: Mutex<Option<String>>,
}

impl FenceMetrics {
    /// Numbers that `registry` shows, under its prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "fence_uses",
            "Decisions that rest on a statement of the operator",
            metrics.used.clone(),
        );
        registry.register(
            "fence_file_errors",
            "Readings of the fence file that failed, so that it stated nothing",
            metrics.refused.clone(),
        );
        metrics
    }
}

impl Fences {
    /// Those of a file, which need not be there.
    pub fn at(path: PathBuf, metrics: FenceMetrics) -> Self {
        Self(Arc::new(Source {
            path: Some(path),
            metrics,
            complaint: Mutex::default(),
        }))
    }

    /// The statement about a host or a VM that holds now.
    pub fn find(&self, region: &Region, what: &Fenced) -> Option<Fence> {
        self.file().find(region, what, Timestamp::now()).cloned()
    }

    /// A decision rests on the statement: `decision` says which.
    pub fn used(&self, fence: &Fence, decision: &str) {
        let kind = match fence.what {
            Fenced::Host(_) => "host",
            Fenced::Gone { .. } => "gone",
        };
        self.0.metrics.used.get_or_create(&Kind { kind }).inc();
        tracing::warn!(
            region = %fence.region,
            fenced = %fence.what,
            by = fence.by,
            reason = fence.reason.as_deref().unwrap_or("none given"),
            from = %fence.from,
            until = %fence.until,
            decision,
            "the operator's fence decides"
        );
    }

    fn file(&self) -> FenceFile {
        let Some(path) = &self.0.path else {
            return FenceFile::default();
        };
        let (file, complaint) = match FenceFile::load(path) {
            Ok(file) => (file, None),
            Err(error) => (FenceFile::default(), Some(error.to_string())),
        };
        if complaint.is_some() {
            self.0.metrics.refused.inc();
        }
        let mut last = self
            .0
            .complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *last != complaint {
            if let Some(error) = &complaint {
                tracing::error!(%error, "the fence file can't be used: nothing counts as fenced");
            }
            *last = complaint;
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn fence(what: &str) -> Fence {
        let now = Timestamp::now();
        Fence {
            region: "r1".parse().unwrap(),
            what: what.parse().unwrap(),
            from: now,
            until: now + 1.hour(),
            by: "alice".to_owned(),
            reason: None,
        }
    }

    #[test]
    fn the_file_is_read_again_each_time_and_a_broken_one_states_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fences.yaml");
        let mut registry = Registry::with_prefix("proxmox_csi");
        let fences = Fences::at(path.clone(), FenceMetrics::register(&mut registry));
        let (region, host) = ("r1".parse().unwrap(), "pve3".parse().unwrap());
        let found = || fences.find(&region, &host);
        assert_eq!(found(), None, "no file");
        let fences_of = |what| FenceFile {
            fences: vec![fence(what)],
        };
        std::fs::write(&path, fences_of("pve3").to_yaml()).unwrap();
        let fence = found().unwrap();
        fences.used(&fence, "test");
        std::fs::write(&path, "fences: 1").unwrap();
        assert_eq!(found(), None, "broken");
        assert_eq!(found(), None, "broken still");
        std::fs::write(&path, fences_of("pve2").to_yaml()).unwrap();
        assert_eq!(found(), None, "of another host");
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "proxmox_csi_fence_uses_total{kind=\"host\"} 1",
            "proxmox_csi_fence_file_errors_total 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
