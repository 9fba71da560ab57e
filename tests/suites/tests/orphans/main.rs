//! `pvectl orphans` as a real program between a simulated PVE cluster and an API server: what it shows, what it does not
//! claim to know, and what it deletes.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod delete;
mod gone;

use std::path::PathBuf;

use harness::kube_stub::KubeStub;
use harness::process::built;
use harness::world::{POOL, SHARED, World, tenant, uuid};
use pve_sim::{Builder, Health, Volume};
use serde_json::Value;
use tokio::process::Command;

const DRIVER: &str = "csi.proxmox.sinextra.dev";
const DAY: u64 = 86400;
/// The secret of the operator's token.
const SECRET: &str = "11111111-2222-3333-4444-555555555555";
/// A disk that nobody names, and has been there for long.
const LONE: &str = "r1/pve1/thin/vm-9999-pvc-lone";

/// One tenant with two workers, beside a VM of someone else.
struct Desk {
    world: World,
    kube: KubeStub,
}

#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }

    fn refused(&self, words: &str) {
        assert_eq!(self.code, 64, "{self:?}");
        assert!(self.err.contains(words), "{words:?} is not in {self:?}");
    }
}

fn two() -> Builder {
    tenant(&[(101, "pve1"), (102, "pve2")])
        .vm(100, "pve1", "elsewhere")
        .root_token("setup", SECRET)
}

impl Desk {
    async fn new(builder: Builder) -> Self {
        let desk = Self {
            world: World::without_controller(builder).await.unwrap(),
            kube: KubeStub::start().await.unwrap(),
        };
        let config = desk.world.folder().join("config.yaml");
        std::fs::write(config, desk.world.config().to_string()).unwrap();
        std::fs::write(desk.token(), format!("root@pam!setup={SECRET}")).unwrap();
        desk
    }

    /// The file with the operator's token.
    fn token(&self) -> PathBuf {
        self.world.folder().join("token")
    }

    /// What deletes a disk of that handle with the operator's rights.
    fn delete(&self, handle: &str) -> String {
        let token = self.token();
        format!(
            "--admin-token-file {} --delete --min-age 1h --id {handle}",
            token.display()
        )
    }

    /// With a disk that has a PV and one that has none.
    async fn with_orphan() -> Self {
        let desk = Self::new(two()).await;
        desk.disk(LONE, DAY);
        desk.disk("r1/pve1/files/9999/vm-9999-pvc-used.raw", DAY);
        desk.kube
            .add_volume("pv-used", DRIVER, "r1/pve1/files/9999/vm-9999-pvc-used.raw");
        desk
    }

    /// A disk that was made so many seconds ago, by the handle of its volume.
    fn disk(&self, handle: &str, age: u64) {
        let parts: Vec<&str> = handle.splitn(4, '/').collect();
        let [_, host, storage, name] = parts.as_slice() else {
            unreachable!("{handle}");
        };
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
        let volume = Volume {
            storage: (*storage).to_owned(),
            node: (!host.is_empty()).then(|| (*host).to_owned()),
            name: (*name).to_owned(),
            size: 1 << 30,
            format: "raw".to_owned(),
            ctime: now - age,
        };
        self.world.sim.edit(|state| state.volumes.push(volume));
    }

    fn has(&self, handle: &str) -> bool {
        let name = handle.splitn(4, '/').nth(3).unwrap().to_owned();
        self.world
            .sim
            .state()
            .volumes
            .iter()
            .any(|volume| volume.name == name)
    }

    /// Runs `pvectl orphans` with the tenant's kubeconfig.
    async fn run(&self, line: &str) -> Said {
        let kubeconfig = self.kube.kubeconfig(self.world.folder()).unwrap();
        self.run_as(&format!("--kubeconfig {} {line}", kubeconfig.display()))
            .await
    }

