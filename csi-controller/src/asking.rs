//! Reading the configs of many VMs, some of which may be on hosts that do not answer.
//!
//! PVE's proxy takes 3 s for a host that is off, 30 s for the first question after it died and for one that hangs
//! (pve/running.md 13c, 13f): once one VM's question ended so, the others on that host are not waited for.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use futures_util::{StreamExt, stream};
use pve_client::{ApiError, ErrorKind, VmEntry, VmPending};
use pve_model::PveNode;
use tokio::time::{Duration, Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::region::RegionContext;
use crate::vm;

/// Configs that are read at the same time: `GET …/pending` occupies no worker of PVE, but a connection.
const PARALLEL: usize = 8;
/// What takes less and brings no answer was lost on its way; the client has asked for it again by then.
const LOST: Duration = Duration::from_secs(2);

/// One host in a round of questions.
#[derive(Debug, Default)]
struct Host {
    said: OnceLock<ApiError>,
    fell_silent: CancellationToken,
}

/// A VM and what reading it brought.
#[derive(Debug)]
pub struct Answer {
    /// Which VM.
    pub guest: VmEntry,
    /// Its config and half-done changes.
    pub read: Result<VmPending, ApiError>,
    /// Whether its host did not answer at all: nobody can say what the VM has.
    pub silent: bool,
}

/// Reads the configs of guests, several at a time, and remembers what was seen. Each is given to `judge`, at whose first
/// error the rest is dropped. A host that does not answer is asked once, and its other VMs end as that one did.
pub async fn read(
    region: &RegionContext,
    guests: Vec<VmEntry>,
    deadline: Instant,
    mut judge: impl FnMut(Answer) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut hosts: BTreeMap<PveNode, Arc<Host>> = BTreeMap::new();
    let mut questions = Vec::new();
    for guest in guests {
        let host = hosts.entry(guest.pve_node.clone()).or_default();
        questions.push((guest, Arc::clone(host)));
    }
    let ask = |(guest, host): (VmEntry, Arc<Host>)| ask(region, guest, host);
    let mut answers = stream::iter(questions).map(ask).buffer_unordered(PARALLEL);
    let late = |_| Error::HolderUnknown("not all VMs could be read in time".to_owned());
    while let Some(answer) = timeout_at(deadline, answers.next()).await.map_err(late)? {
        judge(answer)?;
    }
    Ok(())
}

async fn ask(region: &RegionContext, guest: VmEntry, host: Arc<Host>) -> Answer {
    let asked = Instant::now();
    let at = vm::at(&guest);
    let question = region.client.vm_pending(&at);
    let answered = host.fell_silent.run_until_cancelled(question).await;
    let (read, silent) = match (answered, host.said.get()) {
        (Some(read), _) => {
            let silent = read
                .as_ref()
                .is_err_and(|error| is_silence(&error.kind, asked.elapsed()));
            (read, silent)
        }
        (None, Some(said)) => (Err(said.clone()), true),
        // The token is cancelled only after what was said is there.
        (None, None) => (region.client.vm_pending(&at).await, false),
    };
    note(region, &guest, &read, (asked, silent));
    if let Err(error) = &read
        && silent
        && host.said.set(error.clone()).is_ok()
    {
        host.fell_silent.cancel();
    }
    Answer {
        guest,
        read,
        silent,
    }
}

/// Reads the config of one VM and remembers what was seen.
pub async fn one(region: &RegionContext, guest: &VmEntry) -> Result<VmPending, ApiError> {
    let asked = Instant::now();
    let read = region.client.vm_pending(&vm::at(guest)).await;
    let silent = |error: &ApiError| is_silence(&error.kind, asked.elapsed());
    let silent = read.as_ref().is_err_and(silent);
    note(region, guest, &read, (asked, silent));
    read
}

fn note(
    region: &RegionContext,
    guest: &VmEntry,
    read: &Result<VmPending, ApiError>,
    (asked, silent): (Instant, bool),
) {
    let witness = &region.guests.witness;
    match read {
        Ok(pending) => {
            region.inventory.note(guest, pending.smbios_uuid());
            witness.read(guest, pending, asked);
            if witness.answered(&guest.pve_node) {
                tracing::info!(pve.node = %guest.pve_node, "the host answers again");
            }
        }
        Err(_) if silent => witness.silent(&guest.pve_node),
        Err(_) => {}
    }
}

/// Whether a question that ended so after `took` means that the VM's host can't be asked: it is off, it hangs, or it has left
/// the PVE cluster, whose list shows its VMs as long as their configs are there.
pub fn is_silence(kind: &ErrorKind, took: Duration) -> bool {
    match kind {
        ErrorKind::HostUnreachable | ErrorKind::HostUnknown => true,
        ErrorKind::OutcomeUnknown => took >= LOST,
        ErrorKind::AlreadyExists
        | ErrorKind::Absent
        | ErrorKind::DiskAbsent
        | ErrorKind::Locked
        | ErrorKind::DigestMismatch
        | ErrorKind::PermissionDenied { .. }
        | ErrorKind::Unauthenticated
        | ErrorKind::Invalid(_)
        | ErrorKind::Unreachable
        | ErrorKind::StorageUnavailable
        | ErrorKind::NoSpace
        | ErrorKind::Busy
        | ErrorKind::NoQuorum
        | ErrorKind::HotplugFailed { .. }
        | ErrorKind::TaskFailed
        | ErrorKind::Decode
        | ErrorKind::Throttled
        | ErrorKind::NoAgent
        | ErrorKind::NotImplemented
        | ErrorKind::MigratedToRules
        | ErrorKind::Other { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_no_answer_of_the_host_is_silence() {
        let (quick, slow) = (Duration::from_millis(100), Duration::from_secs(3));
        let denied = ErrorKind::PermissionDenied {
            path: "/vms/102".to_owned(),
            privilege: "VM.Audit".to_owned(),
        };
        for (sentence, kind, took, silent) in [
            ("it is off", ErrorKind::HostUnreachable, slow, true),
            (
                "its daemon is down",
                ErrorKind::HostUnreachable,
                quick,
                true,
            ),
            ("it hangs", ErrorKind::OutcomeUnknown, slow, true),
            ("it left the cluster", ErrorKind::HostUnknown, quick, true),
            (
                "the answer was lost",
                ErrorKind::OutcomeUnknown,
                quick,
                false,
            ),
            (
                "PVE is not there at all",
                ErrorKind::Unreachable,
                slow,
                false,
            ),
            ("the right to see it is lost", denied, slow, false),
            ("the answer makes no sense", ErrorKind::Decode, slow, false),
            ("the VM has moved", ErrorKind::Absent, quick, false),
            (
                "the token is refused",
                ErrorKind::Unauthenticated,
                slow,
                false,
            ),
        ] {
            assert_eq!(is_silence(&kind, took), silent, "{sentence}");
        }
    }
}
