//! Is the VM of a Node gone? Asked of PVE for a Node that is not ready and whose UUID no worker has. Everything short of a
//! proof keeps the Node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{StreamExt, iter};
use pve_client::{ApiError, GuestKind, VmEntry, VmRef};
use pve_model::topology::REGION;
use pve_model::{ProviderId, Region, Uuid, VmId};
use pve_region::Fences;
use pve_region::gone::{Evidence, Listed, Verdict, judge};
use pve_runtime::config::Fenced;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::cache::FactsCache;
use crate::engine::Cluster;
use crate::events::Keep;
use crate::facts::VmFacts;
use crate::inventory::{RegionView, Snapshot, is_worker};
use crate::node::NodeView;
use crate::witnesses::Witnesses;

/// For all questions about one VM.
const WITHIN: Duration = Duration::from_secs(15);
/// Configs of guests outside the pool that are read at the same time.
const AT_A_TIME: usize = 4;

/// What is known of a VM that is not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Its identity.
    pub uuid: Uuid,
    /// The number that it had.
    pub vmid: VmId,
    /// Where it was; any region if it is not known.
    pub region: Option<Region>,
}

/// Which look it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The first one begins the grace time.
    First,
    /// After the second one the Node is deleted.
    Second,
}

/// What proofs are made with.
#[derive(Debug)]
pub struct Prover {
    clusters: Vec<Cluster>,
    fences: Fences,
    /// Guests outside the pool whose config was read.
    others: BTreeMap<Region, Mutex<FactsCache>>,
}

impl Lost {
    /// What a Node and the management cluster say of its VM. All of the Node's is a hint: a tenant that forges it can end
    /// its own Nodes.
    pub fn of(
        node: &NodeView,
        uuid: Uuid,
        machine: Option<VmId>,
        views: &[RegionView],
    ) -> Result<Self, Keep> {
        Ok(Self {
            uuid,
            vmid: number(machine, node.vmid())?,
            region: region_of(node, views)?,
        })
    }
}

/// The number of the VM, if nobody contradicts it: one of both may be of before a restore.
fn number(machine: Option<VmId>, node: Option<VmId>) -> Result<VmId, Keep> {
    match (machine, node) {
        (Some(one), Some(other)) if one != other => Err(Keep::Unproved),
        (one, other) => one.or(other).ok_or(Keep::NoVmid),
    }
}

/// Where the VM of a Node was. One of a region that is not configured (any more) is out of sight, and so is one whose
/// label and provider id name different regions.
fn region_of(node: &NodeView, views: &[RegionView]) -> Result<Option<Region>, Keep> {
    let configured = |text: &str| {
        let mut views = views.iter();
        views.find(|view| view.region.as_str() == text)
    };
    let place = match node.provider() {
        Some(ProviderId::Place { place, .. }) => place,
        _ => String::new(),
    };
    let by_place = configured(&place);
    match node.labels.get(REGION) {
        Some(label) => {
            let view = configured(label).ok_or(Keep::OtherRegion)?;
            if by_place.is_some_and(|other| other.region != view.region) {
                return Err(Keep::OtherRegion);
            }
            Ok(Some(view.region.clone()))
        }
        // Its VM may be in a PVE cluster that is not configured yet.
        None if by_place.is_none() && node.is_uninitialised() => Err(Keep::OtherRegion),
        None if place.is_empty() => Ok(None),
        None => match by_place {
            Some(view) => Ok(Some(view.region.clone())),
            None if is_host(&place, views) => Ok(None),
            None => Err(Keep::OtherRegion),
        },
    }
}

/// Whether some guest is listed on a PVE node of that name: ids of other tools name it.
fn is_host(place: &str, views: &[RegionView]) -> bool {
    let guests = views
        .iter()
        .filter_map(|view| view.snapshot.as_ref())
        .flat_map(|snapshot| snapshot.guests.values());
    guests
        .map(|guest| guest.pve_node.as_str())
        .any(|host| host == place)
}

impl Prover {
    /// Asks nothing yet.
    pub fn new(clusters: Vec<Cluster>, fences: Fences) -> Self {
        let region = |cluster: &Cluster| (cluster.source.region.clone(), Mutex::default());
        Self {
            others: clusters.iter().map(region).collect(),
            clusters,
            fences,
        }
    }

