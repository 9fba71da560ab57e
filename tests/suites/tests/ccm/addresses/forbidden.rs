//! A token that may not ask the guest agents.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, PERIOD};
use harness::cluster::{eventually, requirements};
use serde_json::json;
use tokio::time::sleep;

use super::{ASK, ASK_8, addresses, cluster, may, name, plain, set_addresses, tells};
use crate::alone;

const FORBIDDEN: &str = "guest agents may not be asked";
const AGAIN: &str = "guest agents may be asked again";
const OLD: u32 = 211;
const NEW: u32 = 212;
const ON_PVE_8: u32 = 213;

/// B71: the agent privilege of PVE 9, and of PVE 8, is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_not_ask_agents_is_told_once_and_nodes_are_initialised_all_the_same()
-> Result<()> {
    let _alone = alone().await;
    let Some(programs) = requirements("ccm: agents are forbidden") else {
        return Ok(());
    };
    let vmids = [OLD, NEW, ON_PVE_8];
    let mut world = CcmWorld::start(&programs, cluster(&vmids)).await?;
    let mut config = world.config();
    config["nodes"] = json!({ "addresses": { "agent": true } });
    for vmid in vmids {
        tells(&world, vmid, plain(vmid, &[&format!("10.0.0.{vmid}/24")]));
    }
    world.start_ccm(&config, &[]).await?;
    world.register(&name(OLD), OLD).await?;
    has(&world, OLD, "InternalIP 10.0.0.211").await?;

    may(&world, &[]);
    comes_alive(&world, NEW).await?;
    assert_eq!(told(&world), (1, 0));
    may(&world, &[ASK]);
    has(&world, NEW, "InternalIP 10.0.0.212").await?;
    has(&world, OLD, "InternalIP 10.0.0.211").await?;
    soon_told(&world, (1, 1)).await?;

    let version = "8.4.14".to_owned().try_into();
    let version = version.map_err(|error| anyhow::anyhow!("{error}"))?;
    world.sim().edit(|state| state.version = version);
    comes_alive(&world, ON_PVE_8).await?;
    assert_eq!(told(&world), (2, 1));
    may(&world, &[ASK_8]);
    has(&world, ON_PVE_8, "InternalIP 10.0.0.213").await?;
    has(&world, OLD, "InternalIP 10.0.0.211").await?;
    soon_told(&world, (2, 2)).await?;
    world.stop().await
}

/// Soon, and with the addresses that it came with, however often is asked.
async fn comes_alive(world: &CcmWorld, vmid: u32) -> Result<()> {
    let node = name(vmid);
    world.register(&node, vmid).await?;
    set_addresses(world, &node, "10.9.9.9").await?;
    let (_, took) = world.initialised(&node).await?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    sleep(PERIOD * 5).await;
    has(world, vmid, "InternalIP 10.9.9.9").await?;
    has(world, OLD, "InternalIP 10.0.0.211").await
}

async fn has(world: &CcmWorld, vmid: u32, address: &str) -> Result<()> {
    let is = |node: &_| addresses(node) == [address];
    world.until(&name(vmid), address, is).await?;
    Ok(())
}

fn told(world: &CcmWorld) -> (usize, usize) {
    let logs = world.logs();
    [FORBIDDEN, AGAIN]
        .map(|line| logs.matches(line).count())
        .into()
}

/// An agent that was refused is asked after up to ten periods.
async fn soon_told(world: &CcmWorld, expected: (usize, usize)) -> Result<()> {
    eventually("all agents are asked again", PERIOD * 20, async || {
        Ok((told(world) == expected).then_some(()))
    })
    .await?;
    sleep(PERIOD * 2).await;
    assert_eq!(told(world), expected);
    Ok(())
}
