use super::stub::{Link, Server};
use super::*;
use serde_json::json;

fn spec(identity: &str) -> LeaseSpec {
    LeaseSpec {
        namespace: "ns".to_owned(),
        name: "l".to_owned(),
        identity: identity.to_owned(),
        duration: seconds(15),
        renew_deadline: seconds(10),
        retry: seconds(2),
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One that waits in the background.
fn waiting(client: Client, identity: &str) -> JoinHandle<Leadership> {
    let (spec, stop) = (spec(identity), CancellationToken::new());
    tokio::spawn(async move { lead(client, spec, stop).await.unwrap() })
}

pub(crate) async fn leading(client: Client, identity: &str) -> Leadership {
    waiting(client, identity).await.unwrap()
}

async fn second(server: &Server) -> (Leadership, Instant) {
    let leadership = leading(server.client().0, "b").await;
    (leadership, Instant::now())
}

fn between(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn one_leads_as_long_as_it_lives_and_the_other_waits() {
    let server = Server::default();
    let first = leading(server.client().0, "a").await;
    assert!(first.holds());
    let other = waiting(server.client().0, "b");
    sleep(seconds(3600)).await;
    assert!(first.holds() && !first.lost().is_cancelled());
    assert!(!other.is_finished());
    assert!(server.holder().starts_with("a_"), "{}", server.holder());
}

#[tokio::test(start_paused = true)]
async fn after_one_that_was_killed_the_other_leads_when_the_duration_has_passed() {
    let server = Server::default();
    let first = leading(server.client().0, "a").await;
    let other = waiting(server.client().0, "b");
    sleep(seconds(60)).await;
    drop(first);
    let killed = Instant::now();
    let second = other.await.unwrap();
    let waited = between(killed, Instant::now());
    // The last renewal was up to a retry before, and it looks at every retry.
    assert!((13.0..=17.1).contains(&waited), "{waited}");
    assert!(second.holds());
}

#[tokio::test(start_paused = true)]
async fn one_that_gives_it_back_is_followed_at_the_next_attempt() {
    let server = Server::default();
    let first = leading(server.client().0, "a").await;
    let lost = first.lost();
    let other = waiting(server.client().0, "b");
    sleep(seconds(61)).await;
    let released = Instant::now();
    first.release().await;
    assert!(lost.is_cancelled());
    let record = server.spec();
    assert_eq!(record["holderIdentity"], "");
    assert_eq!(record["leaseDurationSeconds"], 1);
    assert_eq!(record["leaseTransitions"], 0);
    assert_eq!(record["acquireTime"], record["renewTime"]);
    drop(other.await.unwrap());
    let waited = between(released, Instant::now());
    assert!(waited <= 2.1, "{waited}");
    assert_eq!(server.spec()["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn one_without_answers_has_lost_before_another_leads() {
    for broken in [Link::Cut, Link::Status(500), Link::Status(403)] {
        let server = Server::default();
        let (client, link) = server.client();
        let first = leading(client, "a").await;
        let lost = first.lost();
        let watched = tokio::spawn(async move {
            lost.cancelled().await;
            Instant::now()
        });
        let other = tokio::spawn({
            let server = server.clone();
            async move { second(&server).await }
        });
        sleep(seconds(61)).await;
        *link.lock().unwrap() = broken;
        let cut = Instant::now();
        let lost = watched.await.unwrap();
        assert!(!first.holds());
        let (second, acquired) = other.await.unwrap();
        assert!(second.holds());
        assert!((8.0..=10.1).contains(&between(cut, lost)));
        assert!((4.9..=7.1).contains(&between(lost, acquired)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_written_though_its_answer_was_lost_extends_nobodys_lead() {
    let server = Server::default();
    let (client, link) = server.client();
    let first = leading(client, "a").await;
    let lost = first.lost();
    sleep(seconds(61)).await;
    *link.lock().unwrap() = Link::Mute;
    let cut = Instant::now();
    lost.cancelled().await;
    let held = between(cut, Instant::now());
    assert!((8.0..=10.1).contains(&held), "{held}");
}

#[tokio::test(start_paused = true)]
async fn the_lead_is_measured_from_when_a_request_was_sent_not_from_its_answer() {
    for renewals in [0, 3] {
        let server = Server::default();
        let (client, link) = server.client();
        *link.lock().unwrap() = Link::Slow;
        let first = leading(client, "a").await;
        sleep(seconds(renewals * 6)).await;
        assert!(first.holds());
        *link.lock().unwrap() = Link::Cut;
        first.lost().cancelled().await;
        let held = between(server.changed(), Instant::now());
        assert!((9.9..=10.1).contains(&held), "{held}");
    }
}

#[tokio::test]
async fn it_does_not_hold_by_the_clock_though_nothing_could_say_so_yet() {
    let millis = Duration::from_millis;
    let spec = LeaseSpec {
        duration: millis(900),
        renew_deadline: millis(300),
        retry: millis(100),
        ..spec("a")
    };
    let client = Server::default().client().0;
    let first = lead(client, spec, CancellationToken::new()).await.unwrap();
    let holding = first.holding();
    assert!(first.holds() && holding.holds());
    // The runtime has this one thread.
    std::thread::sleep(millis(350));
    assert!(!first.lost().is_cancelled());
    assert!(!first.holds() && !holding.holds());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_is_found_out_and_does_not_end_the_lead() {
    let server = Server::default();
    let (client, link) = server.client();
    *link.lock().unwrap() = Link::Mute;
    let first = waiting(client, "a");
    sleep(seconds(6)).await;
    assert!(!first.is_finished() && server.holder().starts_with("a_"));
    *link.lock().unwrap() = Link::Up;
    let begun = Instant::now();
    let first = first.await.unwrap();
    assert!(between(begun, Instant::now()) <= 3.1, "it is its own");
    for _ in 0..10 {
        *link.lock().unwrap() = Link::Mute;
        sleep(seconds(4)).await;
        *link.lock().unwrap() = Link::Up;
        sleep(seconds(10)).await;
        assert!(first.holds());
    }
    assert_eq!(server.spec()["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn it_is_lost_when_another_has_written_or_deleted_it() {
    for deleted in [false, true] {
        let server = Server::default();
        let first = leading(server.client().0, "a").await;
        sleep(seconds(61)).await;
        if deleted {
            server.delete();
        } else {
            server.write(&json!({"holderIdentity": "c", "leaseDurationSeconds": 15}));
        }
        let written = Instant::now();
        first.lost().cancelled().await;
        assert!(between(written, Instant::now()) <= 2.1);
        assert!(!first.holds());
        let record = server.spec();
        first.release().await;
        assert_eq!(server.spec(), record, "it writes no more");
    }
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_another_does_not_matter_only_that_the_record_changes() {
    for year in ["0001", "1970", "9998"] {
        let server = Server::default();
        let record = |minute: u64| {
            let time = format!("{year}-01-01T00:{minute:02}:00.000000Z");
            json!({"holderIdentity": "c", "leaseDurationSeconds": 15, "renewTime": time, "acquireTime": time})
        };
        server.write(&record(0));
        let other = waiting(server.client().0, "b");
        for minute in 1..10 {
            sleep(seconds(14)).await;
            assert!(!other.is_finished());
            // The clock of that one runs backwards.
            server.write(&record(59 - minute));
        }
        let last = Instant::now();
        drop(other.await.unwrap());
        let waited = between(last, Instant::now());
        assert!((15.0..=19.1).contains(&waited), "{waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_says_little_is_free_without_a_holder_and_expires_with_one() {
    let free = [
        json!(null),
        json!({}),
        json!({"holderIdentity": ""}),
        json!({"holderIdentity": "", "leaseTransitions": -7, "leaseDurationSeconds": i32::MAX}),
    ];
    for record in free {
        let server = Server::default();
        server.write(&record);
        let begun = Instant::now();
        drop(second(&server).await);
        assert_eq!(begun, Instant::now(), "{record}");
        assert_eq!(server.spec()["leaseTransitions"], 1);
    }
    let held = [
        (json!({"holderIdentity": "c"}), 15.0),
        (
            json!({"holderIdentity": "c", "leaseDurationSeconds": -1}),
            15.0,
        ),
        (
            json!({"holderIdentity": "c", "leaseDurationSeconds": 60}),
            60.0,
        ),
        (
            json!({"holderIdentity": "c", "leaseDurationSeconds": i32::MAX}),
            600.0,
        ),
    ];
    for (record, expires) in held {
        let server = Server::default();
        server.write(&record);
        let begun = Instant::now();
        drop(second(&server).await);
        let waited = between(begun, Instant::now());
        assert!(
            (expires..=expires + 2.1).contains(&waited),
            "{record} {waited}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_record_says_what_those_of_client_go_say() {
    let server = Server::default();
    server.write(&json!({"holderIdentity": "", "leaseTransitions": 4}));
    let (first, _) = second(&server).await;
    let taken = server.spec();
    assert_eq!(taken["leaseDurationSeconds"], 15);
    assert_eq!(taken["leaseTransitions"], 5);
    assert_eq!(taken["acquireTime"], taken["renewTime"]);
    let time = taken["renewTime"].as_str().unwrap();
    assert_eq!(time.len(), "2026-01-02T03:04:05.678901Z".len(), "{time}");
    sleep(seconds(3)).await;
    let renewed = server.spec();
    assert_ne!(renewed["renewTime"], taken["renewTime"]);
    for same in [
        "acquireTime",
        "leaseTransitions",
        "holderIdentity",
        "leaseDurationSeconds",
    ] {
        assert_eq!(renewed[same], taken[same], "{same}");
    }
    assert!(first.holds());
}

#[tokio::test(start_paused = true)]
async fn of_many_that_see_it_expire_one_leads() {
    let server = Server::default();
    server.write(&json!({"holderIdentity": "c", "leaseDurationSeconds": 15}));
    let all: Vec<_> = (0..10)
        .map(|_| waiting(server.client().0, "same-name"))
        .collect();
    sleep(seconds(120)).await;
    let mut leading = Vec::new();
    for one in all {
        if one.is_finished() {
            leading.push(one.await.unwrap());
        }
    }
    assert_eq!(leading.len(), 1);
    assert!(leading[0].holds());
}

#[tokio::test(start_paused = true)]
async fn who_waits_outlasts_every_failure_and_obeys_only_its_stop() {
    let server = Server::default();
    let (client, link) = server.client();
    *link.lock().unwrap() = Link::Status(403);
    let stop = CancellationToken::new();
    let stopped = tokio::spawn(lead(client.clone(), spec("a"), stop.clone()));
    let other = waiting(client, "b");
    for broken in [Link::Cut, Link::Status(500), Link::Status(429)] {
        sleep(seconds(3600)).await;
        *link.lock().unwrap() = broken;
    }
    let told = Instant::now();
    stop.cancel();
    assert_eq!(stopped.await.unwrap().unwrap_err(), LeaseError::Stopped);
    assert_eq!(told, Instant::now(), "at once");
    assert!(!other.is_finished());
    *link.lock().unwrap() = Link::Up;
    assert!(other.await.unwrap().holds());
}

#[tokio::test]
async fn a_spec_that_could_have_two_lead_is_refused() {
    let refused: [fn(&mut LeaseSpec); 7] = [
        |spec| spec.renew_deadline = spec.duration,
        |spec| spec.retry = spec.renew_deadline,
        |spec| spec.retry = Duration::ZERO,
        |spec| spec.duration = seconds(601),
        |spec| spec.name = "a/../b".to_owned(),
        |spec| spec.name = String::new(),
        |spec| spec.namespace = "a?b".to_owned(),
    ];
    for change in refused {
        let mut spec = spec("a");
        change(&mut spec);
        let client = Server::default().client().0;
        let led = lead(client, spec, CancellationToken::new()).await;
        assert!(matches!(led, Err(LeaseError::Spec(_))));
    }
}
