//! How much room there is, as csi-provisioner tells the scheduler; what a teardown makes of it; and sidecars that wait.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::cluster::objects::NAMESPACE;
use harness::cluster::{
    Claim, Place, STAY, Stack, Tenant, View, Workload, eventually, requirements,
};
use harness::lease_stub::LeaseStub;
use harness::requirements::noted;
use harness::truth::Truth;
use harness::world::{FILES, SHARED, THIN};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use pve_kube::capacity::{self, CapacityError, DRIVER_LABEL, MANAGED_BY_LABEL, MANAGER};
use pve_model::topology::{DEFAULT_DRIVER_NAME, TEARDOWN_ANNOTATION, ZONE};
use pve_sim::{RequestEffect, RequestFault, Storage};
use serde_json::json;
use tokio::time::{Instant, sleep};

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
const N2: Place = Place {
    vmid: 102,
    pve_node: "pve2",
};
/// csi-provisioner asks once in a minute (`--capacity-poll-interval`).
const POLLED: Duration = Duration::from_secs(80);
const SOON: Duration = Duration::from_secs(30);
/// How long the controller may go on with what it knew of the annotation.
const SEEN: Duration = Duration::from_secs(4);
const CLAIM: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn pods_go_where_there_is_room_and_a_teardown_leaves_no_word_of_it() -> Result<()> {
    let Some(programs) = requirements("cluster: capacity") else {
        return Ok(());
    };
    let mut stack = Stack::start(&programs, &[N1, N2]).await?;
    let outcome = all(&mut stack).await;
    stack.finish(outcome).await
}

async fn all(stack: &mut Stack) -> Result<()> {
    figures(stack).await?;
    placed_where_there_is_room(stack).await?;
    waits_for_room(stack).await?;
    stack.restart_management().await?;
    torn_down(stack).await?;
    sidecars_wait(stack).await?;
    stale_ones_go(stack).await
}

type Known = BTreeMap<(String, String), (u64, CSIStorageCapacity)>;

/// The objects by class and zone: `local` ones have a zone each, and so have those of what is shared.
async fn known(stack: &Stack) -> Result<Known> {
    let objects: Api<CSIStorageCapacity> = Api::namespaced(stack.client(), NAMESPACE);
    let mut known = Known::new();
    for object in objects.list(&ListParams::default()).await?.items {
        let labels = object
            .node_topology
            .as_ref()
            .and_then(|at| at.match_labels.clone());
        let zone = labels.and_then(|mut labels| labels.remove(ZONE));
        let bytes = object.capacity.as_ref().map(|quantity| bytes(&quantity.0));
        let key = (object.storage_class_name.clone(), zone.context("no zone")?);
        let value = (bytes.context("no capacity")??, object);
        ensure!(known.insert(key.clone(), value).is_none(), "{key:?} twice");
    }
    Ok(known)
}

fn bytes(text: &str) -> Result<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];
    let found = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = found.unwrap_or((text, 0));
    let number: u64 = number.parse().with_context(|| text.to_owned())?;
    Ok(number << shift)
}

fn edit(stack: &Stack, storage: &str, change: impl FnOnce(&mut Storage)) {
    let sim = &stack.world.sim;
    sim.edit(|state| state.storages.get_mut(storage).map(change));
}

/// Waits until each of these is told.
async fn told(stack: &Stack, wanted: &[(&str, &str, bool)]) -> Result<Duration> {
    let ((), took) = eventually("the capacities", POLLED, async || {
        let known = known(stack).await?;
        let is = |(class, zone, room): &(&str, &str, bool)| {
            let one = known.get(&((*class).to_owned(), (*zone).to_owned()));
            one.is_some_and(|(bytes, _)| (*bytes >= CLAIM) == *room)
        };
        Ok(wanted.iter().all(is).then_some(()))
    })
    .await?;
    Ok(took)
}

/// One object for each class and PVE node with a Node, with PVE's free space and the labels by which they are found.
async fn figures(stack: &Stack) -> Result<()> {
    let known = known(stack).await?;
    let expected: Vec<(String, String)> = [FILES, SHARED, THIN]
        .into_iter()
        .flat_map(|class| ["pve1", "pve2"].map(|zone| (class.to_owned(), zone.to_owned())))
        .collect();
    ensure!(
        known.keys().cloned().collect::<Vec<_>>() == expected,
        "{:?}",
        known.keys()
    );
    for ((class, zone), (told, object)) in &known {
        let state = stack.world.sim.state();
        let storage = state.storages.get(class).context("no storage")?;
        let free = storage.total - storage.used;
        ensure!(*told == free, "{class} on {zone}: {told} of {free}");
        let labels = object.metadata.labels.clone().unwrap_or_default();
        for (label, value) in [
            (DRIVER_LABEL, DEFAULT_DRIVER_NAME),
            (MANAGED_BY_LABEL, MANAGER),
        ] {
            ensure!(
                labels.get(label).map(String::as_str) == Some(value),
                "{labels:?}"
            );
        }
        let owners = object.metadata.owner_references.as_ref();
        ensure!(owners.is_none_or(Vec::is_empty), "{owners:?}");
    }
    Ok(())
}

