//! A tenant's end.

use pve_sim::{Health, RequestEffect, RequestFault};

use super::*;

impl Desk {
    /// Runs `pvectl tenant remove` by the config in the Secret that was written.
    async fn remove(&self, more: &str) -> Said {
        let (config, password) = (self.unpack(SECRETS[0]), self.path("password"));
        let line = format!(
            "remove --namespace tenants --release blue --cloud-config {} --admin-password-file {} {more}",
            config.display(),
            password.display()
        );
        let said = self.run(&line, "").await;
        self.tells_no_secret(&format!("{said:?}"));
        said
    }

    fn drop_volumes(&self) {
        self.sim.edit(|state| state.volumes.clear());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_up_is_taken_away_and_nothing_else() {
    let desk = Desk::new(empty()).await;
    let before = rights(&desk.sim.state());
    desk.apply("--ha --guest-agent").await.done();
    desk.sim.clear_requests();
    let said = desk.remove("").await.done();
    assert!(
        said.out.starts_with("--apply would take away:"),
        "{}",
        said.out
    );
    assert_eq!(writes(&desk.sim), [""; 0]);
    let said = desk.remove("--apply").await.done();
    assert!(said.out.contains("pool    blue"), "{}", said.out);
    assert_eq!(rights(&desk.sim.state()), before);
    let said = desk.remove("--apply").await.done();
    assert!(said.out.contains("Nothing of it is there."), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_or_what_cannot_be_seen_holds_it_up() {
    let desk = Desk::new(empty()).await;
    desk.apply("--owner 100900007").await.done();
    let before = rights(&desk.sim.state());
    for (storage, host, name) in [
        (FILES, Some("pve2"), "100900007/vm-100900007-pvc-1.raw"),
        (THIN, Some("pve1"), "vm-100900007-pvc-1"),
        (SHARED, None, "100900007/vm-100900007-pvc-1.raw"),
    ] {
        desk.put(storage, host, name);
        desk.remove("--apply")
            .await
            .refused("the tenant has 1 volumes");
        desk.drop_volumes();
    }
    // One that was adopted.
    let path = desk.path("secrets").join("blue-pve-csi.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let adopted =
        format!("    mode: reserved\n        adopted: [{REGION}/pve1/{THIN}/vm-9999-pvc-old]\n");
    std::fs::write(&path, text.replace("    mode: reserved\n", &adopted)).unwrap();
    desk.put(THIN, Some("pve1"), "vm-9999-pvc-old");
    desk.remove("--apply")
        .await
        .refused("vm-9999-pvc-old (adopted)");
    desk.drop_volumes();
    desk.sim.node_health("pve2", Health::Offline);
    desk.remove("--apply")
        .await
        .refused("it can't be seen whether the tenant has volumes");
    desk.sim.node_health("pve2", Health::Online);
    desk.sim
        .edit(|state| state.storages.get_mut(THIN).unwrap().disable = true);
    desk.remove("--apply").await.refused("is switched off");
    desk.sim
        .edit(|state| state.storages.get_mut(THIN).unwrap().disable = false);
    let content = |content: &str| {
        desk.sim.edit(|state| {
            let storage = state.storages.get_mut(THIN).unwrap();
            std::mem::replace(&mut storage.content, [content.to_owned()].into())
        })
    };
    // PVE lists no disks of it then.
    content("backup");
    desk.remove("--apply").await.refused("lacks images");
    content("images");
    let gone = desk.sim.edit(|state| state.storages.remove(THIN)).unwrap();
    desk.remove("--apply")
        .await
        .refused("no host has the storage thin");
    desk.sim
        .edit(|state| state.storages.insert(THIN.to_owned(), gone));
    assert_eq!(rights(&desk.sim.state()), before);
    desk.remove("--apply").await.done();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_use_stays() {
    let workers = empty().vm(101, "pve1", "a").vm(102, "pve2", "b");
    let desk = Desk::new(workers.storage_dir("red", StorageOptions::default())).await;
    desk.apply("").await.done();
    let (url, ca, password) = (desk.sim.url(), desk.path("ca.pem"), desk.path("password"));
    let red = format!(
        "--namespace tenants --release red --region {REGION} --endpoint {url} --ca-file {} --pool red --storage red --node pve1 \
         --apply --admin-password-file {} --user {USER} --csi-token red-csi --ccm-token red-ccm",
        ca.display(),
        password.display()
    );
    desk.run(&red, "").await.done();
    desk.add_workers();
    let said = desk.remove("--apply").await.done();
    for line in [
        "stays: it has the token red-",
        "The role CsiPool stays",
        "The pool blue stays: guest 101 is in it",
    ] {
        let said = said.out.replace("guest 102", "guest 101");
        assert!(said.contains(line), "{line:?} is not in {said}");
    }
    // The other tenant has all of its rights still.
    let said = desk.run(&red, "").await.done();
    assert!(
        said.err.contains("Nothing had to be changed."),
        "{}",
        said.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_config_of_another_tenant_is_refused() {
    let desk = Desk::new(empty()).await;
    desk.apply("").await.done();
    let (config, password) = (desk.unpack(SECRETS[0]), desk.path("password"));
    let line = format!(
        "remove --namespace tenants --release red --apply --cloud-config {} --admin-password-file {}",
        config.display(),
        password.display()
    );
    desk.sim.clear_requests();
    desk.run(&line, "")
        .await
        .refused("does not say that it is of tenants/red");
    assert_eq!(writes(&desk.sim), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_made_while_rights_are_taken_away_holds_it_up() {
    let desk = Desk::new(empty()).await;
    desk.apply("--owner 100900007").await.done();
    desk.sim.clear_requests();
    desk.sim.add_fault(RequestFault {
        method: "DELETE".to_owned(),
        path: "/access/users/{userid}/token/{tokenid}".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Hold,
    });
    let made = async {
        let held = || {
            let requests = writes(&desk.sim);
            requests.iter().any(|request| request.starts_with("PUT"))
        };
        while !held() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        desk.put(THIN, Some("pve1"), "vm-100900007-pvc-late");
        while !desk
            .sim
            .release_one("DELETE /access/users/{userid}/token/{tokenid}")
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let (said, ()) = tokio::join!(desk.remove("--apply"), made);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("vm-100900007-pvc-late"), "{said:?}");
    let state = desk.sim.state();
    assert!(state.users.contains_key(USER) && state.pools.contains_key(POOL));
    // The number stays the tenant's: the next run of either takes it up again.
    desk.remove("--apply")
        .await
        .refused("the tenant has 1 volumes");
    desk.drop_volumes();
    desk.remove("--apply").await.done();
}
