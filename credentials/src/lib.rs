//! `pve-credentials`: from the operator's Secret and the tenant's kubeconfig to the files that the drivers and their
//! sidecars read, in memory and nowhere else.
//!
//! ```text
//! mounted Secret ──► secret.rs ──► compose.rs ──┐
//!                                               ├──► store.rs ──► config.yaml, policy.yaml, … ──► drivers
//! mounted kubeconfig ──► kubeconfig.rs ─────────┘
//! ```
//!
//! What is refused changes nothing: the former files stay in force. Nothing here, `Debug` and errors included, shows a
//! secret, nor a key that is not known, which may be one.

pub mod compose;
pub mod follow;
pub mod kubeconfig;
pub mod metrics;
pub mod secret;
mod single;
pub mod store;

use std::collections::BTreeMap;

use secrecy::SecretString;

/// The files of one generation by their names.
pub type Files = BTreeMap<String, SecretString>;

/// Why nothing comes into force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The source is not there yet.
    #[error("{0} is not there")]
    Absent(String),
    /// The source or the destination is not right: a sentence for the operator.
    #[error("{0}")]
    Refused(String),
    /// Something can't be read or written, which may pass.
    #[error("{0}")]
    Failed(String),
}
