//! What goes wrong in a case, and when.

use std::convert::Infallible;
use std::time::Duration;

use pve_sim::{RequestEffect, RequestFault, SimHandle, TaskEffect, TaskFault};
use tokio::time::sleep;

use super::{Change, Rpc};

/// One way for an RPC to go wrong at one of its requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The request is answered otherwise, or not at all.
    Request(RequestEffect),
    /// The request takes PVE longer than its proxy waits: 596, and the work ends later.
    Late(Late),
    /// A task of this worker type ends otherwise.
    Task(&'static str, TaskEffect),
    /// Somebody or something else acts on PVE when the request arrives.
    Meanwhile(Change),
}

/// When the work of a request ends that PVE's proxy gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// Before the sidecar calls again.
    BeforeTheRetry,
    /// While it calls again.
    DuringTheRetry,
}

/// Every way, for an RPC.
pub fn all(rpc: Rpc) -> Vec<Fault> {
    let requests = request_effects(rpc).into_iter().map(Fault::Request);
    let late = [Late::BeforeTheRetry, Late::DuringTheRetry].map(Fault::Late);
    let tasks = task(rpc)
        .into_iter()
        .flat_map(|kind| task_effects().map(move |effect| Fault::Task(kind, effect)));
    let changes = Change::ALL
        .into_iter()
        .filter(|change| change.concerns(rpc));
    let changes = changes.map(Fault::Meanwhile);
    requests.chain(late).chain(tasks).chain(changes).collect()
}

/// The worker type of the task that an RPC has PVE start.
pub fn task(rpc: Rpc) -> Option<&'static str> {
    match rpc {
        Rpc::Create => None,
        Rpc::Publish | Rpc::Unpublish => Some("qmconfig"),
        Rpc::Expand => Some("resize"),
        Rpc::Delete => Some("imgdel"),
    }
}

fn request_effects(rpc: Rpc) -> Vec<RequestEffect> {
    let before = |status, message: &str| RequestEffect::FailBefore {
        status,
        message: message.to_owned(),
    };
    let after = |status, message: &str| RequestEffect::FailAfter {
        status,
        message: message.to_owned(),
    };
    let busy: &[&str] = match rpc {
        Rpc::Create | Rpc::Delete => &["cfs-lock 'storage-shared' error: got lock request timeout"],
        Rpc::Publish | Rpc::Unpublish | Rpc::Expand => &[
            "can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout",
            "VM is locked (backup)",
        ],
    };
    let busy = busy.iter().map(|text| before(500, text));
    let others = [
        RequestEffect::LostRequest,
        RequestEffect::LostReply,
        before(500, "got timeout"),
        before(403, "Permission check failed"),
        before(401, "No ticket"),
        before(503, "Service Unavailable"),
        before(595, "No route to host"),
        before(596, "Connection timed out"),
        after(500, "interrupted by signal"),
        after(596, "Connection timed out"),
    ];
    others.into_iter().chain(busy).collect()
}

fn task_effects() -> [TaskEffect; 6] {
    let text = || "got timeout".to_owned();
    [
        TaskEffect::Fail { text: text() },
        TaskEffect::FailAfter { text: text() },
        TaskEffect::Kill,
        TaskEffect::Vanish,
        TaskEffect::Warn { count: 2 },
        TaskEffect::Slow { ms: 5000 },
    ]
}

impl Fault {
    /// Whether the token is refused: the driver then leaves PVE in peace for a minute, and is started anew instead.
    pub fn silences(&self) -> bool {
        matches!(
            self,
            Self::Request(RequestEffect::FailBefore { status: 401, .. })
        )
    }

    /// Whether nothing was done and the driver can't know: it then calls nothing detached for a minute, as what was asked
    /// for may still come.
    pub fn leaves_doubt(&self) -> bool {
        match self {
            Self::Request(effect) => matches!(
                effect,
                RequestEffect::LostRequest
                    | RequestEffect::FailBefore {
                        status: 503 | 596,
                        ..
                    }
            ),
            Self::Meanwhile(change) => *change == Change::HostHung,
            Self::Late(_) | Self::Task(_, _) => false,
        }
    }

    /// Whether the simulator's clock has to run fast meanwhile.
    pub fn takes_time(&self) -> bool {
        match self {
            Self::Task(_, effect) => matches!(effect, TaskEffect::Slow { .. }),
            Self::Meanwhile(change) => change.takes_time(),
            Self::Request(_) => self.silences(),
            Self::Late(_) => false,
        }
    }

    /// Sets it for the `nth` request or task from now on.
    pub fn arm(&self, sim: &SimHandle, nth: u32) {
        match self {
            Self::Request(effect) => request(sim, nth, effect.clone()),
            Self::Late(_) | Self::Meanwhile(_) => request(sim, nth, RequestEffect::Hold),
            Self::Task(kind, effect) => on_task(sim, kind, nth, effect.clone()),
        }
    }
}

/// Sets what happens to the `nth` request from now on.
pub fn request(sim: &SimHandle, nth: u32, effect: RequestEffect) {
    sim.add_fault(RequestFault {
        method: "*".to_owned(),
        path: "*".to_owned(),
        nth,
        times: 1,
        effect,
    });
}

/// Sets what happens to the `nth` task of that worker type from now on.
pub fn on_task(sim: &SimHandle, kind: &str, nth: u32, effect: TaskEffect) {
    sim.add_task_fault(TaskFault {
        task: kind.to_owned(),
        id: None,
        nth,
        times: 1,
        effect,
    });
}

/// Runs `work` while the simulator's clock goes some fifty times as fast, if `fast`.
pub async fn hastened<T>(sim: &SimHandle, fast: bool, work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        never = haste(sim, fast) => match never {},
    }
}

async fn haste(sim: &SimHandle, fast: bool) -> Infallible {
    loop {
        if !fast {
            std::future::pending::<()>().await;
        }
        sleep(Duration::from_millis(2)).await;
        sim.advance(Duration::from_millis(150));
    }
}
