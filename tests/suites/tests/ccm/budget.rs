//! What Nodes cost: requests to PVE per refresh, writes to the API server, memory.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, Numbers, PERIOD, ROLE, TOKEN, granted, registered, resident};
use harness::cluster::{eventually, requirements};
use harness::requirements::noted;
use harness::world::{POOL, uuid};
use pve_sim::{AclEntry, Builder, HaRule, Sim};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::alone;

const LIST: &str = "GET /cluster/resources";
const AGENT: &str = "GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces";
const CONFIG: &str = "GET /nodes/{node}/qemu/{vmid}/config";
const RULES: &str = "GET /cluster/ha/rules";
const FIRST: u32 = 1001;
const VMS: u32 = 1000;
const SIZES: [u32; 3] = [10, 100, 1000];

/// 1000 workers on two hosts, and rules of HA for some.
fn large() -> Builder {
    let vms: Vec<u32> = (FIRST..FIRST + VMS).collect();
    let base = Sim::builder().node("pve1").node("pve2").pool(POOL, &vms);
    let base = granted(base).role("Rules", &["Sys.Audit"]);
    vms.iter().fold(base, |builder, vmid| {
        let host = if vmid % 2 == 0 { "pve1" } else { "pve2" };
        builder.vm(*vmid, host, &format!("worker-{vmid}"))
    })
}

/// Lets the token ask agents and read the rules of HA, of which there are two.
pub(crate) fn with_agents_and_rules(world: &CcmWorld, vmids: &[u32]) {
    let interfaces = |vmid: u32| {
        let address = format!("10.1.{}.{}", vmid / 250, vmid % 250 + 1);
        json!([{ "name": "eth0", "hardware-address": "bc:24:11:00:00:01", "ip-addresses": [
            { "ip-address": address, "ip-address-type": "ipv4", "prefix": 16 },
        ]}])
    };
    world.sim().edit(|state| {
        let role = state.roles.get_mut(ROLE).unwrap();
        role.insert("VM.GuestAgent.Audit".to_owned());
        let user = TOKEN.0.split_once('!').unwrap().0;
        for subject in [TOKEN.0, user] {
            state.acl.push(AclEntry {
                path: "/".to_owned(),
                subject: subject.to_owned(),
                role: "Rules".to_owned(),
                propagate: false,
            });
        }
        for (name, host) in [("left", "pve1"), ("right", "pve2")] {
            let mine = vmids.iter().filter(|vmid| state.vms[vmid].node == host);
            let sids: Vec<String> = mine.take(20).map(|vmid| format!("vm:{vmid}")).collect();
            for sid in &sids {
                state.ha.resources.insert(sid.clone(), BTreeMap::new());
            }
            state.ha.rules.push(HaRule {
                rule: name.to_owned(),
                kind: "node-affinity".to_owned(),
                resources: sids,
                options: BTreeMap::from([("nodes".to_owned(), host.to_owned())]),
                errors: BTreeMap::new(),
            });
        }
        for vmid in vmids {
            let guest = &mut state.vms.get_mut(vmid).unwrap().guest;
            let command = "network-get-interfaces".to_owned();
            guest.answers.insert(command, interfaces(*vmid));
        }
    });
}

/// The config with agents and HA.
pub(crate) fn all_on(world: &CcmWorld) -> Value {
    let mut config = world.config();
    config["nodes"] = json!({ "ha": true, "addresses": { "agent": true } });
    config
}

fn nodes(from: u32, to: u32) -> Vec<Value> {
    (from..to)
        .map(|index| registered(&name(index), &uuid(FIRST + index), true))
        .collect()
}

fn name(index: u32) -> String {
    format!("worker-{}", FIRST + index)
}

/// What PVE was asked, by kind, over `refreshes` lists, in which no Node was written.
async fn quiet(
    world: &CcmWorld,
    admin: SocketAddr,
    refreshes: u64,
) -> Result<BTreeMap<String, u64>> {
    let before = (
        Numbers::of(admin).await?.writes(None),
        world.versions().await?,
    );
    world.sim().clear_requests();
    let begin = Instant::now();
    let (counts, _) = eventually("refreshes", PERIOD * 60, async || {
        let counts = world.sim().request_counts();
        let lists = counts.get(LIST).copied().unwrap_or_default();
        Ok((lists >= refreshes).then_some(counts))
    })
    .await?;
    // The period is jittered by a tenth.
    let least = PERIOD.mul_f64(0.9) * u32::try_from(refreshes - 1)?;
    let took = begin.elapsed();
    ensure!(took >= least, "{refreshes} lists in {took:?}");
    let after = (
        Numbers::of(admin).await?.writes(None),
        world.versions().await?,
    );
    ensure!(before == after, "Nodes were written without a change");
    Ok(counts)
}

