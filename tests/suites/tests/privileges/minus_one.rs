//! Every documented privilege taken away by itself: a refusal that tells the operator which, nothing wrong and nothing left
//! behind; and given back, all works again in the same process.

use std::time::Duration;

use csi_proto::csi::v1::{GetCapacityRequest, ValidateVolumeCapabilitiesRequest};
use harness::caller::{SIZE, until_ok};
use harness::csi::{mount_capability, topology};
use harness::refusals::tells;
use harness::requirements::noted;
use harness::truth::Truth;
use harness::world::{FILES, POOL, REGION, SHARED, World};
use pve_sim::State;
use tonic::{Code, Status};

use crate::{documented, grant, world};

/// Lists of guests and storages are shared for 2 s.
const LISTS_AGE: Duration = Duration::from_millis(2200);
const AGAIN: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Capacity,
    Validate,
    Publish,
    Expand,
    Unpublish,
    UnpublishGone,
    Delete,
}

const STEPS: [Step; 8] = [
    Step::Create,
    Step::Capacity,
    Step::Validate,
    Step::Publish,
    Step::Expand,
    Step::Unpublish,
    Step::UnpublishGone,
    Step::Delete,
];

/// A storage with volumes in every state of their life.
#[derive(Debug)]
struct Scene {
    storage: &'static str,
    zone: Option<&'static str>,
    idle: String,
    held: String,
    /// In the VM that [`Step::UnpublishGone`] ends.
    gone: String,
    free: i64,
}

async fn free(world: &World, storage: &str, zone: Option<&str>) -> Result<i64, Status> {
    let request = GetCapacityRequest {
        parameters: [("storage".to_owned(), storage.to_owned())].into(),
        accessible_topology: Some(topology(REGION, zone)),
        ..Default::default()
    };
    let answer = world.csi().controller().get_capacity(request).await?;
    Ok(answer.into_inner().available_capacity)
}

async fn scene(world: &World, storage: &'static str, zone: Option<&'static str>) -> Scene {
    let caller = world.caller();
    let create = async |name: &str| caller.create(name, storage, zone).await.unwrap();
    let (idle, held, gone) = (
        create("pvc-idle").await,
        create("pvc-held").await,
        create("pvc-gone").await,
    );
    caller.publish(&held, 101).await.unwrap();
    caller.publish(&gone, 102).await.unwrap();
    tokio::time::sleep(LISTS_AGE).await;
    Scene {
        storage,
        zone,
        idle,
        held,
        gone,
        free: free(world, storage, zone).await.unwrap(),
    }
}

/// Does a step; of a success, whether it is true.
async fn run(world: &World, scene: &Scene, step: Step) -> Result<bool, Status> {
    let caller = world.caller();
    let Scene {
        storage,
        zone,
        idle,
        held,
        gone,
        ..
    } = scene;
    let truth = || Truth::of(&world.sim);
    match step {
        Step::Create => {
            let volume = caller.create("pvc-new", storage, *zone).await?;
            Ok(truth().size(&volume).is_some())
        }
        Step::Capacity => Ok(free(world, storage, *zone).await? == scene.free),
        Step::Validate => {
            let request = ValidateVolumeCapabilitiesRequest {
                volume_id: idle.clone(),
                volume_capabilities: vec![mount_capability()],
                ..Default::default()
            };
            let answer = world
                .csi()
                .controller()
                .validate_volume_capabilities(request)
                .await?;
            Ok(answer.into_inner().confirmed.is_some())
        }
        Step::Publish => {
            caller.publish(idle, 101).await?;
            Ok(truth().slots(101, idle).len() == 1)
        }
        Step::Expand => {
            let size = caller.expand(held, 2 * SIZE).await?;
            Ok(truth().size(held) == u64::try_from(size).ok() && size >= 2 * SIZE)
        }
        Step::Unpublish => {
            caller.unpublish(held, 101).await?;
            Ok(truth().holders(held).is_empty())
        }
        Step::UnpublishGone => {
            world.sim.edit(|state| state.vms.remove(&102));
            caller.unpublish(gone, 102).await?;
            Ok(true)
        }
        Step::Delete => {
            caller.delete(idle).await?;
            Ok(truth().size(idle).is_none())
        }
    }
}

