//! `/proc/self/mountinfo`: what is really mounted where (`proc_pid_mountinfo(5)`).
//!
//! Pure: it reads text, and knows neither volumes nor system calls.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::device_number::DeviceNumber;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Device of the file system.
    pub number: DeviceNumber,
    /// Which part of the file system is mounted: `/` unless it is a bind of a part.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Whether mounts below it are seen in other mount namespaces.
    pub spread: Spread,
    /// Options of this mount.
    pub options: String,
    /// The kernel's name of the file system.
    pub kind: String,
    /// What it was mounted from, as the one who mounted it said.
    pub source: PathBuf,
    /// Options of the file system, common to all its mounts.
    pub super_options: String,
}

/// Whether what is mounted below a mount shows up elsewhere (kernel `Documentation/filesystems/sharedsubtree.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// It does.
    Shared,
    /// It stays in this mount namespace.
    Private,
}

/// The line that is not of the form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {0} of the mount table has an unexpected form")]
pub struct MalformedLine(pub usize);

impl Mount {
    /// Whether this mount or its file system is read-only.
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro") || self.filesystem_is_read_only()
    }

    /// Whether the file system is read-only for everyone, as ext4 becomes after errors. Linux shows `emergency_ro`
    /// for it since 6.15, `ro` before (`fs/ext4/super.c: _ext4_show_options`).
    pub fn filesystem_is_read_only(&self) -> bool {
        self.has_stopped() || self.super_options.split(',').any(|option| option == "ro")
    }

    /// Whether the file system says of itself that it is read-only after errors, and not because it was asked to be.
    pub fn has_stopped(&self) -> bool {
        let stopped = |option| matches!(option, "emergency_ro" | "shutdown");
        self.super_options.split(',').any(stopped)
    }

    /// Whether this mount has the option.
    pub fn has_option(&self, wanted: &str) -> bool {
        self.options.split(',').any(|option| option == wanted)
    }
}

/// Reads the whole table.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, MalformedLine> {
    text.split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| parse_line(line).ok_or(MalformedLine(index + 1)))
        .collect()
}

/// What is mounted exactly at `path`, the topmost last.
pub fn at<'a>(mounts: &'a [Mount], path: &Path) -> Vec<&'a Mount> {
    mounts.iter().filter(|mount| mount.point == path).collect()
}

/// The mount that holds `path`, which is resolved.
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let holders = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    holders.max_by_key(|mount| mount.point.components().count())
}

/// `id parent major:minor root point options [optional…] - kind source super_options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = text(fields.nth(2)?).parse().ok()?;
    let root = path(fields.next()?);
    let point = path(fields.next()?);
    let options = text(fields.next()?);
    let mut spread = Spread::Private;
    loop {
        match fields.next()? {
            b"-" => break,
            field if field.starts_with(b"shared:") => spread = Spread::Shared,
            _ => {}
        }
    }
    Some(Mount {
        number,
        root,
        point,
        spread,
        options,
        kind: text(fields.next()?),
        source: path(fields.next()?),
        super_options: text(fields.next()?),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// The kernel writes space, tab, newline, backslash and `#` as `\` and three octal digits
/// (`fs/proc_namespace.c: mangle`).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(byte) = octal(rest) {
            plain.push(byte);
            rest = rest.get(4..).unwrap_or_default();
        } else {
            plain.push(*first);
            rest = tail;
        }
    }
    plain
}

fn octal(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"\\")?.get(..3)?;
    if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw\n\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
40 27 8:16 / /var/lib/kubelet/a\\040b rw,noatime shared:4 master:1 propagate_from:2 - ext4 /dev/sdb rw,errors=remount-ro\n\
41 40 8:32 / /var/lib/kubelet/a\\040b ro,relatime - ext4 /dev/sdc ro\n";

    #[test]
    fn every_field_is_read_and_optional_ones_are_skipped() {
        let mounts = parse(TABLE).unwrap();
        assert_eq!(mounts.len(), 4);
        let staged = &mounts[2];
        assert_eq!(
            staged.number,
            DeviceNumber {
                major: 8,
                minor: 16
            }
        );
        assert_eq!(staged.point, Path::new("/var/lib/kubelet/a b"));
        assert_eq!(staged.source, Path::new("/dev/sdb"));
        assert_eq!(
            (staged.kind.as_str(), staged.root.to_str()),
            ("ext4", Some("/"))
        );
        assert!(staged.has_option("noatime") && !staged.has_option("relatime"));
        assert!(!staged.is_read_only());
        assert!(mounts[3].is_read_only() && mounts[3].filesystem_is_read_only());
        let stopped = parse(b"1 2 8:16 / /x rw - ext4 /dev/sdb rw,emergency_ro\n").unwrap();
        assert!(stopped[0].is_read_only());
    }

    #[test]
    fn only_the_exact_path_counts_and_the_topmost_comes_last() {
        let mounts = parse(TABLE).unwrap();
        let stacked = at(&mounts, Path::new("/var/lib/kubelet/a b"));
        assert_eq!(stacked.len(), 2);
        assert_eq!(stacked[1].source, Path::new("/dev/sdc"));
        assert!(at(&mounts, Path::new("/var/lib/kubelet")).is_empty());
        assert_eq!(holding(&mounts, Path::new("/var/lib")), Some(&mounts[1]));
        assert_eq!(
            holding(&mounts, Path::new("/var/lib/kubelet/a b/c")),
            Some(&mounts[3])
        );
        assert_eq!(
            (mounts[1].spread, mounts[3].spread),
            (Spread::Shared, Spread::Private)
        );
        assert!(at(&mounts, Path::new("/var/lib/kubelet/a b/c")).is_empty());
    }

    #[test]
    fn a_line_of_another_form_is_an_error_that_names_it() {
        assert_eq!(
            parse(b"\n1 2 0:1 / /x rw - a b c\n1 2 zero / /y rw - a b c\n"),
            Err(MalformedLine(3))
        );
        assert_eq!(parse(b"1 2 0:1 / /x rw shared:1\n"), Err(MalformedLine(1)));
    }

    proptest! {
        #[test]
        fn what_the_kernel_escapes_comes_back(name in "[ -~\\t\\n]{1,40}") {
            let mangled: String = name.bytes().map(|byte| match byte {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}"),
                _ => char::from(byte).to_string(),
            }).collect();
            prop_assert_eq!(unescape(mangled.as_bytes()), name.as_bytes());
        }

        #[test]
        fn no_text_makes_it_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(parse(&text));
        }
    }
}
