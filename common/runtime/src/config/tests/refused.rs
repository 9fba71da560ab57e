use super::{FORMER, POLICY, REGION, SECRET, load};

/// Each row: what is replaced in [`REGION`], by what, and all of the message.
const REFUSED: [(&str, &str, &str); 47] = [
    (
        "url: https",
        "url: http",
        "regions.r1.endpoints[0].url: must begin with https://",
    ),
    (
        "url: https",
        "url: ftp",
        "regions.r1.endpoints[0].url: must begin with https://",
    ),
    (
        "https://pve:8006",
        "pve:8006",
        "regions.r1.endpoints[0].url: must be a URL: https://host:8006",
    ),
    (
        "pve:8006",
        "pve:8006/api2/extjs",
        "regions.r1.endpoints[0].url: must have no path but /api2/json",
    ),
    (
        "pve:8006",
        "pve:8006?a=b",
        "regions.r1.endpoints[0].url: must not have a query or a fragment",
    ),
    (
        "pve:8006",
        "root:pw@pve:8006",
        "regions.r1.endpoints[0].url: must not hold a user or a password",
    ),
    (
        "pve:8006",
        "pve:99999",
        "regions.r1.endpoints[0].url: has a port that is not a number up to 65535",
    ),
    (
        "url: https://pve:8006",
        "{}",
        "regions.r1.endpoints[0].url: is required",
    ),
    (
        "      - url: https://pve:8006\n",
        "      []\n",
        "regions.r1.endpoints: must have at least one member",
    ),
    (
        "pve:8006\n",
        "pve:8006\n      - url: https://pve:8006/\n",
        "regions.r1.endpoints[1]: is the same as one before it",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        verify: false\n",
        "regions.r1.endpoints[0].<key>: unknown key, known are url, ca, caFile, fingerprint, insecure",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        insecure: 'no'\n",
        "regions.r1.endpoints[0].insecure: must be true or false",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        fingerprint: aabb\n",
        "regions.r1.endpoints[0].fingerprint: must be the certificate's SHA-256: 64 hex digits, with or without colons",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        ca: none\n",
        "regions.r1.endpoints[0].ca: must hold certificates in PEM form",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        ca: '-----BEGIN PRIVATE KEY-----'\n",
        "regions.r1.endpoints[0].ca: holds a private key: give certificates only",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        ca: a\n        fingerprint: b\n",
        "regions.r1.endpoints[0].fingerprint: only one of ca, caFile and fingerprint can hold",
    ),
    (
        "pve:8006\n",
        "pve:8006\n        insecure: true\n        ca: a\n",
        "regions.r1.endpoints[0].ca: has no meaning beside insecure: true",
    ),
    (
        "id: 'csi@pve!csi', ",
        "",
        "regions.r1.token.id: is required (or idFile)",
    ),
    (
        "id: 'csi@pve!csi', ",
        "id: 'csi@pve', ",
        "regions.r1.token.id: the token id must have the form user@realm!name",
    ),
    (
        "id: 'csi@pve!csi', ",
        "id: 'csi@pve!csi', idFile: f, ",
        "regions.r1.token.idFile: stands beside id: give one",
    ),
    (
        "id: 'csi@pve!csi', ",
        "id: 'csi@pve!csi', secret_file: f, ",
        "regions.r1.token.secret_file: unknown key, it is written secretFile",
    ),
    (
        "    storages:",
        "    storage:",
        "regions.r1.storage: unknown key, it is written storages",
    ),
    (
        "secret: 5ec4e7aa-0000-4000-8000-00005ec4e7aa",
        "secret: 12345",
        "regions.r1.token.secret: must be a string: put it between quotes",
    ),
    (
        "secret: 5ec4e7aa",
        "secret: a b",
        "regions.r1.token.secret: the token secret is empty or holds blanks or control characters",
    ),
    (
        "{id: 'csi@pve!csi', secret: 5ec4e7aa-0000-4000-8000-00005ec4e7aa}",
        "5ec4e7aa-0000-4000-8000-00005ec4e7aa",
        "regions.r1.token: must be a mapping",
    ),
    ("    pool: tenant\n", "", "regions.r1.pool: is required"),
    (
        "pool: tenant",
        "pool: ''",
        "regions.r1.pool: must not be empty",
    ),
    (
        "pool: tenant",
        "pool: a//b",
        "regions.r1.pool: not a valid PVE pool id",
    ),
    (
        "    storages: [local-lvm]\n",
        "",
        "regions.r1.storages: is required",
    ),
    ("[local-lvm]", "", "regions.r1.storages: is required"),
    (
        "[local-lvm]",
        "['../x']",
        "regions.r1.storages[0]: not a valid PVE storage id",
    ),
    (
        "[local-lvm]",
        "{local-lvm: {maxBytes: -1}}",
        "regions.r1.storages.local-lvm.maxBytes: must be a whole number of bytes",
    ),
    (
        "[local-lvm]",
        "{local-lvm: {maxBytes: 10GB}}",
        "regions.r1.storages.local-lvm.maxBytes: must be a number of bytes, or one with Ki, Mi, Gi, Ti or Pi",
    ),
    (
        "[local-lvm]",
        "{local-lvm: {maxVolumes: 1.5}}",
        "regions.r1.storages.local-lvm.maxVolumes: must be a whole number up to 4294967295",
    ),
    (
        "[local-lvm]",
        "{local-lvm: {limits: {iops: 0}}}",
        "regions.r1.storages.local-lvm.limits.iops: must be at least 1",
    ),
    (
        "[local-lvm]",
        "{local-lvm: {allow: {cache: [fast]}}}",
        "regions.r1.storages.local-lvm.allow.cache[0]: must be a cache mode of PVE",
    ),
    (
        "[local-lvm]",
        "{local-lvm: {allow: {formats: [vmdk]}}}",
        "regions.r1.storages.local-lvm.allow.formats[0]: must be raw or qcow2",
    ),
    (
        "nodes: [pve-1]",
        "nodes: pve-1",
        "regions.r1.nodes: must be a list",
    ),
    (
        "    owners: {default: 9000001}\n",
        "",
        "regions.r1.owners: at least one owner is required",
    ),
    (
        "9000001",
        "99",
        "regions.r1.owners.default: must be a VMID: 100 to 999999999",
    ),
    (
        "9000001",
        "9000001, pve-2: 100",
        "regions.r1.owners.pve-2: is a PVE node that nodes does not list",
    ),
    (
        "pool: tenant",
        "pool: tenant\n    mode: ownerVM",
        "regions.r1.mode: ownerVM is not offered yet: use reserved, with storages that no one else uses",
    ),
    (
        "pool: tenant",
        "pool: tenant\n    mode: Reserved",
        "regions.r1.mode: must be reserved",
    ),
    (
        "pool: tenant",
        "pool: tenant\n    adopted: [r2/pve-1/local-lvm/vm-9999-a]",
        "regions.r1.adopted[0]: is a volume of another region",
    ),
    (
        "pool: tenant",
        "pool: tenant\n    adopted: [vm-100-disk-0]",
        "regions.r1.adopted[0]: malformed volume handle: PVE node",
    ),
    (
        "regions:",
        "provider: talos\nregions:",
        "provider: must be default or capmox",
    ),
    (
        "regions:",
        "features: {}\nregions:",
        "features: belongs to the former drivers' form and cannot stand beside ours",
    ),
];

