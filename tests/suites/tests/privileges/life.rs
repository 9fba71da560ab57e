//! A volume's whole life with exactly the documented privileges.

use std::collections::BTreeSet;

use csi_proto::csi::v1::{GetCapacityRequest, ValidateVolumeCapabilitiesRequest};
use harness::caller::SIZE;
use harness::csi::{mount_capability, topology};
use harness::probes::{endpoints, rights};
use harness::truth::Truth;
use harness::world::{FILES, REGION, SHARED, THIN, World};

use crate::world;

const NONE: [String; 0] = [];

async fn life(world: &World, storage: &str, zone: Option<&str>) {
    let caller = world.caller();
    let mut controller = world.csi().controller();
    let capacity = GetCapacityRequest {
        parameters: [("storage".to_owned(), storage.to_owned())].into(),
        accessible_topology: Some(topology(REGION, zone)),
        ..Default::default()
    };
    let free = controller
        .get_capacity(capacity)
        .await
        .unwrap()
        .into_inner();
    assert!(free.available_capacity > SIZE, "{storage}");
    let volume = caller.create("pvc-life", storage, zone).await.unwrap();
    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: volume.clone(),
        volume_capabilities: vec![mount_capability()],
        ..Default::default()
    };
    let answer = controller.validate_volume_capabilities(validate).await;
    assert!(answer.unwrap().into_inner().confirmed.is_some());
    caller.publish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).slots(101, &volume).len(), 1);
    caller.expand(&volume, 2 * SIZE).await.unwrap();
    caller.unpublish(&volume, 101).await.unwrap();
    // The VM ends, and its detach rests on the proof that it is gone.
    caller.publish(&volume, 102).await.unwrap();
    let ended = world.sim.edit(|state| state.vms.remove(&102)).unwrap();
    caller.unpublish(&volume, 102).await.unwrap();
    caller.delete(&volume).await.unwrap();
    world.sim.edit(|state| {
        let mut vm = ended;
        vm.config.retain(|_, value| !value.contains("pvc-life"));
        vm.devices.clear();
        state.vms.insert(102, vm)
    });
    assert_eq!(Truth::of(&world.sim).size(&volume), None, "{volume}");
}

/// B46.
#[tokio::test(flavor = "multi_thread")]
async fn a_volumes_life_needs_no_privilege_that_the_reference_does_not_name() {
    let world = world().await;
    world.sim.clear_requests();
    for (storage, zone) in [(FILES, Some("pve1")), (THIN, Some("pve1")), (SHARED, None)] {
        life(&world, storage, zone).await;
    }
    let requests = world.sim.requests();
    let refused: Vec<_> = requests
        .iter()
        .filter(|request| [401, 403].contains(&request.status))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert_eq!(world.leaks().unwrap(), NONE);
    let used: BTreeSet<String> = requests
        .iter()
        .map(|request| format!("{} {}", request.method, request.template.replace("*}", "}")))
        .collect();
    let known: BTreeSet<String> = endpoints().map(|spec| spec.name.to_owned()).collect();
    let unknown: Vec<_> = used.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "the client has no such endpoints: {unknown:?}"
    );
    let unused: Vec<_> = endpoints()
        .filter(|spec| rights(spec).next().is_some() && !used.contains(spec.name))
        .map(|spec| spec.name)
        .collect();
    assert!(unused.is_empty(), "no life needs {unused:?}");
}
