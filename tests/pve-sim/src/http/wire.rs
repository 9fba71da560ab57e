//! Bytes to requests and replies to bytes. Limits as `AnyEvent.pm:52-54`.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Reply, Request, form};
use crate::fail::Fail;

const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 64;
const MAX_LINE: usize = 8 * 1024;
const MAX_BODY: usize = 512 * 1024;

/// pveproxy closes a connection that has been idle for this long.
pub(crate) const IDLE: Duration = Duration::from_secs(5);

/// A connection with what was read beyond the last request.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    buffer: Vec<u8>,
}

/// Outcome of waiting for a request.
#[derive(Debug)]
pub(crate) enum Incoming {
    Request(Box<Request>),
    /// The bytes are no acceptable request; the connection ends after the answer.
    Bad(Fail),
    Closed,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Reads until `end` says how long the wanted part is; `None` when the peer closes, idles or sends too much.
    async fn read_until(
        &mut self,
        limit: usize,
        end: impl Fn(&[u8]) -> Option<usize>,
    ) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = end(&self.buffer) {
                let rest = self.buffer.split_off(length);
                return Some(std::mem::replace(&mut self.buffer, rest));
            }
            if self.buffer.len() > limit {
                return None;
            }
            let mut chunk = [0; 4096];
            let got = tokio::time::timeout(IDLE, self.stream.read(&mut chunk))
                .await
                .ok()?
                .ok()?;
            if got == 0 {
                return None;
            }
            self.buffer.extend_from_slice(chunk.get(..got)?);
        }
    }

    pub(crate) async fn next(&mut self) -> Incoming {
        let head_end = |bytes: &[u8]| {
            bytes
                .windows(4)
                .position(|w| w == b"\r\n\r\n")
                .map(|at| at + 4)
        };
        let Some(head) = self.read_until(MAX_HEAD, head_end).await else {
            return Incoming::Closed;
        };
        let (mut request, length) = match parse_head(&String::from_utf8_lossy(&head)) {
            Ok(parsed) => parsed,
            Err(fail) => return Incoming::Bad(fail),
        };
        if length > MAX_BODY {
            return Incoming::Bad(Fail::Text {
                status: 501,
                message: "for data too large".to_owned(),
            });
        }
        if length > 0 {
            let enough = |bytes: &[u8]| (bytes.len() >= length).then_some(length);
            let Some(body) = self.read_until(MAX_BODY + MAX_HEAD, enough).await else {
                return Incoming::Closed;
            };
            request.body = body;
        }
        Incoming::Request(Box::new(request))
    }

    /// Writes the reply; `keep` is whether the connection stays open.
    pub(crate) async fn send(&mut self, reply: &Reply, keep: Keep) -> std::io::Result<()> {
        let reason: String = reply.reason.chars().filter(|c| !c.is_control()).collect();
        let date = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT");
        let connection = if keep == Keep::Open {
            "Keep-Alive"
        } else {
            "close"
        };
        let mut head = format!(
            "HTTP/1.1 {} {reason}\r\nCache-Control: max-age=0\r\nConnection: {connection}\r\nDate: {date}\r\nPragma: no-cache\r\nServer: pve-api-daemon/3.0\r\n",
            reply.status
        );
        let mut bytes = Vec::new();
        if let Some((kind, body)) = &reply.body {
            let length = body.len().to_string();
            head.extend([
                "Content-Length: ",
                &length,
                "\r\nContent-Type: ",
                kind,
                "\r\n",
            ]);
            bytes.extend_from_slice(body);
        }
        head.push_str("\r\n");
        let mut all = head.into_bytes();
        all.append(&mut bytes);
        self.stream.write_all(&all).await?;
        self.stream.flush().await
    }

    pub(crate) async fn close(mut self) {
        if let Err(error) = self.stream.shutdown().await {
            tracing::trace!(%error, "peer was gone before the connection was closed");
        }
    }
}

/// Whether a connection goes on after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Open,
    Close,
}

fn parse_head(head: &str) -> Result<(Request, usize), Fail> {
    let bad = |message: &str| Fail::Text {
        status: 501,
        message: message.to_owned(),
    };
    let mut lines = head.split("\r\n").filter(|line| !line.is_empty());
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(_)) = (first.next(), first.next(), first.next()) else {
        return Err(bad("bad request"));
    };
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| {
            line.split_once(':')
                .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect();
    if headers.len() > MAX_HEADERS
        || headers
            .iter()
            .any(|(name, value)| name.len() + value.len() > MAX_LINE)
    {
        return Err(bad("too many http header lines"));
    }
    let find = |name: &str| {
        headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let length = find("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let request = Request {
        method: method.to_owned(),
        path: form::unescape(path)
            .split('/')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect(),
        raw_path: form::unescape(path),
        query: form::decode(query),
        authorization: find("authorization"),
        cookie: find("cookie"),
        csrf: find("csrfpreventiontoken"),
        content_type: find("content-type"),
        chunked: find("transfer-encoding").is_some(),
        body: Vec::new(),
    };
    Ok((request, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_401_has_no_content_length_and_ends_the_connection() {
        let (mine, mut theirs) = tokio::io::duplex(4096);
        let mut connection = Connection::new(mine);
        let reply = Reply::from_fail(&Fail::Empty {
            status: 401,
            reason: "No ticket".to_owned(),
        })
        .unwrap();
        connection.send(&reply, Keep::Close).await.unwrap();
        connection.close().await;
        let mut text = String::new();
        theirs.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 401 No ticket\r\n"), "{text}");
        assert!(
            text.contains("Connection: close\r\n") && !text.contains("Content-Length"),
            "{text}"
        );
        assert!(text.ends_with("\r\n\r\n"));
    }

    #[tokio::test]
    async fn the_path_is_unescaped_before_it_is_split() {
        let (mine, mut theirs) = tokio::io::duplex(4096);
        theirs
            .write_all(b"GET /api2/json/x/local%3A9999%2Fa.raw?delay=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let Incoming::Request(request) = Connection::new(mine).next().await else {
            panic!("no request")
        };
        assert_eq!(request.path, ["api2", "json", "x", "local:9999", "a.raw"]);
        assert_eq!(request.query.len(), 1);
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_after_five_seconds() {
        let (mine, _theirs) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        assert!(matches!(
            Connection::new(mine).next().await,
            Incoming::Closed
        ));
        let waited = began.elapsed();
        assert!(waited >= IDLE && waited < 2 * IDLE, "{waited:?}");
    }
}
