//! The options of a VM's config: what each must be, which privilege changes it, which a running VM takes at once.

use crate::drive;
use crate::schema::Kind;

const INTEGERS: &[&str] = &[
    "cores",
    "sockets",
    "vcpus",
    "balloon",
    "shares",
    "cpuunits",
    "migrate_downtime",
    "migrate_speed",
    "smp",
];
const FLAGS: &[&str] = &[
    "onboot",
    "protection",
    "kvm",
    "acpi",
    "autostart",
    "freeze",
    "localtime",
    "numa",
    "reboot",
    "tablet",
    "tdf",
    "template",
    "ciupgrade",
];
const TEXTS: &[&str] = &[
    "agent",
    "affinity",
    "amd-sev",
    "arch",
    "args",
    "audio0",
    "bios",
    "boot",
    "bootdisk",
    "cdrom",
    "cicustom",
    "cipassword",
    "citype",
    "ciuser",
    "cpu",
    "cpulimit",
    "description",
    "efidisk0",
    "hookscript",
    "hotplug",
    "hugepages",
    "intel-tdx",
    "ivshmem",
    "keephugepages",
    "keyboard",
    "lock",
    "machine",
    "nameserver",
    "ostype",
    "rng0",
    "searchdomain",
    "smbios1",
    "spice_enhancements",
    "sshkeys",
    "startdate",
    "startup",
    "tags",
    "tpmstate0",
    "vga",
    "vmgenid",
    "vmstatestorage",
    "watchdog",
    "allow-ksm",
    "import-working-storage",
    "running-nets-host-mtu",
];
const NUMBERED: &[(&str, u32)] = &[
    ("net", 32),
    ("hostpci", 16),
    ("serial", 4),
    ("parallel", 3),
    ("usb", 14),
    ("numa", 8),
    ("ipconfig", 32),
    ("virtiofs", 10),
];
const SCSI_CONTROLLERS: &[&str] = &[
    "lsi",
    "lsi53c810",
    "virtio-scsi-pci",
    "virtio-scsi-single",
    "megasas",
    "pvscsi",
];

/// Schema of an option; `None` if there is no such option.
pub(crate) fn kind(name: &str) -> Option<Kind> {
    if drive::slot(name).is_some() {
        return Some(Kind::Drive);
    }
    if drive::is_unused(name) {
        return Some(Kind::UnusedVolume);
    }
    Some(match name {
        "name" => Kind::DnsName,
        "memory" => Kind::Memory,
        "scsihw" => Kind::Enum(SCSI_CONTROLLERS),
        _ if INTEGERS.contains(&name) => Kind::Int {
            min: 0,
            max: i64::MAX,
        },
        _ if FLAGS.contains(&name) => Kind::Bool,
        _ if TEXTS.contains(&name) || numbered(name) => Kind::Str,
        _ => return None,
    })
}

fn numbered(name: &str) -> bool {
    NUMBERED.iter().any(|(prefix, count)| {
        name.strip_prefix(prefix)
            .and_then(drive::index)
            .is_some_and(|n| n < *count)
    })
}

/// Whether the config's value is a number for JSON (integers and booleans are, everything else is a string).
pub(crate) fn is_number(name: &str) -> bool {
    INTEGERS.contains(&name) || FLAGS.contains(&name)
}

/// The privilege that an option other than a drive needs (`check_vm_modify_config_perm`).
pub(crate) fn privilege(name: &str) -> &'static str {
    match name {
        "cores" | "sockets" | "cpu" | "vcpus" | "cpulimit" | "cpuunits" | "numa" | "smp"
        | "affinity" => "VM.Config.CPU",
        "memory" | "balloon" | "shares" | "hugepages" | "keephugepages" | "allow-ksm" => {
            "VM.Config.Memory"
        }
        "boot" | "bootdisk" | "cicustom" | "vmstatestorage" => "VM.Config.Disk",
        "nameserver" | "searchdomain" => "VM.Config.Network",
        "ciuser" | "cipassword" | "citype" | "sshkeys" | "ciupgrade" => "VM.Config.Cloudinit",
        "acpi" | "machine" | "scsihw" | "watchdog" | "vga" | "bios" | "kvm" | "arch" | "audio0"
        | "rng0" | "tablet" | "smbios1" | "vmgenid" | "efidisk0" | "tpmstate0" => {
            "VM.Config.HWType"
        }
        _ if name.starts_with("net") || name.starts_with("ipconfig") => "VM.Config.Network",
        _ if ["usb", "hostpci", "serial", "parallel", "numa"]
            .iter()
            .any(|p| name.starts_with(p)) =>
        {
            "VM.Config.HWType"
        }
        _ => "VM.Config.Options",
    }
}

/// Options that a running VM takes without its QEMU (`$fast_plug_option`).
pub(crate) fn is_fast(name: &str) -> bool {
    [
        "lock",
        "name",
        "onboot",
        "shares",
        "startup",
        "description",
        "protection",
        "vmstatestorage",
        "hookscript",
        "tags",
        "meta",
    ]
    .contains(&name)
        || name == "hotplug"
}
