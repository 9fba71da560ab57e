//! VMs on hosts that do not answer: which of them are worth a question, and which can't have a volume although nobody can
//! say so now.
//!
//! A VM counts as no holder by what this process knows ([`crate::witness`]) or by the operator's word ([`pve_region::fences`]),
//! never because its host is silent, and never by the tenant's word.

use std::collections::{BTreeMap, BTreeSet};

use pve_client::{ErrorKind, GuestKind, VmEntry};
use pve_model::{PveNode, VolumeId};
use pve_runtime::config::Fenced;
use tokio::time::{Duration, Instant};

use crate::asking;
use crate::error::Error;
use crate::holders::{Purpose, Term};
use crate::inventory::{Census, Freshness};
use crate::region::RegionContext;
use crate::vm::Wanted;
use crate::witness::Silence;

/// When a host is asked again that did not answer and that PVE lists as offline.
const AGAIN: Duration = Duration::from_secs(30);

/// In which order VMs are asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// At once; of a host that may be silent, one only.
    pub now: Vec<VmEntry>,
    /// If that one was answered for.
    pub later: Vec<VmEntry>,
    /// Not at all: their host did not answer a moment ago.
    pub silent: Vec<VmEntry>,
}

/// How many VMs of a host are worth a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    All,
    One,
    None,
}

/// Puts VMs in the order in which they are asked. What PVE's list says of their hosts only saves time.
pub fn order(region: &RegionContext, census: &Census, guests: Vec<VmEntry>, term: Term) -> Order {
    let mut order = Order::default();
    let mut worth: BTreeMap<PveNode, Worth> = BTreeMap::new();
    for guest in guests {
        let host = &guest.pve_node;
        let left = worth
            .entry(host.clone())
            .or_insert_with(|| worth_asking(region, census, host, term));
        match left {
            Worth::All => order.now.push(guest),
            Worth::One => {
                // The second one waits.
                *left = Worth::None;
                order.now.push(guest);
            }
            Worth::None if order.now.iter().any(|asked| asked.pve_node == *host) => {
                order.later.push(guest);
            }
            Worth::None => order.silent.push(guest),
        }
    }
    order
}

/// Whether nobody has to be asked to know that the host does not answer.
pub fn known(region: &RegionContext, census: &Census, host: &PveNode, term: Term) -> bool {
    let silence = region.guests.witness.silence(host);
    silence.is_some_and(|silence| silence.asked >= term.begun || census.offline.contains(host))
}

fn worth_asking(region: &RegionContext, census: &Census, host: &PveNode, term: Term) -> Worth {
    let silence = region.guests.witness.silence(host);
    let fenced = || {
        let what = Fenced::Host(host.clone());
        region.fences.find(&region.name, &what).is_some()
    };
    worth(silence, (census.offline.contains(host), term.begun), fenced)
}

fn worth(
    silence: Option<Silence>,
    (offline, begun): (bool, Instant),
    fenced: impl FnOnce() -> bool,
) -> Worth {
    match silence {
        Some(silence) if silence.asked >= begun => Worth::None,
        // A fence never hides what a host that came back would say.
        Some(silence) if offline && silence.asked.elapsed() < AGAIN && !fenced() => Worth::None,
        Some(_) => Worth::One,
        None if offline => Worth::One,
        None => Worth::All,
    }
}

/// Fails if any of these VMs, whose hosts do not answer, may have the volume.
pub fn judge(
    region: &RegionContext,
    volume: &VolumeId,
    silent: &[VmEntry],
    purpose: Purpose,
) -> Result<(), Error> {
    let volid = volume.volid();
    let mut doubtful: BTreeMap<&PveNode, Vec<String>> = BTreeMap::new();
    for guest in silent {
        match region.guests.witness.excludes(&volid, guest) {
            Ok(proof) => tracing::info!(
                vm.id = %guest.vmid,
                pve.node = %guest.pve_node,
                ?proof,
                "the VM can't be read and can't have the volume"
            ),
            Err(doubt) => {
                let why = format!("VM {}: {doubt}", guest.vmid);
                doubtful.entry(&guest.pve_node).or_default().push(why);
            }
        }
    }
    let mut refusals = Vec::new();
    for (host, why) in doubtful {
        let why = why.join("; ");
        let what = Fenced::Host(host.clone());
        match (purpose, region.fences.find(&region.name, &what)) {
            (Purpose::Use, Some(fence)) => region
                .fences
                .used(&fence, &format!("{volume} is in no VM there ({why})")),
            (Purpose::Use, None) => refusals.push(refusal(region, host, &why)),
            (Purpose::Free, _) => refusals.push(format!(
                "{host} does not answer, and its VMs may have the volume ({why}), which is freed once {host} answers"
            )),
        }
    }
    if refusals.is_empty() {
        return Ok(());
    }
    Err(Error::HolderUnknown(format!(
        "{volume}: {}",
        refusals.join(". ")
    )))
}

