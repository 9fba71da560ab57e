//! The tenant's side: claims, Pods whose commands really run, and what becomes of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::kubelet::Kubelet;
use super::objects::post;
use super::wait::eventually;

const TENANT: &str = "default";
/// How long Kubernetes may take for what isn't the driver's, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The end of a command that stays until it gets SIGTERM, which the first process of a container sees only if it asks for it.
pub const STAY: &str = "trap 'exit 0' TERM; sleep 600 & wait";

/// How a Pod sees a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// A file system at `/data`.
    Mount,
    /// A device at `/dev/xvda`.
    Device,
}

/// A claim to be made.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Its name.
    pub name: &'a str,
    /// `StorageClass`.
    pub class: &'a str,
    /// Access mode, as in the API.
    pub access: &'a str,
    /// As what Pods get it.
    pub view: View,
}

/// A Pod to be made: one container, one claim, one shell command.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// Its name.
    pub name: &'a str,
    /// The Node on which it has to run; any if it is empty.
    pub node: &'a str,
    /// The claim.
    pub claim: &'a str,
    /// As what it gets it.
    pub view: View,
    /// `sh -c`.
    pub command: &'a str,
}

/// The tenant's namespace.
#[derive(Clone)]
pub struct Tenant {
    claims: Api<PersistentVolumeClaim>,
    pods: Api<Pod>,
    events: Api<Event>,
    volumes: Api<PersistentVolume>,
    attachments: Api<VolumeAttachment>,
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant").finish_non_exhaustive()
    }
}

impl Tenant {
    /// By an administrator's client.
    pub fn new(client: &Client) -> Self {
        Self {
            claims: Api::namespaced(client.clone(), TENANT),
            pods: Api::namespaced(client.clone(), TENANT),
            events: Api::namespaced(client.clone(), TENANT),
            volumes: Api::all(client.clone()),
            attachments: Api::all(client.clone()),
        }
    }

    /// The claims.
    pub fn claims(&self) -> &Api<PersistentVolumeClaim> {
        &self.claims
    }

    /// Makes a claim of 64 MiB.
    pub async fn claim(&self, claim: &Claim<'_>) -> Result<()> {
        let mode = match claim.view {
            View::Mount => "Filesystem",
            View::Device => "Block",
        };
        let object = json!({
            "metadata": { "name": claim.name },
            "spec": {
                "storageClassName": claim.class,
                "accessModes": [claim.access],
                "volumeMode": mode,
                "resources": { "requests": { "storage": "64Mi" } },
            },
        });
        post(&self.claims, object).await
    }

