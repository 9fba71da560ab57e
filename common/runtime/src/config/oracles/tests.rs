use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

fn corpus() -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let files = std::fs::read_dir(folder).unwrap();
    let texts = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    texts
        .filter_map(|text| String::from_utf8(text).ok())
        .collect()
}

fn accepted(text: &str) -> bool {
    let (main, policy) = text
        .split_once(DIVIDER)
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let policy = policy.map(|text| file("policy.yaml", text).unwrap());
    file("config.yaml", main).is_ok_and(|main| {
        config(
            &main,
            policy.as_ref(),
            Beside::folder(Path::new("/nonexistent")),
        )
        .is_ok()
    })
}

#[test]
fn the_corpus_of_configs_holds_and_each_form_of_them_is_accepted() {
    let texts = corpus();
    assert!(texts.len() >= 15, "{}", texts.len());
    for text in &texts {
        operator_config(text);
    }
    let seen: Vec<&String> = texts.iter().filter(|text| accepted(text)).collect();
    assert!(seen.len() >= 5, "{}", seen.len());
    assert!(
        seen.iter()
            .any(|text| text.contains("clusters:") && text.contains(DIVIDER))
    );
    assert!(seen.iter().any(|text| !text.contains(DIVIDER)));
    assert!(seen.iter().any(|text| text.contains("cloudInit:")));
    assert!(seen.iter().any(|text| text.contains("ip_sort_order:")));
}

/// A part of the documented form, with something else in the place of one of its values or keys.
fn document() -> impl Strategy<Value = String> {
    let odd = || proptest::option::weighted(0.1, odd());
    (odd(), odd(), odd(), odd(), odd(), odd(), odd()).prop_map(|(url, id, secret, pool, storages, owner, key)| {
        let or = |odd: Option<String>, usual: &str| odd.unwrap_or_else(|| usual.to_owned());
        format!(
            "regions:\n  {}:\n    endpoints: [{{url: {}}}]\n    token: {{id: {}, secret: {}}}\n    pool: {}\n    storages: {}\n    nodes: [pve-1]\n    owners: {{default: {}}}\n",
            or(key, "r1"), or(url, "'https://pve:8006'"), or(id, "'csi@pve!csi'"), or(secret, SECRET), or(pool, "tenant"),
            or(storages, "[local-lvm]"), or(owner, "9000001"),
        )
    })
}

fn odd() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(SECRET.to_owned()),
        Just(format!("'https://root:{SECRET}@pve'")),
        Just(format!("[{SECRET}]")),
        Just(format!("{{{SECRET}: {SECRET}}}")),
        Just("https://pve:99999".to_owned()),
        Just("{local-lvm: {maxBytes: 9999999Pi}}".to_owned()),
        Just("0x10".to_owned()),
        Just("~".to_owned()),
        "[a-z0-9:/@!.?#-]{0,20}",
        "\"[ -!#-\\[\\]-~]{0,20}\"",
    ]
}

proptest! {
    #[test]
    fn a_config_is_refused_without_its_words_or_kept_without_its_secret(text in document()) {
        operator_config(&text);
    }

    #[test]
    fn no_text_breaks_the_config(text in "(\\PC|\n|  |- |: ){0,60}") {
        operator_config(&text);
    }
}
