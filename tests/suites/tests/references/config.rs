//! Keys of the operator's files. What the parser knows is learnt from its refusals: of a key that it does not know it says
//! which it does.

use std::collections::BTreeSet;
use std::path::Path;

use pve_runtime::Config;
use pve_runtime::config::{FENCES_FILE, FenceFile};
use serde_json::{Value, json};

use crate::config_keys::{CONFIG, FENCES, FORMER, Key, REFUSED};
use crate::{golden, head, root, row};

const INTRODUCTION: &str = "\
An unknown key is refused, with its path. File names are relative to the folder of the file. `[]` stands for each member of a list, `<…>` for a name.

";
const OWN: &str = "\
## config.yaml and policy.yaml

[An example with all keys](config.example.yaml). What is marked *policy* stands in `config.yaml` or in `policy.yaml` beside it
([an example](policy.example.yaml)), in one of them.

";
const OTHER: &str = "\
## config.yaml of the former drivers

It is taken as it is, with a `policy.yaml` beside it.

";
const STATED: &str = "\
## fences.yaml

[An example](fences.example.yaml). `pvectl fence` writes it.

";

/// One of the operator's files, how it is read, and what else lies beside it.
struct Kind {
    file: &'static str,
    example: Value,
    beside: Vec<(&'static str, String)>,
}

impl Kind {
    fn load(&self, document: &Value) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(self.file);
        std::fs::write(&path, document.to_string()).unwrap();
        for (name, text) in &self.beside {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        self.read(&path).map_err(|error| error.to_string())
    }

    fn read(&self, path: &Path) -> Result<(), pve_runtime::ConfigError> {
        match self.file {
            FENCES_FILE => FenceFile::load(path).map(drop),
            _ => Config::load(path, None).map(drop),
        }
    }

    /// Every key that the parser knows at the places of the example, by its path.
    fn known(&self) -> BTreeSet<String> {
        let mut places = Vec::new();
        mappings(&self.example, String::new(), &mut places);
        let mut known = BTreeSet::new();
        for place in places {
            let mut document = self.example.clone();
            let map = document.pointer_mut(&place).and_then(Value::as_object_mut);
            map.unwrap().insert("nobodyKnowsThis".to_owned(), json!(1));
            let refused = self.load(&document).unwrap_err();
            if let Some((_, keys)) = refused.split_once("unknown key, known are ") {
                let path = |key| shown(&format!("{place}/{key}"));
                known.extend(keys.split(", ").map(path));
            }
        }
        known
    }

    /// Every key of the example, by its path.
    fn given(&self) -> BTreeSet<String> {
        let mut places = Vec::new();
        mappings(&self.example, String::new(), &mut places);
        let keys = |place: &String| {
            let map = self.example.pointer(place).and_then(Value::as_object);
            let keys = map.unwrap().keys();
            keys.map(|key| shown(&format!("{place}/{key}")))
                .collect::<Vec<_>>()
        };
        places.iter().flat_map(keys).collect()
    }
}

/// The places of all mappings, as JSON pointers.
fn mappings(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                mappings(value, format!("{at}/{key}"), places);
            }
            places.push(at);
        }
        Value::Array(members) => {
            for (index, value) in members.iter().enumerate() {
                mappings(value, format!("{at}/{index}"), places);
            }
        }
        _ => {}
    }
}

/// A pointer as the reference shows it: names of people's own for what they are.
fn shown(pointer: &str) -> String {
    let mut path: Vec<String> = Vec::new();
    for part in pointer.split('/').skip(1) {
        let before = path.last().map(String::as_str);
        match (before, part) {
            (Some(_), index) if index.parse::<u32>().is_ok() => {
                path.last_mut().unwrap().push_str("[]");
            }
            (Some("regions"), _) => path.push("<region>".to_owned()),
            (Some("storages"), _) => path.push("<storage>".to_owned()),
            (Some("owners"), name) if name != "default" => path.push("<PVE node>".to_owned()),
            _ => path.push(part.to_owned()),
        }
    }
    path.join(".")
}

