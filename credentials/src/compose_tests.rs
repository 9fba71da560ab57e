use super::*;
use secrecy::ExposeSecret;

const SECRET: &str = "5ec4e7aa-0000-4000-8000-00005ec4e7aa";
const URL: &str = "https://pve:8006/api2/json";
const ID: &str = "csi@pve!tenant-a";

const OURS: &str = "{provider: capmox, regions: {r1: {endpoints: [{url: 'https://pve:8006'}], \
    token: {id: 'csi@pve!tenant-a', secret: 5ec4e7aa-0000-4000-8000-00005ec4e7aa}}}}";
const FORMER: &str = "{clusters: [{url: 'https://pve:8006/api2/json', region: r1, token_id: 'csi@pve!tenant-a', \
    token_secret: 5ec4e7aa-0000-4000-8000-00005ec4e7aa}], features: {controllerVmID: 798497}}";
const GIVEN: &str =
    "regions: {r1: {pool: tenant-a, storages: [local], nodes: [pve1], owners: {default: 798497}}}";
const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

type Pairs = Vec<(&'static str, &'static str)>;

fn secret(pairs: &[(&'static str, &'static str)]) -> Mounted {
    let mut mounted = Mounted::default();
    for (key, text) in pairs {
        mounted.put(key, text);
    }
    mounted
}

fn csi() -> Wanted {
    Wanted {
        purpose: Use::Csi,
        provider: None,
        regions: BTreeSet::new(),
    }
}

fn single() -> Pairs {
    vec![
        ("use", "csi\n"),
        ("policy.yaml", GIVEN),
        ("url", URL),
        ("region", "r1\n"),
        ("token_id", ID),
        ("token_secret", SECRET),
    ]
}

fn whole(config: &'static str) -> Pairs {
    vec![
        ("use", "csi"),
        ("policy.yaml", GIVEN),
        ("config.yaml", config),
    ]
}

fn with(mut pairs: Pairs, more: &[(&'static str, &'static str)]) -> Pairs {
    for (key, text) in more {
        pairs.retain(|(there, _)| there != key);
        pairs.push((key, text));
    }
    pairs
}

fn without(mut pairs: Pairs, key: &str) -> Pairs {
    pairs.retain(|(there, _)| *there != key);
    pairs
}

/// What the drivers make of the files.
fn read(files: &Files) -> Config {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text.expose_secret()).unwrap();
    }
    Config::load(&folder.path().join("config.yaml"), None).unwrap()
}

#[test]
fn every_form_of_a_secret_becomes_what_the_drivers_read() {
    let fingerprint = "3A:8E:11:0C:52:9D:74:F0:BB:61:27:C8:95:4E:DA:03:6F:B2:18:E7:40:CD:99:5A:21:F6:8C:37:D4:0B:7E:A5";
    for (pairs, provider, trust) in [
        (whole(OURS), Provider::Capmox, "SystemRoots"),
        (whole(FORMER), Provider::Default, "SystemRoots"),
        (single(), Provider::Default, "SystemRoots"),
        (with(single(), &[("ca.crt", CA)]), Provider::Default, "Ca"),
        (
            with(
                single(),
                &[("fingerprint", fingerprint), ("provider", "capmox")],
            ),
            Provider::Capmox,
            "Fingerprint",
        ),
        (
            with(single(), &[("insecure", "true\n")]),
            Provider::Default,
            "Insecure",
        ),
        (
            with(single(), &[("insecure", "false"), ("ca.crt", CA)]),
            Provider::Default,
            "Ca",
        ),
    ] {
        let files = files(&secret(&pairs), &csi()).unwrap();
        let config = read(&files);
        assert_eq!(config.provider, provider);
        let (name, region) = config.regions.first_key_value().unwrap();
        assert_eq!(name.as_str(), "r1");
        let token = region.token.read().unwrap();
        assert_eq!(token.id, ID);
        assert_eq!(token.secret.expose_secret(), SECRET);
        let [endpoint] = region.endpoints.as_slice() else {
            panic!("{region:?}");
        };
        assert_eq!(endpoint.url, "https://pve:8006");
        assert!(
            format!("{:?}", endpoint.trust).starts_with(trust),
            "{endpoint:?}"
        );
        assert_eq!(region.policy.owners.default.unwrap().to_string(), "798497");
    }
}

#[test]
fn what_the_operator_wrote_is_passed_on_letter_by_letter() {
    let fences = "fences: []\n";
    let pairs = with(whole(FORMER), &[("fences.yaml", fences)]);
    let files = files(&secret(&pairs), &csi()).unwrap();
    let texts: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.expose_secret()))
        .collect();
    assert_eq!(
        texts,
        [
            ("config.yaml", FORMER),
            ("fences.yaml", fences),
            ("policy.yaml", GIVEN)
        ]
    );
}

