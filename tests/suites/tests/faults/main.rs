//! What went wrong for people with drivers of this kind, told to the real controller against the simulator. Each test
//! carries the id of its entry; `fault_ledger` holds that no entry of the controller is without one.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod answers;
mod capacity;
mod guest;
mod hosts;
mod load;
mod silence;
mod slots;

use harness::world::{World, tenant};

const NONE: [String; 0] = [];
const CONFIG: &str = "/nodes/{node}/qemu/{vmid}/config";

/// A world with these running VMs.
async fn world(vms: &[(u32, &str)]) -> World {
    World::start(tenant(vms)).await.unwrap()
}
