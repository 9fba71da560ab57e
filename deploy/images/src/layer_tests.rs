use super::*;

fn entry(kind: Kind) -> Entry {
    Entry {
        mode: 0o755,
        owner: (0, 0),
        kind,
    }
}

/// An archive as a package has it, in an order of its own.
fn package(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_size(0);
        if *kind == EntryType::Regular {
            header.set_size(content.len() as u64);
            builder
                .append_data(&mut header, path, content.as_bytes())
                .unwrap();
        } else if *kind == EntryType::Directory {
            builder
                .append_data(&mut header, path, std::io::empty())
                .unwrap();
        } else {
            builder.append_link(&mut header, path, content).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

#[test]
fn the_same_files_make_the_same_bytes_whatever_their_order_and_times() {
    let mut first = Tree::default();
    first.put("/etc/a", 0o644, b"a".to_vec()).unwrap();
    first.put("/b", 0o755, b"b".to_vec()).unwrap();
    let mut second = Tree::default();
    second.put("b", 0o755, b"b".to_vec()).unwrap();
    second.put("etc/a", 0o644, b"a".to_vec()).unwrap();
    assert_eq!(first.tar().unwrap(), second.tar().unwrap());
    let tar = first.tar().unwrap();
    let mut archive = Archive::new(tar.as_slice());
    let mut paths = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.header().mtime().unwrap(), 0);
        paths.push(entry.path().unwrap().display().to_string());
    }
    assert_eq!(paths, ["b", "etc/", "etc/a"]);
}

#[test]
fn what_a_tree_writes_it_reads_again() {
    let mut tree = Tree::default();
    let long = format!("usr/share/{}/name", "a-long-name-".repeat(20));
    tree.put(&long, 0o644, b"text".to_vec()).unwrap();
    let more = [
        ("usr/a-link", Kind::Hardlink(long.clone())),
        ("usr/z-link", Kind::Symlink("../nowhere".to_owned())),
    ];
    tree.link("/etc/mtab", "../proc/self/mounts").unwrap();
    for (path, kind) in more {
        tree.add(path.to_owned(), entry(kind)).unwrap();
    }
    let mut again = Tree::default();
    again
        .unpack(tree.tar().unwrap().as_slice(), |_| true)
        .unwrap();
    assert_eq!(again.0, tree.0);
}

#[test]
fn a_hard_link_comes_after_what_it_names() {
    let mut tree = Tree::default();
    tree.add("a".to_owned(), entry(Kind::Hardlink("b".to_owned())))
        .unwrap();
    tree.put("b", 0o755, Vec::new()).unwrap();
    let tar = tree.tar().unwrap();
    let mut archive = Archive::new(tar.as_slice());
    let paths = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string());
    assert_eq!(paths.collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn what_lies_in_the_old_folders_goes_to_usr_and_the_links_stay() {
    let base = package(&[("./bin", EntryType::Symlink, "usr/bin")]);
    let old = package(&[
        ("./bin/", EntryType::Directory, ""),
        ("./bin/tool", EntryType::Regular, "x"),
        ("./bin/other", EntryType::Link, "./bin/tool"),
    ]);
    let mut tree = Tree::default();
    for archive in [&base, &old] {
        tree.unpack(archive.as_slice(), |_| true).unwrap();
    }
    assert_eq!(
        tree.get("bin").unwrap().kind,
        Kind::Symlink("usr/bin".to_owned())
    );
    assert_eq!(
        tree.get("usr/bin/tool").unwrap().kind,
        Kind::File(b"x".to_vec())
    );
    assert_eq!(
        tree.get("usr/bin/other").unwrap().kind,
        Kind::Hardlink("usr/bin/tool".to_owned())
    );
}

#[test]
fn two_packages_with_one_file_and_paths_that_lead_out_are_refused() {
    let mut tree = Tree::default();
    let one = package(&[("etc/a", EntryType::Regular, "1")]);
    let two = package(&[("etc/a", EntryType::Regular, "2")]);
    tree.unpack(one.as_slice(), |_| true).unwrap();
    tree.unpack(one.as_slice(), |_| true).unwrap();
    assert!(tree.unpack(two.as_slice(), |_| true).is_err());
    assert!(tree.put("/etc/../../a", 0o644, Vec::new()).is_err());
    let device = package(&[("dev/null", EntryType::Char, "-")]);
    assert!(tree.unpack(device.as_slice(), |_| true).is_err());
}