    async fn run_as(&self, line: &str) -> Said {
        let config = self.world.folder().join("config.yaml");
        let output = Command::new(built("pvectl").unwrap())
            .arg("orphans")
            .arg("--cloud-config")
            .arg(config)
            .args(line.split_whitespace())
            .output()
            .await
            .unwrap();
        Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// A deletion that must be refused, and that PVE was not asked to delete anything.
    async fn keeps(&self, line: &str, words: &str) {
        self.world.sim.clear_requests();
        let before = self.world.sim.state().volumes;
        self.run(line).await.refused(words);
        assert!(
            self.deletions() == 0 && self.world.sim.state().volumes == before,
            "{words}"
        );
    }

    fn deletions(&self) -> usize {
        let requests = self.world.sim.requests();
        requests
            .iter()
            .filter(|request| request.method != "GET")
            .count()
    }
}

fn names(list: &Value, key: &str) -> Vec<String> {
    let name = |entry: &Value| entry[key].as_str().unwrap_or_default().to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_counterpart_is_shown_and_nothing_else() {
    let desk = Desk::new(two()).await;
    assert_eq!(desk.run("").await.out, "No orphans.\n");
    let disks = [
        "r1/pve1/files/9999/vm-9999-pvc-a.raw",
        "r1/pve2/files/9999/vm-9999-pvc-a.raw",
        "r1/pve2/thin/vm-9999-pvc-b",
        "r1//shared/9999/vm-9999-pvc-c.raw",
        "r1//shared/9999/vm-9999-pvc-d.raw",
    ];
    for disk in disks {
        desk.disk(disk, DAY);
    }
    // Of someone else, on the same storage.
    desk.disk("r1//shared/500/vm-500-disk-0.raw", DAY);
    desk.kube.add_volume("a", DRIVER, disks[0]);
    desk.kube.add_volume("c", DRIVER, disks[3]);
    desk.kube
        .add_volume("gone", DRIVER, "r1/pve1/thin/vm-9999-pvc-gone");
    desk.kube
        .add_volume("other", "other.example", "r1/pve1/thin/vm-9999-pvc-other");
    desk.kube.add_volume("b", DRIVER, disks[2]);
    desk.kube.add_volume("odd", DRIVER, "something");
    let said = desk.run("-o json").await;
    assert_eq!(said.code, 0, "{said:?}");
    let shown = said.json();
    assert_eq!(shown["complete"], true);
    assert_eq!(
        names(&shown["disksWithoutVolume"], "handle"),
        [disks[4], disks[1]]
    );
    assert_eq!(names(&shown["volumesWithoutDisk"], "name"), ["gone"]);
    assert!(
        shown["unclear"][0].as_str().unwrap().contains("odd"),
        "{shown}"
    );
    let table = desk.run("").await.out;
    for line in [disks[1], disks[4], "PV without disk"] {
        assert!(table.contains(line), "{table}");
    }
    assert!(!table.contains("vm-500"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_read_is_not_none() {
    let desk = Desk::with_orphan().await;
    let incomplete = async |words: &str| {
        let said = desk.run("-o json").await;
        assert_eq!(said.code, 1, "{said:?}");
        assert_eq!(said.json()["complete"], false);
        assert!(
            said.err.contains("may not be all") && said.err.contains(words),
            "{words:?} is not in {said:?}"
        );
    };
    desk.world.sim.node_health("pve2", Health::Offline);
    incomplete("pve2").await;
    desk.world.sim.node_health("pve2", Health::Online);
    desk.world
        .sim
        .edit(|state| state.storages.get_mut(SHARED).unwrap().disable = true);
    incomplete("the storage shared is not to be seen").await;
    desk.world
        .sim
        .edit(|state| state.storages.get_mut(SHARED).unwrap().disable = false);
    let role = |privileges: &[&str]| {
        let privileges = privileges.iter().map(|name| (*name).to_owned()).collect();
        desk.world
            .sim
            .edit(|state| state.roles.insert("TenantStorage".to_owned(), privileges));
    };
    role(&["Datastore.Audit", "Datastore.AllocateSpace"]);
    incomplete("Datastore.Allocate on /storage/files is missing").await;
    role(&[
        "Datastore.Audit",
        "Datastore.AllocateSpace",
        "Datastore.Allocate",
    ]);
    for status in [403, 500] {
        desk.kube.refuse(Some(status));
        let said = desk.run("").await;
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
        assert!(said.err.contains("nothing is known of orphans"), "{said:?}");
    }
    desk.kube.refuse(None);
    desk.world.sim.set_reachable(false);
    let said = desk.run("").await;
    assert!(said.code == 1 && !said.out.contains("pvc-lone"), "{said:?}");
}
