//! The cloud-controller-manager: Nodes of a tenant cluster whose workers are VMs of Proxmox VE.
//!
//! `nodes` watches the tenant's Nodes, `poll` lists the VMs of each PVE cluster and `reading` reads their configs, `plan` (pure) says what a Node should say,
//! `engine` has it written; `lifecycle` looks after Nodes that are not ready, and `proof` asks whether their VM is gone.
//! What a Node says is a hint; nothing of it is proof.

pub mod addresses;
pub mod agents;
pub mod bucket;
pub mod cache;
pub mod demand;
pub mod engine;
pub mod events;
pub mod facts;
pub mod ha;
pub mod ha_source;
pub mod health;
pub mod inventory;
pub mod lifecycle;
pub mod machines;
pub mod metrics;
pub mod node;
pub mod nodes;
pub mod plan;
pub mod poll;
pub mod program;
pub mod proof;
mod reading;
pub mod retry;
pub mod said;
pub mod shutdown;
pub mod sources;
#[cfg(test)]
mod testing;
mod unready;
pub mod witnesses;
pub mod writer;
