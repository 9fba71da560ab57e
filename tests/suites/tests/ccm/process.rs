//! The process: how it begins, waits, changes and ends.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::{CcmWorld, Line, Relay, TOKEN, admin_page, has_taint, tenant};
use harness::cluster::{eventually, requirements};
use harness::process::{Process, Signal};
use harness::world::REGION;
use pve_model::topology::{SHUTDOWN_TAINT, UNINITIALIZED_TAINT};
use pve_sim::{RequestEffect, RequestFault};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::alone;

const PATIENCE: Duration = Duration::from_secs(15);
/// A Pod has 30 s; a rollout shall not wait for half of it.
const END: Duration = Duration::from_secs(5);
const NEW_SECRET: &str = "0d1f7c54-5b6a-4f3e-9a2d-3c8e1f6b7a90";

/// Whether the page answers with this status, and its text.
async fn page(admin: SocketAddr, path: &str) -> Result<(u16, String)> {
    let text = admin_page(admin, path).await?;
    let status = text.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, text))
}

/// Waits until `/readyz` refuses with this word.
async fn unready(admin: SocketAddr, word: &str) -> Result<()> {
    eventually(word, PATIENCE, async || {
        let (status, text) = page(admin, "/readyz").await?;
        Ok((status == 503 && text.contains(word)).then_some(()))
    })
    .await?;
    Ok(())
}

/// How the last program ends, and how long it took.
async fn ends(world: &mut CcmWorld, within: Duration) -> Result<Option<i32>> {
    let process = world.ccms.last_mut().context("no program")?;
    let (status, _) = eventually("the end", within, async || process.ended()).await?;
    world.ccms.pop();
    Ok(status.code())
}

/// SIGTERM ends the last program well and soon.
async fn terminated(world: &mut CcmWorld, while_what: &str) -> Result<()> {
    let process = world.ccms.last().context("no program")?;
    process.signal(Signal::SIGTERM)?;
    let code = ends(world, END).await.context(while_what.to_owned())?;
    ensure!(code == Some(0), "while {while_what}: {code:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_begins_waits_changes_and_ends_as_it_should() -> Result<()> {
    let Some(programs) = requirements("ccm: the process") else {
        return Ok(());
    };
    let _alone = alone().await;
    let mut world = CcmWorld::start(&programs, tenant(&[(101, "pve1"), (102, "pve1")])).await?;
    wrong_configs(&mut world).await?;
    controllers(&mut world).await?;
    kubeconfig_comes_late(&mut world).await?;
    server_comes_late_and_hangs(&mut world).await?;
    pve_goes_and_comes(&mut world).await?;
    token_is_rotated(&mut world).await?;
    pve_hangs(&mut world).await?;
    no_secret_is_logged(&world)?;
    world.stop().await
}

/// What is wrong, and what has to be named.
async fn wrong_configs(world: &mut CcmWorld) -> Result<()> {
    let right = world.config();
    let wrong: [(&str, Value, &str); 4] = [
        ("/provider", json!("aws"), "provider"),
        ("/regions/r1/pool", json!(7), "regions.r1.pool"),
        ("/nodes", json!({ "zone": "sideways" }), "nodes.zone"),
        (
            "/nodes",
            json!({ "addresses": { "agents": true } }),
            "nodes.addresses",
        ),
    ];
    for (at, value, named) in wrong {
        let mut config = right.clone();
        config["nodes"] = json!({});
        *config.pointer_mut(at).context(at)? = value;
        for more in [&[][..], &["--check-config"][..]] {
            world.launch_ccm(&config, more)?;
            let process = world.ccms.last_mut().unwrap();
            let (status, _) = eventually("the end", PATIENCE, async || process.ended()).await?;
            let log = process.log();
            world.ccms.pop();
            ensure!(status.code() == Some(64), "{named}: {status}");
            ensure!(log.contains(named), "{named} is not named: {log}");
        }
    }
    world.launch_ccm(&right, &["--check-config"])?;
    let code = ends(world, PATIENCE).await?;
    ensure!(code == Some(0), "{code:?}");
    ensure!(world.sim().requests().is_empty(), "a check asks nobody");
    Ok(())
}

/// Only what is named runs, under the names of Kubernetes, too.
async fn controllers(world: &mut CcmWorld) -> Result<()> {
    let config = world.config();
    world
        .start_ccm(&config, &["--controllers=lifecycle"])
        .await?;
    world.register("worker-101", 101).await?;
    world.register("worker-102", 102).await?;
    world.set_ready("worker-102", false).await?;
    world.sim().stop_vm(102).map_err(anyhow::Error::msg)?;
    let marked = |node: &_| has_taint(node, SHUTDOWN_TAINT);
    world.until("worker-102", "shut down", marked).await?;
    let node = world.node("worker-101").await?.context("no Node")?;
    ensure!(has_taint(&node, UNINITIALIZED_TAINT), "it is initialised");
    terminated(world, "all is well").await?;
    let both = "--controllers=cloud-node,cloud-node-lifecycle";
    world.start_ccm(&config, &[both]).await?;
    world.initialised("worker-101").await?;
    world.sim().start_vm(102).map_err(anyhow::Error::msg)?;
    let unmarked = |node: &_| !has_taint(node, SHUTDOWN_TAINT);
    world.until("worker-102", "started", unmarked).await?;
    world.set_ready("worker-102", true).await?;
    terminated(world, "all is well").await
}

/// One that is not there, one that would run a program, and one that is right.
async fn kubeconfig_comes_late(world: &mut CcmWorld) -> Result<()> {
    let path = world.folder().join("late.kubeconfig");
    let config = world.config();
    let flag = format!("--kubeconfig={}", path.display());
    let admin = world.launch_ccm(&config, &[&flag])?;
    let waits = "waiting for the tenant's kubeconfig";
    unready(admin, waits).await?;
    ensure!(page(admin, "/healthz").await?.0 == 200, "it lives");
    let right = std::fs::read(world.kubeconfig())?;
    let mut exec: Value = serde_json::from_slice(&right)?;
    let ran = world.folder().join("ran");
    exec["users"][0]["user"] = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [ran], "interactiveMode": "Never",
    }});
    replace(&path, &exec.to_string().into_bytes())?;
    let said = |world: &CcmWorld| {
        let log = world.ccms.last().map(Process::log).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains("exec is not accepted"))
            .count()
    };
    eventually("it is refused", PATIENCE, async || {
        Ok((said(world) > 0).then_some(()))
    })
    .await?;
    sleep(Duration::from_secs(5)).await;
    ensure!(said(world) == 1, "said {} times", said(world));
    ensure!(!ran.exists(), "a program of the kubeconfig ran");
    unready(admin, waits).await?;
    replace(&path, &right)?;
    world.wait_ready(admin).await?;
    terminated(world, "all is well").await
}

