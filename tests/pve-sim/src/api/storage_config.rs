//! `/storage`: definitions of storages and their change (`API2/Storage/Config.pm`, `SectionConfig.pm`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::schema;
use crate::state::{Quirk, State, Storage, StorageKind};
use crate::units;

/// What a type of storage takes: required and fixed, and optional options.
struct Options {
    fixed: &'static [&'static str],
    optional: &'static [&'static str],
    content: &'static [&'static str],
    default_content: &'static [&'static str],
}

const DIR: Options = Options {
    fixed: &["path"],
    optional: &[
        "content-dirs",
        "nodes",
        "shared",
        "disable",
        "prune-backups",
        "max-protected-backups",
        "content",
        "format",
        "mkdir",
        "create-base-path",
        "create-subdirs",
        "is_mountpoint",
        "bwlimit",
        "preallocation",
        "snapshot-as-volume-chain",
    ],
    content: &[
        "images", "rootdir", "vztmpl", "iso", "backup", "snippets", "none", "import",
    ],
    default_content: &["images", "rootdir"],
};
const THIN: Options = Options {
    fixed: &["thinpool", "vgname"],
    optional: &["nodes", "disable", "content", "bwlimit"],
    content: &["images", "rootdir"],
    default_content: &["images", "rootdir"],
};
/// Options that have a place of their own in a definition.
const KNOWN: &[&str] = &[
    "content", "nodes", "shared", "disable", "path", "vgname", "thinpool",
];
const CONTROL: &[&str] = &["storage", "type", "digest", "delete"];

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/storage", |call| Ok(definitions(call))),
        now("POST", "/storage", create),
        now("GET", "/storage/{storage}", |call| {
            let state = call.sim.lock();
            let id = call.text("storage");
            let storage = state.storages.get(id).ok_or_else(|| absent(id))?;
            Ok(definition(&state, id, storage).into())
        }),
        now("PUT", "/storage/{storage}", update),
        now("DELETE", "/storage/{storage}", delete),
    ]
}

fn absent(id: &str) -> Fail {
    Fail::die(format!("storage '{id}' does not exist"))
}

fn options(kind: StorageKind) -> &'static Options {
    match kind {
        StorageKind::Dir | StorageKind::Nfs => &DIR,
        _ => &THIN,
    }
}

fn joined(set: &BTreeSet<String>) -> String {
    set.iter().cloned().collect::<Vec<_>>().join(",")
}

/// SHA1 over the definitions, as over `/etc/pve/storage.cfg`.
fn digest(state: &State) -> String {
    let text = serde_json::to_string(&state.storages).unwrap_or_default();
    units::hex(&Sha1::digest(text.as_bytes()))
}

fn definition(state: &State, id: &str, storage: &Storage) -> Value {
    let mut map = Map::new();
    map.insert("storage".into(), json!(id));
    map.insert("type".into(), json!(storage.kind.name()));
    map.insert("content".into(), json!(joined(&storage.content)));
    map.insert("digest".into(), json!(digest(state)));
    match storage.kind {
        StorageKind::Dir | StorageKind::Nfs => {
            map.insert("path".into(), json!(storage.path));
        }
        StorageKind::Lvm => {
            map.insert("vgname".into(), json!(storage.vgname));
            if storage.is(Quirk::Saferemove) {
                map.insert("saferemove".into(), json!(1));
            }
        }
        StorageKind::LvmThin => {
            map.insert("vgname".into(), json!(storage.vgname));
            map.insert("thinpool".into(), json!(storage.thinpool));
        }
        StorageKind::ZfsPool | StorageKind::Rbd => {
            map.insert("pool".into(), json!(storage.pool));
        }
        StorageKind::Drbd => {}
    }
    for (key, set) in [("shared", storage.shared), ("disable", storage.disable)] {
        if set {
            map.insert(key.into(), json!(1));
        }
    }
    if !storage.nodes.is_empty() {
        map.insert("nodes".into(), json!(joined(&storage.nodes)));
    }
    map.extend(
        storage
            .options
            .iter()
            .map(|(key, text)| (key.clone(), json!(text))),
    );
    Value::Object(map)
}

fn definitions(call: &Call) -> Answer {
    let state = call.sim.lock();
    let wanted = |s: &Storage| call.get("type").is_none_or(|kind| kind == s.kind.name());
    let usable = |id: &str| {
        let held = acl::privileges(&state, &call.who, &format!("/storage/{id}"));
        held.contains_key("Datastore.Audit") || held.contains_key("Datastore.AllocateSpace")
    };
    let rows = state
        .storages
        .iter()
        .filter(|(id, s)| wanted(s) && usable(id));
    rows.map(|(id, storage)| definition(&state, id, storage))
        .collect::<Value>()
        .into()
}

/// What a request sets, in PVE's terms.
fn given(call: &Call) -> BTreeMap<String, String> {
    let rest = call
        .params
        .iter()
        .filter(|(key, _)| !CONTROL.contains(&key.as_str()));
    rest.map(|(key, text)| (key.clone(), text.clone()))
        .collect()
}

