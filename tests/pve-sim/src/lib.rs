//! A Proxmox VE that is not there: answers the API as PVE 9.2 does, over real sockets, with its rights, checks, texts, units,
//! pending changes, locks and faults. A witness for tests: it knows nothing of the programs that it tests.

mod acl;
mod api;
mod auth;
mod backup;
mod builder;
mod carried;
mod clock;
mod cluster_log;
mod control;
mod copies;
mod crm;
mod destroy;
mod dispatch;
mod doors;
mod drive;
mod endpoints;
mod events;
mod fail;
mod faults;
mod formats;
mod handle;
mod hardware;
mod holds;
mod hop;
mod hotplug;
mod http;
mod locks;
mod log;
mod logins;
mod older;
mod options;
mod permit;
mod property_string;
mod qemu;
mod quorum;
mod resize;
mod roles;
mod router;
mod schema;
mod sim;
mod state;
mod stats;
mod tasks;
#[cfg(test)]
mod tests;
mod units;
mod update;
mod verify;
mod volumes;
mod workers;

pub use builder::{Builder, HardwareKind, StorageOptions, TokenGrant};
pub use clock::ClockMode;
pub use faults::{RequestEffect, RequestFault, TaskEffect, TaskFault};
pub use handle::SimHandle;
pub use log::Entry as RequestEntry;
pub use sim::Timing;
pub use state::{
    AclEntry, Device, Guest, Ha, HaRule, Health, Node, Pool, Quirk, State, Storage, StorageKind,
    Token, User, Version, Vm, VmFaults, VmNumber, Volume,
};

/// The simulator could not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("cannot listen: {0}")]
    Listen(#[from] std::io::Error),
    #[error("cannot make certificates: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up tls: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the scenario is wrong: {0}")]
    Scenario(String),
    #[error("hardware: {0}")]
    Hardware(String),
}

/// A simulated cluster to be described step by step.
#[derive(Debug)]
pub struct Sim;

impl Sim {
    /// An empty cluster with the user `root@pam`.
    pub fn builder() -> Builder {
        Builder::default()
    }
}