    /// Asks for a larger volume.
    pub async fn grow(&self, claim: &str, size: &str) -> Result<()> {
        let patch = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        self.claims
            .patch(claim, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// The size that a claim is said to have, and that of its volume, in bytes.
    pub async fn sizes(&self, claim: &str) -> Result<(u64, u64)> {
        let status = self.claims.get(claim).await?.status;
        let volume = self.volumes.get(&self.volume_of(claim).await?).await?;
        let claimed = status.and_then(|status| status.capacity);
        let made = volume.spec.and_then(|spec| spec.capacity);
        Ok((bytes(claimed)?, bytes(made)?))
    }

    /// Waits until both the claim and its volume are said to have that size.
    pub async fn wait_size(&self, claim: &str, size: u64) -> Result<Duration> {
        let what = format!("{size} bytes of {claim}");
        let outcome = eventually(&what, PATIENCE, async || {
            Ok((self.sizes(claim).await? == (size, size)).then_some(()))
        })
        .await;
        match outcome {
            Ok(((), took)) => Ok(took),
            Err(error) => Err(error).context(self.story().await?),
        }
    }

    /// Makes a Pod.
    pub async fn run(&self, workload: &Workload<'_>) -> Result<()> {
        post(&self.pods, pod(workload)).await
    }

    /// Waits until a Pod runs.
    pub async fn wait_running(&self, name: &str) -> Result<Duration> {
        self.wait_phase(name, "Running").await
    }

    /// Waits until a Pod's command has ended well.
    pub async fn wait_succeeded(&self, name: &str) -> Result<Duration> {
        self.wait_phase(name, "Succeeded").await
    }

    /// The Node on which a Pod runs.
    pub async fn node_of(&self, name: &str) -> Result<String> {
        let pod = self.pods.get(name).await?;
        let node = pod.spec.and_then(|spec| spec.node_name);
        node.context("it is on no Node")
    }

    /// The phase of a Pod.
    pub async fn phase(&self, name: &str) -> Result<String> {
        let pod = self.pods.get(name).await?;
        Ok(pod.status.and_then(|s| s.phase).unwrap_or_default())
    }

    async fn wait_phase(&self, name: &str, wanted: &str) -> Result<Duration> {
        let what = format!("Pod {name} {wanted}");
        let outcome = eventually(&what, PATIENCE, async || {
            let phase = self.phase(name).await?;
            Ok((phase == wanted || phase == "Failed").then_some(phase))
        })
        .await;
        match outcome {
            Ok((phase, took)) if phase == wanted => Ok(took),
            Ok((phase, _)) => bail!("{what}: it is {phase}\n{}", self.story().await?),
            Err(error) => Err(error).context(self.story().await?),
        }
    }

    /// Deletes a Pod and waits until it and its attachments to Nodes are gone.
    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods.delete(name, &DeleteParams::default()).await?;
        let what = format!("Pod {name} gone");
        eventually(&what, PATIENCE, async || {
            Ok(self.pods.get_opt(name).await?.is_none().then_some(()))
        })
        .await?;
        Ok(())
    }

    /// Waits until Kubernetes has begun to detach a volume: its `VolumeAttachment` is deleted, but held by csi-attacher's finalizer.
    pub async fn wait_detaching(&self) -> Result<()> {
        let what = "a VolumeAttachment that is being deleted";
        eventually(what, PATIENCE, async || {
            let all = self.attachments.list(&ListParams::default()).await?.items;
            let ending = |one: &VolumeAttachment| one.metadata.deletion_timestamp.is_some();
            Ok(all.iter().any(ending).then_some(()))
        })
        .await?;
        Ok(())
    }

    /// Waits until no volume is attached to any Node, as far as Kubernetes knows.
    pub async fn wait_detached(&self) -> Result<Duration> {
        let outcome = eventually("no VolumeAttachment", PATIENCE, async || {
            let left = self.attachments.list(&ListParams::default()).await?.items;
            Ok(left.is_empty().then_some(()))
        })
        .await;
        match outcome {
            Ok(((), took)) => Ok(took),
            Err(error) => Err(error).context(self.story().await?),
        }
    }

    /// Deletes a claim and waits until its volume is gone, too.
    pub async fn delete_claim(&self, name: &str) -> Result<Duration> {
        let volume = self.volume_of(name).await?;
        self.claims.delete(name, &DeleteParams::default()).await?;
        let what = format!("PersistentVolume {volume} gone");
        let ((), took) = eventually(&what, PATIENCE, async || {
            Ok(self.volumes.get_opt(&volume).await?.is_none().then_some(()))
        })
        .await?;
        Ok(took)
    }

    /// The volume that a claim is bound to.
    pub async fn volume_of(&self, claim: &str) -> Result<String> {
        let claim = self.claims.get(claim).await?;
        claim
            .spec
            .and_then(|spec| spec.volume_name)
            .context("the claim is not bound")
    }

    /// The CSI handle behind a claim.
    pub async fn handle_of(&self, claim: &str) -> Result<String> {
        let volume = self.volumes.get(&self.volume_of(claim).await?).await?;
        let source = volume.spec.and_then(|spec| spec.csi);
        Ok(source.context("no CSI volume")?.volume_handle)
    }

    /// Where the kubelet has mounted the volume of a claim for a Pod.
    pub async fn mount_path(&self, pod: &str, claim: &str, kubelet: &Kubelet) -> Result<PathBuf> {
        let uid = self.pods.get(pod).await?.metadata.uid.context("no uid")?;
        let volume = self.volume_of(claim).await?;
        Ok(kubelet.root().join(format!(
            "pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"
        )))
    }

    /// Waits for an event about `object` whose message contains `words`; returns the message.
    pub async fn wait_event(&self, object: &str, words: &str) -> Result<String> {
        let what = format!("an event about {object} with {words:?}");
        let outcome = eventually(&what, PATIENCE, async || {
            let events = self.events.list(&ListParams::default()).await?.items;
            Ok(events
                .into_iter()
                .filter(|event| event.involved_object.name.as_deref() == Some(object))
                .filter_map(|event| event.message)
                .find(|message| message.contains(words)))
        })
        .await;
        match outcome {
            Ok((message, _)) => Ok(message),
            Err(error) => Err(error).context(self.story().await?),
        }
    }

    /// All events, for the reader of a failure.
    pub async fn story(&self) -> Result<String> {
        let events = self.events.list(&ListParams::default()).await?.items;
        let lines: Vec<String> = events
            .into_iter()
            .map(|event| {
                format!(
                    "{} {}: {}",
                    event.involved_object.name.unwrap_or_default(),
                    event.reason.unwrap_or_default(),
                    event.message.unwrap_or_default()
                )
            })
            .collect();
        Ok(format!("events:\n{}", lines.join("\n")))
    }
}

/// `storage` of a list of resources.
fn bytes(resources: Option<BTreeMap<String, Quantity>>) -> Result<u64> {
    let storage = resources.and_then(|mut all| all.remove("storage"));
    let text = storage.context("no capacity")?.0;
    let (number, unit) = match (text.strip_suffix("Mi"), text.strip_suffix("Gi")) {
        (Some(number), _) => (number, 1 << 20),
        (_, Some(number)) => (number, 1 << 30),
        (None, None) => (text.as_str(), 1),
    };
    let number: u64 = number.parse().with_context(|| text.clone())?;
    Ok(number * unit)
}

fn pod(workload: &Workload<'_>) -> Value {
    let mut container = json!({
        "name": "main",
        "image": "none",
        "command": ["/bin/sh", "-euc", workload.command],
    });
    let (key, value) = match workload.view {
        View::Mount => (
            "volumeMounts",
            json!([{ "name": "it", "mountPath": "/data" }]),
        ),
        View::Device => (
            "volumeDevices",
            json!([{ "name": "it", "devicePath": "/dev/xvda" }]),
        ),
    };
    if let Some(fields) = container.as_object_mut() {
        fields.insert(key.to_owned(), value);
    }
    let selector = match workload.node {
        "" => json!({}),
        node => json!({ "kubernetes.io/hostname": node }),
    };
    json!({
        "metadata": { "name": workload.name },
        "spec": {
            "nodeSelector": selector,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [container],
            "volumes": [{ "name": "it", "persistentVolumeClaim": { "claimName": workload.claim } }],
        },
    })
}
