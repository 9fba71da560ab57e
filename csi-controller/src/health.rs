//! Is PVE there? Asked at start, to say loudly what is wrong, and by `/readyz`; never by `Probe`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pve_client::VmidState;
use pve_runtime::admin::Ready;
use pve_runtime::config::Mode;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::region::{Driver, RegionContext};

/// How long an answer of `/readyz` is good.
const GOOD_FOR: Duration = Duration::from_mins(1);
/// How old an answer must be before PVE is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(20);
/// How long the start may wait for PVE.
const AT_START: Duration = Duration::from_secs(2);

/// What PVE last said to `/readyz`.
#[derive(Debug, Default)]
pub struct Health {
    last: Mutex<Option<(Instant, Result<(), String>)>>,
    wanted: Notify,
}

impl Health {
    /// The answer of `/readyz`: the token is valid and an endpoint of every region answered in the last minute. Asking
    /// has PVE asked, so that nothing is sent where nobody asks.
    pub fn ready(self: &Arc<Self>) -> Ready {
        let health = Arc::clone(self);
        Arc::new(move || {
            health.wanted.notify_one();
            let last = health.last.lock().unwrap_or_else(PoisonError::into_inner);
            match last.as_ref() {
                None => Err("Proxmox VE has not been asked yet".to_owned()),
                Some((at, _)) if at.elapsed() > GOOD_FOR => {
                    Err("Proxmox VE has not answered for a minute".to_owned())
                }
                Some((_, answer)) => answer.clone(),
            }
        })
    }

    /// Asks PVE when somebody wants to know.
    pub async fn watch(
        self: Arc<Self>,
        driver: watch::Receiver<Arc<Driver>>,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wanted.notified() => {}
            }
            if self.age().is_some_and(|age| age < AGAIN_AFTER) {
                continue;
            }
            let now = Arc::clone(&driver.borrow());
            let answer = ask(&now).await;
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((Instant::now(), answer));
        }
    }

    fn age(&self) -> Option<Duration> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(at, _)| at.elapsed())
    }
}

async fn ask(driver: &Driver) -> Result<(), String> {
    for region in driver.regions() {
        if let Err(error) = region.client.version().await {
            return Err(format!("region {}: {}", region.name, error.kind.label()));
        }
    }
    Ok(())
}

/// Checks at start what the ownership mode demands, and says loudly what is wrong. An unreachable PVE is no reason not
/// to start.
pub async fn check_owners(driver: &Driver) {
    let checks = async {
        for region in driver.regions() {
            if region.policy.mode == Mode::Reserved {
                reserved(region).await;
            }
        }
    };
    if tokio::time::timeout(AT_START, checks).await.is_err() {
        tracing::warn!(
            "Proxmox VE does not answer: whether the reserved owners are free was not checked"
        );
    }
}

/// A guest that has the owner's VMID takes all our disks with it when it is destroyed.
async fn reserved(region: &RegionContext) {
    let owners = &region.policy.owners;
    let mut all: Vec<_> = owners
        .default
        .iter()
        .chain(owners.per_node.values())
        .copied()
        .collect();
    all.sort_unstable();
    all.dedup();
    for owner in all {
        match region.client.vmid_state(owner).await {
            Ok(VmidState::Free) => {}
            Ok(VmidState::Taken) => tracing::error!(
                region = %region.name,
                vm.id = %owner,
                "a guest has the reserved owner's VMID: destroying it would destroy volumes; give the guest another VMID"
            ),
            Err(error) => tracing::warn!(
                region = %region.name,
                vm.id = %owner,
                %error,
                "whether the reserved owner is free could not be checked"
            ),
        }
    }
}
