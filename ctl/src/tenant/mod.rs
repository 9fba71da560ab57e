//! `pvectl tenant`: everything that a tenant needs in a PVE cluster, and its end.

mod apply;
mod arguments;
mod check;
mod empty;
mod out;
mod owner;
mod plan;
mod remove;
mod script;
mod secret;
mod seen;

use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use self::arguments::TenantArguments;

use self::apply::{Done, How, Report};
use self::arguments::{DoingArguments, MakeArguments};
use self::out::Out;
use crate::output::{Failure, Finished, Format, Outcome, within};
use crate::text;

/// Does what the arguments say. A step that has begun may stay half-way; the same command goes on from there.
pub(crate) async fn run(arguments: &TenantArguments, shutdown: CancellationToken) -> Finished {
    let work = async {
        match arguments {
            TenantArguments::Make(arguments) => make(arguments).await,
            TenantArguments::Remove(arguments) => remove::run(arguments).await,
        }
    };
    within(shutdown, work).await
}

async fn make(arguments: &MakeArguments) -> Result<Outcome, Failure> {
    let plan = arguments.plan()?;
    let doing = &arguments.doing;
    if !doing.apply {
        if doing.admin.are_given() {
            return Failure::refused(
                "rights are given, but not --apply: nothing would be done with them",
            );
        }
        let text = match doing.output {
            Format::Table => script::text(&plan, doing.pve_version),
            Format::Json => format!("{:#}\n", script::document(&plan, doing.pve_version)),
        };
        return Ok(Outcome {
            text,
            lacking: None,
        });
    }
    let how = How {
        out: doing.out.clone().map_or(Out::Stdout, Out::Folder),
        rotate: doing.rotate,
        replace: doing.replace,
        share_storage: doing.share_storage,
    };
    let admin = doing.admin.connect(&plan.endpoints).await?;
    let mut report = Report::default();
    let ended = apply::apply(&plan, &admin, &how, &mut report).await;
    told(&report, ended, doing)
}

fn told(
    report: &Report,
    ended: Result<(), Failure>,
    doing: &DoingArguments,
) -> Result<Outcome, Failure> {
    let text = match doing.output {
        Format::Table => table(report),
        Format::Json => document(report),
    };
    // Standard output is for the Secrets then.
    let to_error = doing.out.is_none() || ended.is_err();
    if to_error {
        eprint!("{text}");
    }
    match ended {
        Ok(()) => Ok(Outcome {
            text: if to_error { String::new() } else { text },
            lacking: report.lacking(),
        }),
        Err(Failure::Failed(why)) => Failure::failed(format!(
            "{why}; what was made so far stands above, and the same command goes on from there"
        )),
        Err(refused) => Err(refused),
    }
}

fn word(done: Done) -> &'static str {
    match done {
        Done::Unchanged => "unchanged",
        Done::Changed => "done",
        Done::Open => "NOT AS IT SHOULD BE",
    }
}

fn table(report: &Report) -> String {
    if report.steps.is_empty() {
        return String::new();
    }
    let row = |(what, done): &(String, Done)| [word(*done).to_owned(), what.clone()];
    let rows: Vec<[String; 2]> = report.steps.iter().map(row).collect();
    let mut text = text::table(["state", "what"], &rows);
    if report
        .steps
        .iter()
        .all(|(_, done)| *done == Done::Unchanged)
    {
        text.push_str("Nothing had to be changed.\n");
    }
    text
}

fn document(report: &Report) -> String {
    let step = |(what, done): &(String, Done)| json!({ "what": what, "state": word(*done) });
    let steps: Vec<_> = report.steps.iter().map(step).collect();
    format!("{:#}\n", json!({ "steps": steps }))
}
