//! What the tenant is told about its Nodes: closed phrases, in Events, and nothing of what Proxmox VE says. That a Node is
//! kept or deleted tells whether its VMID is taken, as `docs/threat-model.md` says.

use pve_kube::{EventKind, NodeRef, Recorder};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::inventory::Doubt;
use crate::node::NodeView;
use crate::plan::Refusal;

/// Events that wait to be sent. What comes beyond is dropped: it comes again.
const QUEUE: usize = 256;

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Told {
    /// The Node got its labels and lost its taint.
    Initialised,
    /// It is not initialised.
    Waits(Refusal),
    /// It has no healthy VM and is kept.
    Kept(Keep),
    /// Its VM is shut down.
    ShutDown,
    /// Its VM runs again.
    Started,
    /// It was deleted.
    Deleted,
    /// The API server did not let it be deleted.
    NotDeleted,
    /// It would be deleted.
    WouldDelete,
}

/// Why a Node is kept although its VM is not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keep {
    /// It is not known which VM it is.
    Refused(Refusal),
    /// Its VM exists somewhere else: outside the pool, or under another number.
    Elsewhere,
    /// Its VM, or another in its place, exists and can't be seen.
    Invisible,
    /// It is not known which VMID it had.
    NoVmid,
    /// It belongs to a region that is not looked after (any more).
    OtherRegion,
    /// PVE could not be asked, or gave answers that don't fit together.
    Unproved,
    /// It was seen to be gone once, and will be looked at again after the grace time.
    Grace,
}

impl Told {
    /// Reason, kind and message.
    pub fn words(self) -> (&'static str, EventKind, &'static str) {
        use EventKind::{Normal, Warning};
        match self {
            Self::Initialised => ("Initialized", Normal, "The Node is initialised."),
            Self::Waits(refusal) => (
                "NotInitialized",
                Warning,
                match refusal {
                    Refusal::NoUuid => {
                        "The Node waits: neither its system UUID nor its provider id names a virtual machine."
                    }
                    Refusal::Contradiction => {
                        "The Node waits: its provider id names another UUID than its firmware does."
                    }
                    Refusal::Doubt(Doubt::Ambiguous) => {
                        "The Node waits: several virtual machines have its UUID; give all but one another."
                    }
                    Refusal::Doubt(Doubt::Silent) => {
                        "The Node waits: the infrastructure does not answer."
                    }
                    Refusal::Doubt(Doubt::Unread) => {
                        "The Node waits: not all virtual machines could be read."
                    }
                    Refusal::Doubt(Doubt::Unknown) => {
                        "The Node waits: no virtual machine of this cluster has its UUID; ask the operator of the infrastructure."
                    }
                },
            ),
            Self::Kept(keep) => ("NodeKept", Warning, keep.words()),
            Self::ShutDown => ("VMShutDown", Normal, "The virtual machine is shut down."),
            Self::Started => ("VMStarted", Normal, "The virtual machine runs again."),
            Self::Deleted => (
                "DeletedNode",
                Normal,
                "The Node was deleted: its virtual machine does not exist any more.",
            ),
            Self::NotDeleted => (
                "NodeNotDeleted",
                Warning,
                "The Node can't be deleted although its virtual machine does not exist any more: see the rights of the cloud-controller-manager.",
            ),
            Self::WouldDelete => (
                "WouldDeleteNode",
                Normal,
                "The Node would be deleted: its virtual machine does not exist any more; deletions are switched off.",
            ),
        }
    }
}

impl Keep {
    /// For the tenant.
    fn words(self) -> &'static str {
        match self {
            Self::Refused(Refusal::Doubt(Doubt::Silent)) => {
                "The Node is kept: the infrastructure does not answer."
            }
            Self::Refused(Refusal::Doubt(Doubt::Unread)) => {
                "The Node is kept: not all virtual machines could be read."
            }
            Self::Refused(_) => "The Node is kept: it is not known which virtual machine it is.",
            Self::Elsewhere => {
                "The Node is kept: its virtual machine exists, but does not belong to this cluster any more."
            }
            Self::Invisible | Self::NoVmid | Self::Unproved | Self::OtherRegion => {
                "The Node is kept: it is not proved that its virtual machine is gone; ask the operator of the infrastructure."
            }
            Self::Grace => {
                "The virtual machine does not exist any more; the Node is deleted if that stays so."
            }
        }
    }

    /// A short name for metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Refused(Refusal::NoUuid) => "no_uuid",
            Self::Refused(Refusal::Contradiction) => "contradiction",
            Self::Refused(Refusal::Doubt(Doubt::Ambiguous)) => "ambiguous",
            Self::Refused(Refusal::Doubt(Doubt::Silent)) => "silent",
            Self::Refused(Refusal::Doubt(Doubt::Unread)) => "unread",
            Self::Refused(Refusal::Doubt(Doubt::Unknown)) => "unknown",
            Self::Elsewhere => "elsewhere",
            Self::Invisible => "invisible",
            Self::NoVmid => "no_vmid",
            Self::OtherRegion => "other_region",
            Self::Unproved => "unproved",
            Self::Grace => "grace",
        }
    }
}

/// Hands Events over to who sends them. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Teller(mpsc::Sender<(NodeRef, Told)>);

impl Teller {
    /// A queue, and what sends what is in it.
    pub fn new(recorder: Recorder, stop: CancellationToken) -> (Self, impl Future<Output = ()>) {
        let (sender, mut queue) = mpsc::channel::<(NodeRef, Told)>(QUEUE);
        let send = async move {
            while let Some(Some((about, told))) = stop.run_until_cancelled(queue.recv()).await {
                let (reason, kind, message) = told.words();
                let telling = recorder.tell(&about, reason, kind, message);
                stop.run_until_cancelled(telling).await;
            }
        };
        (Self(sender), send)
    }

    /// Tells about a Node, if there is room.
    pub fn tell(&self, node: &NodeView, told: Told) {
        let about = NodeRef {
            name: node.name.clone(),
            uid: node.uid.clone(),
        };
        if self.0.try_send((about, told)).is_err() {
            tracing::debug!("the queue of Events is full");
        }
    }
}
