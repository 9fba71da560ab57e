//! The options of a VM's config: what each must be, which privilege changes it, which a running VM takes at once.

use crate::drive;
use crate::endpoints::{self, Arg};

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
/// What an option's value is.
pub(crate) enum Shape {
    Drive,
    /// A volume that no drive uses.
    Unused,
    Memory,
    /// Anything else: as the table says.
    Plain(&'static Arg),
}

/// Shape of an option; `None` if there is no such option.
pub(crate) fn shape(name: &str) -> Option<Shape> {
    if drive::slot(name).is_some() {
        return Some(Shape::Drive);
    }
    if drive::is_unused(name) {
        return Some(Shape::Unused);
    }
    if name == "memory" {
        return Some(Shape::Memory);
    }
    let single = endpoints::vm_option(name);
    let one_of_many = || endpoints::vm_option(&many(name)?).filter(|_| numbered(name));
    single.or_else(one_of_many).map(Shape::Plain)
}

/// Numbered options (`net3`) stand once in the table.
fn many(name: &str) -> Option<String> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem != name).then(|| format!("{stem}[n]"))
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
    match shape(name) {
        Some(Shape::Plain(arg)) => ["integer", "boolean"].contains(&arg.kind.as_str()),
        _ => false,
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
