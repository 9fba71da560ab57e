//! Whether the tenant's volumes are being removed: `pvectl teardown` says so by an annotation of the tenant's `CSIDriver`.
//!
//! It is the tenant's word, and can harm nobody else: no new volumes of its own. If the API server can't be asked, the
//! annotation counts as absent: the tenant's volumes would else depend on an answer that it may not be able to give.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::GetParams;
use kube::core::Request;
use pve_kube::{RequestError, Tenant};
use pve_model::topology::TEARDOWN_ANNOTATION;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Each new volume waits for it.
const ANSWER: Duration = Duration::from_secs(2);
/// How long an answer is good, the lack of one too: a teardown waits that long before it counts on it.
const GOOD_FOR: Duration = Duration::from_secs(3);
/// Annotations have 256 KiB at most (`k8s.io/apimachinery/pkg/api/validation`).
const DRIVER_MAX: usize = 1 << 20;

/// Asks the tenant. Clones share the answer; without a tenant to ask, nothing is being removed.
#[derive(Debug, Clone, Default)]
pub struct Teardown(Option<Arc<Asked>>);

#[derive(Debug)]
struct Asked {
    tenant: Tenant,
    driver: String,
    last: Mutex<Option<(Instant, bool)>>,
}

#[derive(Debug, Deserialize)]
struct Object {
    metadata: Meta,
}

#[derive(Debug, Deserialize)]
struct Meta {
    annotations: Option<BTreeMap<String, String>>,
}

impl Teardown {
    /// Asks for the `CSIDriver` of that name with the client that is in force.
    pub fn of(tenant: Tenant, driver: String) -> Self {
        Self(Some(Arc::new(Asked {
            tenant,
            driver,
            last: Mutex::new(None),
        })))
    }

    /// Whether the volumes are being removed. It takes 2 s at most, once in 3 s.
    pub async fn wanted(&self) -> bool {
        let Some(asked) = &self.0 else { return false };
        let mut last = asked.last.lock().await;
        if let Some((at, answer)) = *last
            && at.elapsed() < GOOD_FOR
        {
            return answer;
        }
        let answer = asked.ask().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the tenant's CSIDriver can't be read: no teardown is seen");
            false
        });
        if answer != last.is_some_and(|(_, before)| before) {
            tracing::info!(
                closed = answer,
                "whether new volumes are made is told by the CSIDriver"
            );
        }
        *last = Some((Instant::now(), answer));
        answer
    }
}

impl Asked {
    async fn ask(&self) -> Result<bool, RequestError> {
        let path = Request::new("/apis/storage.k8s.io/v1/csidrivers");
        let get = path.get(&self.driver, &GetParams::default())?;
        let client = self.tenant.client();
        match pve_kube::answer::<Object>(&client, get, DRIVER_MAX, ANSWER).await {
            Ok(object) => {
                let annotations = object.metadata.annotations.unwrap_or_default();
                Ok(annotations
                    .get(TEARDOWN_ANNOTATION)
                    .is_some_and(|is| is == "true"))
            }
            Err(RequestError::Status(404)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;

    const NAME: &str = "csi.proxmox.sinextra.dev";

    /// What it answers with, and how often it was asked. Without an answer it is silent.
    type Server = (
        Arc<std::sync::Mutex<Option<(u16, String)>>>,
        Arc<AtomicUsize>,
    );

    fn teardown() -> (Teardown, Server) {
        let server = Server::default();
        let (answers, count) = server.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let path = "/apis/storage.k8s.io/v1/csidrivers/csi.proxmox.sinextra.dev";
            assert_eq!(request.uri().path(), path);
            count.fetch_add(1, Ordering::SeqCst);
            let answer = answers.lock().unwrap().clone();
            async move {
                let Some((status, body)) = answer else {
                    return std::future::pending().await;
                };
                let body = Full::new(bytes::Bytes::from(body));
                Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
            }
        });
        let tenant = Tenant::of_client(kube::Client::new(service, "default"));
        (Teardown::of(tenant, NAME.to_owned()), server)
    }

    fn annotated(annotations: &str) -> (u16, String) {
        let text = format!("{{\"metadata\":{{\"annotations\":{annotations}}}}}");
        (200, text)
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_word_true_of_an_api_server_that_answers_stops_new_volumes() {
        let rows = [
            (
                Some(annotated(
                    "{\"csi.proxmox.sinextra.dev/teardown\":\"true\"}",
                )),
                true,
            ),
            (
                Some(annotated(
                    "{\"csi.proxmox.sinextra.dev/teardown\":\"false\"}",
                )),
                false,
            ),
            (
                Some(annotated("{\"csi.proxmox.sinextra.dev/teardown\":\"\"}")),
                false,
            ),
            (Some(annotated("{\"other\":\"true\"}")), false),
            (Some(annotated("null")), false),
            (Some((200, "{}".to_owned())), false),
            (Some((404, "{}".to_owned())), false),
            (Some((403, "{}".to_owned())), false),
            (Some((200, "x".repeat(DRIVER_MAX + 1))), false),
            (None, false),
        ];
        for (answer, expected) in rows {
            let (teardown, (answers, _)) = teardown();
            answers.lock().unwrap().clone_from(&answer);
            let begun = Instant::now();
            assert_eq!(teardown.wanted().await, expected, "{answer:.80?}");
            assert!(begun.elapsed() <= ANSWER);
        }
        assert!(!Teardown::default().wanted().await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_for_seconds_and_a_silent_server_is_not_asked_by_each() {
        let (teardown, (answers, count)) = teardown();
        *answers.lock().unwrap() = Some(annotated(
            "{\"csi.proxmox.sinextra.dev/teardown\":\"true\"}",
        ));
        assert!(teardown.wanted().await);
        *answers.lock().unwrap() = None;
        assert!(teardown.clone().wanted().await);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        tokio::time::sleep(GOOD_FOR).await;
        let begun = Instant::now();
        for _ in 0..5 {
            assert!(!teardown.wanted().await);
        }
        assert_eq!((count.load(Ordering::SeqCst), begun.elapsed()), (2, ANSWER));
    }
}
