//! Whether a tenant is no more: its API server can't be asked, so that its VMs have to be proved gone.

use pve_client::{Client, GuestKind, Resources, VmRef};
use pve_model::{PoolId, Uuid, VmId};
use pve_region::gone::{self, Evidence, Listed, Verdict};

use super::scan::Asked;
use crate::output::Failure;

/// Without them on the pool an empty list says nothing.
const SIGHT: [&str; 2] = ["Pool.Audit", "VM.Audit"];

/// A VM that the tenant had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Former {
    vmid: VmId,
    uuid: Option<Uuid>,
}

impl std::str::FromStr for Former {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be <VMID> or <VMID>:<SMBIOS UUID>".to_owned();
        let (vmid, uuid) = match text.split_once(':') {
            Some((vmid, uuid)) => (vmid, Some(uuid.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        Ok(Self {
            vmid: vmid.parse().map_err(|_| wrong())?,
            uuid,
        })
    }
}

/// Refuses unless the pool is seen to be empty and each of the VMs is proved gone. `control`: a VM that is certainly there.
pub(super) async fn prove(
    asked: &Asked,
    former: &[Former],
    control: Option<VmId>,
) -> Result<(), Failure> {
    let (client, pool) = (&asked.client, &asked.policy.pool);
    sight(client, pool).await?;
    let seen = client.resources().await?;
    if seen.guests.undecodable > 0 {
        return Failure::refused("the list of guests can't be read completely");
    }
    let guests = &seen.guests.entries;
    if let Some(guest) = guests
        .iter()
        .find(|guest| guest.pool.as_ref() == Some(pool))
    {
        return Failure::refused(format!(
            "guest {} is in the pool {pool}: the tenant is there",
            guest.vmid
        ));
    }
    let control = control.or(guests.first().map(|guest| guest.vmid));
    let Some(control) = control else {
        return Failure::refused(
            "no guest is to be seen that could show that PVE answers truly: name one that is certainly there (--control), or use the \
             operator's rights",
        );
    };
    for former in former {
        one(client, &seen, former, control).await?;
    }
    Ok(())
}

async fn sight(client: &Client, pool: &PoolId) -> Result<(), Failure> {
    let path = format!("/pool/{pool}");
    let held = client.permissions(&path).await?;
    match SIGHT.iter().find(|wanted| !held.contains(**wanted)) {
        None => Ok(()),
        Some(lacking) => Failure::refused(format!(
            "{lacking} on {path} is missing: an empty pool says nothing"
        )),
    }
}

async fn one(
    client: &Client,
    seen: &Resources,
    former: &Former,
    control: VmId,
) -> Result<(), Failure> {
    let vmid = former.vmid;
    let listed = seen.guests.entries.iter().find(|guest| guest.vmid == vmid);
    let evidence = if let Some(guest) = listed {
        let Some(wanted) = &former.uuid else {
            return Failure::refused(format!(
                "a guest has the VMID {vmid}: say --vm {vmid}:<UUID> of the one that the tenant had"
            ));
        };
        if guest.kind == GuestKind::Qemu {
            let at = VmRef {
                pve_node: guest.pve_node.clone(),
                vmid,
            };
            let has = client.vm_config(&at).await?.smbios_uuid();
            if has.is_none_or(|has| has == *wanted) {
                return Failure::refused(format!(
                    "VM {vmid} is there still, or its UUID can't be read"
                ));
            }
        }
        Evidence {
            listed: Listed::Stranger,
            asked: None,
            control: None,
        }
    } else {
        let absence = client.absence(vmid, control).await?;
        if !absence.majority {
            return Failure::refused(
                "the endpoint does not see most of the hosts: what it says of guests proves nothing",
            );
        }
        Evidence {
            listed: Listed::Nobody,
            asked: Some(absence.asked),
            control: Some(absence.control),
        }
    };
    match gone::judge(evidence) {
        Verdict::Gone => Ok(()),
        Verdict::Invisible => Failure::refused(format!(
            "a guest has the VMID {vmid} and can't be seen: with the operator's rights, and its UUID, it can be told whose it is"
        )),
        Verdict::Unproved(why) => Failure::refused(format!("VM {vmid} is not proved gone: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_by_its_number_and_maybe_its_uuid() {
        let named: Former = "101".parse().unwrap();
        assert_eq!(named.uuid, None);
        let named: Former = "101:00000000-0000-4000-a000-000000000101".parse().unwrap();
        assert!(named.uuid.is_some());
        for wrong in [
            "",
            "99",
            "101:",
            "101:x",
            "x:00000000-0000-4000-a000-000000000101",
        ] {
            assert!(wrong.parse::<Former>().is_err(), "{wrong}");
        }
    }
}
