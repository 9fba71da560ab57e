//! Whole lives of volumes, with something going wrong at each step, by the numbers that a seed gives.

use anyhow::{Context, Result};

use super::lane::{OTHER_VM, VM};
use super::{Lane, Rpc, Tally, Volume, death, fault, single};

/// The steps of a life, and the VM of each.
const LIFE: [(Rpc, u32); 8] = [
    (Rpc::Create, VM),
    (Rpc::Publish, VM),
    (Rpc::Expand, VM),
    (Rpc::Unpublish, VM),
    (Rpc::Publish, OTHER_VM),
    (Rpc::Expand, OTHER_VM),
    (Rpc::Unpublish, OTHER_VM),
    (Rpc::Delete, OTHER_VM),
];

/// Numbers that follow from a seed (`SplitMix64`).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> Result<usize> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let sides = u64::try_from(sides)?.max(1);
        Ok(usize::try_from(mixed % sides)?)
    }
}

/// One life. Each of its steps is a case.
pub async fn live(lane: &mut Lane, seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut dice = Dice(seed);
    let mut volume = lane.volume();
    for (number, (rpc, vmid)) in LIFE.into_iter().enumerate() {
        volume.vmid = vmid;
        let met = step(lane, &mut volume, rpc, &mut dice).await;
        match met.with_context(|| format!("seed {seed}, step {number}")) {
            Ok(met) => tally.cases += usize::from(met),
            Err(error) => {
                tally.cases += 1;
                tally.fail(format!("{error:#}"));
                return tally;
            }
        }
    }
    if let Err(error) = lane.clean() {
        tally.fail(format!("seed {seed}, in the end: {error:#}"));
    }
    tally
}

/// One RPC that goes wrong in one of all ways, at one of its requests.
async fn step(lane: &mut Lane, volume: &mut Volume, rpc: Rpc, dice: &mut Dice) -> Result<bool> {
    let most = lane.normal.get(&rpc).map_or(1, |normal| normal.most);
    let nth = u32::try_from(dice.roll(most)?)? + 1;
    let faults = fault::all(rpc);
    let deaths: Vec<death::Job> = death::all(rpc)
        .into_iter()
        .filter(|j| j.then == rpc)
        .collect();
    let pick = dice.roll(faults.len() + deaths.len())?;
    if let Some(fault) = faults.get(pick) {
        let job = single::Job::new(rpc, fault.clone());
        let met = single::strike(lane, &job, nth, volume).await;
        return met.with_context(|| format!("{rpc:?}, request {nth}, {fault:?}"));
    }
    let job = deaths.get(pick - faults.len()).context("a death")?;
    let met = death::strike(lane, *job, nth, volume).await;
    met.with_context(|| format!("{job:?}, request {nth}"))
}
