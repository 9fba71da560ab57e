mod fences;
mod nodes;
mod refused;

use std::path::PathBuf;

use secrecy::ExposeSecret;

use super::*;

const SECRET: &str = "5ec4e7aa-0000-4000-8000-00005ec4e7aa";

const REGION: &str = "
regions:
  r1:
    endpoints:
      - url: https://pve:8006
    token: {id: 'csi@pve!csi', secret: 5ec4e7aa-0000-4000-8000-00005ec4e7aa}
    pool: tenant
    storages: [local-lvm]
    nodes: [pve-1]
    owners: {default: 9000001}
";

const FORMER: &str = "
clusters:
  - url: https://pve:8006/api2/json
    insecure: false
    token_id: 'csi@pve!csi'
    token_secret: 5ec4e7aa-0000-4000-8000-00005ec4e7aa
    region: r1
";

const POLICY: &str = "
regions:
  r1: {pool: tenant, storages: [local-lvm], nodes: [pve-1]}
";

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn load(files: &[(&str, &str)]) -> Result<Config, String> {
    let folder = folder(files);
    Config::load(&folder.path().join("config.yaml"), None).map_err(|error| {
        let text = error.to_string();
        assert!(!text.contains(SECRET), "the secret is in {text:?}");
        text
    })
}

fn region(config: &Config, name: &str) -> RegionConfig {
    config.regions[&name.parse::<Region>().unwrap()].clone()
}

fn example(name: &str) -> String {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    std::fs::read_to_string(docs.join(name)).unwrap()
}

#[test]
fn the_documented_example_is_a_valid_config_and_each_of_its_keys_arrives() {
    let main = example("config.example.yaml");
    let ca = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
    let config = load(&[
        ("config.yaml", &main),
        ("dc2-ca.pem", ca),
        ("dc2-token-id", "csi@pve!tenant-a\n"),
        ("dc2-token-secret", "dc2-secret\n"),
    ])
    .unwrap();
    assert_eq!(config.provider, Provider::Default);
    let dc1 = region(&config, "dc1");
    let urls: Vec<&str> = dc1.endpoints.iter().map(|e| e.url.as_str()).collect();
    assert_eq!(
        urls,
        [
            "https://pve-1.dc1.example:8006",
            "https://pve-2.dc1.example:8006",
            "https://pve-3.dc1.example:8006"
        ]
    );
    assert!(
        matches!(&dc1.endpoints[0].trust, Trust::Ca(pem) if pem.ends_with("CERTIFICATE-----\n"))
    );
    assert!(
        matches!(&dc1.endpoints[1].trust, Trust::Fingerprint(f) if f[0] == 0x3a && f[31] == 0xa5)
    );
    assert_eq!(dc1.endpoints[2].trust, Trust::Insecure);
    let storage = &dc1.policy.storages[&"local-lvm".parse().unwrap()];
    assert_eq!(storage.max_bytes, Some(Bytes::new(2 << 40)));
    assert_eq!(storage.max_volumes, Some(200));
    assert_eq!(storage.max_volume_bytes, Some(Bytes::new(500 << 30)));
    assert_eq!(storage.min_free, Some(Bytes::new(50 << 30)));
    let limits = Limits {
        iops: Some(5000),
        mbps: Some(200),
    };
    assert_eq!(storage.limits, limits);
    assert!(storage.allow.cache(CacheMode::None) && !storage.allow.cache(CacheMode::Unsafe));
    assert!(storage.allow.aio(AioMode::Threads) && storage.allow.backup);
    assert!(!storage.allow.format(DiskFormat::Qcow2));
    assert_eq!(
        dc1.policy.storages[&"local".parse().unwrap()],
        StoragePolicy::default()
    );
    assert_eq!(dc1.policy.pve_nodes.len(), 3);
    let owner = |node: &str| {
        dc1.policy
            .owner_on(Some(&node.parse().unwrap()))
            .unwrap()
            .get()
    };
    assert_eq!((owner("pve-1"), owner("pve-3")), (100_900_001, 100_900_002));
    assert_eq!(dc1.policy.adopted.len(), 1);
    let dc2 = region(&config, "dc2");
    assert_eq!(dc2.endpoints[0].trust, Trust::Ca(ca.to_owned()));
}

