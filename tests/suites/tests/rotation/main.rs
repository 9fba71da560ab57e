//! Credentials change under load: the token, the authority and the certificate of Proxmox VE, and the certificate with
//! which the tenant's API server is asked. Everything is as in a Pod: `pve-credentials` follows mounted Secrets, the
//! drivers read what it writes.
//!
//! There is an overlap, as an operator makes it: what is new is valid before it is given out, and what is old is revoked
//! only once both drivers have said that the new one is in force. An RPC that began before goes on with the new token,
//! but with the authority that it began with: the certificate is replaced only once such RPCs have ended. Nothing else
//! waits for them.

#![expect(clippy::indexing_slicing, reason = "tests fail by panics")]
#![expect(clippy::print_stdout, reason = "the figures of the run")]

mod load;
mod secrets;
mod side;
mod world;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::ccm::operator::{control, revoke};
use harness::cluster::{eventually, requirements};
use pve_kube::Tenant;
use tokio::time::sleep;

use crate::load::Load;
use crate::secrets::exposed;
use crate::side::Side;
use crate::world::{NEW, OLD, World};

/// Load between the steps.
const STEADY: Duration = Duration::from_secs(4);
/// The API server looks at the file of its clients' authorities when it changes, at the latest each minute.
const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn all_credentials_change_under_load_the_old_ones_are_revoked_and_no_rpc_fails() -> Result<()>
{
    let Some(programs) = requirements("rotation of credentials") else {
        return Ok(());
    };
    let mut world = World::start(&programs).await?;
    let load = Load::start(&world);
    sleep(STEADY).await;
    token(&mut world, &load).await.context("the token")?;
    authority(&mut world, &load)
        .await
        .context("the authority")?;
    client(&mut world, &load)
        .await
        .context("the client's certificate")?;
    let tally = load.stop().await;
    println!("{tally:?}");
    ensure!(tally.failed.is_empty(), "{:#?}", tally.failed);
    ensure!(
        tally.volumes >= 10 && tally.nodes >= 3,
        "too little load: {tally:?}"
    );
    // Of RPCs that had begun with the old token: they went on with the new one.
    let refused = world.requests_with_status(401);
    println!("requests that PVE answered with 401: {refused}");
    exposed(&mut world).await?;
    world.stop().await
}

/// The new token is valid, is given out, and then the old one is revoked.
async fn token(world: &mut World, load: &Load) -> Result<()> {
    let before = world.sides().map(Side::configs_in_force);
    let ca = world.ca.clone();
    world.give_out(&NEW, &ca)?;
    world.new_configs(before).await?;
    for token in [OLD.csi.0, OLD.ccm.0] {
        revoke(world.sim(), token).await?;
    }
    load.goes_on(STEADY).await
}

/// Both authorities are trusted, the endpoint's certificate is replaced, then only the new one is trusted.
async fn authority(world: &mut World, load: &Load) -> Result<()> {
    let next = control(world.sim(), "/certificate/next").await?;
    let next = next["ca_pem"].as_str().context("no authority")?.to_owned();
    let both = format!("{}{next}", world.ca);
    let before = world.sides().map(Side::configs_in_force);
    world.give_out(&NEW, &both)?;
    world.new_configs(before).await?;
    load.began_anew().await?;
    control(world.sim(), "/certificate/present").await?;
    load.goes_on(STEADY).await?;
    let before = world.sides().map(Side::configs_in_force);
    world.give_out(&NEW, &next)?;
    world.new_configs(before).await?;
    load.goes_on(STEADY).await
}

/// Both authorities of clients are accepted, the new certificate is given out, then the old one is not accepted any more.
async fn client(world: &mut World, load: &Load) -> Result<()> {
    let former = world.plane().folder().join("former.kubeconfig");
    std::fs::write(&former, world.kubeconfig_of(0)?)?;
    let next = world.kubeconfig_of(1)?;
    let [old, new] = &world.authorities;
    world.plane().accept_clients_of(&[old, new])?;
    accepted(world, &next).await?;
    let before = world.sides().map(Side::kubeconfigs_in_force);
    world.give_out_kubeconfig(&next)?;
    world.new_kubeconfigs(before).await?;
    let [_, new] = &world.authorities;
    world.plane().accept_clients_of(&[new])?;
    answers(&former, false).await?;
    std::fs::remove_file(former)?;
    load.goes_on(STEADY).await
}

async fn accepted(world: &World, kubeconfig: &str) -> Result<()> {
    let path = world.plane().folder().join("next.kubeconfig");
    std::fs::write(&path, kubeconfig)?;
    answers(&path, true).await?;
    Ok(std::fs::remove_file(path)?)
}

/// Waits until the API server knows, or does not know, who asks with this kubeconfig.
async fn answers(kubeconfig: &Path, wanted: bool) -> Result<()> {
    let what = format!("{} answered: {wanted}", kubeconfig.display());
    let client = Tenant::of_kubeconfig(kubeconfig).await?.client();
    eventually(&what, PATIENCE, async || {
        let request = http::Request::get("/api/v1/nodes").body(Vec::new())?;
        let answer = client.request_text(request).await;
        Ok((answer.is_ok() == wanted).then_some(()))
    })
    .await?;
    Ok(())
}

/// Shows that the search finds what is there to be found.
#[tokio::test]
async fn a_secret_that_a_program_shows_is_found_wherever_it_stands() -> Result<()> {
    secrets::planted().await
}