/// As the kubelet changes a Secret: at once.
fn replace(path: &Path, text: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, path)?)
}

/// The API server is down at the start, comes, and hangs when the program has to end.
async fn server_comes_late_and_hangs(world: &mut CcmWorld) -> Result<()> {
    let (relay, path) = Relay::of_kubeconfig(world.kubeconfig(), "relayed", Line::Cut)?;
    let config = world.config();
    let flag = format!("--kubeconfig={}", path.display());
    let admin = world.launch_ccm(&config, &[&flag])?;
    unready(admin, "have not been listed").await?;
    ensure!(page(admin, "/healthz").await?.0 == 200, "it lives");
    relay.set(Line::Open);
    world.wait_ready(admin).await?;
    relay.set(Line::Dead);
    terminated(world, "the API server hangs").await
}

/// It is not ready while PVE does not answer, and lives on.
async fn pve_goes_and_comes(world: &mut CcmWorld) -> Result<()> {
    let config = world.config();
    let admin = world.launch_ccm(&config, &[])?;
    world.wait_ready(admin).await?;
    world.sim().set_reachable(false);
    unready(admin, REGION).await?;
    ensure!(page(admin, "/healthz").await?.0 == 200, "it lives");
    world.sim().set_reachable(true);
    world.wait_ready(admin).await?;
    terminated(world, "all is well").await
}

fn set_secret(world: &CcmWorld, secret: &str) {
    world.sim().edit(|state| {
        let (user, id) = TOKEN.0.split_once('!').unwrap();
        let user = state.users.get_mut(user).unwrap();
        secret.clone_into(&mut user.tokens.get_mut(id).unwrap().secret);
    });
}

/// The operator rotates the token: the config file changes, the program goes on.
async fn token_is_rotated(world: &mut CcmWorld) -> Result<()> {
    let mut config = world.config();
    let admin = world.launch_ccm(&config, &[])?;
    world.wait_ready(admin).await?;
    set_secret(world, NEW_SECRET);
    unready(admin, REGION).await?;
    config["regions"][REGION]["token"]["secret"] = json!(NEW_SECRET);
    let index = world.ccms.len() - 1;
    let path = world.folder().join(format!("ccm-{index}.yaml"));
    replace(&path, config.to_string().as_bytes())?;
    let begin = Instant::now();
    world.wait_ready(admin).await?;
    let took = begin.elapsed();
    ensure!(took < PATIENCE, "{took:?}");
    world.register("rotated", 102).await?;
    world.initialised("rotated").await?;
    terminated(world, "all is well").await?;
    set_secret(world, TOKEN.1);
    Ok(())
}

/// PVE takes requests and does not answer when the program has to end: its lists, and questions about a Node.
async fn pve_hangs(world: &mut CcmWorld) -> Result<()> {
    let config = world.config();
    let lists = "/cluster/resources";
    let states = "/nodes/{node}/qemu/{vmid}/status/current";
    for path in [lists, states] {
        world.start_ccm(&config, &[]).await?;
        world.sim().add_fault(RequestFault {
            method: "GET".to_owned(),
            path: path.to_owned(),
            nth: 1,
            times: u32::MAX,
            effect: RequestEffect::Hold,
        });
        if path == states {
            world.set_ready("worker-102", false).await?;
            world.sim().stop_vm(102).map_err(anyhow::Error::msg)?;
        }
        let mut held = world.sim().held();
        timeout(
            PATIENCE,
            held.wait_for(|held| held.iter().any(|what| what.ends_with(path))),
        )
        .await??;
        terminated(world, &format!("PVE hangs in {path}")).await?;
        world.sim().clear_faults();
        world.sim().release();
    }
    Ok(())
}

/// Neither those of PVE nor that of the API server.
fn no_secret_is_logged(world: &CcmWorld) -> Result<()> {
    let kubeconfig: Value = serde_json::from_slice(&std::fs::read(world.kubeconfig())?)?;
    let token = kubeconfig["users"][0]["user"]["token"].as_str();
    let secrets = [TOKEN.1, NEW_SECRET, token.context("no token")?];
    let mut some = false;
    for entry in std::fs::read_dir(world.folder().join("log"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("ccm-") {
            continue;
        }
        let log = std::fs::read_to_string(&path)?;
        some |= log.contains("DEBUG");
        for line in log.lines() {
            let leaks = secrets.iter().any(|secret| line.contains(secret));
            ensure!(!leaks, "{name}: a secret in {line}");
        }
    }
    ensure!(some, "nothing was logged at all");
    Ok(())
}
