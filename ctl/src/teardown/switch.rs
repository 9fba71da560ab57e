//! The switch by which the tenant's controller makes no new disks any more.

use std::time::Duration;

use pve_model::topology::TEARDOWN_ANNOTATION;
use serde_json::json;
use tokio::time::Instant;

use super::report::refusal;
use crate::cluster::{ApiError, Cluster, Driver};

const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
/// Until the controller knows of it: an answer of the API server is good for 3 s there, and may take 2 s.
pub(super) const IN_FORCE: Duration = Duration::from_secs(10);

/// The switch as it was last seen.
#[derive(Debug, Default)]
pub(super) struct Switch {
    state: State,
    /// Since when it is known to be on.
    since: Option<Instant>,
    /// How often somebody has turned it off.
    lost: u32,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Untried,
    Off,
    On,
    NoDriver,
    Refused(String),
}

// === impl Switch ===

impl Switch {
    /// Turns it on, if it is not. An error if the API server can't be asked.
    pub(super) async fn keep_on(
        &mut self,
        cluster: &Cluster,
        driver: &str,
    ) -> Result<(), ApiError> {
        self.look(cluster, driver).await?;
        if !matches!(self.state, State::Off) {
            return Ok(());
        }
        if self.since.take().is_some() {
            self.lost += 1;
        }
        match write(cluster, driver, Some("true")).await {
            Ok(()) => self.found(State::On),
            Err(error) => self.failed(error)?,
        }
        Ok(())
    }

    /// Only looks how it is.
    pub(super) async fn look(&mut self, cluster: &Cluster, driver: &str) -> Result<(), ApiError> {
        let found: Option<Driver> = match cluster.find(DRIVERS, driver).await {
            Ok(found) => found,
            Err(error) => return self.failed(error),
        };
        let is_on = |driver: &Driver| {
            let value = driver.metadata.annotations.teardown.as_ref();
            value.is_some_and(|value| value.as_str() == "true")
        };
        match found {
            None => self.found(State::NoDriver),
            Some(driver) if is_on(&driver) => self.found(State::On),
            Some(_) => self.state = State::Off,
        }
        Ok(())
    }

    /// Whether it is on for so long that the controller knows of it.
    pub(super) fn is_in_force(&self) -> bool {
        let since = self.since.filter(|_| matches!(self.state, State::On));
        since.is_some_and(|since| since.elapsed() >= IN_FORCE)
    }

    /// Since when it is on, if it is.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether the tenant has no such CSIDriver.
    pub(super) fn has_no_driver(&self) -> bool {
        matches!(self.state, State::NoDriver)
    }

    /// For the report.
    pub(super) fn text(&self) -> String {
        let lost = match self.lost {
            0 => String::new(),
            lost => format!("; it was turned off {lost} times meanwhile"),
        };
        match &self.state {
            State::Untried => "not turned on".to_owned(),
            State::Off => "off".to_owned(),
            State::On => format!("on: the controller makes no new disks{lost}"),
            State::NoDriver => "not turned on: there is no such CSIDriver".to_owned(),
            State::Refused(why) => format!("not turned on: {why}"),
        }
    }

    fn found(&mut self, state: State) {
        match state {
            State::On => drop(self.since.get_or_insert_with(Instant::now)),
            _ => self.since = None,
        }
        self.state = state;
    }

    fn failed(&mut self, error: ApiError) -> Result<(), ApiError> {
        // Of these the next request knows better.
        if matches!(error.status(), None | Some(401 | 429 | 503)) {
            return Err(error);
        }
        if error.status() == Some(404) {
            self.found(State::NoDriver);
        } else {
            self.found(State::Refused(refusal(&error)));
        }
        Ok(())
    }
}

/// Takes the annotation off; whether there is such a CSIDriver.
pub(super) async fn turn_off(cluster: &Cluster, driver: &str) -> Result<bool, ApiError> {
    match write(cluster, driver, None).await {
        Ok(()) => Ok(true),
        Err(error) if error.status() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn write(cluster: &Cluster, driver: &str, value: Option<&str>) -> Result<(), ApiError> {
    let part = json!({ "metadata": { "annotations": { TEARDOWN_ANNOTATION: value } } });
    cluster.merge(DRIVERS, driver, &part).await
}
