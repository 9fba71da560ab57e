//! Hosts that are down.

use std::time::Duration;

use anyhow::Result;
use harness::ccm::CcmWorld;
use pve_sim::Health;

use super::nodes::{COME, Matrix, Must, worker};
use super::same;

/// pmxcfs forgets what a host told after five minutes.
const FORGOTTEN: Duration = Duration::from_mins(6);

/// VMs that are there before: on the host that goes down, and on another one.
#[derive(Clone, Copy)]
struct Vms {
    /// On the dead host: of Nodes that are there, and of Nodes that register meanwhile; the second is not ready.
    before: [u32; 2],
    fresh: [u32; 2],
    /// On a healthy host.
    other: [u32; 2],
    /// On a healthy host, destroyed meanwhile.
    destroyed: u32,
}

const fn vms(base: u32) -> Vms {
    Vms {
        before: [base, base + 1],
        fresh: [base + 2, base + 3],
        other: [base + 4, base + 5],
        destroyed: base + 6,
    }
}

const PHASES: [(&str, Vms); 2] = [
    ("a host has just gone down", vms(2000)),
    ("a host has been down for more than five minutes", vms(2010)),
];
/// A VM that was made on the host in its last second: nobody has read its config.
const UNREAD: [u32; 2] = [2020, 2021];

/// All VMs that are there before.
pub(super) fn numbers() -> Vec<u32> {
    let all = PHASES.iter().map(|(_, vms)| {
        let most = [vms.before, vms.fresh, vms.other].concat();
        [most, vec![vms.destroyed]].concat()
    });
    all.collect::<Vec<_>>().concat()
}

/// Puts them where they belong.
pub(super) fn prepare(world: &CcmWorld) {
    for (_, vms) in PHASES {
        for vmid in [vms.before, vms.fresh].concat() {
            world
                .sim()
                .with_vm(vmid, |vm| "pve3".clone_into(&mut vm.node));
        }
    }
}

/// One after the other.
pub(super) async fn all(matrix: &mut Matrix) -> Result<()> {
    let [(fresh, first), (old, second)] = PHASES;
    for vms in [first, second] {
        let there = [vms.before.to_vec(), vec![vms.destroyed]].concat();
        matrix.settle(&there).await?;
    }
    matrix.world.sim().node_health("pve3", Health::Offline);
    down(matrix, fresh, first, true).await?;
    matrix.world.sim().advance(FORGOTTEN);
    matrix.listed(matrix.world.sim()).await?;
    // Nothing is absent any more: it might be this one.
    matrix
        .world
        .sim()
        .edit(|state| UNREAD.map(|vmid| worker(state, vmid, "pve3")));
    matrix.listed(matrix.world.sim()).await?;
    matrix.register(&UNREAD[..1], true).await?;
    matrix.register(&UNREAD[1..], false).await?;
    down(matrix, old, second, false).await?;
    matrix
        .check(old, &UNREAD.map(|vmid| (vmid, Must::Wait)))
        .await?;
    matrix.world.sim().node_health("pve3", Health::Online);
    matrix.world.sim().freeze_resources(false);
    let same = [first.before, second.before].concat();
    let come = [first.fresh, second.fresh, first.other, second.other, UNREAD].concat();
    let ended = [first.destroyed, second.destroyed];
    matrix
        .right_again("a host was down", &same, &come, &ended)
        .await
}

/// One phase; `ends`: whether it can be known that a VM of another host is gone.
async fn down(matrix: &mut Matrix, sentence: &str, vms: Vms, ends: bool) -> Result<()> {
    let fresh = [vms.fresh[0], vms.other[0]];
    let fresh_unready = [vms.fresh[1], vms.other[1]];
    matrix
        .world
        .sim()
        .edit(|state| state.vms.remove(&vms.destroyed));
    matrix.unready(&[vms.before[1], vms.destroyed]).await?;
    matrix.register(&fresh, true).await?;
    matrix.register(&fresh_unready, false).await?;
    if ends {
        matrix.may_end(vms.destroyed);
    }
    matrix.dwell().await;
    let destroyed = if ends { Must::End } else { Must::Say(same) };
    let mut cases = vec![(vms.destroyed, destroyed)];
    cases.extend(vms.before.map(|vmid| (vmid, Must::Say(same))));
    cases.extend(fresh.map(|vmid| (vmid, COME)));
    cases.extend(fresh_unready.map(|vmid| (vmid, COME)));
    matrix.check(sentence, &cases).await
}
