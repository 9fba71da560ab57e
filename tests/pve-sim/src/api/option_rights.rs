//! Which privilege each option of a VM's config needs (`Qemu.pm` `check_vm_modify_config_perm`). Drives are looked at elsewhere.

use crate::acl::{self, Who};
use crate::drive;
use crate::fail::Fail;
use crate::state::State;

/// Whose VM it is: its own path, or for one that is to be made the pool that it shall be in.
pub(super) struct Place<'a> {
    pub(super) vmid: &'a str,
    pub(super) pool: Option<&'a str>,
}

impl Place<'_> {
    /// `check_vm_perm`: rights on the pool count as well.
    pub(super) fn need(
        &self,
        state: &State,
        who: &Who,
        wanted: &[&str],
        any: bool,
    ) -> Result<(), Fail> {
        let check = |path: &str| {
            if any {
                acl::need_any(state, who, path, wanted)
            } else {
                acl::need_all(state, who, path, wanted)
            }
        };
        match self.pool {
            Some(pool) if check(&format!("/pool/{pool}")).is_ok() => Ok(()),
            _ => check(&format!("/vms/{}", self.vmid)),
        }
    }
}

fn numbered(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).and_then(drive::index).is_some()
}

/// What an option needs.
enum Need {
    /// It is checked where its value is looked at.
    Elsewhere,
    All(&'static [&'static str]),
    Any(&'static [&'static str]),
    /// Only the ticket of root@pam.
    Root,
}

fn need(key: &str) -> Need {
    let values = ["unused", "serial", "usb", "hostpci", "virtiofs"];
    if drive::slot(key).is_some()
        || ["cdrom", "efidisk0", "tpmstate0"].contains(&key)
        || values.iter().any(|prefix| numbered(key, prefix))
    {
        return Need::Elsewhere;
    }
    match key {
        "cores" | "cpu" | "cpulimit" | "cpuunits" | "numa" | "smp" | "sockets" | "vcpus" => {
            Need::All(&["VM.Config.CPU"])
        }
        _ if numbered(key, "numa") => Need::All(&["VM.Config.CPU"]),
        "memory" | "balloon" | "shares" | "allow-ksm" => Need::All(&["VM.Config.Memory"]),
        "acpi" | "hotplug" | "kvm" | "machine" | "scsihw" | "smbios1" | "tablet" | "vga"
        | "watchdog" | "audio0" | "rng0" => Need::All(&["VM.Config.HWType"]),
        // PVE compares the tags themselves; without rules of the cluster about them it comes to this.
        "agent" | "autostart" | "bios" | "description" | "keyboard" | "localtime"
        | "migrate_downtime" | "migrate_speed" | "name" | "onboot" | "ostype" | "protection"
        | "reboot" | "startdate" | "startup" | "tdf" | "template" | "tags" => {
            Need::All(&["VM.Config.Options"])
        }
        "freeze" => Need::All(&["VM.PowerMgmt"]),
        "boot" | "bootdisk" | "vmstatestorage" => Need::All(&["VM.Config.Disk"]),
        "running-nets-host-mtu" => Need::All(&["VM.Config.Network"]),
        _ if numbered(key, "net") => Need::All(&["VM.Config.Network"]),
        "cicustom" | "cipassword" | "citype" | "ciuser" | "ciupgrade" | "nameserver"
        | "searchdomain" | "sshkeys" => Need::Any(CLOUD_INIT),
        _ if numbered(key, "ipconfig") => Need::Any(CLOUD_INIT),
        "vmstate" => Need::All(&["VM.Config.Disk", "VM.PowerMgmt"]),
        _ => Need::Root,
    }
}

const CLOUD_INIT: &[&str] = &["VM.Config.Cloudinit", "VM.Config.Network"];

/// Checks the options one after the other.
pub(super) fn check<'a>(
    state: &State,
    who: &Who,
    place: &Place<'_>,
    keys: impl Iterator<Item = &'a String>,
) -> Result<(), Fail> {
    if who.is_root() {
        return Ok(());
    }
    for key in keys {
        match need(key) {
            Need::Elsewhere => {}
            Need::All(wanted) => place.need(state, who, wanted, false)?,
            Need::Any(wanted) => place.need(state, who, wanted, true)?,
            Need::Root => return Err(Fail::die(format!("only root can set '{key}' config"))),
        }
        if key == "startup" {
            acl::need_all(state, who, "/", &["Sys.Modify"])?;
        }
    }
    Ok(())
}

/// Options that stand for a device of the host are root's; what QEMU provides itself needs the hardware privilege.
pub(super) fn check_devices<'a>(
    state: &State,
    who: &Who,
    place: &Place<'_>,
    set: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<(), Fail> {
    for (key, value) in set.filter(|_| !who.is_root()) {
        let own = match key.as_str() {
            key if numbered(key, "serial") => value == "socket",
            key if numbered(key, "usb") => {
                let host = value.strip_prefix("host=").unwrap_or(value);
                host.split(',')
                    .next()
                    .is_some_and(|host| host.eq_ignore_ascii_case("spice"))
            }
            key if numbered(key, "hostpci") => {
                return Err(Fail::die(format!(
                    "only root can set '{key}' config for non-mapped devices"
                )));
            }
            _ => continue,
        };
        if !own {
            return Err(Fail::die(format!(
                "only root can set '{key}' config for real devices"
            )));
        }
        place.need(state, who, &["VM.Config.HWType"], false)?;
    }
    Ok(())
}
