//! What the management cluster says of VMs: `ProxmoxMachine`s of Cluster API name the VMID of a UUID. The tenant can't
//! write them. They help where a Node does not say its VMID; nothing depends on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use pve_kube::{RequestError, answer};
use pve_model::{ProviderId, Uuid, VmId};
use serde::Deserialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::said::Said;

/// Versions of the API, newest first: capmox 0.8 and later serve both, 0.7 and before the second.
const VERSIONS: [&str; 2] = ["v1alpha2", "v1alpha1"];
const PAGE: u32 = 200;
const ANSWER_MAX: usize = 32 << 20;
const WITHIN: Duration = Duration::from_secs(10);
/// A machine is deleted after its VM, and its Node after that.
const REMEMBERED: Duration = Duration::from_hours(1);
const MOST: usize = 20_000;

/// Which VMID a UUID has. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Machines(Arc<Mutex<BTreeMap<Uuid, Known>>>);

#[derive(Debug, Clone, Copy)]
struct Known {
    /// None if two machines contradict each other.
    vmid: Option<VmId>,
    seen: Instant,
}

#[derive(Debug, Default, Deserialize)]
struct MachineList {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default)]
    items: Vec<Machine>,
}

#[derive(Debug, Default, Deserialize)]
struct ListMetadata {
    #[serde(rename = "continue")]
    rest: Option<String>,
}

/// `infrastructure.cluster.x-k8s.io` `ProxmoxMachine`, as far as it names a VM.
#[derive(Debug, Default, Deserialize)]
struct Machine {
    #[serde(default)]
    spec: MachineSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MachineSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(rename = "virtualMachineID")]
    vmid: Option<i64>,
}

impl Machines {
    /// The VMID of a UUID, as a machine that is there or was a short time ago says.
    pub fn vmid_of(&self, uuid: &Uuid) -> Option<VmId> {
        self.known().get(uuid)?.vmid
    }

    /// The UUIDs of all of them.
    pub fn uuids(&self) -> Vec<Uuid> {
        self.known().keys().cloned().collect()
    }

    /// Reads all machines of a namespace once per period until `stop`.
    pub async fn follow(
        &self,
        client: &Client,
        namespace: &str,
        period: Duration,
        stop: CancellationToken,
    ) {
        let said = Said::default();
        loop {
            let outcome = stop.run_until_cancelled(read(client, namespace)).await;
            let Some(outcome) = outcome else { return };
            let why = match outcome {
                Ok(machines) => {
                    self.take(&machines, Instant::now());
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if said.is_new(why.as_deref()) {
                if let Some(why) = why {
                    tracing::warn!(
                        why,
                        "the ProxmoxMachines can't be read: Nodes tell their VMID alone"
                    );
                } else {
                    tracing::info!("the ProxmoxMachines can be read again");
                }
            }
            if stop.run_until_cancelled(sleep(period)).await.is_none() {
                return;
            }
        }
    }

    fn take(&self, machines: &[Machine], now: Instant) {
        let mut new: BTreeMap<Uuid, Known> = BTreeMap::new();
        for Machine { spec } in machines.iter().take(MOST) {
            let id = spec.provider_id.as_deref().map(ProviderId::read);
            let vmid = spec.vmid.and_then(|id| u32::try_from(id).ok());
            let vmid = vmid.and_then(|id| VmId::try_from(id).ok());
            let (Some(ProviderId::Uuid(uuid)), Some(vmid)) = (id, vmid) else {
                continue;
            };
            let known = new.entry(uuid).or_insert(Known {
                vmid: Some(vmid),
                seen: now,
            });
            if known.vmid != Some(vmid) {
                known.vmid = None;
            }
        }
        let mut all = self.known();
        all.extend(new);
        all.retain(|_, known| now.duration_since(known.seen) < REMEMBERED);
        while all.len() > MOST {
            all.pop_last();
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Uuid, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All machines, in the newest version that is served.
async fn read(client: &Client, namespace: &str) -> Result<Vec<Machine>, RequestError> {
    let mut last = RequestError::Status(404);
    for version in VERSIONS {
        match read_version(client, namespace, version).await {
            Err(error) if error.is_status(404) => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}

async fn read_version(
    client: &Client,
    namespace: &str,
    version: &str,
) -> Result<Vec<Machine>, RequestError> {
    let path = format!(
        "/apis/infrastructure.cluster.x-k8s.io/{version}/namespaces/{namespace}/proxmoxmachines"
    );
    let mut machines = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let request = Request::new(&path).list(&params)?;
        let page: MachineList = answer(client, request, ANSWER_MAX, WITHIN).await?;
        machines.extend(page.items);
        match page.metadata.rest.filter(|rest| !rest.is_empty()) {
            Some(rest) if machines.len() < MOST => params = params.continue_token(&rest),
            _ => return Ok(machines),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::uuid;
    use serde_json::json;

    fn machine(id: &str, vmid: Option<i64>) -> Machine {
        let spec = json!({ "providerID": id, "virtualMachineID": vmid, "sourceNode": "pve1" });
        serde_json::from_value(json!({ "kind": "ProxmoxMachine", "spec": spec })).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_names_the_vmid_of_its_uuid_for_a_while_after_it_is_gone() {
        let machines = Machines::default();
        let id = format!("proxmox://{}", uuid(101));
        machines.take(&[machine(&id, Some(101))], Instant::now());
        let found = || machines.vmid_of(&uuid(101)).map(VmId::get);
        assert_eq!(found(), Some(101));
        assert_eq!(machines.uuids(), [uuid(101)]);
        tokio::time::advance(Duration::from_mins(59)).await;
        machines.take(&[], Instant::now());
        assert_eq!(found(), Some(101));
        tokio::time::advance(Duration::from_mins(1)).await;
        machines.take(&[], Instant::now());
        assert_eq!(found(), None);
    }

    #[tokio::test]
    async fn machines_that_name_no_vm_or_contradict_each_other_say_nothing() {
        let machines = Machines::default();
        let id = format!("proxmox://{}", uuid(101));
        let all = [
            machine(&id, Some(101)),
            machine(&id, Some(102)),
            machine(&format!("proxmox://{}", uuid(103)), None),
            machine(&format!("proxmox://{}", uuid(104)), Some(-1)),
            machine("proxmox://r1/105", Some(105)),
            Machine::default(),
        ];
        machines.take(&all, Instant::now());
        for vmid in [101, 103, 104, 105] {
            assert_eq!(machines.vmid_of(&uuid(vmid)), None, "{vmid}");
        }
    }
}
