//! Faults of a whole PVE cluster: what it shows is less than what there is, or nothing.

use anyhow::Result;
use harness::ccm::{CcmWorld, ROLE, TOKEN, tenant};
use harness::cluster::Programs;
use harness::world::{POOL, REGION};
use pve_sim::{Health, RequestEffect, RequestFault, SimHandle, State, TokenGrant};
use serde_json::json;

use super::nodes::{COME, Matrix, Must, worker};
use super::{GRACE, Outcome, same};

/// What happens to a PVE cluster, and whether it can be known meanwhile that a VM has come or gone.
struct Fault {
    sentence: &'static str,
    begin: fn(&SimHandle),
    /// VMs that are made meanwhile are seen.
    come: bool,
    /// VMs that are destroyed meanwhile are proved to be gone.
    end: bool,
    /// What the operator does to end it, beside what is done to PVE.
    repair: fn(&CcmWorld) -> Result<()>,
}

const LIST: &str = "/cluster/resources";
/// Has the rights of the first one.
const OTHER_TOKEN: &str = "ccm@pve!other";
/// The worker of no Node.
const IDLE: u32 = 100;
/// The hosts of no worker: as many as the others.
const IDLE_HOSTS: [&str; 2] = ["pve3", "pve4"];

/// Nothing is known while it lasts.
fn dark(sentence: &'static str, begin: fn(&SimHandle)) -> Fault {
    Fault {
        sentence,
        begin,
        come: false,
        end: false,
        repair: |_| Ok(()),
    }
}

fn faults() -> Vec<Fault> {
    let mut all = vec![
        dark("VM.Audit is lost", |sim| revoke(sim, "VM.Audit")),
        dark("Pool.Audit is lost", |sim| revoke(sim, "Pool.Audit")),
        dark("all rights are lost", |sim| {
            sim.edit(|state| state.acl.clear());
        }),
        dark("all VMs are taken out of the pool", |sim| {
            sim.edit(|state| state.pools.entry(POOL.to_owned()).or_default().vms.clear());
        }),
        dark("the list is empty and all VMIDs are free", |sim| {
            sim.edit(|state| state.vms.clear());
        }),
        Fault {
            repair: other_token,
            ..dark("the token has expired: 401", expire)
        },
        dark("the list is refused: 403", |sim| refuse(sim, LIST, 403)),
        dark("the list fails: 500", |sim| refuse(sim, LIST, 500)),
        dark("no host answers for the list: 595", |sim| {
            refuse(sim, LIST, 595);
        }),
        dark("the list hangs", |sim| {
            fault(sim, LIST, RequestEffect::Hold);
        }),
        dark("nothing listens", |sim| sim.set_reachable(false)),
        dark("configs can't be read", |sim| {
            refuse(sim, "/nodes/{node}/qemu/{vmid}/config", 500);
        }),
    ];
    all.extend(partial_faults());
    all
}

/// Something is known while they last.
fn partial_faults() -> [Fault; 4] {
    [
        Fault {
            come: true,
            ..dark("whether VMIDs are free can't be asked", |sim| {
                refuse(sim, "/cluster/nextid", 500);
            })
        },
        Fault {
            come: true,
            ..dark("an entry of the list can't be read", |sim| {
                sim.edit(|state| worker(state, 99_999, "no host"));
            })
        },
        Fault {
            come: true,
            ..dark("half of the hosts are down", |sim| {
                for host in IDLE_HOSTS {
                    sim.node_health(host, Health::Offline);
                }
            })
        },
        Fault {
            come: true,
            end: true,
            ..dark("quorum is lost", |sim| sim.quorum(Some(false)))
        },
    ]
}

fn revoke(sim: &SimHandle, privilege: &str) {
    sim.edit(|state| {
        state
            .roles
            .entry(ROLE.to_owned())
            .or_default()
            .remove(privilege)
    });
}

fn expire(sim: &SimHandle) {
    let (user, token) = TOKEN.0.split_once('!').unwrap_or_default();
    sim.edit(|state| {
        let account = state.users.get_mut(user);
        if let Some(token) = account.and_then(|user| user.tokens.get_mut(token)) {
            token.expire = 1;
        }
    });
}

/// A token that PVE has refused is left alone for a minute; another one is taken at once.
fn other_token(world: &CcmWorld) -> Result<()> {
    let mut config = world.config();
    config["regions"][REGION]["token"] = json!({ "id": OTHER_TOKEN, "secret": TOKEN.1 });
    let path = world.folder().join("ccm-0.yaml");
    Ok(std::fs::write(path, config.to_string())?)
}

fn refuse(sim: &SimHandle, path: &str, status: u16) {
    let message = "something is wrong".to_owned();
    fault(sim, path, RequestEffect::FailBefore { status, message });
}

