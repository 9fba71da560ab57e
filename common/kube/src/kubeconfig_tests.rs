use super::source::FILE_MAX;
use super::*;
use std::os::unix::fs::symlink;
use std::time::SystemTime;

fn text(server: &str, cluster: &str, user: &str) -> String {
    drop(rustls::crypto::ring::default_provider().install_default());
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u, namespace: {server}}}\n\
         clusters:\n- name: c\n  cluster:\n    server: https://{server}\n{cluster}\
         users:\n- name: u\n  user:\n    username: t\n{user}"
    )
}

#[test]
fn a_kubeconfig_that_runs_programs_takes_detours_or_names_files_is_refused() {
    for (refused, cluster, user) in [
        ("", "", ""),
        ("", "", "    token: t\n"),
        ("exec", "", "    exec:\n      command: /bin/sh\n"),
        (
            "auth-provider",
            "",
            "    auth-provider:\n      name: x\n      config: {}\n",
        ),
        ("proxy-url", "    proxy-url: http://127.0.0.1:1\n", ""),
        (
            "insecure-skip-tls-verify",
            "    insecure-skip-tls-verify: true\n",
            "",
        ),
        ("tokenFile", "", "    tokenFile: /etc/pve/token\n"),
        ("client-key", "", "    client-key: /etc/pve/key\n"),
        (
            "client-certificate",
            "",
            "    client-certificate: /etc/pve/certificate\n",
        ),
        (
            "certificate-authority",
            "    certificate-authority: /etc/pve/ca\n",
            "",
        ),
    ] {
        let file = Kubeconfig::from_yaml(&text("first", cluster, user)).unwrap();
        let expected = match refused {
            "" => String::new(),
            key => format!("kubeconfig: {key} is not accepted"),
        };
        let said = check(&file).map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(said, expected);
    }
}

/// A file whose time of change is always the same, as those of Secrets may be.
fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
}

fn in_force(tenant: &Tenant) -> String {
    tenant.client().default_namespace().to_owned()
}

#[tokio::test]
async fn what_the_file_says_now_is_in_force_in_every_clone_even_if_its_time_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    write(&path, &text("first", "", ""));
    let tenant = Tenant::of_kubeconfig(&path).await.unwrap();
    let clone = tenant.clone();
    let mut changes = clone.changes();
    assert!(!tenant.reload().await.unwrap());
    assert!(!changes.has_changed().unwrap());
    write(&path, &text("other", "", ""));
    assert!(tenant.reload().await.unwrap());
    assert_eq!(in_force(&clone), "other");
    assert_eq!(*changes.borrow_and_update(), 1);
    assert!(!tenant.reload().await.unwrap());
    assert!(!changes.has_changed().unwrap());
}

#[tokio::test]
async fn a_changed_kubeconfig_that_is_refused_changes_nothing_and_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    write(&path, &text("first", "", ""));
    let tenant = Tenant::of_kubeconfig(&path).await.unwrap();
    let changes = tenant.changes();
    write(&path, &text("other", "", "    tokenFile: /etc/pve/token\n"));
    assert!(tenant.reload().await.is_err());
    assert!(!tenant.reload().await.unwrap(), "said once");
    std::fs::remove_file(&path).unwrap();
    assert!(tenant.reload().await.is_err());
    assert!(!tenant.reload().await.unwrap(), "said once");
    assert_eq!(in_force(&tenant), "first");
    assert!(!changes.has_changed().unwrap());
    write(&path, &text("other", "", ""));
    assert!(tenant.reload().await.unwrap());
    assert_eq!(in_force(&tenant), "other");
}

