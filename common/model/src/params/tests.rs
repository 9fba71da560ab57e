use super::*;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (given, meant) in [
        ("Storage", "storage"),
        ("diskiops", "diskIOPS"),
        ("catche", "cache"),
        ("inodesize", "inodeSize"),
    ] {
        let error = Parameters::strict(&map(&[("storage", "local"), (given, "x")])).unwrap_err();
        assert_eq!(
            error,
            ParameterError::Unknown {
                key: given.to_owned(),
                nearest: meant
            },
            "{given}"
        );
    }
}

#[test]
fn values_outside_their_grammar_are_refused_at_create_and_at_publish() {
    for (key, bad) in [
        ("storage", "a,b"),
        ("storageFormat", "vmdk"),
        ("cache", "none,size=1G"),
        ("aio", "fast"),
        ("ssd", "yes"),
        ("backup", "1"),
        ("iothread", "on"),
        ("diskIOPS", "0"),
        ("diskMBps", "-1"),
        ("blockSize", "4095"),
        ("inodeSize", ""),
    ] {
        let mut given = map(&[("storage", "local")]);
        given.insert(key.to_owned(), bad.to_owned());
        assert!(
            matches!(
                Parameters::strict(&given),
                Err(ParameterError::Invalid { .. })
            ),
            "{key}={bad}"
        );
        assert!(
            matches!(
                Parameters::lenient(&given),
                Err(ParameterError::Invalid { .. })
            ),
            "{key}={bad}"
        );
    }
}

#[test]
fn no_known_parameter_is_ignored() {
    let all = map(&[
        ("storage", "local-lvm"),
        ("storageFormat", "qcow2"),
        ("cache", "writeback"),
        ("aio", "threads"),
        ("ssd", "true"),
        ("backup", "true"),
        ("iothread", "false"),
        ("diskIOPS", "100"),
        ("diskMBps", "10"),
        ("blockSize", "4096"),
        ("inodeSize", "512"),
        ("csi.storage.k8s.io/pvc/name", "data"),
    ]);
    let expected = Parameters {
        storage: Some("local-lvm".parse().unwrap()),
        format: Some(DiskFormat::Qcow2),
        cache: Some(CacheMode::WriteBack),
        aio: Some(AioMode::Threads),
        ssd: true,
        backup: true,
        iothread: Some(false),
        iops: Some(100),
        mbps: Some(10),
        block_size: Some(4096),
        inode_size: Some(512),
    };
    assert_eq!(Parameters::strict(&all).unwrap(), expected);
    assert_eq!(Parameters::lenient(&all).unwrap(), (expected, 1));
}

#[test]
fn replication_is_refused_and_its_absence_is_not() {
    let with = |key, value| Parameters::strict(&map(&[("storage", "local"), (key, value)]));
    assert_eq!(
        with("replicate", "true"),
        Err(ParameterError::Replication("replicate"))
    );
    assert_eq!(
        with("replicateZones", "pve2"),
        Err(ParameterError::Replication("replicateZones"))
    );
    assert!(with("replicate", "false").is_ok());
    assert_eq!(
        Parameters::strict(&map(&[])),
        Err(ParameterError::Missing("storage"))
    );
}

#[test]
fn the_context_of_a_former_volume_is_accepted() {
    let (_, ignored) = Parameters::lenient(&map(&[
        ("storage", "local-lvm"),
        ("replicate", "true"),
        ("resizeRequired", "1"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
    ]))
    .unwrap();
    assert_eq!(ignored, 3);
}
