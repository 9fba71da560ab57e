//! `pvectl`: what the operator does by hand.

mod fence;
mod report;
mod store;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pve_runtime::process;

use crate::fence::{FenceArguments, FenceError};

/// What the operator of Proxmox VE does for the tenants' volumes by hand.
///
/// Exit codes: 0 done, 1 a file could not be read or written, 2 wrong usage, 64 refused.
#[derive(Debug, Parser)]
#[command(name = "pvectl", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Fence(FenceArguments),
}

fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    let Verb::Fence(arguments) = verb;
    match fence::run(&arguments) {
        Ok(text) => {
            let written = std::io::stdout().write_all(text.as_bytes());
            written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("pvectl: {error}");
            match error {
                FenceError::Refused(_) | FenceError::File(_) => process::config_refused(),
                FenceError::Io { .. } => ExitCode::FAILURE,
            }
        }
    }
}
