//! What another controller of the same tenant does at the same moment, or what one that was killed has left PVE to do.
//!
//! PVE compares the digest of the one VM that is written, so that two controllers could put a volume into two VMs at once.
//! Both use the tenant's token, and PVE shows a token its own tasks: whoever has attached looks afterwards for writes to
//! other VMs since it read them. Of two that overlap, at least one sees the other.
//!
//! Does not see: a request that has not reached PVE's daemon yet, and a controller with another token.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, stream};
use pve_client::{ApiError, Listing, MOST_TASKS, TaskEntry, TaskOutcome, Upid, VmEntry};
use pve_model::{PveNode, VmId, VolumeId};
use tokio::time::{Duration, Instant};

use crate::error::Error;
use crate::holders::{self, Holder, Term};
use crate::region::RegionContext;
use crate::vm::Pinned;

/// Hosts that are asked at the same time.
const PARALLEL: usize = 8;
/// How far the clocks of a PVE cluster's hosts may differ; corosync itself needs less.
const SKEW: Duration = Duration::from_secs(5);
/// How long a write of others is waited for. An attach takes 0.2 s, a detach 2.1 s.
const PATIENCE: Duration = Duration::from_secs(20);
const LISTING: &str = "listing the tasks of our token";

/// What happened besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overlap {
    /// Nothing that concerns the volume.
    None,
    /// Another VM has it too.
    Holder(Box<Holder>),
    /// Disks of the volume's owner were freed on its storage.
    Freeing,
}

/// How the volume came to be in the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// This RPC wrote it.
    Wrote,
    /// It was there.
    Found,
}

/// Fails while PVE still works on a change of the VM that nobody waits for. The VM is locked, so that it is none of this
/// process. Requests: 1.
pub async fn none_at_work(region: &RegionContext, vm: &Pinned) -> Result<(), Error> {
    let tasks = region.client.own_tasks(&vm.guest.pve_node).await;
    at_rest(&tasks.map_err(unsettled(LISTING))?, vm)
}

fn at_rest(tasks: &Listing<TaskEntry>, vm: &Pinned) -> Result<(), Error> {
    let at_work = tasks
        .entries
        .iter()
        .find(|task| task.ended.is_none() && is_write_to(task, vm.guest.vmid));
    match at_work {
        Some(task) => Err(Error::StillRunning(task.upid.to_string())),
        None if tasks.undecodable > 0 => Err(unreadable(&vm.guest.pve_node)),
        None => Ok(()),
    }
}

/// Looks for what happens to other VMs, or happened since `since`, when they were read last, now that the volume is in `vm`.
/// Requests: one per host with a VM that could have the volume, and one per VM that was written meanwhile.
pub async fn overlap(
    region: &RegionContext,
    volume: &VolumeId,
    (vm, course): (&Pinned, Course),
    (since, term): (Instant, Term),
) -> Result<Overlap, Error> {
    let others = holders::candidates(region, volume, Some(vm.guest.vmid), term).await?;
    match course {
        Course::Wrote if others.is_empty() => return Ok(Overlap::None),
        Course::Found if others.is_empty() => {
            return none_at_work(region, vm).await.map(|()| Overlap::None);
        }
        Course::Wrote | Course::Found => {}
    }
    let lists = lists(region, &others, &vm.guest.pve_node).await?;
    let own = lists.get(&vm.guest.pve_node);
    let recent = match course {
        Course::Wrote => Recent::of(own, vm.guest.vmid, since.elapsed()),
        // Who has written since the others were read has looked for this VM afterwards.
        Course::Found => Recent::NOTHING,
    };
    own.map_or(Ok(()), |own| at_rest(own, vm))?;
    let suspects = recent.suspects(&lists, &others);
    let deadline = term.deadline.min(Instant::now() + PATIENCE);
    let freeing = recent.freeing(&lists, volume);
    let running = freeing.iter().filter(|task| task.ended.is_none());
    for upid in suspects
        .running
        .into_iter()
        .chain(running.map(|task| &task.upid))
    {
        let ended = region.client.wait_task(upid, deadline).await;
        if let TaskOutcome::StillRunning | TaskOutcome::Unknown =
            ended.map_err(unsettled("waiting for the end of another task"))?
        {
            return Err(Error::StillRunning(upid.to_string()));
        }
    }
    let mut found = None;
    holders::read(region, suspects.written, term.deadline, |guest, read| {
        let pending = read
            .as_ref()
            .map_err(|error| holders::unknown(guest, error))?;
        found = found.take().or(holders::holder(guest, pending, volume));
        Ok(())
    })
    .await?;
    Ok(match found {
        Some(holder) => Overlap::Holder(Box::new(holder)),
        None if freeing.is_empty() => Overlap::None,
        None => Overlap::Freeing,
    })
}

