//! Numbers of the programs, as each shows them on its admin port.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::ccm::{self, admin_page};
use harness::kube_stub::KubeStub;
use harness::process::{Process, built};
use harness::world::{World, free_port, tenant};
use serde_json::json;

use crate::{golden, head, root, row};

const START: Duration = Duration::from_secs(15);
const INTRODUCTION: &str = "\
Served at `/metrics` of `--admin-address`, in the text format of OpenMetrics: of a counter `<name>_total` is shown, of a histogram `<name>_bucket`,
`<name>_sum` and `<name>_count`.

";

/// Where a program's numbers are registered.
const CONTROLLER: [&str; 4] = [
    "csi-controller/src",
    "common/pve/src",
    "common/region/src",
    "common/runtime/src",
];
const NODE: [&str; 2] = ["csi-node/src", "common/runtime/src"];
const CCM: [&str; 3] = ["ccm/src", "common/pve/src", "common/region/src"];

/// Kinds of those that are not shown before something has happened. A program that shows one is believed.
const NOT_YET: [(&str, &str); 11] = [
    ("nodes", "gauge"),
    ("refusals", "counter"),
    ("pve_request_seconds", "histogram"),
    ("pve_retries", "counter"),
    ("pve_task_seconds", "histogram"),
    ("fence_uses", "counter"),
    ("rpc_seconds", "histogram"),
    ("rpc_inflight", "gauge"),
    ("node_tool_seconds", "histogram"),
    ("node_writes", "counter"),
    ("nodes_kept", "counter"),
];

/// Name and meaning of all that is registered in these folders, by the text of the sources.
fn registered(folders: &[&str]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for folder in folders {
        for file in sources(&root().join(folder)) {
            let text = std::fs::read_to_string(file).unwrap();
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in product.split(".register(").skip(1) {
                let mut literals = call.trim_start().split('"');
                if literals.next() == Some("") {
                    let (name, between) = (literals.next().unwrap(), literals.next().unwrap());
                    assert_eq!(between.trim(), ",", "{name} is registered with no literal");
                    all.insert(name.to_owned(), literals.next().unwrap().to_owned());
                }
            }
        }
    }
    all
}

/// The sources below a folder but for those of tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if name != "tests" && !name.ends_with("_tests") && name != "admin" {
            files.push(path);
        }
    }
    files
}

/// Starts a program with an admin port and reads what it shows of itself: name → kind and meaning.
async fn numbers(
    program: &str,
    arguments: &[String],
    logs: &Path,
) -> BTreeMap<String, (String, String)> {
    let admin = free_port().unwrap();
    let mut all = vec![format!("--admin-address={admin}")];
    all.extend_from_slice(arguments);
    let mut process = Process::start(program, &built(program).unwrap(), &all, logs).unwrap();
    let served = async || admin_page(admin, "/metrics").await.is_ok();
    process.ready(START, served).await.unwrap();
    let page = page(admin).await;
    process.kill().await.unwrap();
    described(&page)
}

async fn page(admin: SocketAddr) -> String {
    let page = admin_page(admin, "/metrics").await.unwrap();
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    page
}

fn described(page: &str) -> BTreeMap<String, (String, String)> {
    let said = |what: &str| -> BTreeMap<String, String> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(what));
        let pairs = lines.filter_map(|line| line.split_once(' '));
        let owned = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
        pairs.map(owned).collect()
    };
    let mut kinds = said("# TYPE ");
    let helps = said("# HELP ").into_iter().map(|(name, help)| {
        let kind = kinds.remove(&name).unwrap_or_default();
        // The library ends every text with a dot.
        (name, (kind, help.trim_end_matches('.').to_owned()))
    });
    helps.collect()
}

/// A program, the folders of its source, the prefix of its numbers, its arguments.
type Shown = (
    &'static str,
    &'static [&'static str],
    &'static str,
    Vec<String>,
);

fn programs(folder: &Path, kubeconfig: &Path) -> [Shown; 3] {
    let file = |name: &str| folder.join(name).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let controller = vec![
        format!("--cloud-config={}", file("config.yaml")),
        format!("--csi-address=unix://{}", file("c.sock")),
    ];
    let node = vec![
        "--node-name=worker-101".to_owned(),
        format!("--csi-address=unix://{}", file("n.sock")),
        format!("--kubelet-csi-path={}", file("n.sock")),
        format!("--registration-dir={}", folder.display()),
        format!("--kubelet-dir={}", folder.display()),
        "--allow-private-mounts".to_owned(),
        kubeconfig.clone(),
    ];
    let ccm = vec![format!("--cloud-config={}", file("ccm.yaml")), kubeconfig];
    [
        ("pve-csi-controller", &CONTROLLER, "proxmox_csi", controller),
        ("pve-csi-node", &NODE, "proxmox_csi", node),
        ("pve-ccm", &CCM, "proxmox_ccm", ccm),
    ]
}

/// The kind of a number that no program shows before it has counted.
fn kind_not_shown(name: &str) -> &'static str {
    let known = NOT_YET.iter().find(|(known, _)| *known == name);
    known
        .unwrap_or_else(|| panic!("of which kind is {name}?"))
        .1
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_of_numbers_is_what_the_programs_show() {
    let world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let kube = KubeStub::start().await.unwrap();
    let folder = world.folder();
    let kubeconfig = kube.kubeconfig(folder).unwrap();
    std::fs::write(folder.join("config.yaml"), world.config().to_string()).unwrap();
    let regions = json!({ "regions": { "r1": ccm::region_config(&world.sim) } });
    std::fs::write(folder.join("ccm.yaml"), regions.to_string()).unwrap();
    let mut text = head("Numbers", "what the programs show at `/metrics`") + INTRODUCTION;
    for (program, folders, prefix, arguments) in programs(folder, &kubeconfig) {
        let mut shown = numbers(program, &arguments, folder).await;
        let asks_pve = folders.contains(&"common/pve/src");
        assert!(!asks_pve || shown.len() > 2, "{shown:?}");
        text += "## ";
        text += program;
        text += "\n\n| name | kind | meaning |\n|---|---|---|\n";
        for (name, help) in registered(folders) {
            let whole = format!("{prefix}_{name}");
            let kind = shown.remove(&whole).map(|(kind, told)| {
                assert_eq!(told, help, "{whole}");
                kind
            });
            let kind = kind.unwrap_or_else(|| kind_not_shown(&name).to_owned());
            text += &row(&[&format!("`{whole}`"), &kind, &help]);
        }
        assert!(shown.is_empty(), "{program} shows more: {shown:?}");
        text += "\n";
    }
    golden("metrics.md", &text);
}