    /// Proves that the VM is gone, or says why the Node is kept. `views` show no worker with the UUID and hide none.
    pub async fn gone(
        &self,
        lost: &Lost,
        look: Look,
        views: &[RegionView],
        witnesses: &Witnesses,
    ) -> Result<(), Keep> {
        let all = async {
            for (cluster, view) in self.clusters.iter().zip(views) {
                let is_elsewhere = lost.region.as_ref().is_some_and(|at| *at != view.region);
                let snapshot = view.snapshot.as_deref().ok_or(Keep::Unproved)?;
                if !is_elsewhere {
                    let witness = witnesses.get(&view.region).copied();
                    self.gone_from(lost, cluster, snapshot, witness).await?;
                }
                if look == Look::Second {
                    self.in_no_other(lost, cluster, view, snapshot).await?;
                }
            }
            Ok(())
        };
        timeout(WITHIN, all).await.unwrap_or(Err(Keep::Unproved))
    }

    /// Proves that its number is no guest's any more, or another one's.
    async fn gone_from(
        &self,
        lost: &Lost,
        cluster: &Cluster,
        snapshot: &Snapshot,
        witness: Option<VmId>,
    ) -> Result<(), Keep> {
        let region = &cluster.source.region;
        let unproved = |why: &str| {
            tracing::info!(%region, vm.id = %lost.vmid, why, "not proved that the VM is gone");
            Keep::Unproved
        };
        let witness = witness.ok_or_else(|| unproved("no VM of another Node is seen there"))?;
        let absence = cluster.source.client().absence(lost.vmid, witness).await;
        let absence = absence.map_err(|error| unproved(&error.to_string()))?;
        if !absence.majority {
            return Err(unproved(
                "the endpoint sees less than half of the PVE nodes",
            ));
        }
        let evidence = match snapshot.guests.get(&lost.vmid) {
            Some(guest) => {
                stranger(lost, cluster, guest).await?;
                Evidence {
                    listed: Listed::Stranger,
                    asked: None,
                    control: None,
                }
            }
            None => Evidence {
                listed: Listed::Nobody,
                asked: Some(absence.asked),
                control: Some(absence.control),
            },
        };
        match judge(evidence) {
            Verdict::Gone => Ok(()),
            Verdict::Invisible => self.stated(lost, region),
            Verdict::Unproved(why) => Err(unproved(why)),
        }
    }

    /// Proves that no guest outside the pool has the UUID, as far as the token sees any: the VM may have been restored
    /// under another number.
    async fn in_no_other(
        &self,
        lost: &Lost,
        cluster: &Cluster,
        view: &RegionView,
        snapshot: &Snapshot,
    ) -> Result<(), Keep> {
        let source = &cluster.source;
        let cache = self.others.get(&source.region).ok_or(Keep::Unproved)?;
        // One proof reads what all of them need.
        let mut cache = cache.lock().await;
        cache.keep(|vmid| snapshot.guests.contains_key(&vmid));
        let is_other =
            |guest: &&VmEntry| guest.kind == GuestKind::Qemu && !is_worker(guest, &view.pool);
        let others: Vec<&VmEntry> = snapshot.guests.values().filter(is_other).collect();
        let unread = others
            .iter()
            .filter(|guest| cache.get(guest, snapshot.asked).is_none());
        let unread: Vec<VmEntry> = unread.map(|guest| (*guest).clone()).collect();
        let reads = iter(unread).map(|guest| async move {
            let config = source.client().vm_config(&at(&guest)).await;
            (guest, config)
        });
        let mut reads = reads.buffer_unordered(AT_A_TIME);
        while let Some((guest, config)) = reads.next().await {
            let config = config.map_err(|error| failed(guest.vmid, &error))?;
            let facts = Arc::new(VmFacts::of(&config, &source.policy));
            cache.note(&guest, snapshot.asked, facts);
        }
        for guest in others {
            let facts = cache.get(guest, snapshot.asked).ok_or(Keep::Unproved)?;
            if facts.uuid.as_ref() == Some(&lost.uuid) {
                return Err(Keep::Elsewhere);
            }
        }
        Ok(())
    }

