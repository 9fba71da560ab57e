//! Where HA says on which hosts VMs may run: rules on PVE 9, groups on PVE 8, told apart by what PVE answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pve_client::{ApiError, Client, ErrorKind, Listing};
use pve_model::Region;
use tokio::time::timeout;

use crate::ha::HaView;
use crate::said::Said;

/// For all of it.
const WITHIN: Duration = Duration::from_secs(5);
/// How many names of rules stand in one line of the log.
const NAMES: usize = 10;

/// How one PVE cluster is asked for HA.
#[derive(Debug, Default)]
pub struct HaSource {
    groups: AtomicBool,
    said: Said,
    unfit: Said,
}

impl HaSource {
    /// Asks once; nothing if it can't be told, which is logged once per change.
    pub async fn view(&self, client: &Client, region: &Region) -> Option<Arc<HaView>> {
        let asked = timeout(WITHIN, self.ask(client)).await;
        let (view, why) = match asked {
            Ok(Ok(Some(view))) => (Some(Arc::new(view)), None),
            Ok(Ok(None)) => (None, Some("a part of the answer can't be read".to_owned())),
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(_) => (None, Some("Proxmox VE takes too long".to_owned())),
        };
        self.tell_unfit(region, view.as_deref());
        if self.said.is_new(why.as_deref()) {
            if let Some(why) = why {
                tracing::warn!(%region, why, "HA can't be read: its labels stay as they are");
            } else {
                tracing::info!(%region, "HA can be read again");
            }
        }
        view
    }

    /// Tells the operator which rules no label can name.
    fn tell_unfit(&self, region: &Region, view: Option<&HaView>) {
        let Some(view) = view else {
            return;
        };
        let names: Vec<&str> = view.unfit().take(NAMES).collect();
        let names = (!names.is_empty()).then(|| names.join(" "));
        if self.unfit.is_new(names.as_deref())
            && let Some(names) = names
        {
            let count = view.unfit().count();
            tracing::warn!(%region, count, names, "no label can name these rules or groups of HA: Nodes don't show them");
        }
    }

    /// Nothing if a part of what PVE says can't be read.
    async fn ask(&self, client: &Client) -> Result<Option<HaView>, ApiError> {
        if self.groups.load(Ordering::Relaxed) {
            match groups(client).await {
                Err(error) if error.kind == ErrorKind::MigratedToRules => {}
                answer => return answer,
            }
        }
        match client.ha_rules().await {
            Ok(rules) => {
                self.groups.store(false, Ordering::Relaxed);
                Ok(whole(&rules).map(HaView::from_rules))
            }
            Err(error) if error.kind == ErrorKind::NotImplemented => {
                self.groups.store(true, Ordering::Relaxed);
                groups(client).await
            }
            Err(error) => Err(error),
        }
    }
}

/// Without groups nothing is bound, whatever resources there are.
async fn groups(client: &Client) -> Result<Option<HaView>, ApiError> {
    let groups = client.ha_groups().await?;
    let Some(groups) = whole(&groups) else {
        return Ok(None);
    };
    if groups.is_empty() {
        return Ok(Some(HaView::default()));
    }
    let resources = client.ha_resources().await?;
    Ok(whole(&resources).map(|resources| HaView::from_groups(groups, resources)))
}

fn whole<T>(listed: &Listing<T>) -> Option<&[T]> {
    (listed.undecodable == 0).then_some(&listed.entries)
}

#[cfg(test)]
mod tests;
