//! Where images come from.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::VALUES;
use crate::helm::Half::{Management, Tenant};
use crate::helm::{HALVES, Half, Helm, with_sets};
use crate::objects::{containers, pods, text};

fn images(helm: &Helm, half: Half, arguments: &[String]) -> Result<BTreeMap<String, String>> {
    let objects = helm.rendered(half, arguments)?.objects;
    let all = pods(&objects)
        .into_iter()
        .flat_map(|(_, pod)| containers(pod));
    Ok(all
        .map(|one| {
            (
                text(one, "/name").to_owned(),
                text(one, "/image").to_owned(),
            )
        })
        .collect())
}

#[test]
fn every_image_has_a_tag_or_a_digest_and_never_latest() -> Result<()> {
    let Some(helm) = Helm::find("chart: images")? else {
        return Ok(());
    };
    for half in HALVES {
        for values in VALUES {
            let arguments = [format!("--values={}", half.values(values).display())];
            for (container, image) in images(&helm, half, &arguments)? {
                let last = image.rsplit('/').next().unwrap_or_default();
                let (name, version) = match last.split_once('@') {
                    Some((name, digest)) => (name, digest.trim_start_matches("sha256:")),
                    None => last.split_once(':').unwrap_or((last, "")),
                };
                ensure!(!name.is_empty(), "{values} {container}: {image}");
                ensure!(
                    !version.is_empty() && version != "latest",
                    "{values} {container}: {image}"
                );
                ensure!(
                    values != "hardened" || version.len() == 64,
                    "{container}: {image}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn an_images_own_tag_or_digest_wins_over_the_common_tag() -> Result<()> {
    let Some(helm) = Helm::find("chart: tags")? else {
        return Ok(());
    };
    let of = |sets: &[&str]| -> Result<String> {
        let images = images(&helm, Management, &with_sets(Management, sets))?;
        images.get("ccm").cloned().context("no ccm")
    };
    let version = Management.read("Chart.yaml")?;
    let version = text(&version, "/appVersion");
    ensure!(of(&[])? == format!("ghcr.io/pve-cloud/pve-ccm:{version}"));
    ensure!(of(&["images.tag=v2"])? == "ghcr.io/pve-cloud/pve-ccm:v2");
    ensure!(of(&["images.tag=v2", "images.ccm.tag=v3"])? == "ghcr.io/pve-cloud/pve-ccm:v3");
    let digest = format!("sha256:{}", "a".repeat(64));
    let set = format!("images.ccm.digest={digest}");
    ensure!(of(&[&set, "images.ccm.tag=v3"])? == format!("ghcr.io/pve-cloud/pve-ccm@{digest}"));
    ensure!(of(&["images.registry=r.example"])? == format!("r.example/pve-ccm:{version}"));
    let sets = [
        "images.ccm.registry=o.example:5000/a",
        "images.registry=r.example",
    ];
    ensure!(of(&sets)? == format!("o.example:5000/a/pve-ccm:{version}"));
    Ok(())
}

/// The sidecars' images are of the versions that the tests run with.
#[test]
fn the_sidecars_are_those_that_are_tested() -> Result<()> {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/cluster/go.mod");
    let modules = std::fs::read_to_string(modules)?;
    let values = Management.read("values.yaml")?;
    for name in ["provisioner", "attacher", "resizer"] {
        let module = format!("github.com/kubernetes-csi/external-{name}/");
        let mut lines = modules.lines().map(str::trim);
        let line = lines.find(|line| line.starts_with(&module));
        let version = line.and_then(|line| line.split(' ').nth(1));
        let version = version.with_context(|| format!("no {module}"))?;
        let tag = text(&values, &format!("/images/{name}/tag"));
        ensure!(tag == version, "{name} is {tag}, tested is {version}");
    }
    Ok(())
}

/// Both charts are released together with the programs.
#[test]
fn both_charts_have_the_version_of_the_programs() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    for half in [Management, Tenant] {
        let chart = half.read("Chart.yaml")?;
        for key in ["version", "appVersion"] {
            let found = chart.get(key).and_then(Value::as_str);
            ensure!(found == Some(version), "{} {key}: {found:?}", half.name());
        }
    }
    Ok(())
}
