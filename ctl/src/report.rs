//! What `pvectl fence` says on standard output.

use std::fmt::Write;
use std::path::Path;

use jiff::Timestamp;
use pve_runtime::config::{Fence, FenceFile, Fenced};
use serde_json::{Value, json};

use crate::fence::Output;

/// After a statement was written: what it means.
pub(crate) fn stated(path: &Path, fence: &Fence, now: Timestamp, output: Output) -> String {
    if output == Output::Json {
        return document(path, std::slice::from_ref(fence), now);
    }
    let (region, until) = (&fence.region, second(fence.until));
    let meaning = match &fence.what {
        Fenced::Host(host) => format!(
            "{host} in region {region} counts as off until {until}: unless it answers, its VMs hold no volume.\n\
             This is for a host that is certainly off. If one of its VMs still runs, two VMs may write to one disk.\n\
             Before {host} is started again, keep its VMs from starting with volumes that were attached elsewhere meanwhile:\n\
             take `onboot` from them or their disks out of their configs (docs/operations.md).\n"
        ),
        Fenced::Gone { vmid, uuid } => format!(
            "VM {vmid} with the UUID {uuid} in region {region} counts as gone until {until}: it holds no volume.\n\
             This is for a VM that does not exist any more. If it is merely out of the token's sight and still runs, two VMs\n\
             may write to one disk.\n"
        ),
    };
    format!(
        "{meaning}Stated by {} in {}. To take it back: pvectl fence --lift {} --region {region}\n",
        fence.by,
        path.display(),
        fence.what
    )
}

/// After statements were taken back.
pub(crate) fn lifted(path: &Path, lifted: &[Fence], now: Timestamp, output: Output) -> String {
    if output == Output::Json {
        return document(path, lifted, now);
    }
    let mut text = String::new();
    for fence in lifted {
        line(
            &mut text,
            format_args!(
                "{} in region {} is not fenced any more.",
                fence.what, fence.region
            ),
        );
    }
    text
}

/// What a file states.
pub(crate) fn list(path: &Path, file: &FenceFile, now: Timestamp, output: Output) -> String {
    if output == Output::Json {
        return document(path, &file.fences, now);
    }
    if file.fences.is_empty() {
        return format!("{} states nothing.\n", path.display());
    }
    let mut text = String::new();
    for fence in &file.fences {
        let Fence {
            region, what, by, ..
        } = fence;
        let reason = fence.reason.as_deref().unwrap_or("no reason given");
        let (state, until) = (state(fence, now), second(fence.until));
        line(
            &mut text,
            format_args!("{state}\t{region}\t{what}\tuntil {until}\tby {by}\t{reason}"),
        );
    }
    text
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    if writeln!(text, "{words}").is_err() {
        text.clear();
    }
}

fn state(fence: &Fence, now: Timestamp) -> &'static str {
    if fence.holds(now) { "holds" } else { "ended" }
}

fn second(time: Timestamp) -> Timestamp {
    time.round(jiff::Unit::Second).unwrap_or(time)
}

fn document(path: &Path, fences: &[Fence], now: Timestamp) -> String {
    let entry = |fence: &Fence| {
        let (kind, what) = match &fence.what {
            Fenced::Host(host) => ("host", host.to_string()),
            Fenced::Gone { .. } => ("gone", fence.what.to_string()),
        };
        json!({
            "region": fence.region.as_str(),
            kind: what,
            "from": fence.from.to_string(),
            "until": fence.until.to_string(),
            "by": fence.by,
            "reason": fence.reason,
            "state": state(fence, now),
        })
    };
    let fences: Vec<Value> = fences.iter().map(entry).collect();
    let document = json!({ "file": path.display().to_string(), "fences": fences });
    format!("{document:#}\n")
}