fn example(name: &str) -> Value {
    let text = std::fs::read_to_string(root().join("docs/reference").join(name)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

fn own() -> Kind {
    let ca = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
    Kind {
        file: "config.yaml",
        example: example("config.example.yaml"),
        beside: vec![
            ("dc2-ca.pem", ca.to_owned()),
            ("dc2-token-id", "csi@pve!tenant-a".to_owned()),
            ("dc2-token-secret", "dc2-secret".to_owned()),
        ],
    }
}

fn former() -> Kind {
    let cluster = json!({
        "url": "https://pve:8006/api2/json", "insecure": false, "region": "dc1",
        "token_id": "csi@pve!csi", "token_secret": "s",
    });
    let by_files = json!({
        "url": "https://pve:8006/api2/json", "region": "dc2", "token_id_file": "id", "token_secret_file": "secret",
    });
    let network = json!({
        "mode": "auto", "external_ip_cidrs": "203.0.113.0/24", "ip_sort_order": "10.0.0.0/8", "ipv6_support_disabled": false,
    });
    let features = json!({
        "provider": "capmox", "controllerVmID": 9999, "force_update_labels": true, "ha_group": false, "network": network,
    });
    let policy = json!({ "pool": "p", "storages": ["local"], "nodes": ["pve-1"] });
    let policies = json!({ "regions": { "dc1": policy, "dc2": policy } });
    Kind {
        file: "config.yaml",
        example: json!({ "clusters": [cluster, by_files], "features": features }),
        beside: vec![
            ("policy.yaml", policies.to_string()),
            ("id", "csi@pve!csi".to_owned()),
            ("secret", "s".to_owned()),
        ],
    }
}

fn fences() -> Kind {
    Kind {
        file: FENCES_FILE,
        example: example("fences.example.yaml"),
        beside: Vec::new(),
    }
}

/// Neither more nor less than the parser knows, but for those at the top that belong to another form; and each documented key
/// stands in the example, which is accepted.
fn agree(kind: &Kind, keys: &'static [Key], of_another_form: &[&str]) {
    kind.load(&kind.example).unwrap();
    let documented: BTreeSet<&str> = keys.iter().map(|key| key.path).collect();
    assert_eq!(documented.len(), keys.len(), "a key stands twice");
    let chosen = |path: &&str| !path.ends_with('>') && !path.ends_with("owners.default");
    let described: BTreeSet<&str> = documented.iter().copied().filter(chosen).collect();
    let mut known = kind.known();
    for key in of_another_form {
        assert!(known.remove(*key), "{key}");
    }
    let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
    assert_eq!(described, known, "{}", kind.file);
    let given = kind.given();
    let shown = |path: &&str| given.contains(*path) || REFUSED.contains(path);
    let never: Vec<&str> = documented.into_iter().filter(|path| !shown(path)).collect();
    assert!(never.is_empty(), "no example shows {never:?}");
}

#[test]
fn the_reference_of_the_config_has_the_keys_that_the_parser_knows() {
    agree(&own(), CONFIG, &["clusters", "features"]);
    agree(&former(), FORMER, &["provider", "regions", "nodes"]);
    agree(&fences(), FENCES, &[]);
}

#[test]
fn what_is_said_to_be_refused_is() {
    let kind = former();
    for path in REFUSED {
        let key = path.strip_prefix("clusters[].").unwrap();
        let mut document = kind.example.clone();
        document["clusters"][0][key] = json!("x");
        let refused = kind.load(&document).unwrap_err();
        assert!(refused.contains("is not taken"), "{refused}");
    }
}

#[test]
fn the_reference_of_the_config_is_up_to_date() {
    let from = "the keys that the parser knows";
    let mut text = head("The operator's files", from) + INTRODUCTION;
    for (part, keys) in [(OWN, CONFIG), (OTHER, FORMER), (STATED, FENCES)] {
        text += part;
        text += "| key | value | without it | meaning |\n|---|---|---|---|\n";
        for Key {
            path,
            value,
            absent,
            meaning,
        } in keys
        {
            text += &row(&[&format!("`{path}`"), value, absent, meaning]);
        }
        text += "\n";
    }
    golden("config.md", &text);
}
