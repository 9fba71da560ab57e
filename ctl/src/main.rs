//! `pvectl`: what the operator does by hand.

mod admin;
mod cluster;
mod disks;
mod fence;
mod orphans;
mod output;
mod probe;
mod report;
mod store;
mod teardown;
mod tenant;
mod text;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::fence::FenceArguments;
use crate::orphans::OrphansArguments;
use crate::output::wait;
use crate::probe::ProbeArguments;
use crate::teardown::TeardownArguments;
use crate::tenant::TenantArguments;

/// What the operator of Proxmox VE does for the tenants' volumes by hand.
///
/// Exit codes: 0 done, 1 not all done or known, 2 wrong usage, 64 refused.
#[derive(Debug, Parser)]
#[command(name = "pvectl", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Fence(Box<FenceArguments>),
    Tenant(Box<TenantArguments>),
    Probe(Box<ProbeArguments>),
    Teardown(Box<TeardownArguments>),
    Orphans(Box<OrphansArguments>),
}

fn main() -> ExitCode {
    let finished = match Arguments::parse().verb {
        Verb::Fence(arguments) => fence::finish(&arguments),
        Verb::Tenant(arguments) => wait(async |end| tenant::run(&arguments, end).await),
        Verb::Probe(arguments) => wait(async |end| probe::run(&arguments, end).await),
        Verb::Teardown(arguments) => wait(async |end| teardown::run(&arguments, end).await),
        Verb::Orphans(arguments) => wait(async |end| orphans::run(&arguments, end).await),
    };
    finished.print()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn setting_up_a_tenant_and_taking_it_away_need_different_words() {
        let parsed = |line: &str| {
            Arguments::try_parse_from(line.split(' ')).map(|parsed| format!("{:?}", parsed.verb))
        };
        let whose = "--namespace a --release b";
        let make = format!(
            "pvectl tenant {whose} --region r1 --endpoint https://a --pool p --storage st --node n"
        );
        assert!(parsed(&make).unwrap().starts_with("Tenant(Make("));
        let remove = format!("pvectl tenant remove {whose} --cloud-config c");
        assert!(parsed(&remove).unwrap().starts_with("Tenant(Remove("));
        for wrong in [
            format!("pvectl tenant {whose}"),
            format!("pvectl tenant remove {whose}"),
            "pvectl tenant".to_owned(),
        ] {
            assert!(parsed(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_hook_deletes_only_by_the_word_on_a_secret() {
        let parses = |line: &str| Arguments::try_parse_from(line.split(' ')).is_ok();
        let secret = "pvectl teardown --hook --kubeconfig-secret a/b";
        assert!(parses(secret));
        assert!(!parses(&format!("{secret} --yes")));
        assert!(!parses("pvectl teardown --hook --kubeconfig file"));
    }
}
