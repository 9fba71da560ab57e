use super::*;
use crate::compose::Use;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::path::Path;

const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: a, \
    contexts: [{name: a, context: {cluster: a, user: a}}], \
    clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: TOKEN}}]}";

fn config(secret: &str) -> String {
    format!(
        "{{regions: {{r1: {{endpoints: [{{url: 'https://pve:8006'}}], token: {{id: a@b!c, secret: {secret}}}}}}}}}"
    )
}

struct World {
    folder: tempfile::TempDir,
    registry: Registry,
}

impl World {
    /// Sources and destinations, the Secret with a config.
    fn new() -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["secret", "source", "config", "tenant"] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            std::fs::set_permissions(path, closed).unwrap();
        }
        let world = Self {
            folder,
            registry: Registry::default(),
        };
        world.write("secret/use", "csi");
        let policy = "regions: {r1: {pool: a, storages: [], nodes: [], owners: {default: 9999}}}";
        world.write("secret/policy.yaml", policy);
        world.write("secret/config.yaml", &config("first"));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn loader(&mut self) -> Loader {
        let metrics = Metrics::register(&mut self.registry);
        let store = |path: PathBuf| Store::open(&path).unwrap();
        let operator = Operator {
            folder: self.path("secret"),
            wanted: Wanted {
                purpose: Use::Csi,
                provider: None,
                regions: BTreeSet::new(),
            },
            store: store(self.path("config")),
        };
        let tenant = Tenant {
            source: self.path("source/super-admin.svc"),
            impersonations: vec!["ccm=system:serviceaccount:a:b".parse().unwrap()],
            store: store(self.path("tenant")),
        };
        Loader::new(operator, Some(tenant), metrics)
    }

    fn holds(&self, name: &str, text: &str) -> bool {
        std::fs::read_to_string(self.path(name)).is_ok_and(|found| found.contains(text))
    }

    fn metric(&self, line: &str) -> bool {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text.lines().any(|found| found == line)
    }
}

fn exists(path: &Path) -> bool {
    path.try_exists().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_that_comes_late_is_waited_for_and_the_config_is_not() {
    let mut world = World::new();
    let loader = world.loader();
    let stop = CancellationToken::new();
    let loading = tokio::spawn(async move { loader.once(Duration::from_mins(10), &stop).await });
    sleep(Duration::from_mins(9)).await;
    assert!(world.holds("config/config.yaml", "first"));
    assert!(!exists(&world.path("tenant/ccm.kubeconfig")));
    world.write("source/super-admin.svc", &KUBECONFIG.replace("TOKEN", "t1"));
    loading.await.unwrap().unwrap();
    assert!(world.holds(
        "tenant/ccm.kubeconfig",
        "\"as\":\"system:serviceaccount:a:b\""
    ));
    assert!(world.holds("tenant/token", "t1"));
    assert!(!world.holds("tenant/ccm.kubeconfig", "t1"));
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_kubeconfig_has_an_end_and_what_is_wrong_is_not_waited_for() {
    let mut world = World::new();
    let stop = CancellationToken::new();
    let begun = Instant::now();
    let ended = world.loader().once(Duration::from_mins(10), &stop).await;
    assert!(matches!(ended, Err(Trouble::Absent(_))), "{ended:?}");
    let took = begun.elapsed();
    assert!(took >= Duration::from_mins(10), "{took:?}");
    assert!(took < Duration::from_mins(11), "{took:?}");
    world.write(
        "source/super-admin.svc",
        "{users: [{name: a, user: {exec: {command: x}}}]}",
    );
    let begun = Instant::now();
    let ended = world.loader().once(Duration::from_mins(10), &stop).await;
    assert!(matches!(ended, Err(Trouble::Refused(_))), "{ended:?}");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let told = CancellationToken::new();
    told.cancel();
    std::fs::remove_file(world.path("source/super-admin.svc")).unwrap();
    let ended = world.loader().once(Duration::from_mins(10), &told).await;
    assert!(matches!(ended, Err(Trouble::Absent(_))), "{ended:?}");
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn changes_come_into_force_and_what_is_refused_leaves_the_former_and_is_told_once() {
    let mut world = World::new();
    world.write("source/super-admin.svc", &KUBECONFIG.replace("TOKEN", "t1"));
    let loader = world.loader();
    let (ready, stop) = (loader.ready(), CancellationToken::new());
    assert!(ready().is_err());
    let stopped = stop.clone();
    let following =
        tokio::spawn(async move { loader.follow(Duration::from_secs(10), &stopped).await });
    let pass = || sleep(Duration::from_secs(25));
    pass().await;
    ready().unwrap();
    for wrong in ["regions: 1", "{}"] {
        world.write("secret/config.yaml", wrong);
        pass().await;
        pass().await;
    }
    assert!(world.holds("config/config.yaml", "first"));
    assert!(world.metric("refusals_total{source=\"secret\"} 2"));
    assert!(world.metric("refused{source=\"secret\"} 1"));
    ready().unwrap();
    world.write("secret/config.yaml", &config("second"));
    world.write("source/super-admin.svc", &KUBECONFIG.replace("TOKEN", "t2"));
    pass().await;
    assert!(world.holds("config/config.yaml", "second"));
    assert!(world.holds("tenant/token", "t2"));
    assert!(world.metric("refused{source=\"secret\"} 0"));
    assert!(world.metric("changes_total{source=\"secret\"} 2"));
    std::fs::remove_file(world.path("source/super-admin.svc")).unwrap();
    pass().await;
    assert!(world.holds("tenant/token", "t2"), "it stays");
    assert!(world.metric("refused{source=\"kubeconfig\"} 1"));
    stop.cancel();
    following.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_config_that_is_refused_ends_the_program_and_a_kubeconfig_is_waited_for_without_end()
 {
    let mut world = World::new();
    let stop = CancellationToken::new();
    world.write("secret/use", "ccm");
    let ended = world.loader().follow(Duration::from_secs(10), &stop).await;
    assert!(matches!(ended, Err(Trouble::Refused(_))), "{ended:?}");
    world.write("secret/use", "csi");
    let loader = world.loader();
    let stopped = stop.clone();
    let following =
        tokio::spawn(async move { loader.follow(Duration::from_secs(10), &stopped).await });
    sleep(Duration::from_hours(2)).await;
    assert!(!following.is_finished());
    // The Secret is followed meanwhile.
    world.write("secret/use", "ccm");
    sleep(Duration::from_secs(10)).await;
    assert!(world.metric("refused{source=\"secret\"} 1"));
    stop.cancel();
    following.await.unwrap().unwrap();
}
