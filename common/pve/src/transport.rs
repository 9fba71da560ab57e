//! The bottom of the stack.

use bytes::Bytes;

/// One answer, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status, 595 to 599 included.
    pub status: u16,
    /// The reason phrase as it was sent.
    pub reason: String,
    /// The body.
    pub body: Bytes,
}
