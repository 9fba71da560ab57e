//! What a sidecar does with an answer, and what it may expect: how it calls again, and which answers are right.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::time::sleep;
use tonic::{Code, Status};

use super::volume::{TRIES, back_off};
use super::{Answer, Lane, Rpc, Stage, Volume, invariants};
use crate::truth::Truth;

/// How long work that was held goes on to be, while the sidecar calls again.
const STILL: Duration = Duration::from_millis(300);
/// For work inside the simulator to end that was let go.
const WORK: Duration = Duration::from_millis(15);

/// Whether something is held in PVE that ends while the sidecar calls again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// No.
    Nothing,
    /// Yes.
    UntilTheRetry,
}

/// Lets go of what is held, and gives it the time to take place.
pub async fn let_go(lane: &Lane) {
    lane.world.sim.release();
    sleep(WORK).await;
}

/// Calls again after each failure. What comes of it in the end is right.
pub async fn again(lane: &Lane, volume: &mut Volume, rpc: Rpc, held: Held) -> Result<Answer> {
    let mut last = String::new();
    for tried in 1..TRIES {
        back_off(tried).await;
        lane.world.sim.clear_requests();
        let caller = lane.caller();
        let call = volume.call(&caller, rpc);
        let answer = if tried == 1 && held == Held::UntilTheRetry {
            let later = async {
                sleep(STILL).await;
                lane.world.sim.release();
            };
            let (answer, ()) = tokio::join!(call, later);
            sleep(WORK).await;
            answer
        } else {
            call.await
        };
        modest(lane, rpc)?;
        match answer {
            Ok(answer) => {
                let when = format!("after {tried} more calls");
                judge(lane, volume, rpc.stage(), &answer).context(when)?;
                return Ok(answer);
            }
            Err(status) => {
                honest(lane, rpc, volume, &status)?;
                last = short(&status);
            }
        }
    }
    bail!("no success after {TRIES} calls, last {last}")
}

/// Fails unless the answer and what there is are right.
pub fn judge(lane: &Lane, volume: &Volume, stage: Stage, answer: &Answer) -> Result<()> {
    let broken = invariants::broken(&lane.world.sim, volume, stage, answer);
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    Ok(())
}

/// The questions after a task's end: their number grows with the time that PVE takes.
const POLL: &str = "/nodes/{node}/tasks/{upid}/status";

/// No fault makes an RPC need more than twice its requests.
pub fn modest(lane: &Lane, rpc: Rpc) -> Result<()> {
    let mut made = lane.world.sim.requests();
    made.retain(|request| request.template != POLL);
    // The clock runs fast where a host is dead: the client takes the answer for a quick one, which it asks for again.
    made.dedup_by(|one, other| one.status >= 595 && one.method == "GET" && one.path == other.path);
    let most = lane.normal.get(&rpc).map_or(0, |normal| normal.most);
    if made.len() <= 2 * most {
        return Ok(());
    }
    let made: Vec<String> = made
        .iter()
        .map(|r| format!("{} {} {}", r.method, r.path, r.status))
        .collect();
    bail!(
        "{} requests in {rpc:?}, which takes {most}: {}",
        made.len(),
        made.join(", ")
    )
}

/// No fault of the sweep is for ever, and none allows a code at which the sidecar forgets what is there.
pub fn honest(lane: &Lane, rpc: Rpc, volume: &Volume, status: &Status) -> Result<()> {
    let wrong = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::Unimplemented,
        Code::Unknown,
    ];
    ensure!(!wrong.contains(&status.code()), "{}", short(status));
    if !rpc.is_final(status.code()) {
        return Ok(());
    }
    let truth = Truth::of(&lane.world.sim);
    let left: Vec<String> = match rpc {
        Rpc::Create => truth.disks().into_iter().collect(),
        _ => truth
            .holders(&volume.handle)
            .into_iter()
            .map(|vmid| format!("the volume in VM {vmid}"))
            .collect(),
    };
    ensure!(
        left.is_empty(),
        "{} is final, and leaves {}",
        short(status),
        left.join(", ")
    );
    Ok(())
}

/// Code and message.
pub fn short(status: &Status) -> String {
    format!("{:?} ({})", status.code(), status.message())
}