fn set(storage: &mut Storage, key: &str, text: &str) -> Result<(), Fail> {
    let flag = text == "1";
    match key {
        "content" => storage.content = content(options(storage.kind), text)?,
        "nodes" => storage.nodes = schema::list(text).into_iter().collect(),
        "shared" => storage.shared = flag,
        "disable" => storage.disable = flag,
        "path" => text.clone_into(&mut storage.path),
        "vgname" => text.clone_into(&mut storage.vgname),
        "thinpool" => text.clone_into(&mut storage.thinpool),
        _ => {
            storage.options.insert(key.to_owned(), text.to_owned());
        }
    }
    Ok(())
}

/// Types that the storage does not know are left out with a warning in the log.
fn content(options: &Options, text: &str) -> Result<BTreeSet<String>, Fail> {
    let known = |kind: &String| options.content.contains(&kind.as_str());
    let set: BTreeSet<String> = schema::list(text).into_iter().filter(known).collect();
    if set.contains("none") && set.len() > 1 {
        return Err(Fail::die(
            "unable to combine 'none' with other content types",
        ));
    }
    if set.is_empty() && !options.content.contains(&"none") {
        return Err(Fail::die("storage does not support content type 'none'"));
    }
    Ok(set)
}

fn check(options: &Options, key: &str) -> Result<(), Fail> {
    if options.fixed.contains(&key) || options.optional.contains(&key) {
        Ok(())
    } else {
        Err(Fail::die(format!("unexpected property '{key}'")))
    }
}

fn create(call: &Call) -> ApiResult {
    let (id, kind) = (call.text("storage"), call.text("type"));
    let Some(kind) = [StorageKind::Dir, StorageKind::LvmThin]
        .into_iter()
        .find(|k| k.name() == kind)
    else {
        return Err(Fail::Text {
            status: 501,
            message: format!("storages of type '{kind}' are not simulated"),
        });
    };
    let options = options(kind);
    let mut storage = Storage {
        kind,
        content: options
            .default_content
            .iter()
            .map(|kind| (*kind).to_owned())
            .collect(),
        ..Storage::default()
    };
    let values = given(call);
    for (key, text) in &values {
        check(options, key)?;
        set(&mut storage, key, text)?;
    }
    if let Some(key) = options.fixed.iter().find(|key| !values.contains_key(**key)) {
        return Err(Fail::die(format!(
            "missing value for required option '{key}'"
        )));
    }
    let mut state = call.sim.lock();
    if state.storages.contains_key(id) {
        return Err(Fail::die(format!(
            "create storage failed: storage ID '{id}' already defined"
        )));
    }
    state.storages.insert(id.to_owned(), storage);
    Ok(json!({"storage": id, "type": kind.name()}).into())
}

fn update(call: &Call) -> ApiResult {
    let id = call.text("storage");
    change(call, id).map_err(|fail| fail.within("update storage failed"))
}

fn change(call: &Call, id: &str) -> ApiResult {
    let mut state = call.sim.lock();
    if call
        .get("digest")
        .is_some_and(|given| given != digest(&state))
    {
        return Err(Fail::die(
            "detected modified configuration - file changed by other user? Try again.",
        ));
    }
    let mut storage = state.storages.get(id).cloned().ok_or_else(|| absent(id))?;
    let options = options(storage.kind);
    let values = given(call);
    for (key, text) in &values {
        if options.fixed.contains(&key.as_str()) {
            return Err(Fail::die(format!(
                "can't change value of fixed parameter '{key}'"
            )));
        }
        check(options, key)?;
        set(&mut storage, key, text)?;
    }
    for key in schema::list(call.text("delete")) {
        if options.fixed.contains(&key.as_str()) {
            return Err(Fail::die(format!(
                "unable to delete required option '{key}'"
            )));
        }
        if !options.optional.contains(&key.as_str()) {
            return Err(Fail::die(format!("no such option '{key}'")));
        }
        if values.contains_key(&key) {
            return Err(Fail::die(format!(
                "cannot set and delete property '{key}' at the same time!"
            )));
        }
        if KNOWN.contains(&key.as_str()) {
            let default = options.default_content.join(",");
            set(
                &mut storage,
                &key,
                if key == "content" { &default } else { "" },
            )?;
        } else {
            storage.options.remove(&key);
        }
    }
    let kind = storage.kind.name();
    state.storages.insert(id.to_owned(), storage);
    Ok(json!({"storage": id, "type": kind}).into())
}

/// What lies on the storage stays there; rights on it and its places in pools go.
fn delete(call: &Call) -> ApiResult {
    let id = call.text("storage");
    let mut state = call.sim.lock();
    if state.storages.remove(id).is_none() {
        return Err(absent(id).within("delete storage failed"));
    }
    let path = format!("/storage/{id}");
    state.acl.retain(|entry| entry.path != path);
    for pool in state.pools.values_mut() {
        pool.storages.remove(id);
    }
    Ok(null())
}
