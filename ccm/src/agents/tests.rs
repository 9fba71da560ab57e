use super::*;
use crate::testing::{Lines, Pve, entry, facts, view};
use serde_json::json;

const PERIOD: Duration = Duration::from_mins(1);

fn vmid(number: u32) -> VmId {
    number.try_into().unwrap()
}

fn set(vms: impl IntoIterator<Item = u32>) -> BTreeSet<VmId> {
    vms.into_iter().map(vmid).collect()
}

fn seen(vms: impl IntoIterator<Item = (u32, &'static str)>) -> RegionView {
    let vms = vms
        .into_iter()
        .map(|(vmid, host)| (entry(vmid, host), Some(facts(vmid))));
    view("r1", &vms.collect::<Vec<_>>())
}

#[expect(clippy::unnecessary_wraps, reason = "it stands beside failures")]
fn heard() -> Option<Result<Vec<Interface>, ApiError>> {
    let interface = Interface {
        name: "eth0".to_owned(),
        mac: None,
        addresses: Vec::new(),
    };
    Some(Ok(vec![interface]))
}

fn noted(agents: &Agents, number: u32, answer: Option<Result<Vec<Interface>, ApiError>>) {
    agents.note(&"r1".parse().unwrap(), vmid(number), answer, PERIOD);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_is_asked_once_per_period_and_a_silent_one_less_often() {
    let agents = Agents::default();
    let seen = seen([(101, "pve1")]);
    let due = || agents.next(&seen, &BTreeSet::new(), PERIOD).is_some();
    assert!(!due(), "nobody wants it");
    agents.want(&set([101]));
    assert_eq!(agents.said(vmid(101)), Answer::Unasked);
    assert!(due());
    noted(&agents, 101, heard());
    assert!(matches!(agents.said(vmid(101)), Answer::Interfaces(_)));
    assert!(!due());
    tokio::time::advance(PERIOD).await;
    assert!(due());
    for _ in 0..3 {
        noted(&agents, 101, None);
    }
    assert_eq!(agents.said(vmid(101)), Answer::Nothing);
    tokio::time::advance(PERIOD * 2).await;
    assert!(!due());
    tokio::time::advance(PERIOD).await;
    assert!(due());
}

#[tokio::test(start_paused = true)]
async fn the_silent_agent_of_a_new_node_is_asked_again_soon_at_first() {
    let pve = Pve::new(|_| {
        (
            Duration::ZERO,
            500,
            json!({ "reason": "QEMU guest agent is not running" }),
        )
    });
    let source = pve.source(false);
    let agents = Agents::default();
    agents.want(&set([101]));
    let (_views, view) = watch::channel(seen([(101, "pve1")]));
    let begin = Instant::now();
    let asking = agents.run(&source, view, PERIOD, CancellationToken::new());
    timeout(Duration::from_mins(5), asking).await.unwrap_err();
    let after: Vec<u64> = pve
        .asked("/agent/")
        .iter()
        .map(|at| (*at - begin).as_secs())
        .collect();
    assert_eq!(after, [0, 2, 6, 14, 30, 62, 122, 242]);
}

#[tokio::test(start_paused = true)]
async fn a_new_node_does_not_wait_for_the_silent_agents_of_others() {
    let silent = (1001..1101).map(|vmid| (vmid, if vmid % 2 == 0 { "pve1" } else { "pve2" }));
    let pve = Pve::new(|path| {
        if path.contains("/101/") {
            let body = json!({ "data": { "result": [{ "name": "eth0" }] } });
            return (Duration::ZERO, 200, body);
        }
        let body = json!({ "reason": "VM 1 qmp command 'guest-network-get-interfaces' failed - got timeout" });
        (Duration::from_secs(3), 500, body)
    });
    let source = pve.source(false);
    let agents = Agents::default();
    let (_views, view) = watch::channel(seen(silent.clone().chain([(101, "pve1"), (102, "pve2")])));
    let numbers = silent.map(|(vmid, _)| vmid);
    agents.want(&set(numbers.clone()));
    let asking = agents.run(&source, view, PERIOD, CancellationToken::new());
    let checks = async {
        sleep(Duration::from_secs(10)).await;
        let asked = pve.asked("/agent/").len();
        assert_eq!(asked, 8, "one at a time on each host");
        agents.want(&set(numbers.chain([101])));
        sleep(Duration::from_secs(3)).await;
        assert!(matches!(agents.said(vmid(101)), Answer::Interfaces(_)));
        sleep(Duration::from_mins(30)).await;
        for number in 1001..1101 {
            assert_eq!(
                agents.said(vmid(number)),
                Answer::Nothing,
                "{number} is never asked"
            );
        }
    };
    tokio::select! {
        () = asking => panic!("it asks for ever"),
        () = checks => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_agent_of_a_stopped_vm_is_not_asked() {
    let agents = Agents::default();
    agents.want(&set([101]));
    let mut stopped = entry(101, "pve1");
    stopped.state = RunState::Stopped;
    let seen = view("r1", &[(stopped, Some(facts(101)))]);
    assert_eq!(agents.next(&seen, &BTreeSet::new(), PERIOD), None);
}

#[tokio::test(start_paused = true)]
async fn agents_that_may_not_be_asked_are_told_of_once() {
    let pve = Pve::new(|_| {
        (
            Duration::ZERO,
            403,
            json!({ "reason": "Permission check failed (/vms/101, VM.GuestAgent.Audit)" }),
        )
    });
    let agents = Agents::default();
    agents.want(&set([101, 102]));
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    for number in [101, 102, 101] {
        let at = VmRef {
            pve_node: "pve1".parse().unwrap(),
            vmid: vmid(number),
        };
        noted(
            &agents,
            number,
            Some(pve.client.agent_interfaces(&at).await),
        );
    }
    assert_eq!(lines.count(), 1);
    noted(&agents, 101, heard());
    assert_eq!(lines.count(), 1, "another one may still not be asked");
    noted(&agents, 102, heard());
    assert_eq!(lines.count(), 2);
}
