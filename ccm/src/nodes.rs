//! The Nodes of the tenant cluster as they were last seen, and which of them changed since somebody looked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use pve_kube::Tenant;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::node::{MOST_NAME, NodeView};
use crate::said::Said;

/// Most Nodes that are looked after. Kubernetes itself is made for 5000.
pub const MOST_NODES: usize = 20_000;
/// Most memory that all of them take, about. Those of kubelets take 2 KiB.
const MOST_BYTES: usize = 64 << 20;
/// Names of Nodes that are not looked after, as far as they are counted.
const MOST_LEFT_OUT: usize = 1000;
/// Nodes of one page of a list: a page of the largest that etcd takes is below the client's bound on answers.
const PAGE: u32 = 40;
/// After an error of the watch.
const AGAIN: Duration = Duration::from_secs(3);

/// The Nodes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Nodes(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    said: Said,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, Arc<NodeView>>,
    dirty: BTreeSet<String>,
    listed: bool,
    bytes: usize,
    left_out: BTreeSet<String>,
}

impl Nodes {
    /// All of them.
    pub fn all(&self) -> Vec<Arc<NodeView>> {
        self.state().nodes.values().cloned().collect()
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<Arc<NodeView>> {
        self.state().nodes.get(name).cloned()
    }

    /// The names of those that changed since the last call.
    pub fn take_changed(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state().dirty)
    }

    /// Wakes at each change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    /// Whether all of them were seen once.
    pub fn are_listed(&self) -> bool {
        self.state().listed
    }

    /// How many are not looked after, because there are too many or they are too large; of a thousand on, a thousand.
    pub fn left_out(&self) -> usize {
        self.state().left_out.len()
    }

    /// Takes note of a Node, as the API server answered to a write that was based on `before`. If the watch has told of a
    /// later one meanwhile, that one stays.
    pub fn see_written(&self, before: &NodeView, written: Node) {
        let mut state = self.state();
        let now = state.nodes.get(&before.name);
        if now.is_some_and(|now| now.uid == before.uid && now.version == before.version) {
            state.see(written);
            drop(state);
            self.0.changed.send_replace(());
        }
    }

    fn see(&self, node: Node) {
        self.state().see(node);
        self.0.changed.send_replace(());
    }

