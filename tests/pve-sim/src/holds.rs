//! Requests and tasks that stand still until they are let go, so that a test acts in exactly that moment.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What stands still, in the order in which it came.
#[derive(Debug)]
pub(crate) struct Holds {
    standing: Mutex<Vec<(String, CancellationToken)>>,
    names: watch::Sender<Vec<String>>,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            standing: Mutex::default(),
            names: watch::Sender::new(Vec::new()),
        }
    }
}

/// Takes its entry away when it goes on, or is stopped while it stands.
struct Standing<'a> {
    holds: &'a Holds,
    token: CancellationToken,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.token.cancel();
        self.holds
            .change(|standing| standing.retain(|(_, token)| !token.is_cancelled()));
    }
}

impl Holds {
    fn change(&self, code: impl FnOnce(&mut Vec<(String, CancellationToken)>)) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        code(&mut standing);
        let names = standing.iter().map(|(name, _)| name.clone()).collect();
        self.names.send_replace(names);
    }

    /// Stands still, as `what`, until it is let go.
    pub(crate) async fn stand(&self, what: &str) {
        let token = CancellationToken::new();
        self.change(|standing| standing.push((what.to_owned(), token.clone())));
        let standing = Standing { holds: self, token };
        standing.token.cancelled().await;
    }

    /// Lets go of all that stands still now.
    pub(crate) fn release(&self) {
        self.change(|standing| {
            for (_, token) in standing {
                token.cancel();
            }
        });
    }

    /// Lets go of one; `false` if nothing of that name stands still.
    pub(crate) fn release_one(&self, what: &str) -> bool {
        let mut found = false;
        self.change(|standing| {
            for (_, token) in standing.iter().filter(|(name, _)| name == what) {
                token.cancel();
                found = true;
            }
        });
        found
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<String>> {
        self.names.subscribe()
    }
}
