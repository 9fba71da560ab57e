//! Requests and tasks that stand still until they are let go, so that a test acts in exactly that moment.

use tokio::sync::watch;

/// What stands still, and the signal that ends it.
#[derive(Debug)]
pub(crate) struct Holds {
    held: watch::Sender<Vec<String>>,
    released: watch::Sender<u64>,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            held: watch::Sender::new(Vec::new()),
            released: watch::Sender::new(0),
        }
    }
}

impl Holds {
    /// Stands still, as `what`, until the next [`Holds::release`].
    pub(crate) async fn stand(&self, what: &str) {
        let mut released = self.released.subscribe();
        self.held.send_modify(|held| held.push(what.to_owned()));
        // The sender lives as long as the simulator.
        drop(released.changed().await);
        self.held.send_modify(|held| {
            if let Some(at) = held.iter().position(|other| other == what) {
                held.remove(at);
            }
        });
    }

    pub(crate) fn release(&self) {
        self.released.send_modify(|count| *count += 1);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<String>> {
        self.held.subscribe()
    }
}