    /// Follows the tenant's API server until `stop`, with whatever client is in force.
    pub async fn follow(&self, tenant: &Tenant, stop: CancellationToken) {
        let mut changes = tenant.changes();
        loop {
            changes.mark_unchanged();
            let api: Api<Node> = Api::all(tenant.client());
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.changed() => tracing::info!("the Nodes are watched with the new kubeconfig"),
                () = self.watch(api) => {}
            }
        }
    }

    /// One watch; it begins anew by itself after an error.
    async fn watch(&self, api: Api<Node>) {
        let config = watcher::Config::default().page_size(PAGE);
        let mut events = std::pin::pin!(watcher(api, config));
        let mut listing = State::default();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listing = State::default(),
                Ok(Event::InitApply(node)) => listing.see(node),
                Ok(Event::InitDone) => {
                    self.state().replace(std::mem::take(&mut listing));
                    self.0.changed.send_replace(());
                    self.well();
                }
                Ok(Event::Apply(node)) => {
                    self.see(node);
                    self.well();
                }
                Ok(Event::Delete(node)) => {
                    self.state().forget(&node);
                    self.0.changed.send_replace(());
                }
                Err(error) => {
                    self.ill(&error);
                    sleep(AGAIN).await;
                }
            }
        }
    }

    fn well(&self) {
        if self.0.said.is_new(None) {
            tracing::info!("the tenant's Nodes can be watched again");
        }
    }

    /// The tenant's server may say anything: only the kind of error is logged.
    fn ill(&self, error: &watcher::Error) {
        let kind = match error {
            watcher::Error::InitialListFailed(_) => "they can't be listed",
            watcher::Error::WatchStartFailed(_) => "the watch does not begin",
            watcher::Error::WatchError(status) if status.code == 410 => return,
            watcher::Error::WatchError(_) => "the server ends the watch",
            watcher::Error::WatchFailed(_) => "the watch broke off",
            watcher::Error::NoResourceVersion => "the list has no version",
        };
        if self.0.said.is_new(Some(kind)) {
            tracing::warn!(kind, "the tenant's Nodes can't be watched");
        }
        tracing::debug!(%error, "watch of Nodes");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn see(&mut self, node: Node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let before = self.nodes.remove(&name);
        let bytes = self.bytes - before.as_ref().map_or(0, |view| view.bytes());
        let view = NodeView::read(node).ok().filter(|view| {
            let all = bytes + view.bytes();
            self.nodes.len() < MOST_NODES && all <= MOST_BYTES
        });
        let Some(view) = view else {
            self.bytes = bytes;
            self.dirty.remove(&name);
            if self.left_out.len() < MOST_LEFT_OUT && name.len() <= MOST_NAME {
                self.left_out.insert(name);
            }
            return;
        };
        self.bytes = bytes + view.bytes();
        self.left_out.remove(&name);
        let view = Arc::new(view);
        if before.as_ref() != Some(&view) {
            self.dirty.insert(name.clone());
        }
        self.nodes.insert(name, view);
    }

    fn forget(&mut self, node: &Node) {
        if let Some(name) = &node.metadata.name {
            let before = self.nodes.remove(name);
            self.bytes -= before.map_or(0, |view| view.bytes());
            self.dirty.remove(name);
            self.left_out.remove(name);
        }
    }

    fn replace(&mut self, new: Self) {
        let differs = |name: &&String| self.nodes.get(*name) != new.nodes.get(*name);
        let dirty: BTreeSet<String> = new.nodes.keys().filter(differs).cloned().collect();
        let before = std::mem::take(&mut self.dirty);
        let kept = before
            .into_iter()
            .filter(|name| new.nodes.contains_key(name));
        *self = Self {
            dirty: dirty.into_iter().chain(kept).collect(),
            listed: true,
            ..new
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, version: u32) -> Node {
        let metadata = json!({"name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string()});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn what_changed_is_told_once() {
        let nodes = Nodes::default();
        nodes.see(node("a", 1));
        nodes.see(node("b", 1));
        assert_eq!(nodes.take_changed().len(), 2);
        nodes.see(node("a", 1));
        assert!(nodes.take_changed().is_empty());
        nodes.see(node("b", 2));
        assert_eq!(nodes.take_changed(), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn a_new_list_replaces_all_and_tells_what_it_changed() {
        let mut state = State::default();
        for name in ["a", "b", "c"] {
            state.see(node(name, 1));
        }
        state.dirty = ["a".to_owned(), "c".to_owned()].into();
        let mut listing = State::default();
        listing.see(node("a", 1));
        listing.see(node("b", 2));
        state.replace(listing);
        assert!(state.listed);
        assert_eq!(state.nodes.len(), 2);
        let dirty: Vec<&str> = state.dirty.iter().map(String::as_str).collect();
        assert_eq!(dirty, ["a", "b"], "a was not looked at yet, b changed");
    }

    #[test]
    fn more_nodes_than_a_cluster_has_are_left_out() {
        let mut state = State::default();
        for index in 0..MOST_NODES + 5 {
            state.see(node(&format!("n{index}"), 1));
        }
        assert_eq!((state.nodes.len(), state.left_out.len()), (MOST_NODES, 5));
        state.see(node("n0", 2));
        assert_eq!(state.nodes["n0"].version, "2", "those that are known go on");
    }

    #[test]
    fn nodes_that_take_too_much_memory_together_are_left_out_and_come_in_when_there_is_room() {
        let mut state = State::default();
        let large = |index: usize| {
            let mut large = node(&format!("n{index}"), 1);
            let id = format!("proxmox://{}", "x".repeat(7 << 10));
            large.spec = serde_json::from_value(json!({ "providerID": id })).unwrap();
            large
        };
        for index in 0..MOST_NODES {
            state.see(large(index));
        }
        assert!(state.bytes <= MOST_BYTES);
        assert!(state.nodes.len() < MOST_NODES / 2);
        assert_eq!(state.left_out.len(), MOST_LEFT_OUT);
        assert!(!state.nodes.contains_key("n19999"));
        state.forget(&large(0));
        state.see(large(19_999));
        assert!(state.nodes.contains_key("n19999"));
        let all: usize = state.nodes.values().map(|view| view.bytes()).sum();
        assert_eq!(state.bytes, all);
    }

    #[test]
    fn the_answer_to_a_write_never_replaces_what_the_watch_told_since() {
        let nodes = Nodes::default();
        nodes.see(node("a", 7));
        let before = nodes.get("a").unwrap();
        nodes.see_written(&before, node("a", 8));
        assert_eq!(nodes.get("a").unwrap().version, "8");
        nodes.see(node("a", 12));
        nodes.see_written(&before, node("a", 9));
        assert_eq!(
            nodes.get("a").unwrap().version,
            "12",
            "a later one is known"
        );
        let before = nodes.get("a").unwrap();
        nodes.state().forget(&node("a", 13));
        nodes.see_written(&before, node("a", 13));
        assert!(nodes.get("a").is_none(), "it is gone");
    }
}
