//! What is made, once, and what is said of it.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_changes_nothing_and_says_so() {
    let desk = Desk::new(empty()).await;
    let said = desk.apply("").await.done();
    for line in [
        "done       pool blue",
        "done       token pve-cloud-tenants.blue@pve!csi",
        "done       Secret blue-pve-ccm: ",
    ] {
        assert!(said.out.contains(line), "{line:?} is not in {}", said.out);
    }
    assert!(
        said.out
            .contains("!ccm may do what is documented, and nothing else"),
        "{}",
        said.out
    );
    for secret in SECRETS {
        let path = desk.path("secrets").join(format!("{secret}.yaml"));
        assert_eq!(
            std::fs::metadata(path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    let (before, secrets) = (rights(&desk.sim.state()), desk.secrets());
    let files = SECRETS.map(|secret| secret_in(&desk.path("secrets"), secret));
    desk.sim.clear_requests();
    let said = desk.apply("").await.done();
    assert!(
        said.out.contains("Nothing had to be changed."),
        "{}",
        said.out
    );
    assert_eq!(writes(&desk.sim), [""; 0]);
    assert_eq!(rights(&desk.sim.state()), before);
    assert_eq!(desk.secrets(), secrets);
    assert_eq!(
        SECRETS.map(|secret| secret_in(&desk.path("secrets"), secret)),
        files
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_have_separated_privileges_and_their_user_no_password() {
    let desk = Desk::new(empty()).await;
    desk.apply("--ha --guest-agent").await.done();
    let state = desk.sim.state();
    let user = &state.users[USER];
    assert!(user.password.is_none());
    assert_eq!(user.tokens.keys().collect::<Vec<_>>(), ["ccm", "csi"]);
    assert!(
        user.tokens
            .values()
            .all(|token| token.privsep && token.expire == 0)
    );
    let ha = state.acl.iter().filter(|line| line.path == "/");
    assert!(
        ha.clone().count() == 2 && ha.clone().all(|line| !line.propagate),
        "{ha:?}"
    );
    let secret = secret_in(&desk.path("secrets"), "blue-pve-ccm");
    assert_eq!(secret["stringData"]["use"], "ccm");
    assert!(
        secret["stringData"]["config.yaml"]
            .as_str()
            .unwrap()
            .contains("agent: true")
    );
    assert_eq!(secret["metadata"]["namespace"], "tenants");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_pve_8_the_guest_agent_needs_another_privilege() {
    let desk = Desk::new(empty()).await;
    desk.sim
        .edit(|state| state.version = "8.4.1".parse().unwrap());
    desk.apply("--guest-agent --ha").await.done();
    let roles = desk.sim.state().roles;
    assert!(roles["CcmAgent"].iter().eq(["VM.Monitor"]), "{roles:?}");
    desk.apply("--guest-agent --ha").await.done();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_folder_the_secrets_and_nothing_else_are_on_standard_output() {
    let desk = Desk::new(empty()).await;
    let line = format!("{} --apply --admin-password-file -", desk.whose());
    let said = desk.run(&line, PASSWORD).await.done();
    let secrets = desk.secrets();
    for (id, secret) in &secrets {
        assert_eq!(said.out.matches(secret.as_str()).count(), 1, "{id}");
    }
    desk.tells_no_secret(&said.err);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&said.out).unwrap();
    let names: Vec<&str> = documents
        .iter()
        .map(|d| d["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, SECRETS);
    // They are told once: the next run has nothing to tell.
    let said = desk.run(&line, PASSWORD).await.done();
    assert_eq!(said.out, "");
    assert!(
        said.err.contains("--rotate makes a new one"),
        "{}",
        said.err
    );
    assert_eq!(desk.secrets(), secrets);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_secrets_take_the_place_of_old_ones_and_what_the_operator_added_stays() {
    let desk = Desk::new(empty()).await;
    desk.apply("").await.done();
    let path = desk.path("secrets").join("blue-pve-csi.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let added = text.replace(
        "storages: [\"files\", \"shared\", \"thin\"]",
        "storages: {files: {maxVolumes: 3}, shared: , thin: }",
    );
    assert_ne!(added, text);
    std::fs::write(&path, &added).unwrap();
    let before = desk.secrets();
    desk.apply("--rotate").await.done();
    let after = desk.secrets();
    assert_eq!(before.len(), 2);
    for (id, secret) in &after {
        assert_ne!(*secret, before[id]);
    }
    let id = format!("{USER}!csi");
    let expected = added.replace(&before[&id], &after[&id]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    let said = desk.apply("").await.done();
    assert!(
        said.out.contains("Nothing had to be changed."),
        "{}",
        said.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_enough_rights_does_as_well_as_root() {
    let desk = Desk::new(empty().root_token("setup", "11111111-2222-3333-4444-555555555555")).await;
    let token = desk.file(
        "token",
        "root@pam!setup=11111111-2222-3333-4444-555555555555\n",
    );
    let line = format!(
        "{} --apply --admin-token-file {token} --out {}",
        desk.whose(),
        desk.path("secrets").display()
    );
    let said = desk.run(&line, "").await.done();
    assert!(!format!("{said:?}").contains("5555"), "{said:?}");
    assert!(said.out.contains("done       token"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_apply_nobody_is_asked_and_what_would_be_done_is_printed() {
    let desk = Desk::new(empty()).await;
    let said = desk.run(&desk.whose(), "").await.done();
    assert!(desk.sim.requests().is_empty());
    for line in [
        "pveum role add CsiStorage --privs Datastore.Allocate,Datastore.AllocateSpace,Datastore.Audit",
        "pveum acl modify /storage/thin --tokens 'pve-cloud-tenants.blue@pve!csi' --roles CsiStorage",
        "      secret: \"SECRET-OF-pve-cloud-tenants.blue@pve!csi\"",
    ] {
        assert!(said.out.contains(line), "{line:?} is not in {}", said.out);
    }
    let said = desk
        .run(&format!("{} -o json", desk.whose()), "")
        .await
        .done();
    let document: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(document["secrets"][1]["name"], "blue-pve-ccm");
    let apart = format!(
        "{} --admin-password-file {}",
        desk.whose(),
        desk.path("password").display()
    );
    desk.run(&apart, "").await.refused("not --apply");
}
