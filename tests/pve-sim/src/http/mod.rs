//! HTTP/1.1 as pveproxy's `AnyEvent` server speaks it. Written out here because the answers need what libraries hide: free reason
//! phrases, 401 without `Content-Length`, connections that end after an error or without any answer.

pub(crate) mod form;
mod perl_json;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod wire;

use crate::fail::Fail;
use crate::schema::RawParams;

/// A request, read completely.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path segments, unescaped after the split at the question mark; empty ones dropped.
    pub(crate) path: Vec<String>,
    pub(crate) raw_path: String,
    pub(crate) query: RawParams,
    pub(crate) authorization: Option<String>,
    pub(crate) cookie: Option<String>,
    /// `CSRFPreventionToken`.
    pub(crate) csrf: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) chunked: bool,
    pub(crate) body: Vec<u8>,
}

/// What goes back on the wire.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) reason: String,
    /// Content type and body; `None` for answers without body and length.
    pub(crate) body: Option<(&'static str, Vec<u8>)>,
}

const JSON: &str = "application/json;charset=UTF-8";

impl Reply {
    pub(crate) fn json(status: u16, reason: &str, value: &serde_json::Value) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            body: Some((JSON, value.to_string().into_bytes())),
        }
    }

    /// `None`: nothing is answered, the connection ends.
    pub(crate) fn from_fail(fail: &Fail) -> Option<Self> {
        Some(match fail {
            Fail::Lost => return None,
            Fail::Empty { status, reason } => Self {
                status: *status,
                reason: reason.clone(),
                body: None,
            },
            Fail::Text { status, message } => Self {
                status: *status,
                reason: first_line(message),
                body: Some(("text/plain", message.clone().into_bytes())),
            },
            Fail::Json {
                status, message, ..
            } => Self::json(
                *status,
                &first_line(message),
                &fail.body().unwrap_or_default(),
            ),
        })
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