#[test]
fn the_documented_policy_goes_with_a_config_of_the_former_driver() {
    let main = FORMER.replace("r1", "dc1");
    let policy = example("policy.example.yaml");
    let config = load(&[("config.yaml", &main), ("policy.yaml", &policy)]).unwrap();
    let dc1 = region(&config, "dc1");
    assert_eq!(dc1.endpoints[0].url, "https://pve:8006");
    assert_eq!(dc1.endpoints[0].trust, Trust::SystemRoots);
    assert_eq!(
        dc1.policy.owner_on(None),
        None,
        "owners name one PVE node only"
    );
}

#[test]
fn the_former_owner_is_kept_or_9999_when_nobody_names_one() {
    let policy = ("policy.yaml", POLICY);
    let owner = |main: &str| {
        let config = load(&[("config.yaml", main), policy]).unwrap();
        region(&config, "r1").policy.owner_on(None).unwrap().get()
    };
    assert_eq!(owner(FORMER), 9999);
    let named = format!("{FORMER}\nfeatures: {{provider: capmox, controllerVmID: 798497}}");
    assert_eq!(owner(&named), 798_497);
    let config = load(&[("config.yaml", &named), policy]).unwrap();
    assert_eq!(config.provider, Provider::Capmox);
}

#[test]
fn a_token_file_is_read_again_at_each_call() {
    let main = REGION.replace(&format!("secret: {SECRET}"), "secretFile: token");
    let folder = folder(&[("config.yaml", &main), ("token", "first\n")]);
    let config = Config::load(&folder.path().join("config.yaml"), None).unwrap();
    let token = region(&config, "r1").token;
    assert_eq!(token.read().unwrap().secret.expose_secret(), "first");
    std::fs::write(folder.path().join("token"), "second").unwrap();
    let read = token.read().unwrap();
    assert_eq!(read.secret.expose_secret(), "second");
    assert_eq!(read.id, "csi@pve!csi");
    std::fs::remove_file(folder.path().join("token")).unwrap();
    assert!(token.read().is_err());
}

