//! The config of the former cloud-controller-manager, as it is, with a policy beside it.

use anyhow::Result;
use harness::ccm::{CcmWorld, TOKEN, label, provider_id};
use harness::cluster::requirements;
use harness::world::{POOL, REGION, uuid};
use pve_model::topology::ZONE;
use serde_json::json;

use super::{addresses, cluster, interface, mac, name, plain, tells};
use crate::alone;

const VMID: u32 = 221;

#[tokio::test(flavor = "multi_thread")]
async fn a_config_of_the_former_controller_goes_on_working_with_a_policy_beside_it() -> Result<()> {
    let _alone = alone().await;
    let Some(programs) = requirements("ccm: the former config") else {
        return Ok(());
    };
    let mut world = CcmWorld::start(&programs, cluster(&[VMID])).await?;
    let mut told = plain(VMID, &["192.168.7.7/24", "10.0.0.41/24", "fd00::41/64"]);
    told.push(interface("eth1", Some(&mac(VMID, 1)), &["203.0.113.41/24"]));
    tells(&world, VMID, told);
    let config = json!({
        "clusters": [{
            "url": format!("{}/api2/json", world.sim().url()),
            "insecure": true,
            "token_id": TOKEN.0,
            "token_secret": TOKEN.1,
            "region": REGION,
        }],
        "features": {
            "provider": "capmox",
            "force_update_labels": true,
            "network": {
                "mode": "auto",
                "external_ip_cidrs": "203.0.113.0/24",
                "ip_sort_order": "10.0.0.0/8, !192.168.7.0/24",
                "ipv6_support_disabled": true,
            },
        },
    });
    let policy = json!({ "regions": { REGION: { "pool": POOL, "storages": ["files"], "nodes": ["pve1", "pve2"] } } });
    std::fs::write(world.folder().join("policy.yaml"), policy.to_string())?;
    world.start_ccm(&config, &[]).await?;
    world.register(&name(VMID), VMID).await?;
    let (node, _) = world.initialised(&name(VMID)).await?;
    assert_eq!(
        addresses(&node),
        ["InternalIP 10.0.0.41", "ExternalIP 203.0.113.41"]
    );
    let id = format!("proxmox://{}", uuid(VMID));
    assert_eq!(provider_id(&node), Some(id.as_str()));
    assert_eq!(label(&node, ZONE), Some("pve1"));

    // `force_update_labels`.
    world.sim().with_vm(VMID, |vm| vm.node = "pve2".to_owned());
    let moved = |node: &_| label(node, ZONE) == Some("pve2");
    world.until(&name(VMID), "its new zone", moved).await?;
    world.stop().await
}
