//! A machine's Node comes alive and is found by Cluster API.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::management::{CAPMOX_0_7, CAPMOX_0_8, Management, documents};
use harness::ccm::operator::{self, administered};
use harness::ccm::{CcmWorld, annotation, has_taint, label, provider_id};
use harness::cluster::{eventually, requirements};
use harness::world::POOL;
use pve_model::topology::{UNINITIALIZED_TAINT, VMID_ANNOTATION, ZONE};
use serde_json::{Value, json};

use super::{CLUSTER_API_TAINT, FORMER, Machine, PRESENT, TEMPLATE, cluster, machines};
use crate::alone;

/// A Node waits no longer, whenever its VM was made.
const SOON: Duration = Duration::from_secs(5);

/// B68: the UUID of the third machine's VM is in upper case in PVE.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_capmox_machine_gets_its_provider_id_and_loses_our_taint_alone() -> Result<()>
{
    let _alone = alone().await;
    let Some(programs) = requirements("ccm: Nodes of capmox machines") else {
        return Ok(());
    };
    let (former, present) = (machines(FORMER)?, machines(PRESENT)?);
    let all = [former.clone(), present.clone()].concat();
    let builder = administered(cluster(&all)?);
    let mut world = CcmWorld::start(&programs, builder).await?;
    let config = world.config();
    // Nothing before the first Node is waited for: all VMs but these are older than the list.
    world.start_ccm(&config, &["--poll-period=600s"]).await?;
    let management = Management::install(&world, "tenant-a").await?;
    for (kinds, manifests, machines) in
        [(CAPMOX_0_7, FORMER, former), (CAPMOX_0_8, PRESENT, present)]
    {
        management.serve(&kinds).await?;
        for object in documents(manifests)? {
            management.apply(&object).await?;
        }
        for machine in &machines {
            comes_alive(&world, &management, machine).await?;
        }
    }
    a_replacement_comes_alive(&world, &all).await?;
    world.stop().await
}

/// Registers the Node and looks at what Cluster API and the CSI driver look at.
async fn comes_alive(world: &CcmWorld, management: &Management, machine: &Machine) -> Result<()> {
    let name = &machine.name;
    let spec = machine.registered()?;
    world
        .register_as(name, machine.uuid()?, spec.clone())
        .await?;
    let (node, took) = world.initialised(name).await?;
    ensure!(took < SOON, "{name}: {took:?}");
    let stored = management.read(&machine.object).await?;
    let id = stored["spec"]["providerID"].as_str();
    assert_eq!(provider_id(&node), id, "{name}");
    ensure!(id.is_some(), "{name}: the Machine has no provider id");
    assert_eq!(has_taint(&node, CLUSTER_API_TAINT), machine.is_worker());
    let vmid = machine.vmid()?.to_string();
    assert_eq!(
        annotation(&node, VMID_ANNOTATION),
        Some(vmid.as_str()),
        "{name}"
    );
    assert_eq!(label(&node, ZONE), Some(machine.host()?), "{name}");
    if let Some(preset) = spec["providerID"].as_str() {
        assert_eq!(provider_id(&node), Some(preset), "{name}: it stays");
    }
    Ok(())
}

/// Cluster API replaces a machine: capmox clones the template into the pool, long after the VMs were listed.
async fn a_replacement_comes_alive(world: &CcmWorld, before: &[Machine]) -> Result<()> {
    const NEW: u32 = 131;
    const NAME: &str = "tenant-a-workers-6f4d8-z8xcv";
    let form = format!("newid={NEW}&name={NAME}&pool={POOL}&full=1");
    let path = format!("/nodes/pve1/qemu/{TEMPLATE}/clone");
    operator::post(world.sim(), &path, &form).await?;
    let (smbios, _) = eventually("cloned", SOON, async || {
        let state = world.sim().state();
        let config = &state.vms.get(&NEW).context("no VM")?.config;
        let is_done = !config.contains_key("lock");
        Ok(is_done.then(|| config.get("smbios1").cloned()).flatten())
    })
    .await?;
    operator::post(
        world.sim(),
        &format!("/nodes/pve1/qemu/{NEW}/status/start"),
        "",
    )
    .await?;
    let uuid = smbios.trim_start_matches("uuid=").to_lowercase();
    for machine in before {
        ensure!(machine.uuid()? != uuid, "a clone has its own UUID");
    }
    let taints = [UNINITIALIZED_TAINT, CLUSTER_API_TAINT];
    let taints = taints.map(|key| json!({ "key": key, "effect": "NoSchedule" }));
    let spec: Value = json!({ "taints": taints });
    world.register_as(NAME, &uuid, spec).await?;
    let (node, took) = world.initialised(NAME).await?;
    ensure!(took < SOON, "{NAME}: {took:?}");
    let id = format!("proxmox://{uuid}");
    assert_eq!(provider_id(&node), Some(id.as_str()));
    assert_eq!(annotation(&node, VMID_ANNOTATION), Some("131"));
    ensure!(has_taint(&node, CLUSTER_API_TAINT), "it is not ours");
    Ok(())
}
