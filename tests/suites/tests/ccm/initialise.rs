//! Nodes come alive.

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, PRIVILEGES, label, tenant};
use harness::cluster::requirements;
use harness::world::uuid;
use pve_client::{Program, privileges::grants};
use pve_model::topology::{REGION, VMID_ANNOTATION, ZONE};

/// B46: so all of them show that it is enough; the matrix shows what the lack of each does.
#[test]
fn the_token_of_these_tests_has_what_is_documented_as_needed_and_nothing_else() {
    let needed = grants(Program::Ccm).into_iter();
    let mut needed: Vec<&str> = needed
        .filter(|grant| !grant.optional)
        .map(|grant| grant.privilege)
        .collect();
    let mut granted = PRIVILEGES.to_vec();
    needed.sort_unstable();
    granted.sort_unstable();
    assert_eq!(needed, granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_registers_gets_id_labels_and_loses_its_taint_within_seconds() -> Result<()> {
    let _alone = crate::alone().await;
    let Some(programs) = requirements("ccm: a Node comes alive") else {
        return Ok(());
    };
    let mut world = CcmWorld::start(&programs, tenant(&[(101, "pve1"), (102, "pve2")])).await?;
    let config = world.config();
    world.start_ccm(&config, &[]).await?;
    world.register("worker-101", 101).await?;
    let (node, took) = world.initialised("worker-101").await?;
    ensure!(took.as_secs() < 5, "{took:?}");
    assert_eq!(label(&node, REGION), Some("r1"));
    assert_eq!(label(&node, ZONE), Some("pve1"));
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    assert_eq!(
        annotations.get(VMID_ANNOTATION).map(String::as_str),
        Some("101")
    );
    let id = node.spec.and_then(|spec| spec.provider_id);
    assert_eq!(id, Some(format!("proxmox://{}", uuid(101))));
    world.stop().await
}
