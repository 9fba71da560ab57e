use super::stub::{Link, Server};
use super::tests::{leading, seconds};
use super::*;

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

type Leads = Arc<Mutex<Option<Leadership>>>;

/// Leads again and again, and ends each lead in one way or another after some seconds.
async fn restless(leads: Leads, client: Client, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    loop {
        let leadership = leading(client.clone(), "a").await;
        let lost = leadership.lost();
        *leads.lock().unwrap() = Some(leadership);
        let patience = sleep(seconds(dice.random_range(1..100)));
        tokio::select! {
            () = lost.cancelled() => {}
            () = patience => {}
        }
        let ended = leads.lock().unwrap().take().unwrap();
        if dice.random() {
            ended.release().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_becomes_of_requests_never_two_lead_at_once() {
    for seed in 0..4 {
        let mut dice = StdRng::seed_from_u64(seed);
        let server = Server::default();
        let (mut all, mut links, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for one in 0..3 {
            let ((client, link), leads) = (server.client(), Arc::default());
            let task = restless(Arc::clone(&leads), client, seed * 10 + one);
            tasks.push(tokio::spawn(task));
            links.push(link);
            all.push(leads);
        }
        let mut terms = BTreeSet::new();
        for step in 0..5_000 {
            sleep(Duration::from_millis(200)).await;
            let holds = |leads: &Leads| {
                leads
                    .lock()
                    .unwrap()
                    .as_ref()
                    .is_some_and(Leadership::holds)
            };
            let leading = all.iter().filter(|leads| holds(leads)).count();
            assert!(leading <= 1, "{leading} at step {step} of {seed}");
            if leading == 1 {
                terms.insert(server.spec()["leaseTransitions"].to_string());
            }
            if dice.random_ratio(1, 15) {
                let of = dice.random_range(0..links.len());
                let modes = [
                    Link::Up,
                    Link::Up,
                    Link::Slow,
                    Link::Mute,
                    Link::Cut,
                    Link::Status(500),
                ];
                *links[of].lock().unwrap() = modes[dice.random_range(0..modes.len())];
            }
        }
        assert!(terms.len() > 5, "{} leads in {seed}", terms.len());
        for task in tasks {
            task.abort();
        }
    }
}
