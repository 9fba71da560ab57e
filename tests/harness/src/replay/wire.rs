//! One HTTPS request per connection, written out by hand: what is compared includes the reason phrase and answers that have no
//! length.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) body: String,
}

/// A server to send requests to.
#[derive(Clone)]
pub(super) struct Server {
    address: SocketAddr,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A request that is to be sent as it stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Send {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<String>,
}

impl Server {
    /// A server that proves itself with a certificate of this CA, or one without TLS.
    pub(super) fn new(url: &str, ca: Option<&Path>) -> Result<Self> {
        let (_, address) = url.split_once("://").context("url without scheme")?;
        let tls = ca.map(connector).transpose()?;
        Ok(Self {
            address: address.trim_end_matches('/').parse()?,
            tls,
        })
    }

    /// Sends the request and reads the whole answer.
    pub(super) async fn send(&self, request: &Send) -> Result<Reply> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\n",
            request.method, request.target, self.address
        );
        for (name, value) in &request.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        let body = request.body.as_deref().unwrap_or_default();
        if request.body.is_some() || matches!(request.method.as_str(), "POST" | "PUT" | "PATCH") {
            let length = body.len().to_string();
            head.extend(["Content-Length: ", &length, "\r\n"]);
        }
        let bytes = format!("{head}\r\n{body}").into_bytes();
        let stream = TcpStream::connect(self.address).await?;
        match &self.tls {
            None => talk(stream, &bytes).await,
            Some(tls) => {
                let name = ServerName::from(self.address.ip());
                talk(tls.connect(name, stream).await?, &bytes).await
            }
        }
    }
}

fn connector(ca: &Path) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn talk<S>(mut stream: S, request: &[u8]) -> Result<Reply>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut got = Vec::new();
    loop {
        if let Some(reply) = parse(&got)? {
            return Ok(reply);
        }
        let mut chunk = [0; 8192];
        let length = stream.read(&mut chunk).await.unwrap_or(0);
        if length == 0 {
            return last(&got);
        }
        got.extend_from_slice(chunk.get(..length).unwrap_or_default());
    }
}

/// The head's end, the head and its `Content-Length`.
fn head(got: &[u8]) -> Result<Option<(usize, String, Option<usize>)>> {
    let Some(end) = got.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8(got.get(..end).unwrap_or_default().to_vec())?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    Ok(Some((end + 4, text, length)))
}

/// The answer, once all of its length is there.
fn parse(got: &[u8]) -> Result<Option<Reply>> {
    match head(got)? {
        Some((end, text, Some(length))) if got.len() >= end + length => {
            reply(&text, got.get(end..end + length)).map(Some)
        }
        _ => Ok(None),
    }
}

/// An answer without length ends with the connection.
fn last(got: &[u8]) -> Result<Reply> {
    let (end, text, _) = head(got)?.context("the connection ended without an answer")?;
    reply(&text, got.get(end..))
}

fn reply(head: &str, body: Option<&[u8]>) -> Result<Reply> {
    let line = head.lines().next().unwrap_or_default();
    let mut parts = line.splitn(3, ' ').skip(1);
    Ok(Reply {
        status: parts.next().context("no status")?.parse()?,
        reason: parts.next().unwrap_or_default().to_owned(),
        body: String::from_utf8_lossy(body.unwrap_or_default()).into_owned(),
    })
}
