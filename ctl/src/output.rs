//! How verbs run and end.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use pve_runtime::process;
use tokio_util::sync::CancellationToken;

/// For all that one does in a PVE cluster.
const TERM: Duration = Duration::from_mins(10);

/// How an answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// What a verb that ran to its end says.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// For standard output.
    pub(crate) text: String,
    /// What is not done or not known; none: all is done.
    pub(crate) lacking: Option<String>,
}

/// Why a verb did not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What was asked for is not allowed, or can't be right: nothing was done.
    #[error("{0}")]
    Refused(String),
    /// Something could not be read, asked or done.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Refused(why.into()))
    }

    pub(crate) fn failed<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Failed(why.into()))
    }
}

/// A request to PVE that failed, for the operator.
impl From<pve_client::ApiError> for Failure {
    fn from(error: pve_client::ApiError) -> Self {
        Self::Failed(format!("Proxmox VE: {error}"))
    }
}

impl From<pve_runtime::ConfigError> for Failure {
    fn from(error: pve_runtime::ConfigError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// How a verb ended.
#[derive(Debug)]
pub(crate) struct Finished {
    text: String,
    error: Option<String>,
    code: ExitCode,
}

// === impl Finished ===

impl Finished {
    /// This on standard output, and whether all went well.
    pub(crate) fn told(text: String, good: bool) -> Self {
        let code = if good {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
        Self {
            text,
            error: None,
            code,
        }
    }

    /// Nothing was done, because of what was given.
    pub(crate) fn refused(why: &impl Display) -> Self {
        Self {
            error: Some(why.to_string()),
            code: process::config_refused(),
            text: String::new(),
        }
    }

    /// Something could not be read, asked or done.
    pub(crate) fn failed(why: &impl Display) -> Self {
        Self {
            error: Some(why.to_string()),
            ..Self::told(String::new(), false)
        }
    }

    /// Prints it.
    pub(crate) fn print(self) -> ExitCode {
        let written = std::io::stdout().write_all(self.text.as_bytes());
        if let Some(error) = self.error {
            eprintln!("pvectl: {error}");
        }
        written.map_or(ExitCode::FAILURE, |()| self.code)
    }
}

impl From<Result<Outcome, Failure>> for Finished {
    fn from(ended: Result<Outcome, Failure>) -> Self {
        match ended {
            Ok(Outcome { text, lacking }) => Self {
                error: lacking.clone(),
                ..Self::told(text, lacking.is_none())
            },
            Err(Failure::Refused(why)) => Self::refused(&format!("refused: {why}")),
            Err(Failure::Failed(why)) => Self::failed(&why),
        }
    }
}

/// Waits for what a verb does in a PVE cluster, but not for ever and not when it is told to end.
pub(crate) async fn within(
    shutdown: CancellationToken,
    work: impl Future<Output = Result<Outcome, Failure>>,
) -> Finished {
    let minutes = TERM.as_secs() / 60;
    let ended = tokio::select! {
        ended = tokio::time::timeout(TERM, work) => {
            ended.unwrap_or_else(|_| Failure::failed(format!("not done within {minutes} minutes")))
        }
        () = shutdown.cancelled() => Failure::failed("it was told to end"),
    };
    ended.into()
}

/// Runs a verb that waits for others; SIGINT and SIGTERM tell it to end.
pub(crate) fn wait(verb: impl AsyncFnOnce(CancellationToken) -> Finished) -> Finished {
    if let Err(error) = process::keep_memory_private() {
        return Finished::failed(&format!(
            "its memory can't be kept out of core dumps: {error}"
        ));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let finished = runtime.and_then(|runtime| {
        if rustls::crypto::ring::default_provider()
            .install_default()
            .is_err()
        {
            eprintln!("pvectl: a TLS provider is installed already");
        }
        let finished = runtime.block_on(async {
            let end = process::shutdown_on_signals()?;
            Ok(verb(end).await)
        });
        // A thread that waits for a name server can't be told to end.
        runtime.shutdown_background();
        finished
    });
    finished.unwrap_or_else(|error| Finished::failed(&error))
}
