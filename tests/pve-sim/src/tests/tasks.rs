//! Workers while they run and the lists of them (api.md 8, `RESTEnvironment.pm` `fork_worker`, `API2/Tasks.pm`).

use std::time::Duration;

use serde_json::{Value, json};

use super::{ROOT, World, cluster, grant};
use crate::{ClockMode, RequestEffect, RequestFault, TaskEffect, TaskFault};

const A: &str = "local:9999/vm-9999-a.raw";
const CONFIG: &str = "/nodes/pve1/qemu/100/config";
const DISK: &str = "/nodes/pve1/storage/local/content/local:9999/vm-9999-a.raw";
const CSI: &str = "csi@pve!sep";

/// Two privilege-separated tokens of one user, with rights on VM 100 and `local`.
async fn tenant(clock: ClockMode) -> World {
    let roles = [("/pool/p", "CSI"), ("/storage/local", "CSI")];
    let rights = [
        "VM.Audit",
        "VM.Config.Disk",
        "Datastore.Allocate",
        "Datastore.AllocateSpace",
        "Datastore.Audit",
    ];
    World::new(
        cluster()
            .clock(clock)
            .pool("p", &[100, 9999])
            .role("CSI", &rights)
            .token(grant(CSI, true, &roles))
            .token(grant("csi@pve!other", true, &roles)),
    )
    .await
}

fn on(method: &str, path: &str, effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: method.into(),
        path: path.into(),
        nth: 1,
        times: 1,
        effect,
    }
}

fn task(kind: &str, effect: TaskEffect) -> TaskFault {
    TaskFault {
        task: kind.into(),
        id: None,
        nth: 1,
        times: 1,
        effect,
    }
}

const CONFIG_ROUTE: &str = "/nodes/{node}/qemu/{vmid}/config";
const CONTENT_ROUTE: &str = "/nodes/{node}/storage/{storage}/content";

async fn tasks(world: &World, who: &str, query: &str) -> Vec<Value> {
    let path = format!("/nodes/pve1/tasks?{query}");
    let (status, body) = world.call_as(who, "GET", &path, "").await;
    assert_eq!(status, 200, "{body}");
    body["data"].as_array().unwrap().clone()
}

async fn status(world: &World, who: &str, upid: &Value) -> Value {
    let path = format!("/nodes/pve1/tasks/{}/status", upid.as_str().unwrap());
    world.call_as(who, "GET", &path, "").await.1["data"].clone()
}

async fn log(world: &World, upid: &Value) -> Vec<String> {
    let path = format!("/nodes/pve1/tasks/{}/log", upid.as_str().unwrap());
    let rows = world.ok("GET", &path, "").await;
    let texts = rows.as_array().unwrap().iter().map(|row| row["t"].as_str());
    texts.map(|text| text.unwrap().to_owned()).collect()
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(30)).await;
}

#[tokio::test]
async fn a_slow_worker_is_in_the_list_of_its_token_from_the_start() {
    let world = tenant(ClockMode::Stepped).await;
    let slow = RequestEffect::Task(TaskEffect::Slow { ms: 40_000 });
    world.sim.add_fault(on("POST", CONFIG_ROUTE, slow));
    let form = format!("scsi1={A}&background_delay=10");
    let post = world.call_as(CSI, "POST", CONFIG, &form);
    let meanwhile = async {
        settle().await;
        let seen = tasks(&world, CSI, "source=active&vmid=100").await;
        world.sim.advance(Duration::from_secs(10));
        seen
    };
    let ((code, body), seen) = tokio::join!(post, meanwhile);
    let upid = body["data"].clone();
    assert_eq!((code, seen.len()), (200, 1));
    assert_eq!(seen[0]["upid"], upid);
    // The file of running workers knows the whole token id only.
    assert_eq!(
        (&seen[0]["status"], &seen[0]["user"], seen[0].get("tokenid")),
        (&json!("RUNNING"), &json!(CSI), None)
    );
    assert_eq!(status(&world, CSI, &upid).await["status"], "running");
    assert!(
        tasks(&world, "csi@pve!other", "source=all")
            .await
            .is_empty()
    );
    assert_eq!(tasks(&world, ROOT, "source=active").await.len(), 1);
    assert!(tasks(&world, CSI, "").await.is_empty());
    assert!(world.blockstat().await.is_empty());
    world.sim.advance(Duration::from_secs(30));
    settle().await;
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert!(tasks(&world, CSI, "source=active").await.is_empty());
    let ended = tasks(&world, CSI, "").await;
    assert_eq!(
        (&ended[0]["status"], &ended[0]["user"], &ended[0]["tokenid"]),
        (&json!("OK"), &json!("csi@pve"), &json!("sep"))
    );
}

