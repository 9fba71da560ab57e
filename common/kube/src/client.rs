//! Clients whose server may be hostile: it can neither fill our memory nor send us elsewhere, nor let us wait at its will.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::{Body, ClientBuilder, DynBody};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use tower::util::MapResponseLayer;

/// Most bytes of one response, a watch included: one that has had so much ends with an error and is begun anew where it
/// was. kube reads lines of any length.
pub const BODY_MAX: usize = 64 << 20;
const CONNECT: Duration = Duration::from_secs(5);
const WRITE: Duration = Duration::from_secs(10);
/// The longest silence of a server while it is to answer. kube's watches ask for an end after 290 s
/// (`timeoutSeconds`), until which nothing need come if nothing changes. Other requests have the deadline of their caller.
pub const SILENCE: Duration = Duration::from_secs(330);

/// Why a request has no answer. The text of it says nothing of what the server said.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The name makes no path, or what is sent makes no JSON.
    #[error("no request can be made of it: {0}")]
    Request(#[from] kube::core::request::Error),
    /// Nothing of use came in time: it may have been done or not.
    #[error("the API server does not answer in time")]
    Deadline,
    /// It was not sent, or the connection broke: it may have been done or not.
    #[error("the API server can't be asked: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The server refuses it.
    #[error("status {0}")]
    Status(u16),
    /// The answer is larger than it can rightly be.
    #[error("the answer is too large")]
    TooLarge,
    /// The answer broke off.
    #[error("the answer broke off")]
    Broken,
    /// The answer is not what was asked for.
    #[error("the answer is something else: line {0}, column {1}")]
    Other(usize, usize),
}

impl RequestError {
    /// Whether it is that answer of the server.
    pub fn is_status(&self, status: u16) -> bool {
        matches!(self, Self::Status(is) if *is == status)
    }
}

/// Sends a request and reads at most `most` bytes of the answer, all that within `within`. Unlike [`Client::request`] it
/// logs nothing of what the server says.
pub async fn answer<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    most: usize,
    within: Duration,
) -> Result<T, RequestError> {
    let asked = ask(client, request, most);
    let body = tokio::time::timeout(within, asked)
        .await
        .map_err(|_| RequestError::Deadline)??;
    serde_json::from_slice(&body).map_err(|error| RequestError::Other(error.line(), error.column()))
}

async fn ask(
    client: &Client,
    request: Request<Vec<u8>>,
    most: usize,
) -> Result<Vec<u8>, RequestError> {
    let answer = client
        .send(request.map(Body::from))
        .await
        .map_err(|error| RequestError::Client(Box::new(error)))?;
    if !answer.status().is_success() {
        return Err(RequestError::Status(answer.status().as_u16()));
    }
    match Limited::new(answer.into_body(), most).collect().await {
        Ok(body) => Ok(body.to_bytes().into()),
        Err(error) if error.is::<LengthLimitError>() => Err(RequestError::TooLarge),
        Err(_) => Err(RequestError::Broken),
    }
}

/// A client with our limits. No redirect is followed: hyper hands it to the caller as an answer. None but the caller
/// repeats a request: kube's own repetitions, up to 15, wait as long as the server's `Retry-After` says.
pub(crate) fn limited(config: Config) -> Result<Client, kube::Error> {
    limited_to(config, BODY_MAX)
}

fn limited_to(mut config: Config, most: usize) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    config.read_timeout = Some(SILENCE);
    // Else the time for which a connection was not used counts.
    config.reset_reader_on_write = true;
    config.default_retry = false;
    config.proxy_url = None;
    let limit = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
        response.map(|body| Limited::new(body, most))
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&limit).build())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::TryStreamExt;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::WatchParams;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const FLOOD: usize = BODY_MAX + BODY_MAX / 4;

    /// A server that answers every request with this, the body again and again, and how many it had.
    async fn server(head: &'static str, body: &'static [u8]) -> (Config, Arc<AtomicU32>) {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                drop(stream.read(&mut [0; 4096]).await);
                counted.fetch_add(1, Ordering::SeqCst);
                let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
                // The other side may end it early.
                let mut sent = stream.write_all(head.as_bytes()).await;
                let times = FLOOD.checked_div(body.len()).unwrap_or(0);
                for _ in 0..times {
                    if sent.is_ok() {
                        sent = stream.write_all(body).await;
                    }
                }
            }
        });
        (
            Config::new(format!("http://{address}").parse().unwrap()),
            count,
        )
    }

    fn get() -> Request<Vec<u8>> {
        Request::get("/api/v1/nodes/a").body(Vec::new()).unwrap()
    }

    const WITHIN: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn an_answer_without_end_is_cut_off_where_the_caller_says_and_at_the_clients_limit() {
        let (config, _) = server("200 OK", &[b' '; 16384]).await;
        let client = limited(config).unwrap();
        let error = answer::<Node>(&client, get(), 1000, WITHIN).await;
        assert!(matches!(error, Err(RequestError::TooLarge)), "{error:?}");
        // Also for who asks in another way.
        let all = tokio::time::timeout(WITHIN, client.request_text(get())).await;
        assert!(all.expect("it ends").is_err());
    }

    #[tokio::test]
    async fn a_watch_whose_line_has_no_end_ends_with_an_error() {
        let (config, _) = server("200 OK", &[b'x'; 1000]).await;
        let nodes: Api<Node> = Api::all(limited_to(config, 100_000).unwrap());
        let watch = nodes.watch(&WatchParams::default(), "0").await.unwrap();
        let all = tokio::time::timeout(WITHIN, watch.try_collect::<Vec<_>>()).await;
        let error = all.expect("it ends").unwrap_err();
        assert!(error.to_string().contains("length limit"), "{error}");
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let (other, elsewhere) = server("200 OK", b"").await;
        let head = format!("302 Found\r\nlocation: {}", other.cluster_url);
        let (config, count) = server(head.leak(), b"").await;
        let client = limited(config).unwrap();
        let error = answer::<Node>(&client, get(), 1000, WITHIN).await;
        assert!(matches!(error, Err(RequestError::Status(302))), "{error:?}");
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert_eq!(elsewhere.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_server_can_not_have_a_request_wait_and_repeated() {
        let head = "429 Too Many Requests\r\nretry-after: 100000";
        let (config, count) = server(head, b"").await;
        let client = limited(config).unwrap();
        let error = answer::<Node>(&client, get(), 1000, Duration::from_secs(5)).await;
        assert!(matches!(error, Err(RequestError::Status(429))), "{error:?}");
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_answer_that_is_something_else_is_not_repeated_to_the_log() {
        let (config, _) = server("200 OK\r\ncontent-length: 18", b"{\"kind\": \"forged\"}").await;
        let client = limited(config).unwrap();
        let error = answer::<u32>(&client, get(), 1000, WITHIN).await;
        let said = error.unwrap_err().to_string();
        assert!(said.starts_with("the answer is something else"), "{said}");
        assert!(!said.contains("forged"), "{said}");
    }
}
