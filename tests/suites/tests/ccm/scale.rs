//! A tenant that registers as many Nodes as its API server takes, of VMs that it does not have.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, Numbers, registered, resident, tenant};
use harness::cluster::requirements;
use harness::requirements::noted;
use harness::world::{POOL, uuid};
use pve_model::topology::VMID_ANNOTATION;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::alone;

const FORGED: u32 = 10_000;
const PERIOD: Duration = Duration::from_secs(10);
const LIST: &str = "GET /cluster/resources";
const NEXT_ID: &str = "GET /cluster/nextid";
const CONFIG: &str = "GET /nodes/{node}/qemu/{vmid}/config";
const STATUS: &str = "GET /nodes/{node}/qemu/{vmid}/status/current";
/// A VM of the tenant's that is shut down.
const STOPPED: u32 = 102;
/// One that is made while all the others wait.
const LATE: u32 = 103;
/// VMs of others: their numbers are taken and can't be seen.
const OTHERS: u32 = 5000;

/// The Nodes of a tenant that tries what it can.
fn forged(index: u32) -> Value {
    let name = format!("forged-{index:05}");
    let system_uuid = format!("{index:08x}-dead-4bad-a000-000000000000");
    let ready = index.is_multiple_of(2);
    let mut node = registered(&name, &system_uuid, ready);
    match index % 10 {
        // Numbers that no VM has.
        1 | 3 => node["spec"]["providerID"] = json!(format!("proxmox://r1/{}", 600_000 + index)),
        // Numbers of others' VMs, on Nodes that look as if they had been initialised.
        5 | 7 => {
            let vmid = OTHERS + index % 20;
            node["metadata"]["annotations"][VMID_ANNOTATION] = json!(vmid.to_string());
            node["spec"] = json!({ "providerID": format!("proxmox://{system_uuid}") });
        }
        // One VM that is shut down, hundreds of times.
        9 if index % 100 == 9 => {
            node["status"]["nodeInfo"]["systemUUID"] = json!(uuid(STOPPED));
        }
        // What an API server takes at most.
        0 if index.is_multiple_of(500) => {
            node["metadata"]["annotations"]["x"] = json!("x".repeat(200 << 10));
        }
        _ => {}
    }
    node
}

fn make_vm(world: &CcmWorld) {
    world.sim().edit(|state| {
        let mut vm = state.vms[&101].clone();
        let smbios = format!("uuid={}", uuid(LATE));
        vm.config.insert("smbios1".to_owned(), smbios);
        state.vms.insert(LATE, vm);
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.vms.insert(LATE);
    });
}

/// How often PVE may be asked in that time.
struct Allowed {
    polls: u64,
    proofs: u64,
    deletions: u64,
    events: u64,
}

impl Allowed {
    fn within(time: Duration) -> Self {
        let seconds = time.as_secs();
        Self {
            // The regular ones, jittered by a tenth, and eight at once and one in ten seconds beside them.
            polls: seconds / (PERIOD.as_secs() * 9 / 10) + 2 + 8 + seconds / 10,
            // Sixteen at once, one in five seconds.
            proofs: 16 + 1 + seconds / 5,
            deletions: 5 + 1 + seconds / 10,
            events: 50 + 1 + seconds,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_forged_nodes_cost_pve_little_and_hold_up_nobody() -> Result<()> {
    let Some(programs) = requirements("ccm: ten thousand forged Nodes") else {
        return Ok(());
    };
    let _alone = alone().await;
    let base = tenant(&[(101, "pve1"), (STOPPED, "pve2")]);
    let others = (OTHERS..OTHERS + 20).fold(base, |base, vmid| base.vm(vmid, "pve1", "other"));
    let mut world = CcmWorld::start(&programs, others).await?;
    world.sim().stop_vm(STOPPED).map_err(anyhow::Error::msg)?;
    let config = world.config();
    let begin = Instant::now();
    let period = format!("--poll-period={}s", PERIOD.as_secs());
    let admin = world.launch_ccm(&config, &[&period, "--deletion-grace=5s"])?;
    world.wait_ready(admin).await?;
    world
        .register_all((0..FORGED).map(forged).collect())
        .await?;
    let registered = begin.elapsed();
    make_vm(&world);
    world.register("late", LATE).await?;
    let (_, late) = world.initialised("late").await?;
    ensure!(late.as_secs() < 15, "a real Node waited for {late:?}");
    tokio::time::sleep(PERIOD * 2).await;

    let counts = world.sim().request_counts();
    let memory = resident(world.ccms.last().unwrap())?;
    let events = events(&world).await?;
    let numbers = Numbers::of(admin).await?;
    let allowed = Allowed::within(begin.elapsed());
    let count = |what: &str| counts.get(what).copied().unwrap_or_default();
    // Each proof asks for its number and for one to compare, and which PVE nodes are seen; all at most twice.
    ensure!(
        count(LIST) <= allowed.polls + 2 * allowed.proofs,
        "{counts:?}"
    );
    ensure!(count(NEXT_ID) <= 4 * allowed.proofs, "{counts:?}");
    ensure!(count(STATUS) <= allowed.polls, "{counts:?}");
    // Each VM's once, and again when it was stopped or started.
    ensure!(count(CONFIG) <= 6, "{counts:?}");
    ensure!(counts.len() == 4, "{counts:?}");
    ensure!(
        count(NEXT_ID) > 16,
        "the forged ones were not looked at: {counts:?}"
    );
    let deletions = numbers.writes(Some("delete"));
    ensure!(deletions <= allowed.deletions, "{deletions} Nodes deleted");
    ensure!(events <= allowed.events, "{events} Events");
    ensure!(memory < 192, "{memory} MiB");
    noted(&format!(
        "ccm: {FORGED} forged Nodes in {:.0} s: {} lists, {} questions for VMIDs, {} for states; {events} Events; {memory} MiB; a real Node meanwhile {:.1} s",
        registered.as_secs_f64(),
        count(LIST),
        count(NEXT_ID),
        count(STATUS),
        late.as_secs_f64(),
    ));
    world.stop().await
}

/// How many Events there are; at most one per Node and reason.
async fn events(world: &CcmWorld) -> Result<u64> {
    let mut told: BTreeMap<(String, String), u64> = BTreeMap::new();
    for of in world.told().await? {
        *told.entry(of).or_default() += 1;
    }
    let twice = told.iter().find(|(_, times)| **times > 1);
    ensure!(twice.is_none(), "{twice:?}");
    Ok(u64::try_from(told.len())?)
}