#[tokio::test]
async fn a_worker_that_waits_for_a_lock_runs_says_so_and_ends_with_the_text_of_the_lock() {
    let world = tenant(ClockMode::Stepped).await;
    let long = Duration::from_secs(20);
    world.sim.hold_vm_lock(100, long).await.unwrap();
    let upid = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    settle().await;
    assert_eq!(status(&world, ROOT, &upid).await["status"], "running");
    assert_eq!(log(&world, &upid).await, ["trying to acquire lock..."]);
    world.sim.advance(Duration::from_secs(10));
    let text = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout";
    assert_eq!(world.exit(&upid).await, text);
    // Got in time, it goes on.
    let upid = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    settle().await;
    world.sim.advance(Duration::from_secs(10));
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(
        log(&world, &upid).await,
        [
            "trying to acquire lock...",
            " OK",
            &format!("update VM 100: -scsi1 {A}"),
            "TASK OK"
        ]
    );
}

#[tokio::test]
async fn a_lock_of_the_cluster_is_tried_each_second_and_told_nine_times() {
    let world = tenant(ClockMode::Real { speed: 200 }).await;
    let long = Duration::from_secs(15);
    world
        .sim
        .hold_storage_lock("pve2", "shared", long)
        .await
        .unwrap();
    let path = "/nodes/pve1/storage/shared/content/shared:9999/vm-9999-s.raw";
    let upid = world.ok("DELETE", path, "").await;
    let text = "cfs-lock 'storage-shared' error: got lock request timeout";
    assert_eq!(world.exit(&upid).await, text);
    let lines = log(&world, &upid).await;
    let tries = lines
        .iter()
        .filter(|line| *line == "trying to acquire cfs lock 'storage-shared' ...");
    assert_eq!((tries.count(), lines.len()), (9, 10));
}

#[tokio::test]
async fn by_rule_the_first_lock_of_a_request_or_of_its_worker_is_not_got() {
    let world = tenant(ClockMode::Real { speed: 200 }).await;
    let no_lock = || RequestEffect::LockTimeout;
    world.sim.add_fault(on("POST", CONTENT_ROUTE, no_lock()));
    let form = "vmid=9999&size=1M&filename=x.raw";
    let before = world.sim.now();
    let (code, body) = world
        .call("POST", "/nodes/pve1/storage/local/content", form)
        .await;
    let text = "can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout\n";
    assert_eq!((code, &body["message"]), (500, &json!(text)));
    assert!(world.sim.now().checked_sub(before).unwrap() >= Duration::from_secs(10));
    world.sim.add_fault(on("PUT", CONFIG_ROUTE, no_lock()));
    let text = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout";
    let (code, body) = world.put(&format!("scsi1={A}")).await;
    assert_eq!((code, &body["message"]), (500, &json!(format!("{text}\n"))));
    world.sim.add_fault(on("POST", CONFIG_ROUTE, no_lock()));
    let upid = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    assert_eq!(world.exit(&upid).await, text);
    world.sim.add_task_fault(task("*", TaskEffect::LockTimeout));
    let upid = world.ok("DELETE", DISK, "").await;
    let text = "can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout";
    assert_eq!(world.exit(&upid).await, text);
    let upid = world.ok("DELETE", DISK, "").await;
    assert_eq!(world.exit(&upid).await, "OK");
}

#[tokio::test]
async fn a_late_answer_has_its_effect_at_once_and_a_late_request_of_any_kind_has_none_yet() {
    let world = tenant(ClockMode::Stepped).await;
    let route = "/nodes/{node}/storage/{storage}/content/{volume*}";
    world.sim.add_fault(on(
        "DELETE",
        route,
        RequestEffect::DelayReply { ms: 40_000 },
    ));
    let step = async {
        settle().await;
        let left = world.sim.state().volumes.len();
        world.sim.advance(Duration::from_secs(30));
        left
    };
    let before = world.sim.state().volumes.len();
    let (reply, left) = tokio::join!(world.send(ROOT, "DELETE", DISK, ""), step);
    assert_eq!((reply.unwrap().status, left), (596, before - 1));
    // Endpoints that answer at once wait for their turn too.
    let path = "/nodes/{node}/qemu/{vmid}/resize";
    world
        .sim
        .add_fault(on("PUT", path, RequestEffect::Delay { ms: 5000 }));
    let resize = world.call(
        "PUT",
        "/nodes/pve1/qemu/100/resize",
        "disk=scsi1&size=%2B1G",
    );
    let step = async {
        settle().await;
        let running = tasks(&world, ROOT, "source=all&typefilter=resize").await;
        world.sim.advance(Duration::from_secs(5));
        running.len()
    };
    let ((code, _), seen) = tokio::join!(resize, step);
    assert_eq!((code, seen), (200, 0));
}

