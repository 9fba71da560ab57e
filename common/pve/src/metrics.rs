//! What an operator can count. No label ever holds an id.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::request::Spec;

/// From a cached list (8 ms) to PVE's own time-out (30 s).
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// Tasks that this client starts; any other type is `other`.
const TASKS: [&str; 6] = [
    "qmconfig",
    "imgdel",
    "resize",
    "qmmove",
    "qmsnapshot",
    "qmdelsnapshot",
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    class: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RetryLabels {
    endpoint: &'static str,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TaskLabels {
    r#type: &'static str,
    outcome: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Metrics of the PVE client; one set serves all clients of a process.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Histograms<RequestLabels>,
    retries: Family<RetryLabels, Counter>,
    tasks: Histograms<TaskLabels>,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::new_with_constructor(histogram),
            retries: Family::default(),
            tasks: Family::new_with_constructor(histogram),
        }
    }
}

impl Metrics {
    /// A set that `registry` shows, under its prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self {
            requests,
            retries,
            tasks,
        } = metrics.clone();
        registry.register(
            "pve_request_seconds",
            "Requests to PVE, waits and repetitions included",
            requests,
        );
        registry.register("pve_retries", "Repeated attempts", retries);
        registry.register("pve_task_seconds", "Waits for PVE tasks", tasks);
        metrics
    }

    pub(crate) fn request(&self, spec: &'static Spec, outcome: &'static str, took: Duration) {
        let labels = RequestLabels {
            endpoint: spec.name,
            class: spec.class.label(),
            outcome,
        };
        self.requests
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn retry(&self, spec: &'static Spec, phase: &'static str) {
        let labels = RetryLabels {
            endpoint: spec.name,
            phase,
        };
        self.retries.get_or_create(&labels).inc();
    }

    pub(crate) fn task(&self, kind: &str, outcome: &'static str, took: Duration) {
        let known = TASKS.into_iter().find(|task| *task == kind);
        let labels = TaskLabels {
            r#type: known.unwrap_or("other"),
            outcome,
        };
        self.tasks
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ONCE, READ};
    use prometheus_client::encoding::text::encode;

    #[test]
    fn the_metrics_are_what_dashboards_are_made_for() {
        let mut registry = Registry::with_prefix("proxmox_csi");
        let metrics = Metrics::register(&mut registry);
        metrics.request(&READ, "ok", Duration::from_millis(7));
        metrics.retry(&ONCE, "not_sent");
        metrics.task("qmconfig", "ok", Duration::from_secs(1));
        metrics.task("UPID:pve1:x", "failed", Duration::from_secs(1));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "proxmox_csi_pve_request_seconds_count{endpoint=\"GET /read\",class=\"read\",outcome=\"ok\"} 1",
            "proxmox_csi_pve_retries_total{endpoint=\"POST /once\",phase=\"not_sent\"} 1",
            "proxmox_csi_pve_task_seconds_count{type=\"qmconfig\",outcome=\"ok\"} 1",
            "proxmox_csi_pve_task_seconds_count{type=\"other\",outcome=\"failed\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
