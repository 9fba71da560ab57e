use super::*;
use std::os::unix::fs::PermissionsExt as _;

/// A folder in memory, closed to others.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.path(), closed).unwrap();
    folder
}

fn files(pairs: &[(&str, &str)]) -> Files {
    let pair = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).into());
    pairs.iter().map(pair).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(GENERATION))
        .collect();
    names.sort();
    names
}

fn generations(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with(GENERATION)
        })
        .count()
}

#[test]
fn files_are_for_their_owner_alone_and_change_all_at_once() {
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    assert!(store.is_empty());
    assert!(store.put(&files(&[("a", "1"), ("b", "1")])).unwrap());
    assert!(!store.is_empty());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!((read("a"), read("b")), ("1".to_owned(), "1".to_owned()));
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(folder.path().join("a")), 0o600);
    assert_eq!(mode(folder.path().join(CURRENT)), 0o700);
    let before = std::fs::read_link(folder.path().join(CURRENT)).unwrap();
    assert!(!store.put(&files(&[("a", "1"), ("b", "1")])).unwrap());
    let same = std::fs::read_link(folder.path().join(CURRENT)).unwrap();
    assert_eq!(before, same);
    assert!(store.put(&files(&[("a", "2"), ("c", "2")])).unwrap());
    assert_eq!((read("a"), read("c")), ("2".to_owned(), "2".to_owned()));
    assert_eq!(names(folder.path()), ["..data", "a", "c"]);
    assert_eq!(generations(folder.path()), 1, "the former one is gone");
}

