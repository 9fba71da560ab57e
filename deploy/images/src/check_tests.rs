use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::build::Parts;
use crate::dockerfile;
use crate::oci::Blobs;

const DOCKERFILE: &str = r#"FROM scratch AS pve-ccm
LABEL a="b"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /LICENSE
COPY --from=build /out/pve-ccm /pve-ccm
USER 65532:65532
ENTRYPOINT ["/pve-ccm"]
"#;

fn image(text: &str) -> Image {
    dockerfile::images(text, &BTreeMap::new())
        .unwrap()
        .remove(0)
}

/// The header of a program, and more.
fn program(machine: u16, more: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes.extend(more);
    bytes
}

fn built(text: &str, arch: Arch, program: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pve-ccm"), program).unwrap();
    archive_of(text, arch, folder.path())
}

fn archive_of(text: &str, arch: Arch, programs: &Path) -> Vec<u8> {
    let parts = Parts {
        arch,
        programs,
        authorities: b"-----BEGIN CERTIFICATE-----",
        roots: &BTreeMap::new(),
    };
    let mut blobs = Blobs::default();
    let manifest = build::add(&mut blobs, &image(text), &parts, "1970-01-01T00:00:00Z").unwrap();
    blobs
        .archive(vec![manifest], "example.org/pve-ccm", "1")
        .unwrap()
}

fn checked(bytes: &[u8]) -> Result<Vec<Seen>> {
    let forbidden = Forbidden::new(vec!["/home/builder".to_owned()])?;
    archive(bytes, &image(DOCKERFILE), &forbidden)
}

fn refusal(bytes: &[u8]) -> String {
    format!("{:#}", checked(bytes).unwrap_err())
}

/// The archive with its files changed.
fn changed(bytes: &[u8], change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> Vec<u8> {
    let mut all = files(bytes).unwrap();
    change(&mut all);
    let mut tree = Tree::default();
    for (path, bytes) in all {
        tree.put(&path, 0o644, bytes).unwrap();
    }
    tree.tar().unwrap()
}

#[test]
fn what_was_built_passes_and_is_measured() {
    let bytes = built(DOCKERFILE, Arch::Arm64, &program(183, b""));
    let seen = checked(&bytes).unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].arch.as_str(), seen[0].program), ("arm64", 64));
    assert!(seen[0].unpacked > 64 + 1000, "the licence counts: {seen:?}");
    assert!(seen[0].tree.get("LICENSE").is_some());
}

#[test]
fn the_same_programs_make_the_same_archive() {
    let again = || built(DOCKERFILE, Arch::Amd64, &program(62, b""));
    assert_eq!(digest(&again()), digest(&again()));
}

#[test]
fn a_program_of_another_platform_is_refused() {
    let error = refusal(&built(DOCKERFILE, Arch::Arm64, &program(62, b"")));
    assert!(error.contains("another processor than arm64"), "{error}");
}

#[test]
fn a_program_that_needs_a_loader_is_refused() {
    let mut bytes = program(62, &3_u32.to_le_bytes());
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = 1;
    let error = refusal(&built(DOCKERFILE, Arch::Amd64, &bytes));
    assert!(error.contains("needs a loader"), "{error}");
}

#[test]
fn secrets_and_paths_of_the_builder_are_refused() {
    let key = format!("-----BEGIN EC PRIVATE KEY-----\n{}", "A".repeat(64));
    for (content, why) in [
        (key.as_str(), "a secret"),
        ("PVEAPIToken=a@pve!b=0123abcd-0123", "a secret"),
        ("at /home/builder/src/main.rs:1", "/home/builder"),
    ] {
        let error = refusal(&built(
            DOCKERFILE,
            Arch::Amd64,
            &program(62, content.as_bytes()),
        ));
        assert!(error.contains(why), "{error}");
    }
    let harmless = b"-----BEGIN PRIVATE KEY----------END PRIVATE KEY-----PVEAPIToken={id}={secret}";
    checked(&built(DOCKERFILE, Arch::Amd64, &program(62, harmless))).unwrap();
}

#[test]
fn an_image_that_differs_from_the_dockerfile_is_refused() {
    for (from, to) in [
        ("USER 65532:65532", "USER 0:0"),
        ("[\"/pve-ccm\"]", "[\"/pve-ccm\", \"--help\"]"),
        ("a=\"b\"", "a=\"c\""),
    ] {
        let text = DOCKERFILE.replace(from, to);
        let error = refusal(&built(&text, Arch::Amd64, &program(62, b"")));
        assert!(error.contains("differs from the Dockerfile"), "{error}");
    }
    let line =
        "COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt\n";
    let text = DOCKERFILE.replace(line, "");
    let error = refusal(&built(&text, Arch::Amd64, &program(62, b"")));
    assert!(error.contains("no certificate authorities"), "{error}");
}

#[test]
fn more_bytes_than_the_limit_are_refused() {
    let large = program(62, &vec![0; 15_000_000]);
    let error = refusal(&built(DOCKERFILE, Arch::Amd64, &large));
    assert!(error.contains("more than 15000000"), "{error}");
}

#[test]
fn content_that_is_changed_missing_or_too_much_is_refused() {
    let bytes = built(DOCKERFILE, Arch::Amd64, &program(62, b""));
    let all = files(&bytes).unwrap();
    let blobs: Vec<String> = all
        .keys()
        .filter(|path| path.starts_with("blobs/"))
        .cloned()
        .collect();
    assert_eq!(blobs.len(), 5, "two layers, config, manifest, index");
    for path in &blobs {
        let broken = changed(&bytes, |files| files.get_mut(path).unwrap()[0] ^= 1);
        assert!(refusal(&broken).contains("another digest"), "{path}");
        let missing = changed(&bytes, |files| drop(files.remove(path)));
        assert!(refusal(&missing).contains("no blobs/"), "{path}");
    }
    let stray = blob_path(&digest(b"stray")).unwrap();
    let more = changed(&bytes, |files| drop(files.insert(stray, b"stray".to_vec())));
    assert!(refusal(&more).contains("belongs to nothing"));
    for name in ["oci-layout", "index.json"] {
        let without = changed(&bytes, |files| drop(files.remove(name)));
        assert!(refusal(&without).contains(name));
    }
}
