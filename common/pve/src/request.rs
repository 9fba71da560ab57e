//! One request as the stack passes it on: endpoint, path, parameters. It is cheap to clone.

use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pve_model::{PveNode, Slot};

use crate::privileges::{Program, Right};

/// How a request may be repeated. Declared by the endpoint, never derived from the HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpClass {
    /// Changes nothing: repeated after any failure of the network or of a proxy.
    Read,
    /// A second run ends in the same state (config with digest, delete by name); repeated only if it never left,
    /// so that the caller re-observes instead.
    Converge,
    /// A second run is a second effect; repeated only if it never left.
    Once,
}

impl OpClass {
    /// The class's name in metrics and tables.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Converge => "converge",
            Self::Once => "once",
        }
    }
}

/// One endpoint of PVE's API that this client calls.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    /// `METHOD /template`.
    pub name: &'static str,
    /// How it may be repeated.
    pub class: OpClass,
    /// What the token needs for it; nothing where PVE answers every token.
    pub rights: &'static [Right],
}

impl Spec {
    /// What a program's token needs for it.
    pub fn rights_of(&self, program: Program) -> impl Iterator<Item = &'static Right> {
        self.rights
            .iter()
            .filter(move |right| right.is_for(program))
    }

    /// HTTP method.
    pub fn method(&self) -> &'static str {
        self.name
            .split_once(' ')
            .map_or("GET", |(method, _)| method)
    }

    /// Path below `/api2/json`, with `{placeholders}`.
    pub fn template(&self) -> &'static str {
        self.name.split_once(' ').map_or("/", |(_, path)| path)
    }
}

/// Everything but RFC 3986's unreserved characters. PVE splits forms at `&`, `;` and each `=` (`AnyEvent.pm` 890).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A request to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRequest {
    pub(crate) spec: &'static Spec,
    path: String,
    parameters: Vec<(String, String)>,
    host: Option<PveNode>,
    credentials: Option<Credentials>,
}

/// The headers that say who asks; their `Debug` hides them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// `Authorization`.
    pub(crate) authorization: HeaderValue,
    /// `CSRFPreventionToken`, beside a ticket.
    pub(crate) csrf: Option<HeaderValue>,
}

impl ApiRequest {
    /// Fills the template's placeholders in order; `host` is the PVE node whose workers it occupies.
    pub(crate) fn new(spec: &'static Spec, host: Option<&PveNode>, segments: &[&str]) -> Self {
        let mut segments = segments.iter();
        let mut path = String::new();
        for part in spec.template().split('/').filter(|part| !part.is_empty()) {
            path.push('/');
            match part.strip_prefix('{').and_then(|_| segments.next()) {
                Some(segment) => path.push_str(&encode(segment)),
                None => path.push_str(part),
            }
        }
        Self {
            spec,
            path,
            parameters: Vec::new(),
            host: host.cloned(),
            credentials: None,
        }
    }

    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.parameters.push((key.to_owned(), value.into()));
        self
    }

    /// The same request with these on it.
    pub(crate) fn authorized(&self, credentials: Credentials) -> Self {
        Self {
            credentials: Some(credentials),
            ..self.clone()
        }
    }

    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// What stands for a `{placeholder}`: in the path, or for a storage in the drive that the request sets.
    pub(crate) fn names(&self, placeholder: &str) -> Option<&str> {
        let parts = self.spec.template().split('/').zip(self.path.split('/'));
        let mut in_path = parts.filter(|(part, _)| *part == placeholder);
        let of_drive = || {
            let mut drives = self
                .parameters
                .iter()
                .filter(|(key, _)| key.parse::<Slot>().is_ok());
            let (_, value) = drives.next().filter(|_| placeholder == "{storage}")?;
            value.split_once(':').map(|(storage, _)| storage)
        };
        in_path.next().map(|(_, name)| name).or_else(of_drive)
    }

    /// The PVE node whose workers it occupies.
    pub(crate) fn host(&self) -> Option<&PveNode> {
        self.host.as_ref()
    }

    fn encoded(&self) -> String {
        let pair = |(key, value): &(String, String)| format!("{}={}", encode(key), encode(value));
        self.parameters
            .iter()
            .map(pair)
            .collect::<Vec<_>>()
            .join("&")
    }

    fn parameters_in_body(&self) -> bool {
        matches!(self.spec.method(), "POST" | "PUT")
    }

    /// Path and query below `/api2/json`. PVE refuses a body on GET and DELETE (`AnyEvent.pm` 1656).
    pub(crate) fn target(&self) -> String {
        if self.parameters.is_empty() || self.parameters_in_body() {
            self.path.clone()
        } else {
            format!("{}?{}", self.path, self.encoded())
        }
    }

    /// The form that goes in the body of POST and PUT.
    pub(crate) fn form(&self) -> Option<String> {
        self.parameters_in_body().then(|| self.encoded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static FORM: Spec = Spec {
        name: "POST /nodes/{node}/qemu/{vmid}/config",
        class: OpClass::Converge,
        rights: &[],
    };
    static QUERY: Spec = Spec {
        name: "DELETE /nodes/{node}/storage/{storage}/content/{volume}",
        class: OpClass::Converge,
        rights: &[],
    };

    #[test]
    fn separators_in_a_form_value_are_encoded() {
        let request = ApiRequest::new(&FORM, None, &["pve1", "100"])
            .with("scsi1", "thin:vm-1-x,serial=a;b&c=d%+ ä");
        assert_eq!(request.target(), "/nodes/pve1/qemu/100/config");
        assert_eq!(
            request.form().unwrap(),
            "scsi1=thin%3Avm-1-x%2Cserial%3Da%3Bb%26c%3Dd%25%2B%20%C3%A4"
        );
    }

    #[test]
    fn a_delete_has_its_parameters_in_the_query_and_a_volume_is_one_segment() {
        let volume = "local:9999/vm-9999-a.raw";
        let request = ApiRequest::new(&QUERY, None, &["pve1", "local", volume]).with("delay", "2");
        assert_eq!(
            request.target(),
            "/nodes/pve1/storage/local/content/local%3A9999%2Fvm-9999-a.raw?delay=2"
        );
        assert_eq!(request.form(), None);
    }
}
