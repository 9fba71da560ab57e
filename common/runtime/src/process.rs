//! How a program starts and ends: logs, threads, signals and exit codes.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::telemetry::{self, LogFormat};

/// Exit code for a config that is refused (`EX_USAGE` of BSD's sysexits.h).
pub const EXIT_CONFIG: u8 = 64;

/// A thread that waits for a name server can't be told to end.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// The exit code for a config that is refused.
pub fn config_refused() -> ExitCode {
    ExitCode::from(EXIT_CONFIG)
}

/// Keeps what this process knows out of core dumps, and its memory from other processes of the same user (prctl(2),
/// `PR_SET_DUMPABLE`). For programs that hold secrets, before they read any.
pub fn keep_memory_private() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    // A handler of dumps that is a pipe is not bound by the limit, but by the other.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    Ok(())
}

/// Runs a program that waits for others nearly all of its time, with its logs set up as the arguments say.
pub fn run(format: LogFormat, filter: &str, program: impl Future<Output = ExitCode>) -> ExitCode {
    if let Err(error) = telemetry::init(format, filter) {
        eprintln!("{error}");
        return config_refused();
    }
    if let Err(error) = keep_memory_private() {
        tracing::error!(%error, "this program's memory can't be kept out of core dumps");
        return ExitCode::FAILURE;
    }
    // reqwest and kube both take the process' provider; without one they would each bring their own.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a TLS provider is installed already");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(program);
            runtime.shutdown_timeout(LAST_THREADS);
            code
        }
        Err(error) => {
            tracing::error!(%error, "cannot start");
            ExitCode::FAILURE
        }
    }
}

/// A token that SIGTERM or SIGINT cancels. A second one ends the program at once.
pub fn shutdown_on_signals() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "shutting down");
        cancelled.cancel();
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::warn!("second signal, ending at once");
        std::process::exit(1);
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::getrlimit;

    use super::*;

    #[test]
    fn nothing_is_dumped_and_no_other_process_looks_in() {
        assert!(prctl::get_dumpable().unwrap(), "else this shows nothing");
        keep_memory_private().unwrap();
        assert!(!prctl::get_dumpable().unwrap());
        assert_eq!(getrlimit(Resource::RLIMIT_CORE).unwrap(), (0, 0));
    }
}