#[test]
fn each_refusal_names_the_key_and_says_what_it_must_be() {
    for (old, new, message) in REFUSED {
        let main = REGION.replacen(old, new, 1);
        assert_ne!(main, REGION, "{old:?} is not in the config");
        let refused = load(&[("config.yaml", &main)]).unwrap_err();
        assert_eq!(refused, format!("config.yaml: {message}"));
    }
}

/// Each row: a config, in which a secret stands where a key belongs, in place of this text.
const KEYS: [(&str, &str); 12] = [
    (REGION, "regions"),
    (REGION, "r1"),
    (REGION, "endpoints"),
    (REGION, "url"),
    (REGION, "token"),
    (REGION, "id"),
    (REGION, "pool"),
    (REGION, "owners"),
    (REGION, "default"),
    (FORMER, "clusters"),
    (FORMER, "region"),
    (FORMER, "token_secret"),
];

#[test]
fn a_secret_in_the_place_of_a_key_is_never_shown() {
    // `load` looks for the first one. Others have no form that they could be known by.
    for secret in [SECRET, "Tr0ub4dor", "hunter"] {
        for (config, key) in KEYS {
            let (before, after) = config.split_once(&format!("{key}:")).unwrap();
            for main in [
                format!("{before}{secret}:{after}"),
                format!("{before}{secret}: {{{secret}: 1}}, {key}:{after}"),
            ] {
                let named = key == "r1" || key == "default";
                if named && secret != SECRET {
                    continue;
                }
                let policy = ("policy.yaml", POLICY);
                let files = [("config.yaml", main.as_str()), policy];
                let files = if config == FORMER {
                    &files[..]
                } else {
                    &files[..1]
                };
                match load(files) {
                    Ok(_) => assert!(named, "{main} was taken"),
                    Err(refused) => assert!(!refused.contains(secret), "{refused}"),
                }
            }
        }
        let twice = REGION.replace("id: ", &format!("{secret}: 1, {secret}: 2, id: "));
        let refused = load(&[("config.yaml", &twice)]).unwrap_err();
        assert!(!refused.contains(secret), "{refused}");
        assert!(refused.contains("stands twice"), "{refused}");
        let storage = REGION.replace("[local-lvm]", &format!("{{{secret}: {{{secret}: 1}}}}"));
        let refused = load(&[("config.yaml", &storage)]).unwrap_err();
        assert!(!refused.contains(SECRET), "{refused}");
    }
}

#[test]
fn a_document_that_grows_when_it_is_read_is_refused() {
    let mut bomb = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x, x]".to_owned()];
    for level in 1..12 {
        let ten = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push(format!("a{level}: &a{level} [{ten}]"));
    }
    let bomb = bomb.join("\n");
    let refused = load(&[("config.yaml", &bomb)]).unwrap_err();
    assert!(refused.contains("not well-formed YAML"), "{refused}");
}

#[test]
fn a_second_document_in_the_file_is_refused() {
    let two = format!("{REGION}---{REGION}");
    let refused = load(&[("config.yaml", &two)]).unwrap_err();
    assert!(refused.contains("not well-formed YAML"), "{refused}");
}
