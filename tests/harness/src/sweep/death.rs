//! The controller is killed at each request of an RPC and started again; whoever comes next finds out what happened.

use anyhow::{Context, Result, ensure};
use pve_sim::{RequestEffect, TaskEffect};

use super::sidecar::{Held, again, judge, let_go};
use super::{Lane, Rpc, Tally, Volume, fault};

/// More requests than any RPC makes.
const MANY: u32 = 60;

/// What the request does at which the controller dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// PVE does it while no controller runs.
    Before,
    /// PVE has done it, and nobody hears of it.
    After,
    /// PVE does it after all that came later.
    Last,
    /// PVE has begun a task, which ends while the sidecar calls again.
    InTheTask,
}

/// A death at every request of one RPC.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The RPC.
    pub rpc: Rpc,
    /// Where PVE is with the request.
    pub moment: Moment,
    /// What the sidecar calls afterwards.
    pub then: Rpc,
}

/// Every moment of an RPC.
pub fn all(rpc: Rpc) -> Vec<Job> {
    let moments = [Moment::Before, Moment::After, Moment::Last];
    let task = fault::task(rpc).map(|_| Moment::InTheTask);
    let job = |moment| Job {
        rpc,
        moment,
        then: rpc,
    };
    let mut all: Vec<Job> = moments.into_iter().chain(task).map(job).collect();
    if rpc == Rpc::Publish {
        // The Pod is gone meanwhile.
        let then = Rpc::Unpublish;
        let given_up = [Moment::Before, Moment::After, Moment::InTheTask];
        all.extend(given_up.map(|moment| Job {
            then,
            ..job(moment)
        }));
    }
    all
}

/// Kills the controller at each request in turn, until the RPC makes no such request.
pub async fn sweep(lane: &mut Lane, job: Job) -> Tally {
    let mut tally = Tally::default();
    for nth in 1..MANY {
        match case(lane, job, nth).await {
            Ok(true) => tally.cases += 1,
            Ok(false) => return tally,
            Err(error) => {
                tally.cases += 1;
                tally.fail(format!("{job:?}, request {nth}: {error:#}"));
                if lane.renew().await.is_err() {
                    return tally;
                }
            }
        }
    }
    tally
}

async fn case(lane: &mut Lane, job: Job, nth: u32) -> Result<bool> {
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

/// The call during which the controller dies, and those to its successor until one says OK and is right. `false`: the
/// RPC made no such request and has said OK.
pub async fn strike(lane: &mut Lane, job: Job, nth: u32, volume: &mut Volume) -> Result<bool> {
    let sim = &lane.world.sim;
    sim.clear_requests();
    match (job.moment, fault::task(job.rpc)) {
        (Moment::InTheTask, Some(kind)) => fault::on_task(sim, kind, nth, TaskEffect::Hold),
        (Moment::After, _) => fault::request(sim, nth, RequestEffect::HoldReply),
        (Moment::Before | Moment::Last | Moment::InTheTask, _) => {
            fault::request(sim, nth, RequestEffect::Hold);
        }
    }
    let Some(at) = dies(lane, job, volume).await? else {
        return Ok(false);
    };
    if matches!(job.moment, Moment::Before | Moment::After) {
        let_go(lane).await;
    }
    lane.restart().await?;
    let held = if job.moment == Moment::InTheTask {
        Held::UntilTheRetry
    } else {
        Held::Nothing
    };
    let answer = again(lane, volume, job.then, held).await;
    let answer = answer.with_context(|| format!("killed at {at}"))?;
    let_go(lane).await;
    judge(lane, volume, job.then.stage(), &answer)
        .with_context(|| format!("killed at {at}, which PVE did last"))?;
    Ok(true)
}

/// Calls, and kills the controller when the request hangs in PVE: its name. Nothing if the call said OK before.
async fn dies(lane: &mut Lane, job: Job, volume: &mut Volume) -> Result<Option<String>> {
    let caller = lane.caller();
    let mut held = lane.world.sim.held();
    let answer = {
        let call = volume.call(&caller, job.rpc);
        tokio::pin!(call);
        let at = tokio::select! {
            answer = &mut call => Err(answer),
            seen = held.wait_for(|held| !held.is_empty()) => Ok(seen?.join(", ")),
        };
        match at {
            Err(answer) => answer,
            Ok(at) => {
                lane.kill().await?;
                let answer = call.await;
                ensure!(
                    answer.is_err(),
                    "{answer:?} of a controller that was killed"
                );
                return Ok(Some(at));
            }
        }
    };
    lane.world.sim.clear_faults();
    let answer = answer.context("alive")?;
    judge(lane, volume, job.rpc.stage(), &answer)?;
    Ok(None)
}