fn fault(sim: &SimHandle, path: &str, effect: RequestEffect) {
    sim.add_fault(RequestFault {
        method: "GET".to_owned(),
        path: path.to_owned(),
        nth: 1,
        times: u32::MAX,
        effect,
    });
}

/// The VMs of one fault: two of Nodes that are there before it, one that is destroyed in it, two that are made in it.
struct Five {
    ready: u32,
    unready: u32,
    destroyed: u32,
    new: u32,
    new_unready: u32,
}

impl Five {
    fn of(index: usize) -> Self {
        let base = 1000 + 10 * u32::try_from(index).unwrap_or(u32::MAX);
        Self {
            ready: base,
            unready: base + 1,
            destroyed: base + 2,
            new: base + 3,
            new_unready: base + 4,
        }
    }

    fn before(&self) -> [u32; 3] {
        [self.ready, self.unready, self.destroyed]
    }

    fn made(&self) -> [u32; 2] {
        [self.new, self.new_unready]
    }
}

/// Every second fault, so that two worlds have half of them each.
fn half(first: usize) -> impl Iterator<Item = (Fault, Five)> {
    let all = faults().into_iter().enumerate();
    all.skip(first)
        .step_by(2)
        .map(|(index, fault)| (fault, Five::of(index)))
}

/// The VMs that are there before their faults.
fn numbers(first: usize) -> Vec<u32> {
    half(first).flat_map(|(_, vms)| vms.before()).collect()
}

/// One PVE cluster with them.
pub(super) async fn world(programs: &Programs, first: usize) -> Result<Matrix> {
    let mut vms: Vec<(u32, &str)> = numbers(first)
        .into_iter()
        .map(|vmid| (vmid, "pve1"))
        .collect();
    vms.push((IDLE, "pve2"));
    let other = TokenGrant {
        id: OTHER_TOKEN.to_owned(),
        secret: TOKEN.1.to_owned(),
        privsep: true,
        roles: vec![(format!("/pool/{POOL}"), ROLE.to_owned())],
    };
    let builder = IDLE_HOSTS
        .iter()
        .fold(tenant(&vms), |all, host| all.node(host));
    let builder = builder.token(other);
    let mut world = CcmWorld::start(programs, builder).await?;
    let config = world.config();
    world.start_ccm(&config, &[GRACE]).await?;
    Ok(Matrix::new(world))
}

/// Half of these faults, one after the other. What became unready in one stays so in all that follow.
pub(super) async fn all(mut matrix: Matrix, first: usize) -> Result<Outcome> {
    matrix.settle(&numbers(first)).await?;
    for (fault, vms) in half(first) {
        one(&mut matrix, &fault, &vms).await?;
    }
    matrix.finish().await
}

async fn one(matrix: &mut Matrix, fault: &Fault, vms: &Five) -> Result<()> {
    let sim = matrix.sim(IDLE);
    let before = sim.state();
    (fault.begin)(sim);
    sim.edit(|state| {
        state.vms.remove(&vms.destroyed);
        if !state.vms.is_empty() {
            vms.made()
                .iter()
                .for_each(|vmid| worker_outside(state, *vmid));
        }
    });
    matrix.register(&[vms.new], true).await?;
    matrix.register(&[vms.new_unready], false).await?;
    matrix.unready(&[vms.unready, vms.destroyed]).await?;
    if fault.end {
        matrix.may_end(vms.destroyed);
    }
    matrix.dwell().await;
    let new = if fault.come { COME } else { Must::Wait };
    let destroyed = if fault.end {
        Must::End
    } else {
        Must::Say(same)
    };
    let rows = [
        (vms.ready, Must::Say(same)),
        (vms.unready, Must::Say(same)),
        (vms.destroyed, destroyed),
        (vms.new, new),
        (vms.new_unready, new),
    ];
    matrix.check(fault.sentence, &rows).await?;
    end(matrix.sim(IDLE), before, vms);
    (fault.repair)(&matrix.world)?;
    let kept = [vms.ready, vms.unready];
    matrix
        .right_again(fault.sentence, &kept, &vms.made(), &[vms.destroyed])
        .await
}

/// A worker that is in the pool only if all others are.
fn worker_outside(state: &mut State, vmid: u32) {
    let hidden = state.pools.get(POOL).is_none_or(|pool| pool.vms.is_empty());
    worker(state, vmid, "pve2");
    if hidden && let Some(pool) = state.pools.get_mut(POOL) {
        pool.vms.clear();
    }
}

/// All is as before, but for the VM that is gone and those that have come.
fn end(sim: &SimHandle, before: State, vms: &Five) {
    sim.clear_faults();
    sim.release();
    sim.set_reachable(true);
    sim.edit(|state| {
        *state = before;
        state.vms.remove(&vms.destroyed);
        vms.made()
            .iter()
            .for_each(|vmid| worker(state, *vmid, "pve2"));
    });
}
