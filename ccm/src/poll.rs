//! The poller of one PVE cluster: one list of guests per period, whoever asks and however many Nodes there are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pve_client::{ApiError, Client};
use pve_model::Region;
use pve_region::Connection;
use pve_runtime::config::RegionPolicy;
use rand::Rng;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::demand::Demand;
use crate::ha_source::HaSource;
use crate::inventory::RegionView;
use crate::reading::{Memory, Reading};
use crate::said::Said;

/// After a list that could not be read, instead of the period if that is longer.
const AFTER_FAILURE: Duration = Duration::from_secs(15);
/// How much a pause is longer or shorter, as a part of it.
const JITTER: f64 = 0.1;

/// One PVE cluster: how it is asked and what is remembered of it.
#[derive(Debug)]
pub struct Source {
    /// Its name.
    pub region: Region,
    /// What of it is the tenant's.
    pub policy: RegionPolicy,
    /// How it is reached.
    pub connection: Connection,
    /// Asks for a poll before its time.
    pub demand: Demand,
    ha: Option<HaSource>,
    memory: Arc<Mutex<Memory>>,
    said: Said,
}

impl Source {
    /// Nothing is asked yet. What a source `before` of the same PVE cluster and policy has read stays known.
    pub fn new(
        region: Region,
        policy: RegionPolicy,
        connection: Connection,
        ha: bool,
        before: Option<&Self>,
    ) -> Self {
        Self {
            region,
            policy,
            connection,
            demand: Demand::default(),
            ha: ha.then(HaSource::default),
            memory: before.map_or_else(Arc::default, |before| Arc::clone(&before.memory)),
            said: Said::default(),
        }
    }

    /// Whether HA is looked at.
    pub fn looks_at_ha(&self) -> bool {
        self.ha.is_some()
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.connection.client
    }

    /// What is known before the first poll.
    pub fn blank(&self) -> RegionView {
        RegionView {
            region: self.region.clone(),
            pool: self.policy.pool.clone(),
            snapshot: None,
            failing: false,
        }
    }

    /// Lists once per period, and before its time on demand, until `stop`. HA is asked beside the list, and configs are
    /// read meanwhile: neither delays the next list.
    pub async fn run(
        &self,
        period: Duration,
        views: watch::Sender<RegionView>,
        stop: CancellationToken,
    ) {
        let reading = Reading::new(self, &views, period);
        let ha = Notify::new();
        let parts = async {
            tokio::join!(
                self.list(&reading, &ha, period),
                self.ask_ha(&reading, &ha),
                reading.run()
            )
        };
        stop.run_until_cancelled(parts).await;
    }

    /// Lists for ever, and has HA asked once per period.
    async fn list(&self, reading: &Reading<'_>, ha: &Notify, period: Duration) {
        let mut ha_due = Instant::now();
        loop {
            let asked = Instant::now();
            if asked >= ha_due {
                ha_due = asked + period.mul_f64(1.0 - JITTER);
                ha.notify_one();
            }
            let pause = match self.client().vms().await {
                Ok(listed) => {
                    if self.said.is_new(None) {
                        tracing::info!(region = %self.region, "the guests can be listed again");
                    }
                    reading.show(asked, listed);
                    period
                }
                Err(error) => {
                    self.failed(&error);
                    reading.fails();
                    period.min(AFTER_FAILURE)
                }
            };
            tokio::select! {
                () = sleep(jittered(pause)) => {}
                () = self.demand.next() => {}
            }
        }
    }

    async fn ask_ha(&self, reading: &Reading<'_>, due: &Notify) {
        let Some(ha) = &self.ha else {
            return;
        };
        loop {
            due.notified().await;
            reading.show_ha(ha.view(self.client(), &self.region).await);
        }
    }

    fn failed(&self, error: &ApiError) {
        if self.said.is_new(Some(error.kind.label())) {
            tracing::warn!(
                region = %self.region,
                %error,
                "the guests can't be listed: Nodes stay as they are until they can"
            );
        }
    }

    /// Whether both remember together.
    #[cfg(test)]
    pub(crate) fn remembers_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somewhat less or more, so that many tenants don't ask at the same instant.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(1.0 - JITTER..1.0 + JITTER))
}