#[tokio::test]
async fn a_malformed_kubeconfig_does_not_show_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let broken = [
        text("first", "", "    token: s3cret\n    token: s3cret\n"),
        text("first", "", "    token: s3cret\n  - x\n"),
        text("first", "", "    exec: s3cret\n"),
    ];
    for broken in broken {
        write(&path, &broken);
        let error = Tenant::of_kubeconfig(&path).await.unwrap_err();
        assert!(
            matches!(error, KubeconfigError::Malformed(Place(Some(_)))),
            "{error}"
        );
        let said = format!("{error} {error:?}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[tokio::test]
async fn a_file_without_end_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let padding = usize::try_from(FILE_MAX).unwrap() - text("first", "", "#").len();
    for (padding, accepted) in [(padding, true), (padding + 1, false)] {
        let user = format!("#{}", "x".repeat(padding));
        write(&path, &text("first", "", &user));
        let tenant = Tenant::of_kubeconfig(&path).await;
        assert_eq!(tenant.is_ok(), accepted, "{:?}", tenant.err());
    }
    let endless = Tenant::of_kubeconfig(Path::new("/dev/zero")).await;
    let Err(KubeconfigError::Read(error)) = endless else {
        panic!("{endless:?}");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "not even opened");
}

#[tokio::test]
async fn the_operators_kubeconfig_is_judged_like_a_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    write(&path, &text("first", "", ""));
    let client = management(Some(&path)).await.unwrap();
    assert_eq!(client.default_namespace(), "first");
    write(
        &path,
        &text("first", "", "    exec:\n      command: /bin/sh\n"),
    );
    let error = management(Some(&path)).await.err().unwrap();
    assert_eq!(error.to_string(), "kubeconfig: exec is not accepted");
    let none = management(None).await.err().unwrap();
    assert!(matches!(none, KubeconfigError::InCluster(_)), "{none}");
}

/// The folder of a kubeconfig whose files change all at once: it and a token beside it.
fn swapped(folder: &Path, generation: &str, token: &str) {
    let files = folder.join(generation);
    std::fs::create_dir(&files).unwrap();
    let user = "    tokenFile: token\n";
    std::fs::write(files.join("kubeconfig"), text("first", "", user)).unwrap();
    std::fs::write(files.join("token"), token).unwrap();
    symlink(generation, folder.join("..new")).unwrap();
    std::fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    for name in ["kubeconfig", "token"] {
        drop(symlink(format!("..data/{name}"), folder.join(name)));
    }
}

#[tokio::test]
async fn a_file_beside_the_kubeconfig_counts_if_both_change_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    swapped(folder.path(), "..1", "one\n");
    let tenant = Tenant::of_kubeconfig(&path).await.unwrap();
    assert!(!tenant.reload().await.unwrap());
    swapped(folder.path(), "..2", "two\n");
    assert!(tenant.reload().await.unwrap(), "its text is the same");
    assert!(!tenant.reload().await.unwrap());
    std::fs::remove_file(folder.path().join("..2/token")).unwrap();
    let error = tenant.reload().await.unwrap_err();
    assert_eq!(error.to_string(), "kubeconfig: tokenFile is not accepted");
}

#[tokio::test]
async fn a_kubeconfig_has_no_file_of_ours_read() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, other) = (folder.path().join("plain"), folder.path().join("swapped"));
    std::fs::create_dir(&plain).unwrap();
    std::fs::create_dir(&other).unwrap();
    swapped(&other, "..1", "one");
    for (file, name) in [
        // No folder whose files change all at once: the token may be anybody's.
        (plain.join("kubeconfig"), "token"),
        (other.join("..1/kubeconfig"), "token"),
        (other.join("kubeconfig"), "../plain/token"),
        (other.join("kubeconfig"), "./token"),
        (other.join("kubeconfig"), "kubeconfig"),
        (other.join("kubeconfig"), "client.key"),
    ] {
        std::fs::write(plain.join("token"), "ours").unwrap();
        let user = format!("    tokenFile: {name}\n");
        std::fs::write(&file, text("first", "", &user)).unwrap();
        let error = Tenant::of_kubeconfig(&file).await.unwrap_err();
        let expected = "kubeconfig: tokenFile is not accepted";
        assert_eq!(error.to_string(), expected, "{} {name}", file.display());
    }
}
