//! Stand-ins for what is below a layer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use tower::{BoxError, service_fn};

use crate::Client;
use crate::config::{ClientConfig, Endpoint, Limits, Timeouts, Token, TokenSource, Trust, Writes};
use crate::metrics::Metrics;
use crate::request::{ApiRequest, OpClass, Spec};
use crate::transport::{Bottom, Cause, Exchange, Phase, Reply, TransportError};

pub(crate) static READ: Spec = Spec {
    name: "GET /read",
    class: OpClass::Read,
    rights: &[],
};
pub(crate) static CONVERGE: Spec = Spec {
    name: "POST /converge",
    class: OpClass::Converge,
    rights: &[],
};
pub(crate) static ONCE: Spec = Spec {
    name: "POST /once",
    class: OpClass::Once,
    rights: &[],
};

pub(crate) type Outcome = Result<Reply, TransportError>;

pub(crate) fn reply(status: u16, reason: &str, body: &str) -> Reply {
    Reply {
        status,
        reason: reason.to_owned(),
        body: Bytes::from(body.to_owned()),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it stands beside failures")]
pub(crate) fn ok() -> Outcome {
    Ok(reply(200, "OK", r#"{"data":null}"#))
}

#[expect(clippy::unnecessary_wraps, reason = "it stands beside failures")]
pub(crate) fn status(status: u16) -> Outcome {
    Ok(reply(status, "", ""))
}

pub(crate) fn lost(phase: Phase) -> Outcome {
    let cause = match phase {
        Phase::NotSent => Cause::Connect,
        Phase::Sent => Cause::Wire,
    };
    Err(TransportError::new(phase, cause, "broken"))
}

pub(crate) fn request(spec: &'static Spec) -> ApiRequest {
    ApiRequest::new(spec, None, &[])
}

pub(crate) fn request_on(spec: &'static Spec, host: &str) -> ApiRequest {
    ApiRequest::new(spec, Some(&host.parse().unwrap()), &[])
}

/// A layer that answers what it was told, the last of it for ever, each after `takes`.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    answers: Arc<Mutex<VecDeque<Outcome>>>,
    seen: Arc<Mutex<Vec<ApiRequest>>>,
    takes: Duration,
}

impl Script {
    pub(crate) fn new(answers: impl IntoIterator<Item = Outcome>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            seen: Arc::default(),
            takes: Duration::ZERO,
        }
    }

    pub(crate) fn taking(self, takes: Duration) -> Self {
        Self { takes, ..self }
    }

    pub(crate) fn seen(&self) -> Vec<ApiRequest> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Exchange for Script {
    async fn send(&self, request: &ApiRequest) -> Outcome {
        self.seen.lock().unwrap().push(request.clone());
        sleep(self.takes).await;
        let mut answers = self.answers.lock().unwrap();
        match answers.len() {
            1 => answers.front().unwrap().clone(),
            _ => answers.pop_front().unwrap(),
        }
    }
}

pub(crate) fn token(secret: &str) -> Token {
    Token {
        id: "csi@pve!ctl".to_owned(),
        secret: secret.to_owned().into(),
        csrf: None,
    }
}

pub(crate) fn config(urls: &[&str]) -> ClientConfig {
    let source: TokenSource = Arc::new(|| Ok(token("s3cret")));
    let endpoint = |url: &&str| Endpoint {
        url: (*url).to_owned(),
        trust: Trust::Insecure,
    };
    ClientConfig {
        endpoints: urls.iter().map(endpoint).collect(),
        token: source,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        writes: Writes::default(),
    }
}

/// A client whose only endpoint answers by this function, at once.
pub(crate) fn client(
    answer: impl Fn(&http::Request<Bytes>) -> Outcome + Clone + Send + Sync + 'static,
) -> Client {
    let bottom = Bottom::new(service_fn(move |request: http::Request<Bytes>| {
        let outcome = answer(&request).map_err(BoxError::from);
        async move { outcome }
    }));
    Client::with_bottoms(
        config(&["https://pve1:8006"]),
        Metrics::default(),
        vec![bottom],
    )
    .unwrap()
}

/// A client whose only endpoint answers this after a while.
pub(crate) fn client_taking(takes: Duration, reply: Reply) -> Client {
    let bottom = Bottom::new(service_fn(move |_| {
        let reply = reply.clone();
        async move {
            sleep(takes).await;
            Ok::<_, BoxError>(reply)
        }
    }));
    Client::with_bottoms(
        config(&["https://pve1:8006"]),
        Metrics::default(),
        vec![bottom],
    )
    .unwrap()
}
