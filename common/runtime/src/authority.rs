//! Lets clients in whose HTTP/2 `:authority` is the path of our socket.
//!
//! The kubelet's plugin manager dials a registration socket by its path (kubernetes
//! `pkg/kubelet/pluginmanager/operationexecutor`), and grpc-go makes `%2Fvar%2Flib%2F…` of it. RFC 3986
//! allows that, the `http` crate doesn't, and h2 resets the stream before any handler sees it
//! (hyperium/h2#487). On a Unix socket the authority says nothing, so it is always `localhost` here.
//!
//! Only the value's bytes are exchanged. Both ends still count the same entries in their HPACK tables
//! (RFC 7541 section 2.3), so that later references mean the same header.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// RFC 9113 section 3.4.
const PREFACE: usize = 24;
/// RFC 9113 section 4.1.
const FRAME_HEADER: usize = 9;
/// RFC 9113 section 6.2: type and flags of HEADERS.
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// RFC 9113 section 4.2: larger frames are an error unless the server allows them, and ours doesn't.
const FRAME_MAX: usize = 16 << 10;
/// RFC 7541 appendix A.
const AUTHORITY_INDEX: usize = 1;
/// A string literal of RFC 7541 section 5.2: its length, without the Huffman bit, and the octets.
const LOCALHOST: &[u8] = b"\x09localhost";
const CHUNK: usize = 8 << 10;

/// A connection whose requests all have the authority `localhost`.
#[derive(Debug)]
pub(crate) struct LocalAuthority {
    inner: UnixStream,
    rewriter: Rewriter,
    ended: bool,
}

/// What has come in and not gone out yet.
#[derive(Debug)]
struct Rewriter {
    /// Bytes of which it isn't known yet what they are.
    raw: Vec<u8>,
    /// Bytes for the server.
    out: Vec<u8>,
    /// So many bytes go through as they are.
    passing: usize,
}

impl LocalAuthority {
    pub(crate) fn new(inner: UnixStream) -> Self {
        let rewriter = Rewriter::new();
        Self {
            inner,
            rewriter,
            ended: false,
        }
    }
}

// === impl AsyncRead, AsyncWrite, Connected for LocalAuthority ===

