use super::*;
use crate::testing::{Lines, Pve};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const RULES: &str = "/cluster/ha/rules";
const GROUPS: &str = "/cluster/ha/groups";
const RESOURCES: &str = "/cluster/ha/resources";

fn rules(entries: &[Value]) -> Value {
    json!({ "data": entries })
}

fn rule(name: &str) -> Value {
    json!({ "rule": name, "type": "node-affinity", "resources": "vm:101", "nodes": "pve1", "strict": 0 })
}

async fn seen(
    answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> (Pve, Option<Arc<HaView>>) {
    let pve = Pve::new(move |path| {
        let (status, body) = answer(path);
        (Duration::ZERO, status, body)
    });
    let view = HaSource::default()
        .view(&pve.client, &"r1".parse().unwrap())
        .await;
    (pve, view)
}

#[tokio::test]
async fn rules_of_which_one_cannot_be_read_are_not_known() {
    let (_, view) = seen(|_| (200, rules(&[rule("one")]))).await;
    let view = view.unwrap();
    assert!(!view.labels("101".parse().unwrap()).is_empty());
    let (_, view) = seen(|_| (200, rules(&[rule("one"), json!({ "rule": 7.5 })]))).await;
    assert_eq!(view, None);
}

#[tokio::test]
async fn on_pve_8_resources_are_read_only_if_there_are_groups() {
    let old = |groups: Value| {
        move |path: &str| match path {
            RULES => (
                501,
                json!({ "reason": "Method 'GET /cluster/ha/rules' not implemented" }),
            ),
            GROUPS => (200, json!({ "data": groups.clone() })),
            RESOURCES => (
                200,
                json!({ "data": [{ "sid": "vm:101", "group": "left" }] }),
            ),
            other => panic!("{other}"),
        }
    };
    let (pve, view) = seen(old(json!([]))).await;
    assert!(view.unwrap().labels("101".parse().unwrap()).is_empty());
    assert!(pve.asked(RESOURCES).is_empty());
    let (pve, view) = seen(old(json!([{ "group": "left", "nodes": "pve1" }]))).await;
    assert!(!view.unwrap().labels("101".parse().unwrap()).is_empty());
    assert_eq!(pve.asked(RESOURCES).len(), 1);
}

#[tokio::test]
async fn rules_that_no_label_can_name_are_told_once_per_change() {
    let name = Arc::new(std::sync::Mutex::new("x".repeat(64)));
    let shown = Arc::clone(&name);
    let pve = Pve::new(move |_| {
        let name = shown.lock().unwrap().clone();
        (Duration::ZERO, 200, rules(&[rule(&name), rule("fits")]))
    });
    let (source, region) = (HaSource::default(), "r1".parse().unwrap());
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    for (now, count) in [("x", 1), ("x", 1), ("y", 2), ("", 2), ("x", 3)] {
        *name.lock().unwrap() = if now.is_empty() {
            "short".to_owned()
        } else {
            now.repeat(64)
        };
        assert!(source.view(&pve.client, &region).await.is_some());
        assert_eq!(lines.count(), count, "{now}");
    }
}

#[tokio::test(start_paused = true)]
async fn ha_that_hangs_delays_no_list_and_is_asked_once_per_period() {
    let period = Duration::from_mins(1);
    let pve = Pve::new(|path| match path {
        RULES => (Duration::from_hours(1), 200, Value::Null),
        _ => (Duration::ZERO, 200, json!({ "data": [] })),
    });
    let source = pve.source(true);
    let (views, view) = watch::channel(source.blank());
    let stop = CancellationToken::new();
    let checks = async {
        sleep(Duration::from_millis(10)).await;
        assert!(view.borrow().snapshot.is_some(), "it waits for HA");
        for _ in 0..5 {
            source.demand.ask();
            sleep(Duration::from_secs(1)).await;
        }
        assert!(pve.asked("/cluster/resources").len() > 4);
        assert_eq!(pve.asked(RULES).len(), 1);
        for _ in 0..10 {
            source.demand.ask();
            sleep(period / 2).await;
        }
        let count = pve.asked(RULES).len();
        assert!((4..=7).contains(&count), "{count} times");
    };
    tokio::select! {
        () = source.run(period, views, stop) => panic!("it runs for ever"),
        () = checks => {}
    }
}