async fn run(tenant: &Tenant, name: &str, class: &str) -> Result<()> {
    let claim = Claim {
        name,
        class,
        access: "ReadWriteOnce",
        view: View::Mount,
    };
    tenant.claim(&claim).await?;
    let pod = Workload {
        name,
        node: "",
        claim: name,
        view: View::Mount,
        command: STAY,
    };
    tenant.run(&pod).await
}

async fn end(tenant: &Tenant, names: &[&str]) -> Result<()> {
    for name in names {
        tenant.delete_pod(name).await?;
    }
    tenant.wait_detached().await?;
    for name in names {
        tenant.delete_claim(name).await?;
    }
    Ok(())
}

fn allocations(stack: &Stack, host: &str) -> usize {
    let requests = stack.world.sim.requests().into_iter();
    let path = format!("/nodes/{host}/storage/");
    let allocates = |request: &pve_sim::RequestEntry| {
        request.method == "POST"
            && request.path.contains(&path)
            && request.path.ends_with("/content")
    };
    requests.filter(allocates).count()
}

/// A storage that one PVE node has alone: PVE is never asked for a disk on the other.
async fn placed_where_there_is_room(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    edit(stack, FILES, |files| {
        files.nodes = ["pve2".to_owned()].into();
    });
    let took = told(stack, &[(FILES, "pve1", false), (FILES, "pve2", true)]).await?;
    noted(&format!(
        "capacity: a storage that is off a PVE node is told after {took:.0?}"
    ));
    for name in ["room-1", "room-2"] {
        run(&tenant, name, FILES).await?;
    }
    for name in ["room-1", "room-2"] {
        tenant.wait_running(name).await?;
        let node = tenant.node_of(name).await?;
        ensure!(node == "n2", "{name} runs on {node}");
    }
    end(&tenant, &["room-1", "room-2"]).await?;
    ensure!(
        allocations(stack, "pve1") == 0,
        "PVE was asked for a disk where none can be"
    );
    Ok(())
}

/// Full everywhere: the Pod waits, PVE is not asked; with room on one PVE node it runs there.
async fn waits_for_room(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let before = stack.world.sim.state();
    let used = before.storages.get(THIN).context("no storage")?.used;
    edit(stack, THIN, |thin| thin.used = thin.total - CLAIM / 2);
    told(stack, &[(THIN, "pve1", false), (THIN, "pve2", false)]).await?;
    let asked = allocations(stack, "pve1") + allocations(stack, "pve2");
    run(&tenant, "waits", THIN).await?;
    let event = tenant
        .wait_event("waits", "did not have enough free storage")
        .await?;
    ensure!(event.contains("2 node(s)"), "{event}");
    ensure!(asked == allocations(stack, "pve1") + allocations(stack, "pve2"));
    edit(stack, THIN, |thin| {
        thin.used = used;
        thin.nodes = ["pve1".to_owned()].into();
    });
    let begun = Instant::now();
    told(stack, &[(THIN, "pve1", true), (THIN, "pve2", false)]).await?;
    tenant.wait_running("waits").await?;
    let node = tenant.node_of("waits").await?;
    ensure!(node == "n1", "it runs on {node}");
    noted(&format!(
        "capacity: a Pod runs {:.0?} after there was room",
        begun.elapsed()
    ));
    end(&tenant, &["waits"]).await
}

