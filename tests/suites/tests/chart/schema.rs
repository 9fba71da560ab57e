//! `values.schema.json`: closed, and the same tree as `values.yaml`.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, ensure};
use pve_model::params::Parameters;
use serde_json::Value;

use crate::helm::Half::{self, Management, Tenant};
use crate::helm::{HALVES, Helm};
use crate::objects::walk;

/// Mistyped keys at every depth.
const TYPOS: [(Half, &str); 12] = [
    (Management, "replicaCount=2"),
    (Management, "csi.secretname=x"),
    (Management, "csi.capacity.enable=true"),
    (Management, "csi.controller.resources.request.cpu=1"),
    (Management, "csi.provisioner.resources.limits.mem=1"),
    (Management, "tenant.kubeconfigSecret.keys=x"),
    (Management, "images.csiController.repo=x"),
    (Management, "admin.ports.cssi=1"),
    (Tenant, "kubeletdir=/x"),
    (Tenant, "node.tolerations[0].operator=Exists"),
    (Tenant, "storageClasses[0].storage=x"),
    (Tenant, "storageClasses[0].parameters.storge=x"),
];

/// Values that are not of their grammar.
const WRONG: [(Half, &str); 21] = [
    (Management, "csi.enabled=maybe"),
    (Management, "csi.replicas=0"),
    (Management, "csi.replicas=two"),
    (Management, "ccm.secretName=Upper"),
    (Management, "ccm.pollPeriod=60"),
    (Management, "logFormat=xml"),
    (Management, "policy.provider=CAPMOX"),
    (Management, "images.ccm.digest=sha256:1234"),
    (Management, "images.ccm.tag=a b"),
    (Management, "admin.host=localhost"),
    (Management, "admin.ports.ccm=80"),
    (Management, "teardown.timeoutSeconds=10m"),
    (Management, "tenant.namespace=a.b"),
    (Management, "tenant.kubeconfigSecret.key=../token"),
    (Tenant, "kubeletDir=var/lib/kubelet"),
    (Tenant, "kubeletDir=/var/lib/kubelet/"),
    (Tenant, "node.maxUnavailable=0"),
    (Tenant, "node.extraArgs[0]=sh"),
    (Tenant, "storageClasses[0].reclaimPolicy=Keep"),
    (Tenant, "storageClasses[0].fsType=xfs"),
    (Tenant, "storageClasses[0].parameters.ssd=yes"),
];

/// Where keys of Kubernetes' own types may stand, which the API server checks.
const OPEN: [&str; 8] = [
    "/properties/global",
    "/definitions/affinity/properties/nodeAffinity",
    "/definitions/affinity/properties/podAffinity",
    "/definitions/affinity/properties/podAntiAffinity",
    "/properties/node/properties/extraVolumes/items",
    "/properties/node/properties/extraVolumeMounts/items",
    "/definitions/storageClass/properties/allowedTopologies/items",
    "/definitions/strings",
];

#[test]
fn mistyped_keys_are_refused_at_every_depth() -> Result<()> {
    let Some(helm) = Helm::find("chart: typos")? else {
        return Ok(());
    };
    for (half, set) in TYPOS {
        let said = helm.refusal(half, &[set])?;
        ensure!(
            said.contains("additional properties"),
            "{} with {set} said {said:?}",
            half.name()
        );
    }
    Ok(())
}

#[test]
fn values_of_a_wrong_grammar_are_refused() -> Result<()> {
    let Some(helm) = Helm::find("chart: wrong values")? else {
        return Ok(());
    };
    for (half, set) in WRONG {
        let said = helm.refusal(half, &[set])?;
        let path = set.split('=').next().unwrap_or_default();
        let path = path.replace("[0]", ".0").replace('.', "/");
        ensure!(
            said.contains("values don't meet the specifications") && said.contains(&path),
            "{} with {set} said {said:?}",
            half.name()
        );
    }
    Ok(())
}

