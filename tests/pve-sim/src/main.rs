//! `pve-sim`: the simulator as a program.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use pve_sim::{ClockMode, HardwareKind, Sim, SimHandle, Timing};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum HardwareArg {
    Memory,
    Loop,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TimingArg {
    /// Nothing takes time.
    Zero,
    /// As measured on a real PVE: attach 0.17 s, detach 2.1 s.
    Real,
}

/// A Proxmox VE that is not there.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Scenario file (JSON), see README.md.
    #[arg(long)]
    state: PathBuf,
    /// Address of the first PVE node's API.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address of the control API.
    #[arg(long, default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// One more API endpoint served by this PVE node, on a free port.
    #[arg(long)]
    endpoint: Vec<String>,
    #[arg(long, value_enum, default_value = "memory")]
    hardware: HardwareArg,
    /// Directory for disks and the guests' trees (hardware loop).
    #[arg(long, default_value = "/run/pve-sim")]
    run_dir: PathBuf,
    #[arg(long, value_enum, default_value = "real")]
    timing: TimingArg,
    /// The clock stands until the control API moves it.
    #[arg(long)]
    stepped_clock: bool,
    /// How many times faster than the host the clock runs.
    #[arg(long, default_value_t = 1)]
    speed: u32,
    /// Where to write the CA certificate (PEM).
    #[arg(long)]
    ca_out: Option<PathBuf>,
    /// Where to write the addresses and the fingerprint (JSON), when all listens.
    #[arg(long)]
    port_file: Option<PathBuf>,
    /// Plain HTTP instead of HTTPS.
    #[arg(long)]
    insecure_http: bool,
    /// Seed of all generated ids.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args = Args::parse();
    let mut stop = signal(SignalKind::terminate())?;
    let handle = start(&args).await?;
    announce(&args, &handle)?;
    tokio::select! {
        _ = stop.recv() => {}
        done = tokio::signal::ctrl_c() => done?,
    }
    handle.shutdown().await;
    Ok(())
}

async fn start(args: &Args) -> anyhow::Result<SimHandle> {
    let text = std::fs::read_to_string(&args.state)
        .with_context(|| format!("cannot read {}", args.state.display()))?;
    let clock = if args.stepped_clock {
        ClockMode::Stepped
    } else {
        ClockMode::Real { speed: args.speed }
    };
    let timing = match args.timing {
        TimingArg::Zero => Timing::ZERO,
        TimingArg::Real => Timing::HOST,
    };
    let hardware = match args.hardware {
        HardwareArg::Memory => HardwareKind::Memory,
        HardwareArg::Loop => HardwareKind::Loop {
            run_dir: args.run_dir.clone(),
        },
    };
    let mut builder = Sim::builder()
        .scenario(&text)?
        .listen(args.listen)
        .control_listen(args.control);
    builder = builder
        .clock(clock)
        .timing(timing)
        .hardware(hardware)
        .seed(args.seed);
    for node in &args.endpoint {
        builder = builder.endpoint(node);
    }
    if args.insecure_http {
        builder = builder.insecure_http();
    }
    Ok(builder.start().await?)
}

/// Writes the files that others wait for, and the same to stderr.
fn announce(args: &Args, handle: &SimHandle) -> anyhow::Result<()> {
    if let Some(path) = &args.ca_out {
        std::fs::write(path, handle.ca_pem())?;
    }
    let summary = serde_json::json!({
        "url": handle.url(), "urls": handle.urls(), "control": handle.control_url(), "fingerprint": handle.fingerprint(),
    });
    if let Some(path) = &args.port_file {
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, summary.to_string())?;
        std::fs::rename(&temporary, path)?;
    }
    tracing::info!(%summary, "listening");
    eprintln!("pve-sim {summary}");
    Ok(())
}