type Lists = BTreeMap<PveNode, Listing<TaskEntry>>;

/// The tasks on the hosts of these VMs, and on the host of the VM itself. Hosts that were silent when the VMs were read are
/// not among them.
async fn lists(region: &RegionContext, others: &[VmEntry], own: &PveNode) -> Result<Lists, Error> {
    let hosts: BTreeSet<PveNode> = others
        .iter()
        .map(|guest| guest.pve_node.clone())
        .chain([own.clone()])
        .collect();
    let ask = |host: PveNode| async {
        let listed = region.client.own_tasks(&host).await;
        (host, listed)
    };
    let mut answers = stream::iter(hosts).map(ask).buffer_unordered(PARALLEL);
    let mut lists = Lists::new();
    while let Some((host, listed)) = answers.next().await {
        match listed {
            Ok(list) => {
                lists.insert(host, list);
            }
            Err(error) => return Err(unsettled(LISTING)(error)),
        }
    }
    Ok(lists)
}

/// From when on tasks count, by PVE's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recent(u64);

#[derive(Debug, Default)]
struct Suspects<'a> {
    running: Vec<&'a Upid>,
    written: Vec<VmEntry>,
}

impl Recent {
    /// What has ended does not count.
    const NOTHING: Self = Self(u64::MAX);

    /// The write to the VM itself is among the tasks of its host: its start tells what PVE's clock said then.
    fn of(own: Option<&Listing<TaskEntry>>, vmid: VmId, ago: Duration) -> Self {
        let tasks = own.into_iter().flat_map(|list| &list.entries);
        let writes = tasks.filter(|task| is_write_to(task, vmid));
        let own = writes.map(|task| task.started).max();
        let before = (ago + SKEW).as_secs() + 1;
        Self(own.map_or(0, |own| own.saturating_sub(before)))
    }

    fn includes(self, task: &TaskEntry) -> bool {
        task.ended.is_none_or(|ended| ended >= self.0)
    }

    /// Whether older tasks that count may have been left out of the list, or can't be read.
    fn overflows(self, list: &Listing<TaskEntry>) -> bool {
        list.undecodable > 0
            || (list.entries.len() >= MOST_TASKS
                && list.entries.iter().all(|task| self.includes(task)))
    }

    fn suspects<'a>(self, lists: &'a Lists, others: &[VmEntry]) -> Suspects<'a> {
        let mut suspects = Suspects::default();
        for guest in others {
            let Some(list) = lists.get(&guest.pve_node) else {
                continue;
            };
            let writes: Vec<&TaskEntry> = list
                .entries
                .iter()
                .filter(|task| is_write_to(task, guest.vmid) && self.includes(task))
                .collect();
            if !writes.is_empty() || self.overflows(list) {
                suspects.written.push(guest.clone());
            }
            let running = writes.iter().filter(|task| task.ended.is_none());
            suspects.running.extend(running.map(|task| &task.upid));
        }
        suspects
    }

    /// `imgdel` tasks name the owner and the storage, not the disk. A storage that wipes what it frees does so for hours.
    fn freeing<'a>(self, lists: &'a Lists, volume: &VolumeId) -> Vec<&'a TaskEntry> {
        let id = format!("{}@{}", volume.disk.owner(), volume.storage);
        let tasks = lists.values().flat_map(|list| &list.entries);
        let frees = |task: &&TaskEntry| task.upid.kind() == "imgdel" && task.upid.id() == id;
        tasks
            .filter(|task| frees(task) && self.includes(task) && task.started >= self.0)
            .collect()
    }
}

/// `POST …/config` runs as `qmconfig`, named by the VMID.
fn is_write_to(task: &TaskEntry, vmid: VmId) -> bool {
    task.upid.kind() == "qmconfig" && task.upid.id() == vmid.to_string()
}

/// What can't be told apart from an attach or detach that is under way.
fn unsettled(doing: &'static str) -> impl FnOnce(ApiError) -> Error {
    move |source| Error::Unsettled { doing, source }
}

fn unreadable(host: &PveNode) -> Error {
    Error::HolderUnknown(format!("tasks of our token on {host} can't be read"))
}

#[cfg(test)]
#[path = "rivals_tests.rs"]
mod tests;
