//! All that all programs have written, and their arguments and environment, searched for every secret that there was.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::caller::Caller;
use harness::ccm::admin_page;
use harness::cluster::eventually;
use harness::csi::Csi;
use harness::exposure::Exposure;
use harness::mounted::memory;
use harness::process::Process;
use harness::run_dir::RunDir;
use harness::world::FILES;

use crate::world::{NEW, OLD, World};

/// Secrets of a form that is refused, and in places where nobody expects them.
const MISPLACED: &str = "3f9b2c71-8d54-4e06-9ac1-b7e2d05f8a46";

/// Has programs tell what they can be made to tell, and then looks at all of it.
pub(crate) async fn exposed(world: &mut World) -> Result<()> {
    let errors = provoked(world).await?;
    refused(world).await?;
    let names: Vec<(String, String)> = [
        ("old csi token", OLD.csi.1),
        ("old ccm token", OLD.ccm.1),
        ("new csi token", NEW.csi.1),
        ("new ccm token", NEW.ccm.1),
        ("misplaced token", MISPLACED),
    ]
    .map(|(name, secret)| (name.to_owned(), secret.to_owned()))
    .into_iter()
    .chain(
        world
            .keys
            .iter()
            .map(|key| ("client key".to_owned(), key.clone())),
    )
    .collect();
    let pairs: Vec<(&str, &str)> = names
        .iter()
        .map(|(name, secret)| (name.as_str(), secret.as_str()))
        .collect();
    let mut exposure = Exposure::of(&pairs);
    for error in &errors {
        exposure.text("an answer", error.as_bytes());
    }
    exposure.files(world.cluster().folder())?;
    for side in world.sides() {
        for process in side.processes() {
            let pid = process.pid().context("a program has ended")?;
            exposure.process(pid)?;
            undumpable(pid)?;
        }
        for admin in &side.admins {
            for page in ["/metrics", "/readyz"] {
                // The drivers ask PVE whether it is there when somebody asks them.
                let (text, _) = eventually(page, Duration::from_secs(30), async || {
                    let text = admin_page(*admin, page).await?;
                    Ok(text.starts_with("HTTP/1.1 200").then_some(text))
                })
                .await?;
                exposure.text(page, text.as_bytes());
            }
        }
    }
    println!(
        "searched for secrets: {} bytes, {} hits",
        exposure.looked(),
        exposure.hits().len()
    );
    ensure!(
        exposure.looked() > 1_000_000,
        "nothing was logged: {exposure:?}"
    );
    ensure!(exposure.hits().is_empty(), "{:#?}", exposure.hits());
    Ok(())
}

/// Errors as the tenant sees them.
async fn provoked(world: &World) -> Result<Vec<String>> {
    let caller = Caller::new(Csi::at(&world.socket()));
    let volume = "r1/pve1/files/9999/vm-9999-pvc-none.raw";
    let answers = [
        caller
            .create("pvc-x", "nosuch", Some("pve1"))
            .await
            .map(drop),
        caller
            .create("pvc-x", FILES, Some("nosuch"))
            .await
            .map(drop),
        caller.publish(volume, 101).await.map(drop),
        caller.publish("nonsense", 101).await.map(drop),
        caller.delete("r1/pve1/other/vm-1-pvc-none").await,
    ];
    let errors: Vec<String> = answers
        .into_iter()
        .filter_map(Result::err)
        .map(|status| format!("{status:?}"))
        .collect();
    ensure!(errors.len() == 5, "{errors:?}");
    Ok(errors)
}

/// Secrets that are not right stay out of force and out of sight, and what is in force works.
async fn refused(world: &mut World) -> Result<()> {
    let broken = format!("{{regions: {{r1: [{MISPLACED}");
    let unknown = format!("{{regions: {{{MISPLACED}: {MISPLACED}}}}}");
    for (keys, said) in [
        (vec![("use", MISPLACED)], "use must be csi or ccm"),
        (vec![(MISPLACED, "x")], "a key that is not known"),
        (
            vec![
                ("use", "ccm"),
                ("policy.yaml", MISPLACED),
                ("config.yaml", "{}"),
            ],
            "must be a mapping",
        ),
        (
            vec![
                ("use", "ccm"),
                ("policy.yaml", "{}"),
                ("config.yaml", &broken),
            ],
            "not well-formed YAML",
        ),
        (
            vec![
                ("use", "ccm"),
                ("policy.yaml", "{regions: {}}"),
                ("config.yaml", &unknown),
            ],
            "regions.<key>",
        ),
    ] {
        world.ccm.secret.update(&keys)?;
        // What is looked at may have been refused for the key that comes first.
        world
            .ccm
            .loader_says("the former files stay in force")
            .await?;
        let told = world.ccm.loader_says(said).await;
        told.with_context(|| format!("{said}: is not said"))?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// No core dump is made of it (proc(5): `limits`; prctl(2): what is not dumpable belongs to root).
fn undumpable(pid: u32) -> Result<()> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let core = core.context("no limit of core dumps")?;
    let mut words = core.split_whitespace().skip(4);
    ensure!(
        words.next() == Some("0") && words.next() == Some("0"),
        "{core}"
    );
    Ok(())
}

/// Every place in which a secret could stand is one in which it is found.
pub(crate) async fn planted() -> Result<()> {
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQ\n-----END PRIVATE KEY-----\n";
    let run = RunDir::new()?;
    let found = |exposure: &Exposure| exposure.hits().len();
    let mut exposure = Exposure::of(&[("a token", MISPLACED), ("a key", KEY)]);
    exposure.files(run.path())?;
    ensure!(found(&exposure) == 0, "{exposure:?}");
    std::fs::create_dir_all(run.path().join("log/deep"))?;
    let line = format!("2026-12-01 TRACE header: {MISPLACED}\n");
    std::fs::write(run.path().join("log/deep/program.log"), line)?;
    let encoded = "M2Y5YjJjNzEtOGQ1NC00ZTA2LTlhYzEtYjdlMmQwNWY4YTQ2";
    std::fs::write(run.path().join("encoded"), format!("data: {encoded}"))?;
    std::fs::write(run.path().join("key"), KEY.replace("-----", ""))?;
    exposure.files(run.path())?;
    ensure!(found(&exposure) == 3, "{exposure:?}");
    if may_mount() {
        let folder = run.path().join("memory");
        memory(&folder)?;
        std::fs::write(folder.join("config.yaml"), MISPLACED)?;
        let mut again = Exposure::of(&[("a token", MISPLACED)]);
        again.files(run.path())?;
        ensure!(found(&again) == 2, "memory is where it belongs: {again:?}");
    }
    let environment = [("SECRET", MISPLACED.to_owned())];
    let shell = std::path::Path::new("/bin/sh");
    let arguments = ["-c", "sleep 60; exit", MISPLACED];
    let logs = run.path().join("log");
    let process = Process::start_with_env("shell", shell, &arguments, &environment, &logs)?;
    let pid = process.pid().context("it has ended")?;
    began(pid).await?;
    let mut shown = Exposure::of(&[("a token", MISPLACED)]);
    shown.process(pid)?;
    process.kill().await?;
    ensure!(found(&shown) == 2, "{shown:?}");
    Ok(())
}

/// A process has its parent's arguments until it runs a program of its own.
async fn began(pid: u32) -> Result<()> {
    for _ in 0..500 {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        if arguments.starts_with(b"/bin/sh\0") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("the shell has not begun")
}

fn may_mount() -> bool {
    harness::requirements::loop_devices().is_ok()
}
