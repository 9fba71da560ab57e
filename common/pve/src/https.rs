//! HTTP/1.1 over TLS to one endpoint: the production [`Bottom`].
//!
//! No redirects, no proxies, no repetitions of its own: each of them would decide something that the layers above
//! must decide. HTTP/1.1 only, as PVE speaks nothing else and says much in the reason phrase.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use hyper::ext::ReasonPhrase;
use tower::{BoxError, Service};

use crate::config::{Endpoint, Timeouts};
use crate::error::ConfigError;
use crate::tls;
use crate::transport::{Bottom, Cause, Phase, Reply, TransportError};

/// PVE closes idle connections after 5 s (`AnyEvent.pm` 2109); a client that waits as long races with it.
const IDLE: Duration = Duration::from_secs(4);

/// The list of a PVE cluster of 10 000 guests is a few MiB.
const LARGEST_BODY: usize = 16 << 20;

#[derive(Debug, Clone)]
struct Http {
    client: reqwest::Client,
    largest_body: usize,
}

/// The bottom for an endpoint.
pub(crate) fn bottom(
    index: usize,
    endpoint: &Endpoint,
    timeouts: &Timeouts,
) -> Result<Bottom, ConfigError> {
    let tls =
        tls::config(&endpoint.trust).map_err(|reason| ConfigError::Trust { index, reason })?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .pool_idle_timeout(IDLE)
        .connect_timeout(timeouts.connect)
        .user_agent(concat!("pve-cloud/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| ConfigError::Http(chain(&error)))?;
    Ok(Bottom::new(Http {
        client,
        largest_body: LARGEST_BODY,
    }))
}

/// `https://host[:port]/api2/json` from what an operator may write.
pub(crate) fn base(index: usize, url: &str) -> Result<String, ConfigError> {
    let refuse = |reason| ConfigError::Url { index, reason };
    let uri: http::Uri = url.trim().parse().map_err(|_| refuse("not a URL"))?;
    if uri.scheme_str() != Some("https") {
        return Err(refuse("must begin with https://"));
    }
    let authority = uri.authority().ok_or(refuse("no host"))?;
    let port = authority
        .port_u16()
        .map_or(String::new(), |port| format!(":{port}"));
    if authority.host().is_empty() || authority.as_str() != format!("{}{port}", authority.host()) {
        return Err(refuse("must be a host and maybe a port"));
    }
    if uri.query().is_some() || !matches!(uri.path().trim_end_matches('/'), "" | "/api2/json") {
        return Err(refuse("path must be empty or /api2/json"));
    }
    Ok(format!("https://{authority}/api2/json"))
}

impl Service<http::Request<Bytes>> for Http {
    type Response = Reply;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Reply, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Bytes>) -> Self::Future {
        let http = self.clone();
        Box::pin(async move { http.exchange(request).await.map_err(Into::into) })
    }
}

impl Http {
    async fn exchange(&self, request: http::Request<Bytes>) -> Result<Reply, TransportError> {
        let request = reqwest::Request::try_from(request)
            .map_err(|error| TransportError::new(Phase::NotSent, Cause::Connect, chain(&error)))?;
        let mut response = self
            .client
            .execute(request)
            .await
            .map_err(|error| without_answer(&error))?;
        let status = response.status();
        let phrase = response.extensions().get::<ReasonPhrase>();
        let reason = phrase.map_or_else(
            || status.canonical_reason().unwrap_or_default().to_owned(),
            |phrase| String::from_utf8_lossy(phrase.as_bytes()).into_owned(),
        );
        let mut body = BytesMut::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| without_answer(&error))?
        {
            if body.len() + chunk.len() > self.largest_body {
                let text = format!("answer is larger than {} bytes", self.largest_body);
                return Err(TransportError::new(Phase::Sent, Cause::TooLarge, text));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply {
            status: status.as_u16(),
            reason,
            body: body.freeze(),
        })
    }
}

fn without_answer(error: &reqwest::Error) -> TransportError {
    if error.is_connect() {
        TransportError::new(Phase::NotSent, Cause::Connect, chain(error))
    } else {
        TransportError::new(Phase::Sent, Cause::Wire, chain(error))
    }
}

/// An error with its causes. The URL in it has no secret: the token is in a header.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
