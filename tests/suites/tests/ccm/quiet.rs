//! What is logged while all is well.

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, PERIOD, ROLE, label, tenant};
use harness::cluster::requirements;
use pve_model::topology::HA_GROUP_PREFIX;

use crate::alone;
use crate::budget::{all_on, with_agents_and_rules};

const VMS: [u32; 3] = [101, 102, 103];

/// The lines of a log that have one of these levels.
fn lines<'a>(log: &'a str, levels: &[&str]) -> Vec<&'a str> {
    let level = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    let is = |line: &&str| level(line).is_some_and(|level| levels.contains(&level.as_str()));
    log.lines().filter(is).collect()
}

/// Starts the program with all on, lets it initialise Nodes, and looks at ten periods.
async fn ten_periods(world: &mut CcmWorld, nodes: &str) -> Result<()> {
    let config = all_on(world);
    world.start_ccm(&config, &[]).await?;
    let key = format!("{HA_GROUP_PREFIX}left");
    for vmid in VMS {
        let name = format!("{nodes}-{vmid}");
        world.register(&name, vmid).await?;
        let (node, _) = world.initialised(&name).await?;
        let is_left = label(&node, &key).is_some();
        ensure!(
            is_left == (vmid != 102),
            "{name}: {:?}",
            node.metadata.labels
        );
    }
    tokio::time::sleep(PERIOD * 2).await;
    let before = world.logs();
    tokio::time::sleep(PERIOD * 10).await;
    let all = world.logs();
    let log = all.get(before.len()..).unwrap_or_default();
    ensure!(!lines(&all, &["INFO"]).is_empty(), "is it a log?");
    let loud = lines(&all, &["WARN", "ERROR"]);
    ensure!(loud.is_empty(), "{loud:?}");
    let steady = lines(log, &["INFO"]);
    ensure!(steady.is_empty(), "{steady:?}");
    world.kill_ccms().await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_all_is_well_nothing_is_logged_with_pve_9_and_8() -> Result<()> {
    let Some(programs) = requirements("ccm: nothing is logged while all is well") else {
        return Ok(());
    };
    let _alone = alone().await;
    let vms = [(101, "pve1"), (102, "pve2"), (103, "pve1")];
    let builder = tenant(&vms).role("Rules", &["Sys.Audit"]);
    let mut world = CcmWorld::start(&programs, builder).await?;
    with_agents_and_rules(&world, &VMS);
    ten_periods(&mut world, "nine").await?;
    for vmid in VMS {
        world.remove(&format!("nine-{vmid}")).await?;
    }
    world.sim().edit(|state| {
        state.version = "8.4.1".to_owned().try_into().unwrap();
        state
            .roles
            .get_mut(ROLE)
            .unwrap()
            .insert("VM.Monitor".to_owned());
        for rule in std::mem::take(&mut state.ha.rules) {
            for sid in &rule.resources {
                let of = state.ha.resources.get_mut(sid).unwrap();
                of.insert("group".to_owned(), rule.rule.clone());
            }
            state.ha.groups.insert(rule.rule, rule.options);
        }
    });
    ten_periods(&mut world, "eight").await?;
    world.stop().await
}