fn refusal(region: &RegionContext, host: &PveNode, why: &str) -> String {
    let since = region
        .guests
        .witness
        .silence(host)
        .map_or_else(String::new, |silence| {
            format!(" for {} s", silence.since.elapsed().as_secs())
        });
    format!(
        "{host} has not answered{since}, and its VMs may have the volume ({why}). It is released once {host} answers or HA has \
         moved the VMs; if {host} is certainly off: pvectl fence {host} --region {} --for 1h",
        region.name
    )
}

/// Whether the operator has stated that the host is off on which PVE lists a VM that could not be read just now, so that
/// the volume counts as taken out of it. `error` is what the attempt ended with.
pub async fn is_fenced(region: &RegionContext, wanted: &Wanted, term: Term, error: &Error) -> bool {
    let unanswered = matches!(error, Error::Pve { source, .. } if matches!(
        source.kind,
        ErrorKind::HostUnreachable | ErrorKind::HostUnknown | ErrorKind::OutcomeUnknown
    ));
    unanswered && stated_off(region, wanted, term).await.unwrap_or(false)
}

async fn stated_off(region: &RegionContext, wanted: &Wanted, term: Term) -> Result<bool, Error> {
    let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
    let known = region.inventory.having(&wanted.uuid);
    let vmids: BTreeSet<_> = wanted.vmid.into_iter().chain(known).collect();
    let listed: Vec<&VmEntry> = vmids.iter().filter_map(|vmid| census.get(*vmid)).collect();
    // Two places for one VM: nothing is certain.
    let [guest] = listed.as_slice() else {
        return Ok(false);
    };
    let host = &guest.pve_node;
    let silence = region.guests.witness.silence(host);
    if silence.is_none_or(|silence| silence.asked < term.begun) {
        return Ok(false);
    }
    let other = |uuid| uuid != wanted.uuid;
    if region.guests.witness.uuid(guest.vmid).is_some_and(other) {
        return Ok(false);
    }
    let Some(fence) = region
        .fences
        .find(&region.name, &Fenced::Host(host.clone()))
    else {
        return Ok(false);
    };
    if !elsewhere_nowhere(region, &census, (wanted, host), term).await? {
        return Ok(false);
    }
    let decision = format!("VM {} ({}) has no volume any more", guest.vmid, wanted.uuid);
    region.fences.used(&fence, &decision);
    Ok(true)
}

/// Whether no VM on any other host has the UUID, all of which could be read.
async fn elsewhere_nowhere(
    region: &RegionContext,
    census: &Census,
    (wanted, host): (&Wanted, &PveNode),
    term: Term,
) -> Result<bool, Error> {
    let others = census
        .guests
        .values()
        .filter(|guest| guest.kind == GuestKind::Qemu && guest.pve_node != *host);
    let unread = region.inventory.unread(others);
    let mut all = census.undecodable == 0;
    asking::read(region, unread, term.deadline, |answer| {
        all &= answer
            .read
            .is_ok_and(|pending| pending.smbios_uuid().as_ref() != Some(&wanted.uuid));
        Ok(())
    })
    .await?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_host_that_may_be_silent_is_asked_by_one_question_and_not_at_once_again() {
        let start = Instant::now();
        advance(Duration::from_secs(100)).await;
        let begun = Instant::now();
        advance(Duration::from_secs(1)).await;
        let asked = |ago| {
            let asked = Instant::now() - Duration::from_secs(ago);
            Some(Silence {
                since: start,
                asked,
            })
        };
        let (on, off) = (false, true);
        for (sentence, silence, offline, fenced, expected) in [
            ("it is up", None, on, false, Worth::All),
            ("PVE says that it is down", None, off, false, Worth::One),
            ("it was asked by this RPC", asked(1), on, false, Worth::None),
            ("the same, listed as down", asked(1), off, true, Worth::None),
            ("asked a moment ago", asked(20), off, false, Worth::None),
            ("the same, but fenced", asked(20), off, true, Worth::One),
            ("asked some time ago", asked(31), off, false, Worth::One),
            ("it hung", asked(20), on, false, Worth::One),
        ] {
            let said = worth(silence, (offline, begun), || fenced);
            assert_eq!(said, expected, "{sentence}");
        }
    }
}
