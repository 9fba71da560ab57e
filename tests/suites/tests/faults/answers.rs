//! Answers that are none.

use std::time::Duration;

use csi_proto::csi::v1::controller_service_capability::{Type, rpc::Type as Rpc};
use csi_proto::csi::v1::{ControllerGetCapabilitiesRequest, ListVolumesRequest};
use harness::caller::Caller;
use harness::truth::{Truth, mutations};
use harness::world::{FILES, SHARED};
use pve_sim::{RequestEffect, RequestEntry, RequestFault};
use tonic::{Code, Status};

use crate::{CONFIG, NONE, world};

const READS: [&str; 7] = [
    "/cluster/resources",
    "/cluster/nextid",
    "/nodes/{node}/qemu/{vmid}/pending",
    "/nodes/{node}/qemu/{vmid}/status/current",
    "/nodes/{node}/storage/{storage}/content",
    "/nodes/{node}/storage/{storage}/content/{volume}",
    CONFIG,
];

/// B15: `data: null` where a list, a config or a disk should be, at each reading in turn.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_data_is_never_taken_for_nothing_there() {
    let world = world(&[(101, "pve1"), (102, "pve2")]).await;
    let caller = world.caller();
    let held = caller.create("pvc-held", SHARED, None).await.unwrap();
    caller.publish(&held, 101).await.unwrap();
    let free = caller
        .create("pvc-free", FILES, Some("pve1"))
        .await
        .unwrap();
    let mut met = 0;
    for path in READS {
        // What was read a moment ago may be remembered for two seconds.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        for rpc in [
            "delete held",
            "delete free",
            "unpublish",
            "publish elsewhere",
        ] {
            caller
                .create("pvc-free", FILES, Some("pve1"))
                .await
                .unwrap();
            caller.publish(&held, 101).await.unwrap();
            world.sim.clear_requests();
            world.sim.add_fault(RequestFault {
                method: "GET".to_owned(),
                path: path.to_owned(),
                nth: 1,
                times: u32::MAX,
                effect: RequestEffect::FailBefore {
                    status: 200,
                    message: "no data".to_owned(),
                },
            });
            let asked = call(&caller, rpc, (&held, &free)).await;
            world.sim.clear_faults();
            let requests = world.sim.requests();
            let read = |entry: &RequestEntry| entry.method == "GET" && entry.template == path;
            let Some(first) = requests.iter().position(read) else {
                continue;
            };
            met += 1;
            let sentence = format!("{rpc} without {path}");
            let status = asked.expect_err(&sentence);
            let refused = rpc == "publish elsewhere" || rpc == "delete held";
            let code = status.code();
            let expected = matches!(code, Code::Unavailable | Code::Internal)
                || refused && code == Code::FailedPrecondition;
            assert!(expected, "{sentence}: {status:?}");
            assert_eq!(mutations(&requests[first..]), NONE, "{sentence}");
        }
    }
    assert!(met >= 8, "{met} readings were met");
    caller.delete(&free).await.unwrap();
    caller.unpublish(&held, 101).await.unwrap();
    caller.delete(&held).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

async fn call(caller: &Caller, rpc: &str, (held, free): (&str, &str)) -> Result<(), Status> {
    match rpc {
        "delete held" => caller.delete(held).await,
        "delete free" => caller.delete(free).await,
        "unpublish" => caller.unpublish(held, 101).await,
        _ => caller.publish(held, 102).await.map(drop),
    }
}

/// B47: a partial view of who has what would detach volumes that are in use.
#[tokio::test(flavor = "multi_thread")]
async fn no_list_of_volumes_is_offered_so_that_none_can_be_partial() {
    let world = world(&[(101, "pve1")]).await;
    let mut controller = world.csi().controller();
    let answer = controller
        .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
        .await;
    let offered: Vec<Rpc> = answer
        .unwrap()
        .into_inner()
        .capabilities
        .into_iter()
        .filter_map(|capability| capability.r#type)
        .map(|Type::Rpc(rpc)| rpc.r#type())
        .collect();
    assert!(
        offered.contains(&Rpc::PublishUnpublishVolume),
        "{offered:?}"
    );
    for unwanted in [
        Rpc::ListVolumes,
        Rpc::ListVolumesPublishedNodes,
        Rpc::GetVolume,
        Rpc::VolumeCondition,
    ] {
        assert!(!offered.contains(&unwanted), "{unwanted:?}");
    }
    let listed = controller
        .list_volumes(ListVolumesRequest::default())
        .await
        .unwrap_err();
    assert_eq!(listed.code(), Code::Unimplemented);
}
