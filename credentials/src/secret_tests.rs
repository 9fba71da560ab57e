use super::*;
use proptest::prelude::*;
use std::os::unix::fs::symlink;

const SECRET: &str = "5ec4e7aa-0000-4000-8000-00005ec4e7aa";

/// A folder as the kubelet mounts a Secret with these keys.
fn mounted(keys: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let generation = folder.path().join("..2026_12_01");
    std::fs::create_dir(&generation).unwrap();
    symlink("..2026_12_01", folder.path().join("..data")).unwrap();
    for (key, text) in keys {
        std::fs::write(generation.join(key), text).unwrap();
        symlink(format!("..data/{key}"), folder.path().join(key)).unwrap();
    }
    folder
}

fn read(keys: &[(&str, &[u8])]) -> Result<Mounted, String> {
    let folder = mounted(keys);
    Mounted::read(folder.path()).map_err(|error| error.to_string())
}

#[test]
fn what_is_mounted_is_read_and_what_is_no_secret_of_ours_is_refused() {
    let found = read(&[("use", b"csi\n"), ("url", b"https://pve:8006")]).unwrap();
    assert_eq!(found.line(USE), Some("csi"));
    assert_eq!(found.find("url"), Some("https://pve:8006"));
    assert_eq!(found.find(CONFIG), None);
    let large = vec![b'x'; usize::try_from(MOST_BYTES).unwrap()];
    let all: Vec<&str> = all().collect();
    let known = format!(
        "the Secret has a key that is not known, known are {}",
        all.join(", ")
    );
    let other = "the Secret's key TOKEN-ID is not known, it is written token_id";
    for (keys, sentence) in [
        (vec![("password", b"x".as_slice())], known.as_str()),
        (vec![(SECRET, b"x")], &known),
        (vec![("TOKEN-ID", b"x")], other),
        (
            vec![("url", b"\xff\xfe")],
            "the Secret's key url is not text",
        ),
        (
            vec![("policy.yaml", &large[1..]), ("url", b"xy")],
            "the Secret's key url is larger than a Secret can be",
        ),
    ] {
        // The order in which a folder is read is not known.
        let said = read(&keys).unwrap_err();
        let either = sentence.replace("key url is larger", "key policy.yaml is larger");
        assert!(said == sentence || said == either, "{said}");
    }
    assert!(read(&[("policy.yaml", &large), ("use", b"")]).is_ok());
}

#[test]
fn links_that_the_kubelet_has_yet_to_make_or_to_remove_do_not_count() {
    let folder = mounted(&[("url", b"https://pve:8006"), ("fingerprint", b"former")]);
    let next = folder.path().join("..2026_12_02");
    std::fs::create_dir(&next).unwrap();
    std::fs::write(next.join("url"), "https://pve2:8006").unwrap();
    std::fs::write(next.join("ca.crt"), "authority").unwrap();
    symlink("..2026_12_02", folder.path().join("..data_tmp")).unwrap();
    let [from, to] = ["..data_tmp", "..data"].map(|name| folder.path().join(name));
    std::fs::rename(from, to).unwrap();
    let found = Mounted::read(folder.path()).unwrap();
    assert_eq!(found.find("url"), Some("https://pve2:8006"));
    assert_eq!(found.find("ca.crt"), Some("authority"));
    assert_eq!(found.find("fingerprint"), None);
}

#[test]
fn a_pipe_or_a_folder_in_the_place_of_a_key_is_refused_and_nothing_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("url")).unwrap();
    let said = Mounted::read(folder.path()).unwrap_err().to_string();
    assert_eq!(said, "the Secret's key url is not a file");
    std::fs::remove_dir(folder.path().join("url")).unwrap();
    nix::unistd::mkfifo(&folder.path().join("url"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let said = Mounted::read(folder.path()).unwrap_err().to_string();
    assert_eq!(said, "the Secret's key url is not a file");
    let nowhere = Mounted::read(Path::new("/nowhere"));
    assert!(matches!(nowhere, Err(Trouble::Failed(_))), "{nowhere:?}");
}

fn key() -> impl Strategy<Value = String> {
    let ours: Vec<String> = all().map(str::to_owned).collect();
    let near = prop::sample::select(ours.clone()).prop_map(|key| key.to_uppercase());
    prop_oneof![
        8 => prop::sample::select(ours),
        1 => near,
        1 => "[-._a-zA-Z0-9]{1,60}".prop_filter("the kubelet's own", |key| !key.starts_with("..") && key != "."),
    ]
}

proptest! {
    #[test]
    fn any_secret_is_read_as_it_is_or_refused_without_a_word_of_what_it_holds(
        keys in prop::collection::btree_map(key(), prop::collection::vec(any::<u8>(), 0..40), 0..6),
    ) {
        let marked: Vec<(String, Vec<u8>)> = keys
            .into_iter()
            .map(|(key, tail)| (key, [SECRET.as_bytes(), &tail].concat()))
            .collect();
        let pairs: Vec<(&str, &[u8])> = marked
            .iter()
            .map(|(key, text)| (key.as_str(), text.as_slice()))
            .collect();
        let known = |key: &str| all().any(|known| known == key);
        let good = marked
            .iter()
            .all(|(key, text)| known(key) && std::str::from_utf8(text).is_ok());
        match read(&pairs) {
            Ok(found) => {
                prop_assert!(good);
                prop_assert_eq!(found.0.len(), pairs.len());
                for (key, text) in &pairs {
                    prop_assert_eq!(found.find(key).unwrap().as_bytes(), *text);
                }
                let told = format!("{found:?}");
                prop_assert!(!told.contains(SECRET));
            }
            Err(said) => {
                prop_assert!(!good);
                prop_assert!(!said.contains(SECRET));
            }
        }
    }
}
