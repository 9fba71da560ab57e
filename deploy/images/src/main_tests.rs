use super::*;

/// The programs of the workspace that are not for tests or for building.
fn programs() -> Vec<String> {
    let mut metadata = command(env!("CARGO"));
    metadata.current_dir(repository().unwrap());
    let text =
        output(metadata.args(["metadata", "--locked", "--no-deps", "--format-version", "1"]));
    let metadata: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    let list = |value: &serde_json::Value, key: &str| value[key].as_array().cloned().unwrap();
    let root = repository().unwrap().display().to_string();
    let mut names = Vec::new();
    for package in list(&metadata, "packages") {
        let at = package["manifest_path"]
            .as_str()
            .unwrap()
            .strip_prefix(&root)
            .unwrap()
            .to_owned();
        if at.starts_with("/tests/") || at.starts_with("/deploy/") {
            continue;
        }
        for target in list(&package, "targets") {
            if target["kind"] == serde_json::json!(["bin"]) {
                assert_eq!(
                    target["name"], package["name"],
                    "cargo is asked for packages"
                );
                names.push(target["name"].as_str().unwrap().to_owned());
            }
        }
    }
    names
}

#[test]
fn every_program_has_an_image_of_its_name() {
    let images = all_images().unwrap();
    let programs = programs();
    assert!(programs.len() >= 4, "{programs:?}");
    for program in programs {
        let image = images.iter().find(|image| image.name == program);
        let image = image.unwrap_or_else(|| panic!("no image of {program}"));
        assert_eq!(image.program().unwrap(), program);
    }
}

#[test]
fn only_the_node_plugin_is_root_and_brings_more_than_its_program() {
    for image in all_images().unwrap() {
        let node = image.name == "pve-csi-node";
        assert_eq!(
            image.user,
            if node { "0:0" } else { "65532:65532" },
            "{}",
            image.name
        );
        assert_eq!(
            image.base == dockerfile::Base::Scratch,
            !node,
            "{}",
            image.name
        );
        for key in [
            "title",
            "description",
            "source",
            "licenses",
            "version",
            "revision",
        ] {
            let key = format!("org.opencontainers.image.{key}");
            assert!(
                image.labels.get(&key).is_some_and(|text| !text.is_empty()),
                "{key}"
            );
        }
    }
}

/// The names in `csi-node`'s table of the programs that it runs.
fn programs_of_the_node_plugin() -> Vec<String> {
    let source =
        std::fs::read_to_string(repository().unwrap().join("csi-node/src/host.rs")).unwrap();
    let lines = source.lines().filter_map(|line| {
        let (variant, name) = line.trim().strip_prefix("Self::")?.split_once(" => \"")?;
        let name = name.strip_suffix("\",")?;
        (!variant.contains(' ')).then(|| name.to_owned())
    });
    lines.collect()
}

#[test]
fn the_nodes_image_is_checked_for_every_program_that_the_plugin_runs() {
    let programs = programs_of_the_node_plugin();
    assert!(programs.contains(&"mkfs.ext4".to_owned()), "{programs:?}");
    for program in programs {
        assert!(check::TOOLS.contains(&program.as_str()), "{program}");
    }
}
