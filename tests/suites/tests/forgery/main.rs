//! A tenant that forges: every controller RPC with every text of a table, in one world with another tenant, once with a
//! token of least privilege and once with one that may do everything.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod calls;
mod fields;
mod handles;
mod judge;
mod matrix;
mod nodes;
mod oracle;
mod takeover;

/// What a forgery stands in, and how it has to end.
#[derive(Debug, Clone)]
pub(crate) struct Forgery {
    /// The forged part of the request.
    pub(crate) part: Part,
    /// How it ends.
    pub(crate) due: Due,
    /// How it ends in the context of a volume that exists, which is read leniently.
    pub(crate) due_in_context: Due,
}

/// A part of a request.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// `volume_id`.
    Volume(String),
    /// `node_id`.
    Node(String),
    /// `name`.
    Name(String),
    /// A key of `parameters` or `volume_context`.
    Entry(String, String),
    /// The terms of a topology: region and zone.
    Places(Vec<(String, Option<String>)>),
    /// A key of `secrets`.
    Secret(String, String),
    /// The volume of a `volume_content_source`.
    Source(String),
    /// A key of `mutable_parameters`.
    Mutable(String, String),
}

/// How a forged request has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// With an error, and nothing written to PVE.
    Refused,
    /// As for a volume that there can't be: deleted and detached already, otherwise not found. Nothing is asked of PVE.
    NoVolume,
    /// As the driver likes: it is the tenant's own business. What is the other's stays as it is.
    Harmless,
}

impl Forgery {
    fn new(part: Part, due: Due) -> Self {
        Self {
            part,
            due,
            due_in_context: due,
        }
    }
}