impl AsyncRead for LocalAuthority {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rewriter.out.is_empty() && !self.ended {
            let mut chunk = [0; CHUNK];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut self.inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                self.ended = true;
                self.rewriter.give_up();
            } else {
                self.rewriter.push(read.filled());
            }
        }
        self.rewriter.take(buffer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LocalAuthority {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl Connected for LocalAuthority {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

// === impl Rewriter ===

impl Rewriter {
    fn new() -> Self {
        Self {
            raw: Vec::new(),
            out: Vec::new(),
            passing: PREFACE,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        while self.step() {}
    }

    /// The client has ended in the middle of a frame: the server shall see what there is.
    fn give_up(&mut self) {
        self.out.append(&mut self.raw);
    }

    fn take(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.out.len().min(buffer.remaining());
        let bytes: Vec<u8> = self.out.drain(..length).collect();
        buffer.put_slice(&bytes);
    }

    fn step(&mut self) -> bool {
        if self.passing > 0 {
            let length = self.raw.len().min(self.passing);
            self.passing -= length;
            self.out.extend(self.raw.drain(..length));
            return length > 0;
        }
        let Some((header, rest)) = self.raw.split_first_chunk::<FRAME_HEADER>() else {
            return false;
        };
        let [high, middle, low, kind, flags, stream @ ..] = *header;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if kind != HEADERS || flags & END_HEADERS == 0 || length > FRAME_MAX {
            self.passing = FRAME_HEADER + length;
            return true;
        }
        let Some(payload) = rest.get(..length) else {
            return false;
        };
        let Some(changed) = rewrite(payload, flags) else {
            self.passing = FRAME_HEADER + length;
            return true;
        };
        let [_, _, _, _, _, high, middle, low] = changed.len().to_be_bytes();
        self.out
            .extend_from_slice(&[high, middle, low, kind, flags]);
        self.out.extend_from_slice(&stream);
        self.out.extend_from_slice(&changed);
        self.raw.drain(..FRAME_HEADER + length);
        true
    }
}

/// The payload of a HEADERS frame with another authority; none if it isn't understood.
fn rewrite(payload: &[u8], flags: u8) -> Option<Vec<u8>> {
    let (mut before, mut padding) = (0, 0);
    if flags & PADDED != 0 {
        before += 1;
        padding = usize::from(*payload.first()?);
    }
    if flags & PRIORITY != 0 {
        before += 5;
    }
    let (head, rest) = payload.split_at_checked(before)?;
    let (mut fields, tail) = rest.split_at_checked(rest.len().checked_sub(padding)?)?;
    let mut changed = head.to_vec();
    while !fields.is_empty() {
        let rest = field(fields, &mut changed)?;
        fields = rest;
    }
    changed.extend_from_slice(tail);
    Some(changed)
}

/// Copies one field representation of RFC 7541 section 6; returns what follows it.
fn field<'a>(bytes: &'a [u8], to: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (prefix, literal) = match *bytes.first()? {
        0x80.. => (7, false),
        0x40..0x80 => (6, true),
        0x20..0x40 => (5, false),
        _ => (4, true),
    };
    let (index, mut rest) = integer(bytes, prefix)?;
    if literal && index == 0 {
        rest = string(rest)?;
    }
    to.extend_from_slice(bytes.get(..bytes.len() - rest.len())?);
    if !literal {
        return Some(rest);
    }
    let after = string(rest)?;
    if index == AUTHORITY_INDEX {
        to.extend_from_slice(LOCALHOST);
    } else {
        to.extend_from_slice(rest.get(..rest.len() - after.len())?);
    }
    Some(after)
}

/// RFC 7541 section 5.1; numbers of more than four octets are of no use here.
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & mask;
    if value < mask {
        return Some((value, rest));
    }
    for shift in [0, 7, 14] {
        let (octet, after) = rest.split_first()?;
        rest = after;
        value += usize::from(octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

/// Skips a string literal.
fn string(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = integer(bytes, 7)?;
    rest.get(length..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// POST, http, a path with a literal of 200 octets, and an authority as grpc-go sends it.
    fn request(authority: &[u8]) -> Vec<u8> {
        let path = [b"/".as_slice(), &[b'p'; 199]].concat();
        let mut fields = vec![0x83, 0x86, 0x44, 0x7f, 73];
        fields.extend_from_slice(&path);
        fields.push(0x41);
        fields.push(u8::try_from(authority.len()).unwrap());
        fields.extend_from_slice(authority);
        // A literal name, never indexed.
        fields.extend_from_slice(b"\x10\x02te\x08trailers");
        fields
    }

    fn headers(flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![0, length[0], length[1], HEADERS, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend_from_slice(SETTINGS);
        bytes.extend(frames.concat());
        bytes
    }

    fn rewritten(bytes: &[u8], chunk: usize) -> Vec<u8> {
        let mut rewriter = Rewriter::new();
        bytes.chunks(chunk).for_each(|part| rewriter.push(part));
        rewriter.give_up();
        rewriter.out
    }

    #[test]
    fn the_path_of_a_socket_becomes_localhost_however_the_bytes_arrive() {
        let data = vec![0, 0, 3, 0, 1, 0, 0, 0, 1, b'a', b'b', b'c'];
        let sent = [headers(0x4, &request(b"%2Freg.sock")), data.clone()];
        let wanted = connection(&[headers(0x4, &request(b"localhost")), data]);
        for chunk in [1, 7, 8192] {
            assert_eq!(rewritten(&connection(&sent), chunk), wanted, "{chunk}");
        }
    }

    #[test]
    fn padding_and_priority_stay_where_they_are() {
        let framed = |authority: &[u8]| {
            let fields = request(authority);
            let payload = [&[3, 1, 2, 3, 4, 5], fields.as_slice(), &[0; 3]].concat();
            connection(&[headers(0x4 | PADDED | PRIORITY, &payload)])
        };
        assert_eq!(rewritten(&framed(b"%2Fx"), 64), framed(b"localhost"));
    }

    #[test]
    fn what_is_not_understood_goes_through_as_it_is() {
        for frame in [
            headers(0, &request(b"%2Fx")),
            headers(0x4, &[0x41, 0x7f]),
            headers(0x4 | PADDED, &[9]),
            headers(0x4, &[0x41, 0x7f, 0xff, 0xff, 0xff, 0x01]),
            vec![0xff, 0xff, 0xff, HEADERS, 0x4, 0, 0, 0, 1, 0x41],
            vec![0, 0, 9, HEADERS, 0x4, 0, 0, 0, 1, 0x41],
        ] {
            let sent = connection(&[frame]);
            assert_eq!(rewritten(&sent, 16), sent);
        }
    }
}
