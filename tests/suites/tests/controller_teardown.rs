//! While an annotation of the tenant's `CSIDriver` says that its volumes are being removed: none is made, and all else goes on.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::collections::HashMap;
use std::time::Duration;

use csi_proto::csi::v1::GetCapacityRequest;
use harness::caller::{Caller, SIZE, until_ok};
use harness::csi::topology;
use harness::extra_controller::ExtraController;
use harness::kube_stub::KubeStub;
use harness::truth::Truth;
use harness::world::{FILES, REGION, SHARED, World, tenant};
use pve_model::topology::TEARDOWN_ANNOTATION;
use pve_sim::{RequestEffect, RequestFault};
use serde_json::json;
use tokio::time::sleep;
use tonic::{Code, Status};

/// How long the controller may go on with what it knew.
const SEEN: Duration = Duration::from_millis(3200);

/// At these the provisioner keeps calling (external-provisioner `checkError`).
const NOT_FINAL: [Code; 3] = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted];

struct Scene {
    world: World,
    kube: KubeStub,
    controller: ExtraController,
}

impl Scene {
    async fn start() -> Self {
        let vms = [(101, "pve1"), (102, "pve2")];
        let world = World::without_controller(tenant(&vms)).await.unwrap();
        let kube = KubeStub::start().await.unwrap();
        let kubeconfig = kube.kubeconfig(world.folder()).unwrap();
        let arguments = [format!("--kubeconfig={}", kubeconfig.display())];
        let controller = world.extra_controller_with("one", &arguments).await;
        Self {
            world,
            kube,
            controller: controller.unwrap(),
        }
    }

    fn caller(&self) -> &Caller {
        &self.controller.caller
    }

    async fn tear_down(&self, is: bool) {
        let word = if is { "true" } else { "false" };
        self.kube
            .annotate_driver(json!({ TEARDOWN_ANNOTATION: word }));
        sleep(SEEN).await;
    }

    async fn capacity(&self) -> Result<i64, Status> {
        let request = GetCapacityRequest {
            parameters: HashMap::from([("storage".to_owned(), FILES.to_owned())]),
            accessible_topology: Some(topology(REGION, Some("pve1"))),
            ..Default::default()
        };
        let csi = harness::csi::Csi::at(&self.controller.socket);
        let answer = csi.controller().get_capacity(request).await?;
        Ok(answer.into_inner().available_capacity)
    }

    fn allocation(&self, effect: RequestEffect) {
        self.world.sim.add_fault(RequestFault {
            method: "POST".to_owned(),
            path: "/nodes/{node}/storage/{storage}/content".to_owned(),
            nth: 1,
            times: 1,
            effect,
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn none_is_made_and_those_that_are_there_come_to_their_end() {
    let scene = Scene::start().await;
    let caller = scene.caller();
    let volume = caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    scene.tear_down(true).await;
    let disks = Truth::of(&scene.world.sim).disks();
    for (name, storage, zone) in [("pvc-b", FILES, Some("pve1")), ("pvc-c", SHARED, None)] {
        let refused = caller.create(name, storage, zone).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        assert!(refused.message().contains("CSIDriver"), "{refused:?}");
    }
    let refused = scene.capacity().await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert_eq!(
        Truth::of(&scene.world.sim).disks(),
        disks,
        "nothing was made"
    );
    let again = caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    assert_eq!(again, volume);
    caller.expand(&volume, SIZE * 2).await.unwrap();
    caller.unpublish(&volume, 101).await.unwrap();
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&scene.world.sim).disks().is_empty());
    scene.tear_down(false).await;
    caller.create("pvc-b", FILES, Some("pve1")).await.unwrap();
    assert!(scene.capacity().await.unwrap() > 0);
}

/// Its provisioner repeats until it gets a final answer: the volume that was made is what ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_creation_gets_the_disk_that_an_earlier_call_has_made() {
    let scene = Scene::start().await;
    let caller = scene.caller();
    scene.allocation(RequestEffect::LostReply);
    let unknown = caller.create("pvc-a", FILES, Some("pve1")).await;
    let unknown = unknown.unwrap_err();
    assert!(NOT_FINAL.contains(&unknown.code()), "{unknown:?}");
    assert_eq!(Truth::of(&scene.world.sim).disks().len(), 1);
    scene.tear_down(true).await;
    let volume = caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&scene.world.sim).disks().is_empty());
    // A controller that has forgotten what it asked for.
    scene.tear_down(false).await;
    let kept = caller.create("pvc-b", FILES, Some("pve2")).await.unwrap();
    scene.tear_down(true).await;
    let kubeconfig = scene.kube.kubeconfig(scene.world.folder()).unwrap();
    let arguments = [format!("--kubeconfig={}", kubeconfig.display())];
    let other = scene.world.extra_controller_with("two", &arguments).await;
    let other = other.unwrap();
    let found = other.caller.create("pvc-b", FILES, None).await;
    assert_eq!(found.unwrap(), kept, "on whichever host it is");
}

/// "For sure not in progress" would have the provisioner forget a disk that comes a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn while_an_earlier_allocation_may_still_come_the_answer_is_not_final() {
    let scene = Scene::start().await;
    let caller = scene.caller();
    scene.allocation(RequestEffect::LostRequest);
    caller
        .create("pvc-a", FILES, Some("pve1"))
        .await
        .unwrap_err();
    scene.tear_down(true).await;
    let waits = caller.create("pvc-a", FILES, Some("pve1")).await;
    assert_eq!(waits.unwrap_err().code(), Code::Aborted);
    let never = caller.create("pvc-b", FILES, Some("pve1")).await;
    assert_eq!(never.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_can_not_be_looked_at_is_no_proof_that_nothing_was_made() {
    let scene = Scene::start().await;
    scene.tear_down(true).await;
    scene.world.sim.power_off("pve2");
    let unknown = scene.caller().create("pvc-a", FILES, Some("pve2")).await;
    let unknown = unknown.unwrap_err();
    assert!(NOT_FINAL.contains(&unknown.code()), "{unknown:?}");
    scene.world.sim.power_on("pve2");
    let known = until_refused(scene.caller()).await;
    assert_eq!(known.code(), Code::FailedPrecondition, "{known:?}");
}

/// The first answer that is not one of an outage.
async fn until_refused(caller: &Caller) -> Status {
    let answer = until_ok(Duration::from_secs(20), async || {
        match caller.create("pvc-a", FILES, Some("pve2")).await {
            Err(status) if !NOT_FINAL.contains(&status.code()) => Ok(Some(status)),
            Err(status) => Err(status),
            Ok(_) => Ok(None),
        }
    });
    answer.await.unwrap().unwrap()
}

/// It could else be told nothing by a tenant whose API server is gone, and its operator would have to be asked.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_of_the_api_server_volumes_are_made_as_ever() {
    let scene = Scene::start().await;
    scene.tear_down(true).await;
    scene.kube.refuse(Some(500));
    sleep(SEEN).await;
    let caller = scene.caller();
    caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    scene.kube.refuse(None);
    sleep(SEEN).await;
    let refused = caller.create("pvc-b", FILES, Some("pve1")).await;
    assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
}
