//! How often each Node was changed, as a watch sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use tokio::task::JoinHandle;

use super::CcmWorld;

/// Follows the Nodes. Dropped, it ends.
#[derive(Debug)]
pub struct Changes {
    seen: Arc<Mutex<BTreeMap<String, u32>>>,
    task: JoinHandle<()>,
}

impl CcmWorld {
    /// Counts changes of Nodes from now on. There is none yet.
    pub async fn record_changes(&self) -> Result<Changes> {
        let seen = Arc::default();
        let nodes = self.nodes();
        let mut events = nodes
            .watch_metadata(&WatchParams::default().timeout(290), "0")
            .await?
            .boxed();
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                while let Some(Ok(event)) = events.next().await {
                    note(&seen, event);
                }
            }
        });
        Ok(Changes { seen, task })
    }
}

fn note(seen: &Mutex<BTreeMap<String, u32>>, event: WatchEvent<PartialObjectMeta<Node>>) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        WatchEvent::Added(node) => {
            seen.insert(node.metadata.name.unwrap_or_default(), 0);
        }
        WatchEvent::Modified(node) => {
            *seen
                .entry(node.metadata.name.unwrap_or_default())
                .or_default() += 1;
        }
        _ => {}
    }
}

impl Changes {
    /// How often each Node was changed.
    pub fn of_nodes(&self) -> BTreeMap<String, u32> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    /// Fails unless the first so many Nodes were changed that often each, and no other was.
    pub fn every_node_was_changed(&self, times: u32, first: usize) -> Result<()> {
        for (index, (name, changed)) in self.of_nodes().into_iter().enumerate() {
            let wanted = if index < first { times } else { 0 };
            ensure!(changed == wanted, "{name} was changed {changed} times");
        }
        Ok(())
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.task.abort();
    }
}
