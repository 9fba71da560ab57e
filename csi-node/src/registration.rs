//! Makes the plugin known to the kubelet, once the Node says where it is.
//!
//! The kubelet watches its folder for sockets, calls `GetInfo` on a new one, then NodeGetInfo on the CSI socket, and
//! tells what came of it (kubernetes `pkg/kubelet/pluginmanager`). A socket that disappears is taken as a plugin that
//! is gone; so one whose registration failed is removed and comes back after a pause.

use std::path::PathBuf;
use std::time::Duration;

use csi_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use csi_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use futures_util::StreamExt;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use pve_runtime::Socket;
use pve_runtime::rpc::RpcLayer;
use pve_runtime::server::{self, BindError};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::topology::{self, NodeObject};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Seconds after which the API server ends a watch, so that a connection that died without a word is missed for no
/// longer than that.
const WATCH_FOR: u32 = 60;
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// The socket in the kubelet's folder and what it says.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// The driver's name.
    pub driver: String,
    /// The CSI socket as the kubelet sees it.
    pub kubelet_csi_path: String,
    /// The kubelet's `plugins_registry`.
    pub folder: PathBuf,
}

/// How far registration has come, for `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The Node lacks labels.
    WaitingForLabels,
    /// The socket is there.
    Offered,
    /// The kubelet has taken the plugin.
    Registered,
}

struct Endpoint {
    info: PluginInfo,
    outcome: mpsc::Sender<Result<(), String>>,
}

// === impl Endpoint ===

#[tonic::async_trait]
impl Registration for Endpoint {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        let outcome = if plugin_registered {
            Ok(())
        } else {
            Err(error)
        };
        if self.outcome.try_send(outcome).is_err() {
            tracing::debug!("an outcome of registration came while another one is looked at");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Watches the Node until `stop`, and says once that it is labelled. Nothing that the API server does ends it.
pub async fn watch_labels(
    node: NodeObject,
    labelled: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={}", node.name()))
        .timeout(WATCH_FOR);
    // A watch that fails begins anew with `Init`, which must not count as success: it would reset the back-off.
    let objects = watcher(node.api().clone(), config).filter_map(|event| {
        std::future::ready(match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => Some(Ok(Some(object))),
            Ok(Event::Delete(_)) => Some(Ok(None)),
            Ok(Event::Init | Event::InitDone) => None,
            Err(error) => Some(Err(error)),
        })
    });
    let mut objects = std::pin::pin!(objects.default_backoff());
    tracing::info!(node = %node.name(), "waiting for the labels of this Node");
    let mut told = String::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = objects.next() => event,
        };
        let obstacle = match event {
            Some(Ok(Some(object))) => {
                match topology::labels(&object) {
                    Ok(_) => {
                        // Once known, always known: a Node that loses its labels keeps its volumes.
                        labelled.send_replace(true);
                        return;
                    }
                    Err(error) => error.to_string(),
                }
            }
            Some(Ok(None)) => "this Node has been deleted".to_owned(),
            Some(Err(error)) => format!("the Node cannot be watched: {}", chain(&error)),
            None => return,
        };
        if obstacle != told {
            tracing::info!(node = %node.name(), "waiting: {obstacle}");
            told = obstacle;
        }
    }
}

/// Offers the plugin to the kubelet from the moment that the Node is labelled until `stop`.
pub async fn run(
    announcement: Announcement,
    layer: RpcLayer,
    mut labelled: watch::Receiver<bool>,
    progress: watch::Sender<Progress>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = stop.cancelled() => return,
        told = labelled.wait_for(|labelled| *labelled) => if told.is_err() { return },
    }
    let mut pause = FIRST_PAUSE;
    while !stop.is_cancelled() {
        let reason = match offer(&announcement, layer.clone(), &progress, &stop).await {
            Ok(Ended::Stopped) => return,
            Ok(Ended::Refused {
                error,
                was_registered,
            }) => {
                if was_registered {
                    pause = FIRST_PAUSE;
                }
                format!("the kubelet refused: {error}")
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            pause_s = pause.as_secs(),
            "registration failed, trying again: {reason}"
        );
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Ended {
    Stopped,
    Refused { error: String, was_registered: bool },
}

async fn offer(
    announcement: &Announcement,
    layer: RpcLayer,
    progress: &watch::Sender<Progress>,
    stop: &CancellationToken,
) -> Result<Ended, BindError> {
    let path = announcement
        .folder
        .join(format!("{}-reg.sock", announcement.driver));
    let socket = Socket::bind(&path.to_string_lossy()).await?;
    let (outcome, outcomes) = mpsc::channel(4);
    let endpoint = Endpoint {
        info: PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: announcement.driver.clone(),
            endpoint: announcement.kubelet_csi_path.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        },
        outcome,
    };
    progress.send_replace(Progress::Offered);
    tracing::info!(socket = %path.display(), "offered to the kubelet");
    let routes = Routes::new(RegistrationServer::new(endpoint));
    let end = stop.child_token();
    let serving = server::serve(socket, routes, layer, end.clone(), LAST_ANSWER);
    let watching = async {
        let refused = first_refusal(outcomes, progress, stop).await;
        end.cancel();
        refused
    };
    let (served, ended) = tokio::join!(serving, watching);
    if let Err(error) = served {
        tracing::warn!(%error, "the registration socket");
    }
    Ok(ended)
}

async fn first_refusal(
    mut outcomes: mpsc::Receiver<Result<(), String>>,
    progress: &watch::Sender<Progress>,
    stop: &CancellationToken,
) -> Ended {
    let mut was_registered = false;
    loop {
        let outcome = tokio::select! {
            () = stop.cancelled() => return Ended::Stopped,
            outcome = outcomes.recv() => outcome,
        };
        match outcome {
            Some(Ok(())) => {
                was_registered = true;
                progress.send_replace(Progress::Registered);
                tracing::info!("registered with the kubelet");
            }
            Some(Err(error)) => {
                progress.send_replace(Progress::Offered);
                return Ended::Refused {
                    error,
                    was_registered,
                };
            }
            // The server ended and dropped its side.
            None => {
                return Ended::Refused {
                    error: "the registration socket closed".to_owned(),
                    was_registered,
                };
            }
        }
    }
}

/// An error with all its causes: the watcher keeps the interesting part for `source`.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}