#[test]
fn nothing_changes_if_the_new_files_can_not_be_put_in_force() {
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    store.put(&files(&[("a", "1")])).unwrap();
    // Somebody else's file has the name.
    std::fs::write(folder.path().join("b"), "other").unwrap();
    let failed = store.put(&files(&[("a", "2"), ("b", "2")]));
    assert!(matches!(failed, Err(Trouble::Failed(_))), "{failed:?}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!((read("a"), read("b")), ("1".to_owned(), "other".to_owned()));
    assert_eq!(generations(folder.path()), 1);
}

#[test]
fn what_a_killed_process_left_does_not_stand_in_the_way() {
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    store.put(&files(&[("a", "1")])).unwrap();
    std::fs::create_dir(folder.path().join("..of-1")).unwrap();
    std::fs::write(folder.path().join("..of-1/a"), "half").unwrap();
    symlink("..of-1", folder.path().join(NEXT)).unwrap();
    assert!(store.put(&files(&[("a", "2")])).unwrap());
    assert_eq!(names(folder.path()), ["..data", "a"]);
    assert_eq!(generations(folder.path()), 1);
}

#[test]
fn a_reader_has_one_generation_of_all_files_however_often_they_change() {
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    store.put(&files(&[("a", "0"), ("b", "0")])).unwrap();
    let path = folder.path().to_owned();
    let reader = std::thread::spawn(move || {
        let mut seen = std::collections::BTreeSet::new();
        while !seen.contains("200") {
            let both = pve_runtime::swap::in_one_piece(&path, || {
                let read = |name: &str| std::fs::read_to_string(path.join(name));
                Ok::<_, io::Error>((read("a")?, read("b")?))
            });
            // A folder that changes all the time is no answer, and neither is one of which a part is gone.
            if let Ok(Ok((a, b))) = both {
                assert_eq!(a, b);
                seen.insert(a);
            }
        }
        seen.len()
    });
    for generation in 1..=200 {
        let text = generation.to_string();
        store.put(&files(&[("a", &text), ("b", &text)])).unwrap();
        std::thread::yield_now();
    }
    assert!(reader.join().unwrap() > 1);
}

#[test]
fn secrets_are_written_to_memory_alone_and_not_where_others_look() {
    let good = Facts {
        in_memory: true,
        is_folder: true,
        mode: 0o040_700,
        owned: true,
    };
    judge(good).unwrap();
    // Below a volume of a Pod with `fsGroup`: the group goes on to what is made in it.
    let mode = 0o042_700;
    judge(Facts { mode, ..good }).unwrap();
    let of_mode = |mode| Facts { mode, ..good };
    let (in_memory, is_folder, owned) = (false, false, false);
    for (bad, why) in [
        (Facts { in_memory, ..good }, "is not in memory"),
        (Facts { is_folder, ..good }, "is not a folder"),
        (Facts { owned, ..good }, "belongs to another user"),
        (of_mode(0o040_770), "is open to other users"),
        (of_mode(0o040_710), "is open to other users"),
        (of_mode(0o040_704), "is open to other users"),
        (of_mode(0o040_702), "is open to other users"),
        (of_mode(0o040_701), "is open to other users"),
        // `/run` of a host, and volumes of Pods.
        (of_mode(0o040_755), "is open to other users"),
        (of_mode(0o040_777), "is open to other users"),
        (of_mode(0o042_777), "is open to other users"),
        (of_mode(0o043_777), "is open to other users"),
    ] {
        let said = judge(bad).unwrap_err();
        assert!(said.starts_with(why), "{bad:?}: {said}");
    }
}

fn refused(path: &Path) -> String {
    match Store::open(path) {
        Err(Trouble::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_on_a_disk_or_open_to_others_is_refused() {
    let disk = Path::new(env!("CARGO_MANIFEST_DIR"));
    let why = refused(disk);
    assert!(why.contains("is not in memory"), "{why}");
    // A mount point, which as a tmpfs of its own would have been one Pod's alone.
    let why = refused(Path::new("/dev/shm"));
    let is_ours = std::fs::metadata("/dev/shm").unwrap().uid() == geteuid().as_raw();
    let wanted = if is_ours {
        "is open to other users"
    } else {
        "belongs to another user"
    };
    assert!(why.contains(wanted), "{why}");
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    for mode in [0o755, 0o710] {
        let open = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let why = refused(folder.path());
        assert!(why.contains("is open to other users"), "{why}");
    }
    let late = store.put(&files(&[("a", "1")]));
    assert!(matches!(late, Err(Trouble::Refused(_))), "{late:?}");
    assert!(store.is_empty());
}

#[test]
fn a_folder_that_is_not_there_is_made_for_its_owner_alone_where_it_is_in_memory() {
    let volume = folder();
    // The kubelet's, with `fsGroup`.
    let open = std::fs::Permissions::from_mode(0o3777);
    std::fs::set_permissions(volume.path(), open).unwrap();
    let folder = volume.path().join("files");
    let store = Store::open(&folder).unwrap();
    let mode = std::fs::metadata(&folder).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700, "{mode:o}");
    store.put(&files(&[("a", "1")])).unwrap();
    Store::open(&folder).unwrap();
    let deep = Store::open(&volume.path().join("not/there"));
    assert!(matches!(deep, Err(Trouble::Failed(_))), "{deep:?}");
    assert!(!volume.path().join("not").exists());
    let disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let why = refused(&disk.path().join("files"));
    assert!(why.contains("is not in memory"), "{why}");
    assert!(!disk.path().join("files").exists());
}

#[test]
fn what_stands_in_the_place_of_a_folder_is_refused() {
    let volume = folder();
    let place = volume.path().join("files");
    std::fs::write(&place, "").unwrap();
    assert!(refused(&place).contains("is not a folder"));
    std::fs::remove_file(&place).unwrap();
    let elsewhere = folder();
    symlink(elsewhere.path(), &place).unwrap();
    assert!(refused(&place).contains("is not a folder"));
    assert!(refused(&place.join("")).contains("is not a folder"));
}

#[test]
fn what_a_killed_process_left_goes_even_if_nothing_has_changed() {
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    store.put(&files(&[("a", "2")])).unwrap();
    std::fs::create_dir(folder.path().join("..of-1")).unwrap();
    std::fs::write(folder.path().join("..of-1/a"), "former").unwrap();
    assert!(!store.put(&files(&[("a", "2")])).unwrap());
    assert_eq!(generations(folder.path()), 1);
}

#[test]
fn what_can_not_be_removed_has_no_say_in_what_is_in_force() {
    let folder = folder();
    let store = Store::open(folder.path()).unwrap();
    store.put(&files(&[("a", "1")])).unwrap();
    // No folder, so it can't be removed as one.
    std::fs::write(folder.path().join("..of-1"), "").unwrap();
    assert!(store.put(&files(&[("a", "2")])).unwrap());
    let read = std::fs::read_to_string(folder.path().join("a")).unwrap();
    assert_eq!(read, "2");
    std::fs::write(folder.path().join("b"), "other").unwrap();
    let failed = store.put(&files(&[("a", "3"), ("b", "3")])).unwrap_err();
    assert!(failed.to_string().contains("exists"), "{failed}");
}
