//! What a client is made of: endpoints, trust, token, limits and time-outs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

/// What a client proves itself by: a PVE API token, or a ticket that a user got by [`crate::login`].
#[derive(Clone)]
pub struct Token {
    /// `user@realm!name`; `user@realm` of a ticket.
    pub id: String,
    /// The token's value, a UUID; the ticket.
    pub secret: SecretString,
    /// What PVE wants beside a ticket with everything that is no GET; none with a token.
    pub csrf: Option<SecretString>,
}

impl Token {
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.id == other.id && self.secret.expose_secret() == other.secret.expose_secret()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(redacted)")
    }
}

/// Where the token comes from. It is called at start, after PVE refused a token, and while it is refused; it must
/// be as quick as the read of a small file. Its error must not hold the secret.
pub type TokenSource = Arc<dyn Fn() -> Result<Token, String> + Send + Sync>;

/// How an endpoint proves that it is the one that was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The certificate stores of this machine.
    SystemRoots,
    /// One or more CA certificates in PEM; nothing else is trusted.
    Ca(String),
    /// SHA-256 over the DER of the endpoint's own certificate, as PVE shows it. Names and dates in it don't count.
    Fingerprint([u8; 32]),
    /// Anything that speaks TLS.
    Insecure,
}

/// One API server of a PVE cluster. Any of them answers for all hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host[:port]`, with or without `/api2/json`.
    pub url: String,
    /// How it proves itself.
    pub trust: Trust,
}

/// How much of PVE's few workers one client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests per second over time.
    pub rate: u32,
    /// Requests that may go at once after a pause.
    pub burst: u32,
    /// Mutating requests in flight per PVE node: each may hold one of PVE's 3 workers for many seconds.
    pub mutating_per_host: usize,
    /// Longest wait for a permit before the request is given up as [`crate::ErrorKind::Throttled`].
    pub queue: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rate: 50,
            burst: 200,
            mutating_per_host: 2,
            queue: Duration::from_secs(30),
        }
    }
}

/// How long one request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP connect and TLS handshake.
    pub connect: Duration,
    /// One attempt, answer included. PVE itself gives up after 30 s (`AnyEvent.pm` 835) and says so; 35 s hears it.
    pub request: Duration,
    /// No further attempt begins later than this after the first one began.
    pub retry_window: Duration,
    /// How long `update_vm` and `delete_disk` let PVE wait for the task, whole seconds of 1 or more. It holds a
    /// PVE worker.
    pub background_delay: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(35),
            retry_window: Duration::from_secs(10),
            background_delay: Duration::from_secs(2),
        }
    }
}

/// Whether requests that change something may be sent. Clones share what says it.
#[derive(Clone, Default)]
pub struct Writes(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Writes {
    /// Only while `may` says so; it is asked before each attempt of each such request and must be quick.
    pub fn only_while(may: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(may)))
    }

    pub(crate) fn may(&self) -> bool {
        self.0.as_ref().is_none_or(|may| may())
    }
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Writes").field(&self.may()).finish()
    }
}

/// All that [`crate::Client::new`] needs.
#[derive(Clone)]
pub struct ClientConfig {
    /// Tried in order, from the one that answered last.
    pub endpoints: Vec<Endpoint>,
    /// Where the token comes from.
    pub token: TokenSource,
    /// How much of PVE this client takes.
    pub limits: Limits,
    /// How long it waits.
    pub timeouts: Timeouts,
    /// Whether it may change anything.
    pub writes: Writes,
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("endpoints", &self.endpoints)
            .field("limits", &self.limits)
            .field("timeouts", &self.timeouts)
            .field("writes", &self.writes)
            .finish_non_exhaustive()
    }
}