#[test]
fn every_object_of_the_schemas_is_closed() -> Result<()> {
    for half in HALVES {
        let schema = half.read("values.schema.json")?;
        let mut open = Vec::new();
        walk(&schema, "", &mut |path, value| {
            let is_schema = !path.ends_with("/properties") && !path.ends_with("/definitions");
            let is_object = value.get("type").is_some_and(|is| is == "object");
            let is_closed = value.get("additionalProperties") == Some(&Value::Bool(false));
            if is_schema && is_object && !is_closed && !OPEN.contains(&path) {
                open.push(path.to_owned());
            }
        });
        ensure!(open.is_empty(), "{}: open at {open:?}", half.name());
        ensure!(schema.get("additionalProperties") == Some(&Value::Bool(false)));
    }
    Ok(())
}

/// A key that only one of them knows is refused, or can't be set.
#[test]
fn schema_and_values_have_the_same_keys() -> Result<()> {
    for half in HALVES {
        let schema = half.read("values.schema.json")?;
        let mut known = BTreeSet::new();
        keys_of_schema(&schema, &schema, "", &mut known)?;
        known.remove("/global");
        let mut given = BTreeSet::new();
        keys_of_values(&half.read("values.yaml")?, "", &known, &mut given);
        let missing: Vec<_> = known.symmetric_difference(&given).collect();
        ensure!(
            missing.is_empty(),
            "{}: only one has {missing:?}",
            half.name()
        );
    }
    Ok(())
}

/// So that `full` is an example of each, and the snapshots and dry runs see each used.
#[test]
fn the_full_values_set_every_value() -> Result<()> {
    for half in HALVES {
        let full = half.read("ci/full-values.yaml")?;
        let schema = half.read("values.schema.json")?;
        let mut known = BTreeSet::new();
        keys_of_schema(&schema, &schema, "", &mut known)?;
        let unset = known.iter().filter(|key| full.pointer(key).is_none());
        let unset: Vec<_> = unset.collect();
        ensure!(unset.is_empty(), "{}: not set: {unset:?}", half.name());
    }
    Ok(())
}

/// The example with every parameter is read by the driver's own parser.
#[test]
fn the_parameters_of_a_class_are_those_that_the_driver_takes() -> Result<()> {
    let schema = Tenant.read("values.schema.json")?;
    let known = schema.pointer("/definitions/parameters/properties");
    let known = known.and_then(Value::as_object).context("no parameters")?;
    let full = Tenant.read("ci/full-values.yaml")?;
    let given = full.pointer("/storageClasses/0/parameters");
    let given = given.and_then(Value::as_object).context("no class")?;
    ensure!(known.keys().eq(given.keys()), "{known:?} are not {given:?}");
    let mut parameters = HashMap::new();
    for (key, value) in given {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        parameters.insert(key.clone(), value);
    }
    Parameters::strict(&parameters)?;
    Ok(())
}

/// Paths of the keys that a schema names, down to where it says nothing more of a value's inside.
fn keys_of_schema(
    root: &Value,
    schema: &Value,
    path: &str,
    keys: &mut BTreeSet<String>,
) -> Result<()> {
    let schema = match schema.get("$ref").and_then(Value::as_str) {
        Some(to) => root
            .pointer(to.trim_start_matches('#'))
            .context("a reference to nothing")?,
        None => schema,
    };
    let inside = schema.get("properties").and_then(Value::as_object);
    // What is documented as one value.
    let whole = ["resources", "affinity"]
        .iter()
        .any(|name| path.ends_with(name));
    match inside {
        Some(properties) if !whole => {
            for (key, schema) in properties {
                keys_of_schema(root, schema, &format!("{path}/{key}"), keys)?;
            }
        }
        _ => {
            keys.insert(path.to_owned());
        }
    }
    Ok(())
}

fn keys_of_values(
    values: &Value,
    path: &str,
    whole: &BTreeSet<String>,
    keys: &mut BTreeSet<String>,
) {
    match values {
        Value::Object(fields) if !whole.contains(path) => {
            for (key, value) in fields {
                keys_of_values(value, &format!("{path}/{key}"), whole, keys);
            }
        }
        _ => {
            keys.insert(path.to_owned());
        }
    }
}
