//! Two controllers at work on one volume: one stands still at one of its requests while the other does all of its work.
//! Then both are called again as their sidecars do it, until both have an answer that stays.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pve_sim::{RequestEffect, TaskEffect};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::lane::{OTHER_VM, VM};
use super::sidecar::{let_go, short};
use super::volume::{TRIES, back_off};
use super::{Answer, Lane, Rpc, Tally, Volume, fault};
use crate::caller::Caller;
use crate::truth::{Truth, volid};

/// More requests than any RPC makes.
const MANY: u32 = 60;
/// How long the other one gets before the first goes on: one that waits for the first would never end.
const WHOLE: Duration = Duration::from_millis(1500);

/// Two RPCs on one volume at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// A disk is freed while it is being attached.
    DeletePublish,
    /// A disk grows while it is being detached.
    ExpandUnpublish,
    /// A disk is made twice.
    CreateCreate,
    /// A disk is attached to two VMs.
    PublishPublish,
    /// A disk is taken out of one VM while it is being put into another one.
    UnpublishPublish,
}

/// Where the held request of the first is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Still {
    /// It has arrived.
    Before,
    /// It is done.
    After,
    /// Its task has begun.
    InTheTask,
}

/// A pair, with one of the two held at every request.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The two.
    pub pair: Pair,
    /// Whether the second one of the pair is the one that is held.
    pub swapped: bool,
    /// Where its request is.
    pub still: Still,
}

/// One of the two.
struct Side {
    rpc: Rpc,
    caller: Caller,
    volume: Volume,
    answer: Result<Answer, Status>,
}

/// Every pair, both ways round.
pub fn all(pair: Pair) -> Vec<Job> {
    let mut all = Vec::new();
    for swapped in [false, true] {
        for still in [Still::Before, Still::After, Still::InTheTask] {
            let same = matches!(pair, Pair::CreateCreate | Pair::PublishPublish);
            let [one, other] = pair.rpcs();
            let held = if swapped { other } else { one };
            let no_task = still == Still::InTheTask && fault::task(held).is_none();
            if (same && swapped) || no_task {
                continue;
            }
            all.push(Job {
                pair,
                swapped,
                still,
            });
        }
    }
    all
}

impl Pair {
    fn rpcs(self) -> [Rpc; 2] {
        match self {
            Self::DeletePublish => [Rpc::Delete, Rpc::Publish],
            Self::ExpandUnpublish => [Rpc::Expand, Rpc::Unpublish],
            Self::CreateCreate => [Rpc::Create, Rpc::Create],
            Self::PublishPublish => [Rpc::Publish, Rpc::Publish],
            Self::UnpublishPublish => [Rpc::Unpublish, Rpc::Publish],
        }
    }

    /// The RPCs that come before both.
    fn before(self) -> &'static [Rpc] {
        match self {
            Self::CreateCreate => &[],
            Self::DeletePublish | Self::PublishPublish => &[Rpc::Create],
            Self::ExpandUnpublish | Self::UnpublishPublish => &[Rpc::Create, Rpc::Publish],
        }
    }

    /// The VM of the second one.
    fn second_vm(self) -> u32 {
        match self {
            Self::PublishPublish | Self::UnpublishPublish => OTHER_VM,
            _ => VM,
        }
    }
}

/// Holds one of the two at each of its requests in turn.
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
    let second = lane.second().await?;
    let mut volume = lane.volume();
    for rpc in job.pair.before() {
        lane.calm(&mut volume, *rpc).await?;
    }
    let mut sides = sides(lane, job, second, &volume);
    let at = both(lane, job, nth, &mut sides).await?;
    if let Some(at) = &at {
        let stays = until_it_stays(lane, job.pair, &mut sides).await;
        stays.with_context(|| format!("held at {at}"))?;
    }
    end(&sides).await?;
    lane.clean()?;
    Ok(at.is_some())
}

fn sides(lane: &Lane, job: Job, second: Caller, volume: &Volume) -> [Side; 2] {
    let [one, other] = job.pair.rpcs();
    let side = |rpc, caller, vmid| Side {
        rpc,
        caller,
        volume: Volume {
            vmid,
            ..volume.clone()
        },
        answer: Err(Status::unknown("not called")),
    };
    let mut sides = [
        side(one, lane.caller(), VM),
        side(other, second, job.pair.second_vm()),
    ];
    if job.swapped {
        sides.reverse();
    }
    sides
}

/// The first stands still while the second works: where. Nothing if the first made no such request.
async fn both(lane: &Lane, job: Job, nth: u32, sides: &mut [Side; 2]) -> Result<Option<String>> {
    let [first, second] = sides;
    let sim = &lane.world.sim;
    match (job.still, fault::task(first.rpc)) {
        (Still::InTheTask, None) => return Ok(None),
        (Still::InTheTask, Some(kind)) => fault::on_task(sim, kind, nth, TaskEffect::Hold),
        (Still::Before, _) => fault::request(sim, nth, RequestEffect::Hold),
        (Still::After, _) => fault::request(sim, nth, RequestEffect::HoldReply),
    }
    let mut held = sim.held();
    let call = first.volume.call(&first.caller, first.rpc);
    tokio::pin!(call);
    let at = tokio::select! {
        answer = &mut call => { first.answer = answer; None }
        seen = held.wait_for(|held| !held.is_empty()) => Some(seen?.join(", ")),
    };
    let Some(at) = at else {
        sim.clear_faults();
        return Ok(None);
    };
    let other = second.volume.call(&second.caller, second.rpc);
    tokio::pin!(other);
    let early = tokio::select! {
        answer = timeout(WHOLE, &mut other) => answer.ok(),
        _ = &mut call => bail!("the held RPC has answered"),
    };
    if let Some(answer) = early {
        second.answer = answer;
        let_go(lane).await;
        first.answer = call.await;
    } else {
        let_go(lane).await;
        (first.answer, second.answer) = tokio::join!(call, other);
    }
    Ok(Some(at))
}