/// One change of a Secret in the form of single keys: the key and what it holds then, if it is still there.
type Change = (&'static str, &'static str, Option<&'static str>);

const CHANGES: [Change; 27] = [
    ("no use", "use", None),
    ("use of another", "use", Some("ccm")),
    ("use unknown", "use", Some(SECRET)),
    ("no policy", "policy.yaml", None),
    ("policy empty", "policy.yaml", Some("")),
    (
        "policy without pool",
        "policy.yaml",
        Some("regions: {r1: {storages: [], nodes: []}}"),
    ),
    (
        "policy without storages",
        "policy.yaml",
        Some("regions: {r1: {pool: a, nodes: []}}"),
    ),
    (
        "policy without nodes",
        "policy.yaml",
        Some("regions: {r1: {pool: a, storages: []}}"),
    ),
    ("policy of another region", "region", Some("r2")),
    (
        "policy malformed",
        "policy.yaml",
        Some("a: [5ec4e7aa-0000-4000-8000-00005ec4e7aa"),
    ),
    ("both forms", "config.yaml", Some(OURS)),
    ("no url", "url", None),
    ("no region", "region", None),
    ("half a token: id", "token_secret", None),
    ("half a token: secret", "token_id", None),
    ("empty half", "token_secret", Some(" \n")),
    ("id wrong", "token_id", Some(SECRET)),
    (
        "secret wrong",
        "token_secret",
        Some("5ec4e7aa 0000 4000 8000 00005ec4e7aa"),
    ),
    (
        "url wrong",
        "url",
        Some("https://a:5ec4e7aa-0000-4000-8000-00005ec4e7aa@pve"),
    ),
    ("url plain", "url", Some("http://pve:8006")),
    (
        "region wrong",
        "region",
        Some("r 5ec4e7aa-0000-4000-8000-00005ec4e7aa"),
    ),
    (
        "insecure wrong",
        "insecure",
        Some("5ec4e7aa-0000-4000-8000-00005ec4e7aa"),
    ),
    (
        "authority is a key",
        "ca.crt",
        Some("-----BEGIN PRIVATE KEY-----\n5ec4e7aa"),
    ),
    ("authority is none", "ca.crt", Some(SECRET)),
    ("fingerprint wrong", "fingerprint", Some(SECRET)),
    ("provider wrong", "provider", Some(SECRET)),
    (
        "fences wrong",
        "fences.yaml",
        Some("fences: 5ec4e7aa-0000-4000-8000-00005ec4e7aa"),
    ),
];

const CONFIGS: [(&str, &str); 7] = [
    (
        "malformed",
        "{regions: 5ec4e7aa-0000-4000-8000-00005ec4e7aa, ",
    ),
    (
        "half a token",
        "{regions: {r1: {endpoints: [{url: 'https://pve'}], token: {id: a@b!c}}}}",
    ),
    (
        "a file for the token",
        "{regions: {r1: {endpoints: [{url: 'https://pve'}], token: {id: a@b!c, secretFile: /s}}}}",
    ),
    (
        "a file for the authority",
        "{regions: {r1: {endpoints: [{url: 'https://pve', caFile: ca.crt}], token: {id: a@b!c, secret: d}}}}",
    ),
    (
        "a password",
        "{clusters: [{url: 'https://pve', region: r1, username: a, password: 5ec4e7aa-0000-4000-8000-00005ec4e7aa}]}",
    ),
    (
        "policy",
        "{regions: {r1: {pool: a, endpoints: [{url: 'https://pve'}], token: {id: a@b!c, secret: d}}}}",
    ),
    (
        "an unknown key",
        "{regions: {r1: {endpoint: 5ec4e7aa-0000-4000-8000-00005ec4e7aa}}}",
    ),
];

fn refusals() -> Vec<(String, Pairs)> {
    let changed = |(name, key, text): &Change| {
        let pairs = without(single(), key);
        let pairs = text.map_or(pairs.clone(), |text| with(pairs, &[(key, text)]));
        ((*name).to_owned(), pairs)
    };
    let config = |(name, text): &(&str, &'static str)| (format!("config with {name}"), whole(text));
    let none = ["url", "region", "token_id", "token_secret"];
    let none = none.into_iter().fold(single(), without);
    let authority = [("ca.crt", CA), ("insecure", "true")];
    let two = [("ca.crt", CA), ("fingerprint", SECRET)];
    let mut cases = vec![
        ("nothing".to_owned(), vec![]),
        ("no form".to_owned(), none),
        (
            "authority beside a config".to_owned(),
            with(whole(OURS), &[("ca.crt", CA)]),
        ),
        (
            "insecure and an authority".to_owned(),
            with(single(), &authority),
        ),
        ("two trusts".to_owned(), with(single(), &two)),
    ];
    cases.extend(CHANGES.iter().map(changed));
    cases.extend(CONFIGS.iter().map(config));
    cases
}

/// Every Secret that is refused, with the sentence that the operator reads.
#[test]
fn a_secret_that_is_not_right_is_refused_with_a_sentence_and_without_a_secret() {
    let mut told = Vec::new();
    for (name, pairs) in refusals() {
        let said = files(&secret(&pairs), &csi()).unwrap_err();
        assert!(matches!(said, Trouble::Refused(_)), "{name}: {said:?}");
        let said = said.to_string();
        assert!(!said.contains("5ec4e7aa"), "{name}: {said}");
        told.push(format!("{name}: {said}"));
    }
    insta::assert_snapshot!("refused", told.join("\n"));
}

#[test]
fn what_is_said_twice_must_be_the_same() {
    let wanted = |provider, regions: &[&str]| Wanted {
        purpose: Use::Csi,
        provider,
        regions: regions.iter().map(|name| name.parse().unwrap()).collect(),
    };
    let said = |wanted| files(&secret(&whole(OURS)), &wanted).map_err(|error| error.to_string());
    assert!(said(wanted(Some(Provider::Capmox), &["r1"])).is_ok());
    assert_eq!(
        said(wanted(Some(Provider::Default), &[])).unwrap_err(),
        "--expect-provider says default, and the Secret's config capmox: the Secret decides, say the same or nothing"
    );
    for regions in [["r1", "r2"].as_slice(), &["r2"]] {
        let list = regions.join(", ");
        assert_eq!(
            said(wanted(None, regions)).unwrap_err(),
            format!(
                "--expect-region says {list}, and the Secret's config r1: the Secret decides, say the same or nothing"
            )
        );
    }
}
