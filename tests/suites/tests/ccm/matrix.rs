//! Faults of all kinds, each with Nodes that are ready and that are not, initialised before and not yet. A Node is deleted
//! in the proven cases and in no other; whatever else it says survives, and after the fault all is right again.
//!
//! The program lists VMs every second here and wants a VM to be gone for one: all that it does wrong it does within a fault.

#![expect(
    clippy::indexing_slicing,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod hosts;
mod lists;
mod nodes;
mod regions;
mod vms;

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, TOKEN, tenant};
use harness::cluster::{Programs, requirements};
use harness::requirements::noted;
use pve_sim::{AclEntry, Builder};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::nodes::Matrix;

/// How long a fault lasts at least. A Node whose VM is proved to be gone is deleted in less, as the first rows of
/// [`vms`] show.
const DWELL: Duration = Duration::from_secs(5);
/// How long a VM has to be gone.
const GRACE: &str = "--deletion-grace=1s";
/// The cases of all parts.
const CASES: usize = 206;

/// B65: what can't be seen is never taken for gone. B14, B66: hosts that are down. B15: an entry that can't be read. B68: forms
/// of UUIDs. B71: HA of PVE 8 and 9, and agents that may not be asked.
#[tokio::test(flavor = "multi_thread")]
async fn in_no_case_but_the_proven_ones_a_node_is_deleted() -> Result<()> {
    let _alone = crate::alone().await;
    let Some(programs) = requirements("ccm: the matrix of faults") else {
        return Ok(());
    };
    let begun = Instant::now();
    // They wait nearly all of their time.
    let (one, other) = (
        lists::world(&programs, 0).await?,
        lists::world(&programs, 1).await?,
    );
    let third = places(&programs).await?;
    let all = tokio::try_join!(lists::all(one, 0), lists::all(other, 1), all_places(third))?;
    let all: [Outcome; 3] = all.into();
    let problems = all.iter().flat_map(|part| part.problems.clone());
    let problems: Vec<String> = problems.collect();
    let cases: usize = all.iter().map(|part| part.cases).sum();
    let wrong: usize = all.iter().map(|part| part.wrong).sum();
    noted(&format!(
        "ccm matrix: {cases} cases, {wrong} wrong deletions, {} s",
        begun.elapsed().as_secs()
    ));
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    ensure!(wrong == 0 && cases == CASES, "{cases} cases, {wrong} wrong");
    Ok(())
}

/// What came of one part.
struct Outcome {
    cases: usize,
    wrong: usize,
    problems: Vec<String>,
}

/// Two PVE clusters, a 9 and an 8, with HA and guest agents that the token may not ask.
async fn places(programs: &Programs) -> Result<Matrix> {
    let mut world =
        CcmWorld::start(programs, audited(&[&vms::numbers(), &hosts::numbers()])).await?;
    world.add_region("r2", audited(&[])).await?;
    regions::prepare(&world)?;
    hosts::prepare(&world);
    let mut config = world.config();
    let more = json!({ "ha": true, "addresses": { "agent": true } });
    if let Some(whole) = config.as_object_mut() {
        whole.insert("nodes".to_owned(), more);
    }
    for (_, region) in config["regions"].as_object_mut().into_iter().flatten() {
        region["nodes"] = json!(["pve1", "pve2", "pve3"]);
    }
    world.start_ccm(&config, &[GRACE]).await?;
    Ok(Matrix::new(world))
}

/// Faults of VMs, of hosts and of PVE clusters among others.
async fn all_places(mut matrix: Matrix) -> Result<Outcome> {
    vms::all(&mut matrix).await?;
    hosts::all(&mut matrix).await?;
    regions::all(&mut matrix).await?;
    matrix.finish().await
}

/// A PVE cluster with three hosts and VMs by number, whose token may ask for HA.
fn audited(vms: &[&[u32]]) -> Builder {
    let places: Vec<(u32, &str)> = vms
        .concat()
        .into_iter()
        .map(|vmid| (vmid, "pve1"))
        .collect();
    tenant(&places).node("pve3").role("Auditor", &["Sys.Audit"])
}

/// Gives the token this role on all of PVE.
fn granted(role: &str) -> Vec<AclEntry> {
    let user = TOKEN.0.split('!').next().unwrap_or_default();
    [user, TOKEN.0]
        .map(|subject| AclEntry {
            path: "/".to_owned(),
            subject: subject.to_owned(),
            role: role.to_owned(),
            propagate: false,
        })
        .to_vec()
}

/// Nothing of what a Node says changes.
fn same(_: &mut Value) {}