#[tokio::test]
async fn a_worker_may_be_killed_or_last_after_its_work() {
    let world = tenant(ClockMode::Real { speed: 1 }).await;
    world
        .sim
        .add_task_fault(task("qmconfig", TaskEffect::KillAfter));
    let upid = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    assert_eq!(world.exit(&upid).await, "unexpected status");
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert!(
        !log(&world, &upid)
            .await
            .iter()
            .any(|line| line.starts_with("TASK"))
    );
    world
        .sim
        .add_task_fault(task("qmconfig", TaskEffect::HoldAfter));
    let upid = world.ok("POST", CONFIG, "delete=scsi1").await;
    let mut held = world.sim.held();
    held.wait_for(|held| !held.is_empty()).await.unwrap();
    assert!(world.blockstat().await.is_empty());
    assert_eq!(status(&world, ROOT, &upid).await["status"], "running");
    assert!(world.sim.release_one(upid.as_str().unwrap()));
    assert_eq!(world.exit(&upid).await, "OK");
    world
        .sim
        .add_task_fault(task("qmconfig", TaskEffect::SlowAfter { ms: 60_000 }));
    let upid = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    settle().await;
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert_eq!(world.sim.running_tasks(), [upid.as_str().unwrap()]);
    world.sim.advance(Duration::from_mins(1));
    assert_eq!(world.exit(&upid).await, "OK");
}

#[tokio::test]
async fn tasks_go_step_by_step_when_a_test_wants_it() {
    let world = tenant(ClockMode::Real { speed: 1 }).await;
    world.sim.hold_tasks(None);
    let first = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    let other = "/nodes/pve1/storage/local/content/local:9999/vm-9999-b.raw";
    let second = world.ok("DELETE", other, "").await;
    let mut held = world.sim.held();
    held.wait_for(|held| held.len() == 2).await.unwrap();
    assert!(world.sim.release_one(second.as_str().unwrap()));
    assert_eq!(world.exit(&second).await, "OK");
    assert!(!world.sim.release_one(second.as_str().unwrap()));
    assert_eq!(status(&world, ROOT, &first).await["status"], "running");
    world.sim.release_tasks();
    assert_eq!(world.exit(&first).await, "OK");
    let upid = world.ok("POST", CONFIG, "delete=scsi1").await;
    assert_eq!(world.exit(&upid).await, "OK");
}

#[tokio::test]
async fn a_stopped_worker_is_interrupted_where_it_stands() {
    let world = tenant(ClockMode::Real { speed: 1 }).await;
    world.sim.hold_tasks(Some("qmconfig"));
    let upid = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    let mut held = world.sim.held();
    held.wait_for(|held| !held.is_empty()).await.unwrap();
    let path = format!("/nodes/pve1/tasks/{}", upid.as_str().unwrap());
    assert_eq!(
        world.call_as("csi@pve!sep", "DELETE", &path, "").await.0,
        403
    );
    world.ok("DELETE", &path, "").await;
    assert_eq!(world.exit(&upid).await, "received interrupt");
    assert!(world.blockstat().await.is_empty());
    assert!(world.sim.held().borrow().is_empty());
}

#[tokio::test]
async fn lists_of_tasks_are_filtered_and_the_last_to_end_comes_first() {
    let world = tenant(ClockMode::Real { speed: 1 }).await;
    world
        .sim
        .add_task_fault(task("qmconfig", TaskEffect::HoldAfter));
    let slow = world.ok("POST", CONFIG, &format!("scsi1={A}")).await;
    world
        .sim
        .add_task_fault(task("imgdel", TaskEffect::Warn { count: 1 }));
    let absent = "/nodes/pve1/storage/local/content/local:9999/vm-9999-z.raw";
    let warned = world.ok("DELETE", absent, "").await;
    world.exit(&warned).await;
    let fail = TaskEffect::Fail { text: "no".into() };
    world.sim.add_task_fault(task("imgdel", fail));
    let failed = world.ok("DELETE", absent, "").await;
    world.exit(&failed).await;
    let mut held = world.sim.held();
    held.wait_for(|held| !held.is_empty()).await.unwrap();
    let all = tasks(&world, ROOT, "source=all").await;
    let order: Vec<&Value> = all.iter().map(|row| &row["upid"]).collect();
    assert_eq!(order, [&slow, &failed, &warned]);
    world.sim.release();
    world.exit(&slow).await;
    let ids = |rows: Vec<Value>| {
        rows.iter()
            .map(|row| row["upid"].clone())
            .collect::<Vec<_>>()
    };
    let ask = async |query: &str| ids(tasks(&world, ROOT, query).await);
    assert_eq!(
        ask("").await,
        [slow.clone(), failed.clone(), warned.clone()]
    );
    assert_eq!(ask("errors=1").await, vec![failed.clone(), warned.clone()]);
    assert_eq!(ask("statusfilter=warning").await, vec![warned.clone()]);
    assert_eq!(
        ask("statusfilter=OK,error").await,
        vec![slow.clone(), failed]
    );
    assert_eq!(ask("vmid=100").await, vec![slow.clone()]);
    assert_eq!(ask("typefilter=imgdel&limit=1&start=1").await, vec![warned]);
    assert!(ask("limit=0").await.is_empty());
    assert!(ask("since=9999999999").await.is_empty());
    assert_eq!(ask("userfilter=ROOT&limit=1").await, vec![slow]);
    let (code, body) = world
        .call("GET", "/nodes/pve1/tasks?statusfilter=good", "")
        .await;
    let text = "invalid format - invalid status 'good'\n";
    assert_eq!((code, &body["errors"]["statusfilter"]), (400, &json!(text)));
}
