//! Mount options of a `StorageClass` as the kernel takes them: flags of mount(2) and options of ext4.
//!
//! An allow-list: an option may name a device or another file system (`journal_path`, `loop`, `bind`), and the
//! tenant writes them.

use nix::mount::MsFlags;

use crate::host::{Access, Medium};
use crate::mountinfo::Mount;

/// Options that are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    flags: MsFlags,
    data: Vec<String>,
}

/// An option that is not on the list. Its words are for the person who wrote the `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mount option {0:?} is not offered")]
pub struct UnknownOption(String);

const FLAGS: [(&str, MsFlags, Switch); 17] = [
    ("ro", MsFlags::MS_RDONLY, Switch::On),
    ("rw", MsFlags::MS_RDONLY, Switch::Off),
    ("nosuid", MsFlags::MS_NOSUID, Switch::On),
    ("suid", MsFlags::MS_NOSUID, Switch::Off),
    ("nodev", MsFlags::MS_NODEV, Switch::On),
    ("dev", MsFlags::MS_NODEV, Switch::Off),
    ("noexec", MsFlags::MS_NOEXEC, Switch::On),
    ("exec", MsFlags::MS_NOEXEC, Switch::Off),
    ("sync", MsFlags::MS_SYNCHRONOUS, Switch::On),
    ("async", MsFlags::MS_SYNCHRONOUS, Switch::Off),
    ("dirsync", MsFlags::MS_DIRSYNC, Switch::On),
    ("noatime", MsFlags::MS_NOATIME, Switch::On),
    ("nodiratime", MsFlags::MS_NODIRATIME, Switch::On),
    ("relatime", MsFlags::MS_RELATIME, Switch::On),
    ("strictatime", MsFlags::MS_STRICTATIME, Switch::On),
    ("lazytime", MsFlags::MS_LAZYTIME, Switch::On),
    ("defaults", MsFlags::empty(), Switch::On),
];

/// Options of ext4 (kernel `Documentation/admin-guide/ext4.rst`) with what their values are made of.
const EXT4: [(&str, Value); 25] = [
    ("acl", Value::None),
    ("noacl", Value::None),
    ("user_xattr", Value::None),
    ("nouser_xattr", Value::None),
    ("barrier", Value::OptionalNumber),
    ("nobarrier", Value::None),
    ("auto_da_alloc", Value::OptionalNumber),
    ("noauto_da_alloc", Value::None),
    ("delalloc", Value::None),
    ("nodelalloc", Value::None),
    ("discard", Value::None),
    ("nodiscard", Value::None),
    ("journal_checksum", Value::None),
    ("nojournal_checksum", Value::None),
    ("journal_async_commit", Value::None),
    ("dioread_nolock", Value::None),
    ("dioread_lock", Value::None),
    ("init_itable", Value::OptionalNumber),
    ("noinit_itable", Value::None),
    ("commit", Value::Number),
    ("stripe", Value::Number),
    ("min_batch_time", Value::Number),
    ("max_batch_time", Value::Number),
    ("data", Value::OneOf(&["journal", "ordered", "writeback"])),
    ("errors", Value::OneOf(&["continue", "remount-ro"])),
];

#[derive(Debug, Clone, Copy)]
enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    None,
    Number,
    OptionalNumber,
    OneOf(&'static [&'static str]),
}

// === impl MountOptions ===

impl MountOptions {
    /// Reads `mount_flags`: one option each.
    pub fn parse(options: &[String]) -> Result<Self, UnknownOption> {
        let mut parsed = Self {
            flags: MsFlags::empty(),
            data: Vec::new(),
        };
        for option in options {
            if let Some((_, flag, switch)) = FLAGS.iter().find(|(name, ..)| name == option) {
                match switch {
                    Switch::On => parsed.flags.insert(*flag),
                    Switch::Off => parsed.flags.remove(*flag),
                }
            } else if is_ext4(option) {
                parsed.data.push(option.clone());
            } else {
                let shown = option
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(64)
                    .collect();
                return Err(UnknownOption(shown));
            }
        }
        Ok(parsed)
    }

