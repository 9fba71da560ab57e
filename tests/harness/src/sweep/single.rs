//! One fault at one request of one RPC, and then the same call again and again, as a sidecar makes it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::sleep;
use tonic::Status;

use super::fault::{Fault, Late, hastened};
use super::sidecar::{Held, again, honest, judge, let_go, modest, short};
use super::{Answer, Lane, Rpc, Tally, Volume};

/// More requests than any RPC makes.
const MANY: u32 = 60;
/// Just longer than PVE's proxy waits.
const PROXY: Duration = Duration::from_secs(31);

/// One fault at every request of one RPC.
#[derive(Debug, Clone)]
pub struct Job {
    /// The RPC.
    pub rpc: Rpc,
    /// What goes wrong.
    pub fault: Fault,
    /// What the sidecar calls after the failure: the same, or Unpublish if the Pod is gone that a Publish was for.
    pub then: Rpc,
}

/// How the first call of a case ended.
struct First {
    answer: Result<Answer, Status>,
    /// The request at which the fault struck.
    request: String,
}

impl Job {
    /// The fault at the RPC, which is then called again.
    pub fn new(rpc: Rpc, fault: Fault) -> Self {
        Self {
            rpc,
            fault,
            then: rpc,
        }
    }

    fn describe(&self, nth: u32) -> String {
        let then = if self.then == self.rpc {
            String::new()
        } else {
            format!(" and then {:?}", self.then)
        };
        format!("{:?}{then}, request {nth}, {:?}", self.rpc, self.fault)
    }
}

/// Puts the fault at each request in turn, until the RPC makes no such request.
pub async fn sweep(lane: &mut Lane, job: Job) -> Tally {
    let mut tally = Tally::default();
    for nth in 1..MANY {
        let what = job.describe(nth);
        match case(lane, &job, nth).await {
            Ok(true) => tally.cases += 1,
            Ok(false) => {
                // A list may be shared with the RPC before.
                let least = lane
                    .normal
                    .get(&job.rpc)
                    .map_or(0, |normal| normal.least - 1);
                if tally.cases < least && !matches!(job.fault, Fault::Task(_, _)) {
                    let met = tally.cases;
                    tally.fail(format!("{what}: only {met} of {least} requests were met"));
                }
                return tally;
            }
            Err(error) => {
                tally.cases += 1;
                tally.fail(format!("{what}: {error:#}"));
                if lane.renew().await.is_err() {
                    return tally;
                }
            }
        }
    }
    tally
}

/// One case; whether the RPC made the request at which it was to be.
async fn case(lane: &mut Lane, job: &Job, nth: u32) -> Result<bool> {
    let mut volume = lane.volume();
    for rpc in job.rpc.before() {
        lane.calm(&mut volume, rpc).await?;
    }
    let met = strike(lane, job, nth, &mut volume).await?;
    let last = if met { job.then } else { job.rpc };
    for rpc in last.after() {
        lane.calm(&mut volume, rpc).await.context("afterwards")?;
    }
    lane.clean()?;
    Ok(met)
}

/// The faulty call and those that follow, until one says OK and is right. `false`: the RPC made no such request and
/// has said OK.
pub async fn strike(lane: &mut Lane, job: &Job, nth: u32, volume: &mut Volume) -> Result<bool> {
    let sim = &lane.world.sim;
    sim.clear_requests();
    job.fault.arm(sim, nth);
    let fast = job.fault.takes_time();
    let first = hastened(sim, fast, first(lane, job, nth, volume)).await?;
    let met = sim.faults_left() == 0;
    sim.clear_faults();
    let at = format!("at {}", first.request);
    modest(lane, job.rpc).context(at.clone())?;
    let outcome = if met {
        settle(lane, job, volume, first.answer).await.context(at)
    } else {
        let answer = first.answer.context("without the fault")?;
        judge(lane, volume, job.rpc.stage(), &answer)
    };
    outcome?;
    if let Fault::Meanwhile(change) = &job.fault {
        change.tidy(&lane.world.sim, volume.vmid)?;
    }
    // A detach brings the config back to what the lost attach was meant for, which may still come for a minute.
    let doubt = job.fault.leaves_doubt() || job.fault == Fault::Late(Late::DuringTheRetry);
    if met && job.then == Rpc::Publish && doubt {
        lane.restart().await?;
    }
    Ok(met)
}

/// From the first answer on.
async fn settle(
    lane: &mut Lane,
    job: &Job,
    volume: &mut Volume,
    answer: Result<Answer, Status>,
) -> Result<()> {
    let then = format!(
        "first {}",
        answer.as_ref().err().map_or_else(|| "OK".to_owned(), short)
    );
    if let Err(status) = &answer {
        honest(lane, job.rpc, volume, status)?;
    }
    // A new controller has not heard what the old one waits for, and asks PVE.
    let waits = job.then != job.rpc && job.fault.leaves_doubt();
    if job.fault.silences() || waits {
        lane.restart().await?;
    }
    let held = if job.fault == Fault::Late(Late::DuringTheRetry) {
        Held::UntilTheRetry
    } else {
        Held::Nothing
    };
    if let Ok(answer) = &answer {
        judge(lane, volume, job.rpc.stage(), answer).context(then.clone())?;
        if job.then == job.rpc {
            let_go(lane).await;
            return judge(lane, volume, job.rpc.stage(), answer).context(then);
        }
    }
    let fast = job.fault.takes_time();
    let more = again(lane, volume, job.then, held);
    hastened(&lane.world.sim, fast, more).await.context(then)?;
    Ok(())
}

/// Calls, and lets happen what has to happen when the request arrives.
async fn first(lane: &Lane, job: &Job, nth: u32, volume: &mut Volume) -> Result<First> {
    let (sim, vmid) = (&lane.world.sim, volume.vmid);
    let caller = lane.caller();
    let mut held = sim.held();
    let call = volume.call(&caller, job.rpc);
    tokio::pin!(call);
    let early = tokio::select! {
        answer = &mut call => Some(answer),
        seen = held.wait_for(|held| !held.is_empty()) => { drop(seen); None }
    };
    let answer = match (early, &job.fault) {
        (Some(answer), _) => answer,
        (None, Fault::Late(_)) => {
            sim.advance(PROXY);
            call.await
        }
        (None, Fault::Meanwhile(change)) => {
            change.begin(sim, vmid).await?;
            sim.release();
            let answer = call.await;
            change.end(sim, vmid)?;
            answer
        }
        (None, fault) => bail!("{fault:?} holds a request"),
    };
    let requests = sim.requests();
    let request = requests.get(usize::try_from(nth)? - 1);
    let request = request.map_or_else(String::new, |r| format!("{} {}", r.method, r.template));
    if job.fault == Fault::Late(Late::BeforeTheRetry) {
        let_go(lane).await;
    }
    sleep(Duration::from_millis(1)).await;
    Ok(First { answer, request })
}