/// Calls whoever has no success yet, until what they have fits together.
async fn until_it_stays(lane: &Lane, pair: Pair, sides: &mut [Side; 2]) -> Result<()> {
    let mut wrong = String::new();
    for tried in 1..TRIES {
        match verdict(lane, pair, sides) {
            Ok(()) => return Ok(()),
            Err(error) => wrong = format!("{error:#}"),
        }
        if sides.iter().all(|side| side.answer.is_ok()) {
            break;
        }
        back_off(tried).await;
        for side in &mut *sides {
            if side.answer.is_err() {
                side.answer = side.volume.call(&side.caller, side.rpc).await;
            }
        }
    }
    let said: Vec<String> = sides.iter().map(Side::describe).collect();
    bail!("{}: {wrong}", said.join(", "))
}

impl Side {
    fn describe(&self) -> String {
        match &self.answer {
            Ok(_) => format!("{:?} OK", self.rpc),
            Err(status) => format!("{:?} {}", self.rpc, short(status)),
        }
    }

    fn refused(&self, code: Code) -> bool {
        matches!(&self.answer, Err(status) if status.code() == code)
    }
}

/// Whether both answers are right together, and stay so.
fn verdict(lane: &Lane, pair: Pair, sides: &[Side; 2]) -> Result<()> {
    let truth = Truth::of(&lane.world.sim);
    let broken = truth.violations();
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    let of = |rpc| sides.iter().find(|side| side.rpc == rpc);
    let handle = sides.iter().map(|side| &side.volume.handle).max();
    let handle = handle.context("two sides")?;
    let disks: Vec<String> = truth.disks().into_iter().collect();
    let holders: Vec<u32> = truth.holders(handle).into_iter().collect();
    let (there, in_vm) = match (pair, of(Rpc::Delete), of(Rpc::Publish)) {
        (Pair::DeletePublish, Some(delete), Some(publish)) => {
            let deleted = delete.answer.is_ok() && publish.refused(Code::NotFound);
            let attached = publish.answer.is_ok() && delete.refused(Code::FailedPrecondition);
            ensure!(deleted || attached, "the answers do not fit");
            (attached, attached.then_some(VM))
        }
        (Pair::PublishPublish, _, _) => {
            let [one, other] = sides;
            let one_won = one.answer.is_ok() && other.refused(Code::FailedPrecondition);
            let other_won = other.answer.is_ok() && one.refused(Code::FailedPrecondition);
            ensure!(one_won || other_won, "the answers do not fit");
            let winner = if one_won { one } else { other };
            (true, Some(winner.volume.vmid))
        }
        (Pair::ExpandUnpublish, _, _) => {
            let [one, other] = sides;
            let (expand, unpublish) = if one.rpc == Rpc::Expand {
                (one, other)
            } else {
                (other, one)
            };
            ensure!(unpublish.answer.is_ok(), "it is not detached");
            let right = expand.answer.is_ok() || expand.refused(Code::FailedPrecondition);
            ensure!(right, "it is neither grown nor refused");
            let said = u64::try_from(expand.volume.bytes)?;
            let real = truth.size(handle);
            ensure!(
                real >= Some(said),
                "{said} bytes were answered, {real:?} are there"
            );
            (true, None)
        }
        (Pair::CreateCreate | Pair::DeletePublish | Pair::UnpublishPublish, _, publish) => {
            ensure!(
                sides.iter().all(|side| side.answer.is_ok()),
                "not both are done"
            );
            (true, publish.map(|side| side.volume.vmid))
        }
    };
    let right: Vec<String> = there.then(|| volid(handle)).into_iter().collect();
    ensure!(disks == right, "the disks are {disks:?}, not {right:?}");
    let right: Vec<u32> = in_vm.into_iter().collect();
    ensure!(
        holders == right,
        "the holders are {holders:?}, not {right:?}"
    );
    Ok(())
}

/// What is left to do for the sidecars: detach everywhere, delete.
async fn end(sides: &[Side; 2]) -> Result<()> {
    let [one, other] = sides;
    let volume = if one.volume.handle.is_empty() {
        &other.volume
    } else {
        &one.volume
    };
    for vmid in [VM, OTHER_VM] {
        let mut volume = Volume {
            vmid,
            ..volume.clone()
        };
        let answer = volume.call(&one.caller, Rpc::Unpublish).await;
        answer.context("detaching in the end")?;
    }
    let answer = volume.clone().call(&one.caller, Rpc::Delete).await;
    answer.context("deleting in the end")?;
    Ok(())
}
