//! CSI Identity and Controller for a tenant cluster whose workers are VMs of Proxmox VE.
//!
//! `service` takes RPCs, `validate` turns protobuf into domain requests, the verbs (`create`, `delete`, `publish`,
//! `unpublish`, `expand`, `capacity`) observe, decide, act and verify, and `error` says what a failure means to a sidecar.
//! Nothing here formats or mounts, and nothing the tenant's API server says is taken as proof.

pub mod asking;
pub mod capacity;
pub mod change;
pub mod create;
pub mod delete;
pub mod disk;
pub mod drive;
pub mod error;
pub mod expand;
pub mod gone;
pub mod guests;
pub mod health;
pub mod holders;
pub mod identity;
pub mod inventory;
pub mod pins;
pub mod placement;
pub mod publish;
pub mod quota;
pub mod refusal;
pub mod refusals;
pub mod region;
pub mod reload;
pub mod rivals;
pub mod scope;
pub mod seats;
pub mod service;
pub mod sightings;
pub mod silent;
pub mod sizes;
pub mod slots;
pub mod teardown;
pub mod tenant;
pub mod unpublish;
pub mod validate;
pub mod vm;
pub mod vm_work;
pub mod witness;

pub use error::Error;
pub use region::{Driver, RegionContext};
