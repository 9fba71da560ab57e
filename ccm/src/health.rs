//! `/readyz`: were Nodes and VMs seen?

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pve_runtime::admin::Ready;
use tokio::sync::watch;

use crate::engine::Cluster;
use crate::inventory::RegionView;
use crate::nodes::Nodes;

/// Whether the program can do its work. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    waits: Option<&'static str>,
    stands_by: bool,
    views: Vec<watch::Receiver<RegionView>>,
    nodes: Option<Nodes>,
}

impl Health {
    /// What the program waits for.
    pub fn waits_for(&self, what: Option<&'static str>) {
        self.state().waits = what;
    }

    /// Whether another process is the active one: this one is ready to follow it.
    pub fn stands_by(&self, does: bool) {
        self.state().stands_by = does;
    }

    /// The answer of `/readyz`: Nodes and VMs were seen, the latter within three periods.
    pub fn ready(&self, period: Duration) -> Ready {
        let health = self.clone();
        Arc::new(move || health.answer(period))
    }

    fn answer(&self, period: Duration) -> Result<(), String> {
        let state = self.state();
        if let Some(what) = state.waits {
            return Err(format!("waiting for {what}"));
        }
        if state.stands_by {
            return Ok(());
        }
        if !state.nodes.as_ref().is_some_and(Nodes::are_listed) {
            return Err("the tenant's Nodes have not been listed yet".to_owned());
        }
        for view in &state.views {
            let view = view.borrow();
            let seen = view.snapshot.as_ref().map(|snapshot| snapshot.asked);
            if view.failing || seen.is_none_or(|seen| seen.elapsed() > period * 3) {
                return Err(format!(
                    "region {}: the guests can't be listed",
                    view.region
                ));
            }
        }
        Ok(())
    }

    /// Has the Nodes looked at.
    pub fn looks_at_nodes(&self, nodes: &Nodes) {
        self.state().nodes = Some(nodes.clone());
    }

    /// Has these PVE clusters looked at, and no others any more.
    pub fn looks_at(&self, clusters: &[Cluster]) {
        let views = clusters.iter().map(|cluster| cluster.view.clone());
        self.state().views = views.collect();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