#[test]
fn debug_output_of_a_config_has_no_secret() {
    let config = load(&[("config.yaml", REGION)]).unwrap();
    let token = region(&config, "r1").token.read().unwrap();
    assert_eq!(token.secret.expose_secret(), SECRET);
    for text in [format!("{config:?}"), format!("{token:?}")] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn an_empty_list_means_nothing_and_not_all() {
    let main = REGION.replace("[local-lvm]", "[]").replace("[pve-1]", "[]");
    let policy = region(&load(&[("config.yaml", &main)]).unwrap(), "r1").policy;
    assert!(policy.storages.is_empty() && policy.pve_nodes.is_empty());
    let main = REGION.replace(
        "[local-lvm]",
        "{local-lvm: {allow: {cache: [], formats: []}}}",
    );
    let policy = region(&load(&[("config.yaml", &main)]).unwrap(), "r1").policy;
    let allow = &policy.storages[&"local-lvm".parse().unwrap()].allow;
    assert!(!allow.cache(CacheMode::None) && !allow.format(DiskFormat::Raw));
    assert!(allow.aio(AioMode::Native), "what is not named is not bound");
}

#[test]
fn no_endpoint_is_spoken_to_in_the_clear() {
    for host in ["pve:8006", "127.0.0.1:8006", "localhost", "[::1]:8006"] {
        for trust in ["", "\n        insecure: true"] {
            let line = format!("url: http://{host}/api2/json{trust}");
            let main = REGION.replace("url: https://pve:8006", &line);
            assert!(load(&[("config.yaml", &main)]).is_err(), "{line}");
        }
    }
}

#[test]
fn a_document_that_is_no_config_is_refused_without_being_quoted() {
    let secret = format!("token: [{SECRET}");
    let twice = format!("{REGION}  r1: {{}}");
    for (main, message) in [
        ("", "config.yaml: must be a mapping"),
        (
            "regions: {}",
            "config.yaml: at least one region is required",
        ),
        ("{}", "config.yaml: regions: is required"),
        (secret.as_str(), "not well-formed YAML"),
        (
            twice.as_str(),
            "line 11, column 3: the key stands twice in the same mapping",
        ),
    ] {
        let refused = load(&[("config.yaml", main)]).unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
    let refused = load(&[]).unwrap_err();
    assert!(
        refused.starts_with("cannot read ") && refused.contains("config.yaml: "),
        "{refused}"
    );
}

#[test]
fn policy_has_one_place() {
    let reach = REGION.split("    pool").next().unwrap();
    let owned = POLICY.replace("pool:", "owners: {default: 9000001}, pool:");
    let policy = |main: &str, policy: &str| load(&[("config.yaml", main), ("policy.yaml", policy)]);
    let config = policy(reach, &owned).unwrap();
    assert_eq!(region(&config, "r1").policy.pool.as_str(), "tenant");
    for (main, file, message) in [
        (
            REGION,
            owned.as_str(),
            "config.yaml: regions.r1.pool: stands here although there is a policy file: policy has one place",
        ),
        (
            reach,
            "regions: {}",
            "config.yaml: regions.r1: has no policy: the policy file does not name this region",
        ),
        (
            reach,
            &format!("{owned}  r2: {{}}"),
            "policy.yaml: regions.r2: is in the policy file and not in the config",
        ),
        (
            reach,
            POLICY,
            "policy.yaml: regions.r1.owners: at least one owner is required",
        ),
        (
            reach,
            &owned.replace("pool:", "Pool:"),
            "policy.yaml: regions.r1.Pool: unknown key, it is written pool",
        ),
        (
            FORMER,
            &POLICY.replace("nodes: [pve-1]", ""),
            "policy.yaml: regions.r1.nodes: is required",
        ),
    ] {
        assert_eq!(policy(main, file).unwrap_err(), message);
    }
}

#[test]
fn what_the_former_driver_took_silently_is_refused() {
    let refused = |main: &str| load(&[("config.yaml", main), ("policy.yaml", POLICY)]).unwrap_err();
    let twice = format!("{FORMER}{}", FORMER.replace("\nclusters:", ""));
    let password = FORMER.replace("insecure: false", "username: root@pam");
    let both = FORMER.replace("insecure: false", "token_id_file: x");
    let feature = |text: &str| format!("{FORMER}\nfeatures: {{{text}}}");
    for (main, message) in [
        (
            FORMER.replace("https", "http"),
            "clusters[0].url: must begin with https://",
        ),
        (
            FORMER.replace("region: r1", ""),
            "clusters[0].region: is required",
        ),
        (
            twice,
            "clusters[1].region: is the region of a cluster before it",
        ),
        (
            password,
            "clusters[0].username: is not taken: make an API token and give token_id and token_secret",
        ),
        (
            both,
            "clusters[0].token_id_file: stands beside token_id: give one",
        ),
        (
            feature("provider: talos"),
            "features.provider: must be default or capmox",
        ),
        (
            feature("controllerVMID: 9999"),
            "features.controllerVMID: unknown key, it is written controllerVmID",
        ),
        (
            feature("controllerVmID: 99"),
            "features.controllerVmID: must be a VMID: 100 to 999999999",
        ),
    ] {
        assert_eq!(refused(&main), format!("config.yaml: {message}"));
    }
    let alone = load(&[("config.yaml", FORMER)]).unwrap_err();
    assert_eq!(
        alone,
        "config.yaml: clusters: needs a policy.yaml beside it, with regions.<region>.{pool, storages, nodes}"
    );
    let owned = POLICY.replace("pool:", "owners: {default: 9000001}, pool:");
    let differs = load(&[
        ("config.yaml", &feature("controllerVmID: 9999")),
        ("policy.yaml", &owned),
    ]);
    assert_eq!(
        differs.unwrap_err(),
        "policy.yaml: regions.r1.owners: default differs from features.controllerVmID: say it once"
    );
}

#[test]
fn a_config_that_stands_alone_is_what_the_same_texts_are_as_files_and_names_none() {
    let alone = Config::of_texts(FORMER, POLICY).unwrap();
    let files = load(&[("config.yaml", FORMER), ("policy.yaml", POLICY)]).unwrap();
    let told = |config: &Config| (region(config, "r1").policy, region(config, "r1").endpoints);
    assert_eq!(told(&alone), told(&files));
    let named = FORMER.replace(
        &format!("token_secret: {SECRET}"),
        "token_secret_file: secret",
    );
    let refused = Config::of_texts(&named, POLICY).unwrap_err().to_string();
    assert_eq!(
        refused,
        "config.yaml: clusters[0].token_secret_file: names a file, and none but this config is there: give the value itself"
    );
    let ours = "regions: {r1: {endpoints: [{url: 'https://pve:8006', caFile: /etc/ca}], token: {id: a@b!c, secret: d}}}";
    let refused = Config::of_texts(ours, POLICY).unwrap_err().to_string();
    assert!(
        refused.contains("endpoints[0].caFile: names a file"),
        "{refused}"
    );
}
