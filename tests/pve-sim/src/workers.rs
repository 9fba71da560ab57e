//! The processes of pvedaemon: each PVE node has three, and a request that changes something, or asks QEMU or a storage, keeps one
//! busy to its end (`pvedaemon.pm`: `max_workers`). More requests than that wait, those of every client alike.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const PER_NODE: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<BTreeMap<String, Arc<Semaphore>>>);

impl Workers {
    /// Waits for a free worker of the node; it is free again when the place is dropped. `None` cannot be: the semaphores are
    /// never closed.
    pub(crate) async fn enter(&self, node: &str) -> Option<OwnedSemaphorePermit> {
        let places = {
            let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(PER_NODE));
            nodes.entry(node.to_owned()).or_insert_with(new).clone()
        };
        places.acquire_owned().await.ok()
    }
}