    /// A VM that exists and can't be seen is gone only by the operator's word.
    fn stated(&self, lost: &Lost, region: &Region) -> Result<(), Keep> {
        let what = Fenced::Gone {
            vmid: lost.vmid,
            uuid: lost.uuid.clone(),
        };
        if let Some(fence) = self.fences.find(region, &what) {
            self.fences
                .used(&fence, "the Node of an invisible VM is deleted");
            return Ok(());
        }
        tracing::info!(
            %region,
            vm.id = %lost.vmid,
            "a guest has the VMID and the token lacks VM.Audit on it: put the VM back into the pool; if it is certainly gone: \
             pvectl fence --gone {what} --region {region}"
        );
        Err(Keep::Invisible)
    }
}

/// Another guest has the number now: its config says so at this moment.
async fn stranger(lost: &Lost, cluster: &Cluster, guest: &VmEntry) -> Result<(), Keep> {
    if guest.kind == GuestKind::Lxc {
        return Ok(());
    }
    let config = cluster.source.client().vm_config(&at(guest)).await;
    let config = config.map_err(|error| failed(guest.vmid, &error))?;
    match config.smbios_uuid() {
        Some(uuid) if uuid == lost.uuid => Err(Keep::Elsewhere),
        Some(_) => Ok(()),
        None => Err(Keep::Unproved),
    }
}

fn at(guest: &VmEntry) -> VmRef {
    VmRef {
        pve_node: guest.pve_node.clone(),
        vmid: guest.vmid,
    }
}

fn failed(vmid: VmId, error: &ApiError) -> Keep {
    tracing::info!(vm.id = %vmid, %error, "the config of a VM can't be read: nothing is proved");
    Keep::Unproved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, facts, node, uuid, view};

    #[test]
    fn where_a_vm_was_is_known_only_if_all_that_is_said_names_one_configured_region() {
        let at = |host| [(entry(101, host), Some(facts(101)))];
        let views = [view("r1", &at("pve1")), view("r2", &at("pve9"))];
        let region = |name: &str| Ok(Some(name.parse().unwrap()));
        for (sentence, label, id, expected) in [
            ("our label", Some("r2"), None, region("r2")),
            (
                "a region that is not configured any more",
                Some("r3"),
                None,
                Err(Keep::OtherRegion),
            ),
            (
                "the same by its id",
                None,
                Some("proxmox://r3/101"),
                Err(Keep::OtherRegion),
            ),
            (
                "a region by its id",
                None,
                Some("proxmox://r2/101"),
                region("r2"),
            ),
            (
                "a PVE node by its id",
                None,
                Some("proxmox://pve9/101"),
                Ok(None),
            ),
            ("nothing", None, None, Ok(None)),
            ("a number alone", None, Some("proxmox:///101"), Ok(None)),
            (
                "both agree",
                Some("r2"),
                Some("proxmox://r2/101"),
                region("r2"),
            ),
            (
                "label and id contradict each other",
                Some("r1"),
                Some("proxmox://r2/101"),
                Err(Keep::OtherRegion),
            ),
            (
                "a label and a PVE node",
                Some("r1"),
                Some("proxmox://pve9/101"),
                region("r1"),
            ),
        ] {
            let mut node = node(101);
            node.taints.clear();
            node.provider_id = id.map(str::to_owned);
            if let Some(label) = label {
                node.labels.insert(REGION.to_owned(), label.to_owned());
            }
            assert_eq!(region_of(&node, &views), expected, "{sentence}");
        }
    }

    #[test]
    fn a_node_that_was_never_initialised_may_be_of_a_region_that_is_to_come() {
        let views = [view("r1", &[])];
        assert_eq!(region_of(&node(101), &views), Err(Keep::OtherRegion));
        let mut placed = node(101);
        placed.provider_id = Some("proxmox://r1/101".to_owned());
        let r1 = views[0].region.clone();
        assert_eq!(region_of(&placed, &views), Ok(Some(r1)));
    }

    #[test]
    fn without_a_number_nothing_can_be_asked() {
        let views = [view("r1", &[])];
        let lost = |node: &NodeView, machine| Lost::of(node, uuid(101), machine, &views);
        let mut without = node(101);
        without.taints.clear();
        assert_eq!(lost(&without, None), Err(Keep::NoVmid));
        let machine = "105".parse().unwrap();
        assert_eq!(lost(&without, Some(machine)).unwrap().vmid, machine);
        without.provider_id = Some("proxmox:///107".to_owned());
        assert_eq!(lost(&without, None).unwrap().vmid.get(), 107);
        assert_eq!(
            lost(&without, Some(machine)),
            Err(Keep::Unproved),
            "they contradict each other"
        );
    }
}
