//! What must hold of any mount table that is read: for tests here, and for the target under `fuzz/`.

#![expect(
    clippy::missing_panics_doc,
    reason = "a check panics where something does not hold"
)]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mountinfo::{self, Mount, Spread};

/// A table that is accepted has one mount for each of its lines, in their order, and each can be written as the kernel
/// would, and read again.
pub fn mountinfo(table: &[u8]) {
    let lines: Vec<&[u8]> = table
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    let mounts = match mountinfo::parse(table) {
        Ok(mounts) => mounts,
        Err(error) => {
            let bad = table.split(|b| *b == b'\n').nth(error.0.wrapping_sub(1));
            assert!(
                bad.is_some_and(|line| mountinfo::parse(line).is_err()),
                "{error}"
            );
            return;
        }
    };
    assert_eq!(mounts.len(), lines.len(), "a line was dropped");
    for (mount, line) in mounts.iter().zip(&lines) {
        assert_eq!(
            mountinfo::parse(line).as_deref(),
            Ok(std::slice::from_ref(mount)),
            "alone"
        );
        let written = write(mount);
        let again = mountinfo::parse(&written);
        assert_eq!(
            again.as_deref(),
            Ok(std::slice::from_ref(mount)),
            "{written:?}"
        );
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let point = fields.get(4).copied().unwrap_or_default();
        assert!(
            mount.point.as_os_str().len() <= point.len(),
            "longer than what was escaped"
        );
        let mut optional = fields.iter().skip(6).take_while(|field| **field != b"-");
        let shared = optional.any(|field| field.starts_with(b"shared:"));
        assert_eq!(mount.spread == Spread::Shared, shared);
        if mount.filesystem_is_read_only() || mount.has_option("ro") {
            assert!(mount.is_read_only());
        }
        paths(&mounts, &mount.point);
    }
}

fn paths(mounts: &[Mount], point: &Path) {
    let exact = mountinfo::at(mounts, point);
    let count = mounts.iter().filter(|mount| mount.point == point).count();
    assert_eq!(exact.len(), count);
    let holder = mountinfo::holding(mounts, point);
    assert_eq!(
        holder,
        exact.last().copied(),
        "what is mounted there holds it"
    );
}

/// A line with this mount; the fields that are not read are made up (`fs/proc_namespace.c: show_mountinfo`).
fn write(mount: &Mount) -> Vec<u8> {
    let mut line = format!("1 2 {}:{} ", mount.number.major, mount.number.minor).into_bytes();
    for path in [&mount.root, &mount.point] {
        line.extend(mangled(path));
        line.push(b' ');
    }
    line.extend(mount.options.as_bytes());
    line.extend(
        match mount.spread {
            Spread::Shared => " shared:1 - ",
            Spread::Private => " - ",
        }
        .as_bytes(),
    );
    line.extend(mount.kind.as_bytes());
    line.push(b' ');
    line.extend(mangled(&mount.source));
    line.push(b' ');
    line.extend(mount.super_options.as_bytes());
    line
}

fn mangled(path: &Path) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
        _ => vec![*byte],
    };
    path.as_os_str()
        .as_bytes()
        .iter()
        .flat_map(escape)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    #[test]
    fn the_corpus_of_mount_tables_holds_and_some_of_it_is_accepted() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/mountinfo");
        let mut accepted = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let table = std::fs::read(file.unwrap().path()).unwrap();
            mountinfo(&table);
            accepted +=
                usize::from(mountinfo::parse(&table).is_ok_and(|mounts| !mounts.is_empty()));
        }
        assert!(accepted >= 8, "{accepted}");
    }

    proptest! {
        #[test]
        fn what_looks_like_a_mount_table_is_refused_or_kept(
            lines in proptest::collection::vec(
                "[0-9]{1,3} [0-9]{1,3} [0-9]{1,11}:[0-9+]{1,3} (/[a-z]{0,3}){1,2} (/[a-z#\\\\0-9]{0,5}){1,3} (ro|rw)(,[a-z=]{0,4})?( shared:[0-9]| master:[0-9]| x){0,2} - [a-z0-9]{0,4} [a-z/\\\\0-9]{0,6} (ro|rw|emergency_ro)?",
                0..4,
            ),
            between in proptest::sample::select(vec!["\n", "\n\n", "\n \n"]),
        ) {
            mountinfo(lines.join(between).as_bytes());
        }

        #[test]
        fn no_bytes_break_a_mount_table(table in proptest::collection::vec(any::<u8>(), 0..200)) {
            mountinfo(&table);
        }
    }
}