/// Waits until all configs were read.
async fn read(world: &CcmWorld) -> Result<()> {
    let patience = Duration::from_mins(1);
    eventually("all configs read", patience, async || {
        let counts = world.sim().request_counts();
        let read = counts.get(CONFIG).copied().unwrap_or_default();
        Ok((read >= u64::from(VMS)).then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_is_one_request_to_pve_however_many_nodes_there_are() -> Result<()> {
    let Some(programs) = requirements("ccm: requests per refresh") else {
        return Ok(());
    };
    let _alone = alone().await;
    let mut world = CcmWorld::start(&programs, large()).await?;
    let config = world.config();
    let admin = world.launch_ccm(&config, &["--log-filter=info"])?;
    world.wait_ready(admin).await?;
    read(&world).await?;
    let mut plain = Vec::new();
    let mut from = 0;
    for size in SIZES {
        let begin = Instant::now();
        world.register_all(nodes(from, size)).await?;
        let registered = begin.elapsed();
        world.initialised_all(admin, u64::from(size)).await?;
        if size == VMS {
            initialised(&world, admin, registered, begin.elapsed()).await?;
        }
        from = size;
        let refreshes = if size == VMS { 10 } else { 4 };
        let counts = quiet(&world, admin, refreshes).await?;
        let others = counts.keys().filter(|what| *what != LIST);
        let others: Vec<_> = others.collect();
        ensure!(others.is_empty(), "with {size} Nodes: {counts:?}");
        plain.push("1");
    }
    let full = with_all_on(&world, admin).await?;
    noted(&format!(
        "ccm: PVE requests per refresh at 10/100/1000 Nodes: {}; with HA one more, with agents {} more",
        plain.join("/"),
        full.join("/"),
    ));
    world.stop().await
}

/// After the last of 1000 Nodes: what all of it has cost.
async fn initialised(
    world: &CcmWorld,
    admin: SocketAddr,
    registered: Duration,
    took: Duration,
) -> Result<()> {
    let writes = Numbers::of(admin).await?.writes(None);
    ensure!(writes <= 2 * u64::from(VMS), "{writes} writes");
    let memory = resident(world.ccms.last().unwrap())?;
    ensure!(memory < 128, "{memory} MiB");
    noted(&format!(
        "ccm: 900 Nodes registered in {:.1} s, initialised {:.1} s after the first; {:.2} API writes per Node; {memory} MiB with 1000 Nodes",
        registered.as_secs_f64(),
        took.as_secs_f64(),
        writes.to_string().parse::<f64>()? / f64::from(VMS),
    ));
    Ok(())
}

/// The same with agents and HA; how many requests to agents there were per period.
async fn with_all_on(world: &CcmWorld, admin: SocketAddr) -> Result<Vec<String>> {
    let all: Vec<u32> = (FIRST..FIRST + VMS).collect();
    with_agents_and_rules(world, &all);
    let before = Numbers::of(admin).await?.writes(Some("addresses"));
    let config = all_on(world).to_string();
    std::fs::write(world.folder().join("ccm-0.yaml"), config)?;
    let patience = Duration::from_mins(1);
    eventually("all addresses written", patience, async || {
        let written = Numbers::of(admin).await?.writes(Some("addresses"));
        Ok((written >= before + u64::from(VMS)).then_some(()))
    })
    .await?;
    tokio::time::sleep(PERIOD * 3).await;
    let mut full = Vec::new();
    let mut size = VMS;
    for next in [100, 10, 0] {
        let begin = Instant::now();
        let counts = quiet(world, admin, 5).await?;
        let periods = begin.elapsed().div_duration_f64(PERIOD);
        let count = |what: &str| counts.get(what).copied().unwrap_or_default();
        ensure!(count(RULES).abs_diff(count(LIST)) <= 1, "{counts:?}");
        let agents = count(AGENT).to_string().parse::<f64>()?;
        ensure!(agents > 0.0, "no agent was asked: {counts:?}");
        ensure!(agents <= f64::from(size) * (periods + 1.0), "{counts:?}");
        ensure!(counts.len() == 3, "{counts:?}");
        full.push(format!("{:.1}", agents / periods));
        world.remove_all((next..size).map(name).collect()).await?;
        size = next;
        tokio::time::sleep(PERIOD * 3).await;
    }
    full.reverse();
    Ok(full)
}
