//! How a program starts and ends: signals and exit codes.

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code for a config that is refused (`EX_USAGE` of BSD's sysexits.h).
pub const EXIT_CONFIG: u8 = 64;

/// The exit code for a config that is refused.
pub fn config_refused() -> ExitCode {
    ExitCode::from(EXIT_CONFIG)
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
