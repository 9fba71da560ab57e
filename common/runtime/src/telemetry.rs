//! Logs on standard error.

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not one.
    #[error("the log filter is malformed: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Someone else has set up logging.
    #[error("logging is set up already")]
    Again,
}

/// Sends everything that passes `filter` (`info`, `info,pve_client=debug`, …) to standard error.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(|_| TelemetryError::Again)
}