    /// Whether the file system is to be writable.
    pub fn access(&self) -> Access {
        if self.flags.contains(MsFlags::MS_RDONLY) {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }

    /// Flags of mount(2). On an SSD access times are not written unless asked for.
    pub fn flags(&self, medium: Medium) -> MsFlags {
        let atime = MsFlags::MS_NOATIME | MsFlags::MS_RELATIME | MsFlags::MS_STRICTATIME;
        match medium {
            Medium::Solid if !self.flags.intersects(atime) => self.flags | MsFlags::MS_NOATIME,
            Medium::Solid | Medium::Rotating => self.flags,
        }
    }

    /// Options of the file system. Errors stop writing unless told otherwise.
    pub fn data(&self) -> String {
        let mut data = self.data.clone();
        if !data.iter().any(|option| option.starts_with("errors=")) {
            data.push("errors=remount-ro".to_owned());
        }
        data.join(",")
    }
}

fn is_ext4(option: &str) -> bool {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let number = |value: &str| {
        !value.is_empty() && value.len() <= 9 && value.bytes().all(|b| b.is_ascii_digit())
    };
    EXT4.iter()
        .find(|(known, _)| *known == name)
        .is_some_and(|(_, kind)| match (kind, value) {
            (Value::None | Value::OptionalNumber, None) => true,
            (Value::Number | Value::OptionalNumber, Some(value)) => number(value),
            (Value::OneOf(words), Some(value)) => words.contains(&value),
            (Value::None, Some(_)) | (Value::Number | Value::OneOf(_), None) => false,
        })
}

/// The per-mount flags of an existing mount: a bind that is remounted loses those that are not repeated.
pub fn per_mount_flags(mount: &Mount) -> MsFlags {
    let per_mount = [
        "nosuid",
        "nodev",
        "noexec",
        "noatime",
        "nodiratime",
        "relatime",
    ];
    FLAGS
        .iter()
        .filter(|(name, ..)| per_mount.contains(name) && mount.has_option(name))
        .fold(MsFlags::empty(), |all, (_, flag, _)| all | *flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<MountOptions, UnknownOption> {
        MountOptions::parse(&options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn known_options_become_flags_and_data() {
        let options = parse(&["ro", "nosuid", "discard", "commit=30", "barrier=0", "rw"]).unwrap();
        assert_eq!(options.flags(Medium::Rotating), MsFlags::MS_NOSUID);
        assert_eq!(
            options.data(),
            "discard,commit=30,barrier=0,errors=remount-ro"
        );
        assert_eq!(parse(&["ro"]).unwrap().access(), Access::ReadOnly);
        assert_eq!(
            parse(&["errors=continue"]).unwrap().data(),
            "errors=continue"
        );
    }

    #[test]
    fn an_ssd_gets_noatime_unless_something_else_was_asked_for() {
        let none = parse(&[]).unwrap();
        assert_eq!(none.flags(Medium::Solid), MsFlags::MS_NOATIME);
        assert_eq!(none.flags(Medium::Rotating), MsFlags::empty());
        let asked = parse(&["strictatime"]).unwrap();
        assert_eq!(asked.flags(Medium::Solid), MsFlags::MS_STRICTATIME);
    }

    #[test]
    fn options_that_could_reach_elsewhere_are_refused() {
        for bad in [
            "",
            "bind",
            "rbind",
            "remount",
            "move",
            "loop",
            "noatime,bind",
            "discard,journal_path=/dev/sda",
            "journal_path=/dev/sda",
            "journal_dev=0x801",
            "commit=",
            "commit=1,ro",
            "commit=-1",
            "data=",
            "data=ordered,ro",
            "errors=panic",
            "discard=1",
            "context=system_u:object_r:x",
            "x-systemd.automount",
            "noatime\n",
        ] {
            assert!(parse(&[bad]).is_err(), "{bad:?}");
        }
    }
}
