//! Which PVE nodes listen for the API.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

#[derive(Debug)]
struct Door {
    open: bool,
    shown: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct All {
    /// Nobody listens while this is set.
    shut: bool,
    nodes: BTreeMap<String, Door>,
}

/// One door for each node, and a bar before all of them.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<All>);

impl Doors {
    fn change<T>(&self, code: impl FnOnce(&mut All) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = code(&mut all);
        let shut = all.shut;
        for door in all.nodes.values() {
            let listens = door.open && !shut;
            door.shown.send_if_modified(|shown| {
                let changed = *shown != listens;
                *shown = listens;
                changed
            });
        }
        result
    }

    /// Whether this node listens, now and whenever it changes.
    pub(crate) fn subscribe(&self, node: &str) -> watch::Receiver<bool> {
        self.change(|all| {
            let door = all.nodes.entry(node.to_owned()).or_insert_with(|| Door {
                open: true,
                shown: watch::Sender::new(true),
            });
            door.shown.subscribe()
        })
    }

    pub(crate) fn open(&self, node: &str, open: bool) {
        self.change(|all| {
            if let Some(door) = all.nodes.get_mut(node) {
                door.open = open;
            }
        });
    }

    pub(crate) fn open_all(&self, open: bool) {
        self.change(|all| all.shut = !open);
    }
}
