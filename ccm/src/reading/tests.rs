use super::*;
use crate::testing::{Lines, Pve, uuid};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_mins(1);
const SOON: Duration = Duration::from_millis(100);

/// VMs by host, in a list of PVE.
fn list(vms: impl IntoIterator<Item = (u32, &'static str)>) -> Value {
    let vms = vms.into_iter().map(|(vmid, host)| {
        json!({
            "id": format!("qemu/{vmid}"), "vmid": vmid, "type": "qemu", "node": host, "status": "running",
            "name": format!("worker-{vmid}"), "pool": "tenant-a", "uptime": 1000, "template": 0,
        })
    });
    json!({ "data": vms.collect::<Vec<_>>() })
}

/// The config of the VM whose path it is.
fn config(path: &str) -> Value {
    let vmid = path.split('/').nth(4).and_then(|vmid| vmid.parse().ok());
    json!({ "data": { "digest": "d", "smbios1": format!("uuid={}", uuid(vmid.unwrap())) } })
}

/// Runs until the future ends.
async fn running<T>(
    pve: &Pve,
    until: impl AsyncFnOnce(&Source, watch::Receiver<RegionView>) -> T,
) -> T {
    let source = pve.source(false);
    let (views, view) = watch::channel(source.blank());
    tokio::select! {
        () = source.run(PERIOD, views, CancellationToken::new()) => panic!("it runs for ever"),
        ended = until(&source, view) => ended,
    }
}

fn knows(view: &watch::Receiver<RegionView>, vmid: u32) -> bool {
    crate::inventory::find(&[view.borrow().clone()], &uuid(vmid)).is_ok()
}

fn settled(view: &watch::Receiver<RegionView>) -> bool {
    view.borrow()
        .snapshot
        .as_ref()
        .is_some_and(|snapshot| snapshot.settled)
}

/// 40 VMs on `pve3`, which hangs, and two on `pve1`; one more on `pve1` after ten seconds.
fn hung() -> Pve {
    let begin = Instant::now();
    Pve::new(move |path| {
        let late = (begin.elapsed() >= Duration::from_secs(2)).then_some((103, "pve1"));
        let all = (301..341).map(|vmid| (vmid, "pve3"));
        match path {
            "/cluster/resources" => (
                SOON,
                200,
                list(all.chain([(101, "pve1"), (102, "pve1")]).chain(late)),
            ),
            _ if path.contains("/pve3/") => (Duration::from_hours(1), 596, Value::Null),
            _ => (SOON, 200, config(path)),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_host_that_hangs_holds_up_nobody_but_its_own_vms() {
    let pve = hung();
    running(&pve, async |source, view| {
        sleep(Duration::from_secs(1)).await;
        assert!(knows(&view, 101) && knows(&view, 102));
        assert!(!settled(&view), "configs are being read");
        sleep(Duration::from_secs(2)).await;
        // Both are asked for while the other host is still waited for.
        source.demand.ask();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(pve.asked("/cluster/resources").len(), 2);
        assert!(knows(&view, 103));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_first_config_that_a_host_does_not_tell_ends_its_turn() {
    let pve = hung();
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    running(&pve, async |source, view| {
        sleep(Duration::from_secs(15)).await;
        let first = pve.asked("/pve3/").len();
        assert_eq!(first, AT_A_TIME);
        assert!(settled(&view), "no config is being read");
        source.demand.ask();
        sleep(Duration::from_secs(15)).await;
        assert_eq!(pve.asked("/pve3/").len(), first, "it is left alone");
        sleep(PERIOD * 2).await;
        assert!(pve.asked("/pve3/").len() > first, "it is asked again");
        assert_eq!(lines.count(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_config_that_is_refused_is_tried_once_per_list_and_holds_up_no_other() {
    let pve = Pve::new(|path| match path {
        "/cluster/resources" => (
            SOON,
            200,
            list([(101, "pve1"), (102, "pve1"), (103, "pve1")]),
        ),
        _ if path.contains("/101/") => (SOON, 403, json!({ "reason": "Permission check failed" })),
        _ => (SOON, 200, config(path)),
    });
    running(&pve, async |source, view| {
        sleep(Duration::from_secs(5)).await;
        assert!(knows(&view, 102) && knows(&view, 103));
        assert!(settled(&view));
        assert_eq!(pve.asked("/101/").len(), 1);
        source.demand.ask();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(pve.asked("/101/").len(), 2);
        assert_eq!(pve.asked("/102/").len(), 1);
        assert!(source.memory().mute.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_stays_failed_while_configs_come_in() {
    let begin = Instant::now();
    let pve = Pve::new(move |path| match path {
        "/cluster/resources" if begin.elapsed() < Duration::from_secs(1) => (
            SOON,
            200,
            list([(101, "pve1"), (102, "pve1"), (103, "pve1")]),
        ),
        "/cluster/resources" => (SOON, 403, json!({ "reason": "Permission check failed" })),
        _ => (Duration::from_secs(4), 200, config(path)),
    });
    running(&pve, async |source, view| {
        sleep(Duration::from_secs(1)).await;
        source.demand.ask();
        sleep(Duration::from_secs(10)).await;
        assert!(knows(&view, 103));
        assert!(view.borrow().failing);
    })
    .await;
}
