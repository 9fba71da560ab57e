//! Numbers for the operator.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A kind of write to a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Addresses.
    Status,
    /// Labels, annotations, provider id.
    Object,
    /// The same with the taint of initialisation.
    Initialise,
    /// The taint of a VM that is shut down.
    Taint,
    /// The end of a Node.
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    what: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kept {
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// All numbers of the program. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    writes: Family<WriteLabels, Counter>,
    kept: Family<Kept, Counter>,
    nodes: Family<Kind, Gauge>,
    leading: Gauge,
}

impl Metrics {
    /// Numbers that `registry` shows, under its prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("node_writes", "Writes to Nodes", metrics.writes.clone());
        registry.register(
            "nodes_kept",
            "Nodes without a healthy VM that were looked at and kept, by reason",
            metrics.kept.clone(),
        );
        registry.register(
            "nodes",
            "Nodes, by what they are to this program",
            metrics.nodes.clone(),
        );
        registry.register(
            "leading",
            "1 while this process is the active one",
            metrics.leading.clone(),
        );
        metrics
    }

    /// A write and how it ended.
    pub fn write(&self, what: Write, well: bool) {
        let labels = WriteLabels {
            what: match what {
                Write::Status => "addresses",
                Write::Object => "labels",
                Write::Initialise => "initialise",
                Write::Taint => "shutdown",
                Write::Delete => "delete",
            },
            outcome: if well { "ok" } else { "failed" },
        };
        self.writes.get_or_create(&labels).inc();
    }

    /// A Node was kept for want of proof.
    pub fn kept(&self, why: &'static str) {
        self.kept.get_or_create(&Kept { why }).inc();
    }

    /// How many Nodes there are of each kind.
    pub fn nodes(&self, counts: [(&'static str, usize); 4]) {
        for (kind, count) in counts {
            let gauge = self.nodes.get_or_create(&Kind { kind });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Whether this process is the active one.
    pub fn leading(&self, is: bool) {
        self.leading.set(i64::from(is));
    }
}
