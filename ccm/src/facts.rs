//! What a VM's config says about its Node: identity, size, free slots, hardware and static addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use pve_client::{Drive, VmConfig};
use pve_model::{DiskName, Slot, Uuid};
use pve_runtime::config::RegionPolicy;

/// `net0` to `net31` (`QemuServer.pm` `$MAX_NETS`).
const NETS: u8 = 32;
/// Memory of a VM whose config does not say it (`QemuServer/Memory.pm`).
const DEFAULT_MIB: u64 = 512;
/// Longest value of a label (`k8s.io/apimachinery/pkg/util/validation`).
const LABEL_MAX: usize = 63;

/// What a Node takes from the config of its VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmFacts {
    /// The identity of the VM, if it has one.
    pub uuid: Option<Uuid>,
    /// The SKU of `smbios1` if it can be a label's value, else the size as `4VCPU-8GB`.
    pub instance_type: String,
    /// How many volumes of ours the VM can hold at once, those that it holds included; never 0.
    pub attach_limit: u8,
    /// Hardware addresses in lower case, by the number of the `netN`.
    pub macs: BTreeMap<u8, String>,
    /// Addresses that cloud-init sets, in the order of the interfaces, IPv4 first.
    pub fixed: Vec<IpAddr>,
}

impl VmFacts {
    /// Reads the config; `policy` tells which disks are volumes of ours.
    pub fn of(config: &VmConfig, policy: &RegionPolicy) -> Self {
        let sku = config.get("smbios1").and_then(sku);
        Self {
            uuid: config.smbios_uuid(),
            instance_type: sku.unwrap_or_else(|| size(config)),
            attach_limit: attach_limit(config, policy),
            macs: macs(config),
            fixed: fixed(config),
        }
    }
}

/// Whether a label's value, or the name in its key after the `/`, may be this.
pub(crate) fn fits_label(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= LABEL_MAX
        && ends(text.bytes().next())
        && ends(text.bytes().next_back())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// An option of a property string, split at `,` and then at the first `=` (`JSONSchema.pm` `parse_property_string`).
fn property<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    properties(text).find_map(|(name, value)| (name == key).then_some(value))
}

/// The options of a property string; one without a key has an empty key.
fn properties(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',')
        .map(|part| part.split_once('=').unwrap_or(("", part)))
        .map(|(key, value)| (key.trim(), value.trim()))
}

/// With `base64=1` all texts of `smbios1` are encoded (`QemuServer.pm` `$smbios1_fmt`).
fn sku(smbios: &str) -> Option<String> {
    let text = property(smbios, "sku")?;
    let encoded = matches!(
        property(smbios, "base64"),
        Some("1" | "on" | "yes" | "true")
    );
    let sku = if encoded {
        // Perl's `decode_base64` asks for no padding.
        let lenient = GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true);
        let bytes = GeneralPurpose::new(&STANDARD, lenient).decode(text);
        String::from_utf8(bytes.ok()?).ok()?
    } else {
        text.to_owned()
    };
    fits_label(&sku).then_some(sku)
}

fn size(config: &VmConfig) -> String {
    let number = |key: &str| config.get(key)?.trim().parse::<u64>().ok();
    let set = |key: &str| number(key).filter(|number| *number > 0);
    let all = || {
        let cores = set("cores").unwrap_or(1);
        cores.saturating_mul(set("sockets").unwrap_or(1))
    };
    let cpus = set("vcpus").unwrap_or_else(all);
    match memory(config) {
        mib if mib < 1024 => format!("{cpus}VCPU-{mib}MB"),
        mib => format!("{cpus}VCPU-{}GB", mib / 1024),
    }
}

/// MiB that the VM starts with: `2048`, or `current=2048` since PVE 8.1.
fn memory(config: &VmConfig) -> u64 {
    let text = config.get("memory").unwrap_or_default();
    property(text, "current")
        .or_else(|| property(text, ""))
        .and_then(|mib| mib.parse().ok())
        .filter(|mib| *mib > 0)
        .unwrap_or(DEFAULT_MIB)
}

/// `scsi0` is the boot disk's by custom and never given to a volume.
fn attach_limit(config: &VmConfig, policy: &RegionPolicy) -> u8 {
    let boot = boot_order(config);
    let usable = |slot: &Slot| match config.drives().get(slot) {
        Some(drive) => is_ours(drive, policy),
        // What is put into an empty slot of the boot order would be booted from, and is never unplugged.
        None => !boot.contains(slot),
    };
    let count = Slot::all_scsi().skip(1).filter(usable).count();
    u8::try_from(count).unwrap_or(u8::MAX).max(1)
}

fn is_ours(drive: &Drive, policy: &RegionPolicy) -> bool {
    if drive.get("media") == Some("cdrom") {
        return false;
    }
    let disk = drive.volid().split_once(':');
    let disk = disk.and_then(|(_, disk)| disk.parse::<DiskName>().ok());
    disk.is_some_and(|disk| policy.is_owner(disk.owner()))
        || policy
            .adopted
            .iter()
            .any(|volume| drive.is_of(&volume.volid()))
}

/// `boot: order=scsi0;net0`, and `bootdisk: scsi0` of older configs (`QemuServer.pm` `bootorder_from_legacy`).
fn boot_order(config: &VmConfig) -> Vec<Slot> {
    let order = property(config.get("boot").unwrap_or_default(), "order").unwrap_or_default();
    order
        .split(';')
        .chain(config.get("bootdisk"))
        .filter_map(|device| device.trim().parse().ok())
        .collect()
}

/// `virtio=BC:24:11:7F:89:CA,bridge=vmbr0`, or `model=virtio,macaddr=BC:24:11:7F:89:CA` (`QemuServer/Network.pm`).
fn macs(config: &VmConfig) -> BTreeMap<u8, String> {
    let mac = |net: u8| {
        let text = config.get(&format!("net{net}"))?;
        let (_, mac) = properties(text).find(|(_, value)| is_mac(value))?;
        Some((net, mac.to_ascii_lowercase()))
    };
    (0..NETS).filter_map(mac).collect()
}

fn is_mac(text: &str) -> bool {
    text.split(':').count() == 6
        && text
            .split(':')
            .all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// `ip=10.0.0.5/24,gw=10.0.0.1,ip6=auto`. What stands at an interface that the VM lacks is never set
/// (`QemuServer/Cloudinit.pm` goes by `netN`).
fn fixed(config: &VmConfig) -> Vec<IpAddr> {
    let of = |net: u8| {
        config.get(&format!("net{net}"))?;
        let text = config.get(&format!("ipconfig{net}"))?;
        Some(["ip", "ip6"].map(|key| address(property(text, key)?)))
    };
    (0..NETS).filter_map(of).flatten().flatten().collect()
}

/// None of `dhcp`, `auto` and `manual`.
fn address(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('/').unwrap_or((text, ""));
    address.parse().ok()
}

#[cfg(test)]
mod tests;
