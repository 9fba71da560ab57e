//! VMs and Nodes for the tests of this crate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes as Body;
use pve_client::transport::{Bottom, Reply};
use pve_client::{
    Client, ClientConfig, Endpoint, GuestKind, Limits, Listing, Metrics, RunState, Timeouts, Token,
    Trust, VmEntry, Writes,
};
use pve_model::topology::UNINITIALIZED_TAINT;
use pve_model::{Bytes, Uuid};
use tokio::time::{Instant, sleep};
use tower::{BoxError, service_fn};

use crate::facts::VmFacts;
use crate::inventory::{RegionView, Snapshot};
use crate::node::NodeView;
use crate::poll::Source;
use crate::sources::Files;

pub(crate) fn uuid(vmid: u32) -> Uuid {
    format!("00000000-0000-4000-a000-{vmid:012}")
        .parse()
        .unwrap()
}

pub(crate) fn entry(vmid: u32, host: &str) -> VmEntry {
    VmEntry {
        vmid: vmid.try_into().unwrap(),
        pve_node: host.parse().unwrap(),
        kind: GuestKind::Qemu,
        state: RunState::Running,
        name: Some(format!("worker-{vmid}")),
        pool: Some("tenant-a".parse().unwrap()),
        template: false,
        lock: None,
        hastate: None,
        max_cpu: Some(4),
        max_memory: Some(Bytes::new(8 << 30)),
        uptime: Some(1000),
    }
}

pub(crate) fn facts(vmid: u32) -> VmFacts {
    VmFacts {
        uuid: Some(uuid(vmid)),
        instance_type: "4VCPU-8GB".to_owned(),
        attach_limit: 29,
        macs: BTreeMap::new(),
        fixed: Vec::new(),
    }
}

pub(crate) fn view(region: &str, vms: &[(VmEntry, Option<VmFacts>)]) -> RegionView {
    let listed = Listing {
        entries: vms.iter().map(|(entry, _)| entry.clone()).collect(),
        undecodable: 0,
    };
    let facts = vms
        .iter()
        .filter_map(|(entry, facts)| Some((entry.vmid, Arc::new(facts.clone()?))))
        .collect();
    let pool = "tenant-a".parse().unwrap();
    let mut snapshot = Snapshot::new(Instant::now(), &listed, facts, &pool);
    snapshot.settled = true;
    RegionView {
        region: region.parse().unwrap(),
        pool,
        snapshot: Some(Arc::new(snapshot)),
        failing: false,
    }
}

/// A Node as a kubelet with `--cloud-provider=external` registers it.
pub(crate) fn node(vmid: u32) -> NodeView {
    let taint = k8s_openapi::api::core::v1::Taint {
        key: UNINITIALIZED_TAINT.to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    };
    NodeView {
        name: format!("worker-{vmid}"),
        uid: format!("uid-{vmid}"),
        version: "7".to_owned(),
        provider_id: None,
        system_uuid: Some(uuid(vmid)),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        taints: vec![taint],
        addresses: Vec::new(),
        ready: true,
    }
}

/// What a stand-in of PVE answers: after how long, status and body.
pub(crate) type Said = (Duration, u16, serde_json::Value);

/// A stand-in of PVE, and what it was asked when.
#[derive(Clone)]
pub(crate) struct Pve {
    pub(crate) client: Client,
    asked: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Pve {
    /// It answers a path (without `/api2/json`) by this function.
    pub(crate) fn new(answer: impl Fn(&str) -> Said + Clone + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let book = Arc::clone(&asked);
        let bottom = Bottom::new(service_fn(move |request: http::Request<Body>| {
            let path = request.uri().path().trim_start_matches("/api2/json");
            book.lock().unwrap().push((Instant::now(), path.to_owned()));
            let (takes, status, body) = answer(path);
            async move {
                sleep(takes).await;
                Ok::<_, BoxError>(Reply {
                    status,
                    reason: body["reason"].as_str().unwrap_or_default().to_owned(),
                    body: Body::from(body.to_string()),
                })
            }
        }));
        let config = ClientConfig {
            endpoints: vec![Endpoint {
                url: "https://pve1:8006".to_owned(),
                trust: Trust::Insecure,
            }],
            token: Arc::new(|| {
                Ok(Token {
                    id: "ccm@pve!t".to_owned(),
                    secret: "s3cret".to_owned().into(),
                    csrf: None,
                })
            }),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            writes: Writes::default(),
        };
        let client = Client::with_bottoms(config, Metrics::default(), vec![bottom]).unwrap();
        Self { client, asked }
    }

    /// When paths that contain this were asked for.
    pub(crate) fn asked(&self, part: &str) -> Vec<Instant> {
        let asked = self.asked.lock().unwrap();
        let matching = asked.iter().filter(|(_, path)| path.contains(part));
        matching.map(|(at, _)| *at).collect()
    }

    /// A region `r1` that is this one.
    pub(crate) fn source(&self, ha: bool) -> Source {
        let folder = tempfile::tempdir().unwrap();
        let mut source =
            Arc::into_inner(load(folder.path(), None, ("s3cret", 9999, 8006, ha))).unwrap();
        source.connection.client = self.client.clone();
        source
    }
}

/// The source that follows from a config with this secret, owner, port and HA.
pub(crate) fn load(
    folder: &std::path::Path,
    before: Option<&Arc<Source>>,
    (secret, owner, port, ha): (&str, u32, u16, bool),
) -> Arc<Source> {
    let path = folder.join("config.yaml");
    let config = serde_json::json!({
        "provider": "capmox",
        "nodes": { "ha": ha },
        "regions": { "r1": {
            "endpoints": [{ "url": format!("https://pve1:{port}") }],
            "token": { "id": "ccm@pve!t", "secret": secret },
            "pool": "tenant-a", "storages": ["files"], "nodes": ["pve1"],
            "owners": { "default": owner }, "mode": "reserved",
        }},
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let files = Files {
        config: path,
        policy: None,
        metrics: Metrics::default(),
    };
    let mut settings = files.load(None).unwrap();
    if let Some(before) = before {
        settings.sources = vec![Arc::clone(before)];
        settings = files.load(Some(&settings)).unwrap();
    }
    settings.sources.remove(0)
}

/// Counts what is said at info and above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<usize>>);

impl Lines {
    pub(crate) fn count(&self) -> usize {
        *self.0.lock().unwrap()
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        *self.0.lock().unwrap() += 1;
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
