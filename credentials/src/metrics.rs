//! Numbers of the program.

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct From {
    source: &'static str,
}

/// What came of the sources. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    changes: Family<From, Counter>,
    since: Family<From, Gauge>,
    refusals: Family<From, Counter>,
    refused: Family<From, Gauge>,
}

impl Metrics {
    /// Numbers that `registry` shows, under its prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "changes",
            "Generations of files that came into force",
            metrics.changes.clone(),
        );
        registry.register(
            "in_force_since_seconds",
            "When the files in force were written, as Unix time",
            metrics.since.clone(),
        );
        registry.register(
            "refusals",
            "Changes of a source that were refused or could not be written",
            metrics.refusals.clone(),
        );
        registry.register(
            "refused",
            "Whether the source as it is now is refused, so that former files are in force",
            metrics.refused.clone(),
        );
        metrics
    }

    pub(crate) fn in_force(&self, source: &'static str) {
        let from = From { source };
        self.changes.get_or_create(&from).inc();
        let now = Timestamp::now().as_second();
        self.since.get_or_create(&from).set(now);
    }

    pub(crate) fn fine(&self, source: &'static str) {
        self.refused.get_or_create(&From { source }).set(0);
    }

    pub(crate) fn refused(&self, source: &'static str) {
        let from = From { source };
        self.refusals.get_or_create(&from).inc();
        self.refused.get_or_create(&from).set(1);
    }
}