/// What `pvectl teardown` does to the driver: no new volumes, a claim in creation comes to its end, and what the scheduler was
/// told goes and stays away although csi-provisioner runs.
async fn torn_down(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let sim = &stack.world.sim;
    sim.add_fault(fault("POST", "content", (1, RequestEffect::LostReply)));
    let silent = RequestEffect::FailBefore {
        status: 500,
        message: "got timeout".to_owned(),
    };
    sim.add_fault(fault("GET", "content/{volume*}", (10_000, silent)));
    run(&tenant, "in-creation", FILES).await?;
    eventually("a disk of which nobody knows", SOON, async || {
        Ok((Truth::of(sim).disks().len() == 1).then_some(()))
    })
    .await?;
    annotate(stack).await?;
    sleep(SEEN).await;
    sim.clear_faults();
    tenant
        .claims()
        .delete("in-creation", &DeleteParams::default())
        .await?;
    tenant.delete_pod("in-creation").await?;
    eventually("its disk is gone", POLLED, async || {
        let disks = Truth::of(&stack.world.sim).disks();
        Ok(disks.is_empty().then_some(()))
    })
    .await?;
    run(&tenant, "too-late", FILES).await?;
    tenant.wait_event("too-late", "no new volumes").await?;
    ensure!(Truth::of(&stack.world.sim).disks().is_empty());
    let removed = remove(stack).await?;
    ensure!(removed == 6, "{removed} removed");
    sleep(Duration::from_secs(5)).await;
    ensure!(known(stack).await?.is_empty(), "they are there again");
    tenant.delete_pod("too-late").await?;
    tenant
        .claims()
        .delete("too-late", &DeleteParams::default())
        .await?;
    Ok(())
}

fn fault(method: &str, below: &str, (times, effect): (u32, RequestEffect)) -> RequestFault {
    RequestFault {
        method: method.to_owned(),
        path: format!("/nodes/{{node}}/storage/{{storage}}/{below}"),
        nth: 1,
        times,
        effect,
    }
}

async fn annotate(stack: &Stack) -> Result<()> {
    let drivers: Api<CSIDriver> = Api::all(stack.client());
    let annotations = json!({ "metadata": { "annotations": { TEARDOWN_ANNOTATION: "true" } } });
    let patch = Patch::Merge(annotations);
    drivers
        .patch(DEFAULT_DRIVER_NAME, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn remove(stack: &Stack) -> Result<usize, CapacityError> {
    let deadline = Instant::now() + SOON;
    capacity::remove_stale(&stack.client(), DEFAULT_DRIVER_NAME, deadline).await
}

/// A controller that waits for the Lease, with real sidecars: none of them ends.
async fn sidecars_wait(stack: &Stack) -> Result<()> {
    let management = LeaseStub::start().await?;
    management.held_by_nobody_here(15);
    let kubeconfig = management.kubeconfig(stack.world.folder(), "standby")?;
    let arguments = [
        "--leader-elect".to_owned(),
        "--lease-namespace=tenant-a".to_owned(),
        format!("--management-kubeconfig={}", kubeconfig.display()),
    ];
    let standby = stack
        .world
        .extra_controller_with("standby", &arguments)
        .await?;
    let mut sidecars = stack.more_sidecars(&standby.socket).await?;
    let before = sidecars.logs();
    sleep(Duration::from_secs(10)).await;
    ensure!(management.holder() == "elsewhere");
    let ended = sidecars.ended()?;
    ensure!(
        ended.is_empty(),
        "{ended:?} have ended while they had to wait"
    );
    for ((name, before), (_, log)) in before.into_iter().zip(sidecars.logs()) {
        let new = log.get(before.len()..).unwrap_or_default();
        ensure!(new.contains("CSI driver is not ready"), "{name}: {new}");
    }
    eventually("it leads", SOON, async || {
        Ok((management.holder() != "elsewhere").then_some(()))
    })
    .await?;
    sleep(Duration::from_secs(3)).await;
    ensure!(sidecars.ended()?.is_empty());
    sidecars.stop().await?;
    standby.process.stop().await?;
    Ok(())
}

/// Without the annotation csi-provisioner makes them anew at once, which is told; without csi-provisioner they go.
async fn stale_ones_go(stack: &mut Stack) -> Result<()> {
    let drivers: Api<CSIDriver> = Api::all(stack.client());
    let annotations = json!({ "metadata": { "annotations": { TEARDOWN_ANNOTATION: null } } });
    let patch = Patch::Merge(annotations);
    drivers
        .patch(DEFAULT_DRIVER_NAME, &PatchParams::default(), &patch)
        .await?;
    eventually("all capacities again", POLLED, async || {
        Ok((known(stack).await?.len() == 6).then_some(()))
    })
    .await?;
    let refused = remove(stack).await;
    ensure!(
        matches!(refused, Err(CapacityError::ComeBack(_))),
        "{refused:?}"
    );
    stack.end_sidecars().await?;
    let removed = remove(stack).await?;
    ensure!(removed > 0);
    ensure!(known(stack).await?.is_empty());
    Ok(())
}