/// What is wrong with a refusal: its code, its text, or what it tells the operator.
fn judged(status: &Status, log: &str, (path, privilege): (&str, &str)) -> Vec<String> {
    let mut wrong = Vec::new();
    if status.code() == Code::NotFound {
        wrong.push(format!(
            "a missing right is called \"not found\": {}",
            status.message()
        ));
    }
    for told in [
        path,
        privilege,
        "403",
        "/vms/",
        "/storage/",
        "Permission check",
        POOL,
    ] {
        if tells(status.message(), told) {
            wrong.push(format!("the tenant reads {told:?}: {}", status.message()));
        }
    }
    let on_vm = path.starts_with("/pool/") && privilege.starts_with("VM.");
    let names = |line: &str| {
        let object = line.contains(path) || (on_vm && line.contains("/vms/"));
        object && line.contains(privilege)
    };
    if !log.lines().any(names) {
        let lines: Vec<&str> = log.lines().filter(|line| !line.contains("DEBUG")).collect();
        wrong.push(format!(
            "the operator is not told {privilege} on {path}: {lines:#?}"
        ));
    }
    wrong
}

fn kept(before: &State, after: &State) -> bool {
    before.vms == after.vms && before.volumes == after.volumes
}

async fn without(world: &World, scene: &Scene, less: (&str, &str), failures: &mut Vec<String>) {
    let state = world.sim.state();
    let restore = |less| {
        world.sim.edit(|now| *now = state.clone());
        grant(&world.sim, less);
    };
    restore(Some(less));
    tokio::time::sleep(LISTS_AGE).await;
    let mut refused = Vec::new();
    for step in STEPS {
        let from = world.controller_log().len();
        let mut wrong = match run(world, scene, step).await {
            Ok(true) => Vec::new(),
            Ok(false) => vec!["success with a wrong result".to_owned()],
            Err(status) => {
                refused.push(step);
                let log = world.controller_log().split_off(from);
                judged(&status, &log, less)
            }
        };
        // PVE makes a disk for who may not look at it: `seen_again`.
        let unseen = step == Step::Create && less.1 == "Datastore.Allocate";
        let ended = step == Step::UnpublishGone;
        if refused.last() == Some(&step) && !unseen && !ended && !kept(&state, &world.sim.state()) {
            wrong.push("something was left behind".to_owned());
        }
        failures.extend(
            wrong
                .into_iter()
                .map(|why| format!("{step:?} without {less:?}: {why}")),
        );
        restore(Some(less));
    }
    if refused.is_empty() {
        failures.push(format!("nothing is refused without {less:?}"));
    }
    noted(&format!(
        "without {} on {}: {refused:?} refused",
        less.1, less.0
    ));
    restore(None);
    for step in STEPS {
        let again = until_ok(AGAIN, async || run(world, scene, step).await).await;
        if !matches!(again, Ok(true)) {
            failures.push(format!("{step:?} after {less:?} was given back: {again:?}"));
        }
        restore(None);
    }
}

async fn each(path: &str, storage: &'static str, zone: Option<&'static str>) {
    let world = world().await;
    let scene = scene(&world, storage, zone).await;
    let mut failures = Vec::new();
    for privilege in documented(path) {
        without(&world, &scene, (path, &privilege), &mut failures).await;
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_privilege_on_the_pool_that_lacks_is_told_to_the_operator_alone() {
    each(&format!("/pool/{POOL}"), FILES, Some("pve1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_privilege_on_a_local_storage_that_lacks_is_told_to_the_operator_alone() {
    each(&format!("/storage/{FILES}"), FILES, Some("pve1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_privilege_on_a_shared_storage_that_lacks_is_told_to_the_operator_alone() {
    each(&format!("/storage/{SHARED}"), SHARED, None).await;
}

/// PVE makes a disk for a token that has `Datastore.AllocateSpace` alone, and shows it to one that has more.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_made_without_the_right_to_see_it_is_the_volume_once_the_right_is_back() {
    let world = world().await;
    let caller = world.caller();
    let path = format!("/storage/{SHARED}");
    grant(&world.sim, Some((&path, "Datastore.Allocate")));
    for _ in 0..2 {
        let status = caller.create("pvc-1", SHARED, None).await.unwrap_err();
        // One at which the provisioner keeps calling.
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    grant(&world.sim, None);
    let volume = until_ok(AGAIN, async || caller.create("pvc-1", SHARED, None).await)
        .await
        .unwrap();
    let truth = Truth::of(&world.sim);
    let made: Vec<_> = truth
        .disks()
        .into_iter()
        .filter(|disk| disk.contains("pvc-1"))
        .collect();
    assert_eq!(made.len(), 1, "{made:?}");
    caller.delete(&volume).await.unwrap();
    assert_eq!(Truth::of(&world.sim).size(&volume), None);
}
