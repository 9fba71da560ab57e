//! `ControllerExpandVolume` of the real controller against the simulator: a volume's storage, its drive and QEMU have the same size
//! in the end, whatever happens between PVE's three steps.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod bounds;
mod faults;
mod holders;
mod interrupted;
mod size;
mod world;
