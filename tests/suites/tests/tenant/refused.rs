//! What is refused, and that a refusal changes nothing.

use pve_sim::{AclEntry, Health};

use super::*;

/// The number that follows from `tenants` and `blue`.
const DERIVED: u32 = 143_339_848;

async fn is_refused(builder: Builder, more: &str, words: &str) -> Desk {
    let desk = Desk::new(builder).await;
    refuses(&desk, more, words).await;
    desk
}

async fn refuses(desk: &Desk, more: &str, words: &str) {
    let before = rights(&desk.sim.state());
    desk.sim.clear_requests();
    desk.apply(more).await.refused(words);
    assert_eq!(writes(&desk.sim), [""; 0], "{words}");
    assert_eq!(rights(&desk.sim.state()), before, "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_not_the_tenants_alone_is_refused() {
    is_refused(
        empty().vm(DERIVED, "pve2", "taken"),
        "",
        "a guest has the number",
    )
    .await;
    for (storage, host, name) in [
        (FILES, Some("pve2"), format!("{DERIVED}/vm-{DERIVED}-x.raw")),
        (THIN, Some("pve1"), format!("vm-{DERIVED}-x")),
        (SHARED, None, format!("{DERIVED}/vm-{DERIVED}-x.raw")),
    ] {
        let builder = empty().volume(storage, host, &name, 1 << 20);
        let desk = is_refused(builder, "", "disks are named after").await;
        desk.apply("--owner 100900007").await.done();
    }
    // On a storage that is not the tenant's, too.
    let builder = empty()
        .storage_dir("other", StorageOptions::default())
        .volume(
            "other",
            Some("pve2"),
            &format!("{DERIVED}/vm-{DERIVED}-x.raw"),
            1 << 20,
        );
    is_refused(builder, "", "disks are named after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_stays_the_tenants_once_it_has_disks_and_is_no_other_tenants() {
    let desk = Desk::new(empty().storage_dir("red", StorageOptions::default())).await;
    desk.apply("").await.done();
    desk.put(SHARED, None, &format!("{DERIVED}/vm-{DERIVED}-x.raw"));
    let said = desk.apply("").await.done();
    assert!(
        said.out.contains("Nothing had to be changed."),
        "{}",
        said.out
    );
    refuses(
        &desk,
        "--owner 100900007",
        "and its disks are named after it",
    )
    .await;
    let red = |owner: &str| {
        let (url, ca, password) = (desk.sim.url(), desk.path("ca.pem"), desk.path("password"));
        format!(
            "--namespace tenants --release red --region {REGION} --endpoint {url} --ca-file {} --pool red --storage red --node pve1 \
             --apply --admin-password-file {} {owner}",
            ca.display(),
            password.display()
        )
    };
    let said = desk.run(&red(&format!("--owner {DERIVED}")), "").await;
    said.refused("is the owner of the tenant tenants/blue");
    desk.run(&red(""), "").await.done();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_no_absence() {
    let desk = is_refused(empty(), "--node pve3", "has no host pve3").await;
    desk.sim.node_health("pve2", Health::Offline);
    refuses(&desk, "", "it can't be seen whether there are disks").await;
    // A token that sees only some of it.
    let desk = Desk::new(empty().role(
        "Some",
        &[
            "Pool.Audit",
            "Datastore.Allocate",
            "VM.Audit",
            "User.Modify",
        ],
    ))
    .await;
    desk.sim.edit(|state| {
        let token = pve_sim::Token {
            secret: "s".repeat(36),
            ..pve_sim::Token::default()
        };
        let user = state.users.entry("half@pve".to_owned()).or_default();
        user.tokens.insert("t".to_owned(), token);
        for subject in ["half@pve", "half@pve!t"] {
            state.acl.push(AclEntry {
                path: "/".to_owned(),
                subject: subject.to_owned(),
                role: "Some".to_owned(),
                propagate: true,
            });
        }
    });
    let token = desk.file("token", &format!("half@pve!t={}", "s".repeat(36)));
    let line = format!("{} --apply --admin-token-file {token}", desk.whose());
    desk.run(&line, "")
        .await
        .refused("Sys.Audit on /access is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_of_others_is_not_changed() {
    let builder = empty().role("CsiPool", &["VM.Audit"]);
    let desk = is_refused(builder, "", "the role CsiPool holds VM.Audit").await;
    desk.apply("--role-prefix Blue").await.done();
    assert!(desk.sim.state().roles["CsiPool"].iter().eq(["VM.Audit"]));

    let desk = Desk::new(empty()).await;
    let token = pve_sim::Token {
        secret: "m".repeat(36),
        ..pve_sim::Token::default()
    };
    desk.sim.edit(|state| {
        let user = state.users.entry("mine@pve".to_owned()).or_default();
        user.tokens.insert("csi".to_owned(), token);
    });
    refuses(
        &desk,
        "--user mine@pve",
        "does not say that it is of tenants/blue",
    )
    .await;
    desk.apply("--user mine@pve --csi-token blue-csi")
        .await
        .done();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_of_another_tenant_is_refused_unless_the_operator_says_so() {
    let desk = Desk::new(empty()).await;
    desk.apply("").await.done();
    let (url, ca, password) = (desk.sim.url(), desk.path("ca.pem"), desk.path("password"));
    let line = format!(
        "--namespace tenants --release red --region {REGION} --endpoint {url} --ca-file {} --pool red --storage {SHARED} --node pve1 \
         --apply --admin-password-file {}",
        ca.display(),
        password.display()
    );
    desk.run(&line, "")
        .await
        .refused("could take the other's disks");
    desk.run(&format!("{line} --share-storage"), "")
        .await
        .done();
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_beyond_what_is_documented_are_told() {
    let desk = Desk::new(empty()).await;
    desk.apply("").await.done();
    desk.sim.edit(|state| {
        for subject in [USER.to_owned(), format!("{USER}!ccm")] {
            state.acl.push(AclEntry {
                path: "/vms/100".to_owned(),
                subject,
                role: "PVEVMAdmin".to_owned(),
                propagate: true,
            });
        }
    });
    let said = desk.apply("").await;
    assert_eq!(said.code, 1, "{said:?}");
    let words = "on /vms/100 is more than is documented";
    assert!(said.err.contains(words), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_words_are_refused_before_anyone_is_asked() {
    let desk = Desk::new(empty()).await;
    for (more, code) in [
        ("--mode ownerVM", 64),
        ("--csi-token ccm", 64),
        ("--endpoint http://pve1:8006", 64),
        ("--user root", 2),
        ("--role-prefix PVEmine", 2),
        ("--owner 99", 2),
        ("--storage ../x", 2),
    ] {
        let said = desk.apply(more).await;
        assert_eq!(said.code, code, "{more}: {said:?}");
    }
    assert!(desk.sim.requests().is_empty());
    let line = format!(
        "{} --apply --admin-password-file {} --out /proc/nowhere",
        desk.whose(),
        desk.path("password").display()
    );
    desk.run(&line, "")
        .await
        .refused("cannot write to /proc/nowhere");
    // A password is no argument.
    assert_eq!(
        desk.run(&format!("{} --admin-password x", desk.whose()), "")
            .await
            .code,
        2
    );
    let wrong = desk.file("wrong", "not the password");
    let line = format!("{} --apply --admin-password-file {wrong}", desk.whose());
    assert_eq!(desk.run(&line, "").await.code, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_does_not_come_holds_up_no_signal() {
    let desk = Desk::new(empty()).await;
    let line = format!("{} --apply --admin-password-file -", desk.whose());
    let mut child = Command::new(built("pvectl").unwrap())
        .arg("tenant")
        .args(line.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let silent = child.stdin.take();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    let pid = child.id().unwrap().to_string();
    let told = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(told.unwrap().success());
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), child.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(1));
    drop(silent);
}
