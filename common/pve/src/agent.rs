//! What the guest agent inside a VM says of its network. The guest is the tenant's: nothing here is to be believed further
//! than the tenant may decide it.

use std::net::IpAddr;

use serde_json::Value;

use crate::Client;
use crate::error::{ApiError, Effect, ErrorKind};
use crate::privileges::{Object, Program, Right};
use crate::qemu::{VmRef, on_vm};
use crate::request::{OpClass, Spec};
use crate::wire::Fields;

/// How many interfaces of a VM are kept.
pub const MOST_INTERFACES: usize = 256;
/// How many addresses of a VM are kept, over all its interfaces.
pub const MOST_ADDRESSES: usize = 1024;
/// How much of an interface's name is kept, in characters. Linux gives 15, Windows sentences.
const MOST_NAME: usize = 64;
/// How much of the agent's own words is kept, in characters.
const MOST_WORDS: usize = 200;

pub(crate) static INTERFACES: Spec = Spec {
    name: "GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces",
    class: OpClass::Read,
    rights: &[Right::on(
        Object::Vm,
        "VM.GuestAgent.Audit",
        "ask the guest agent for addresses",
    )
    .before_9("VM.Monitor")
    .only(Program::Ccm)
    .or_without()],
};

pub(crate) static ENDPOINTS: [&Spec; 1] = [&INTERFACES];

/// One network interface as the guest sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name inside the guest.
    pub name: String,
    /// Its hardware address as `aa:bb:cc:dd:ee:ff`, lower case; none if the guest names none of that form.
    pub mac: Option<String>,
    /// Its addresses, without those that can't be read.
    pub addresses: Vec<InterfaceAddress>,
}

/// One address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// How many of its first bits name the net around it; none if the agent does not say, or says more than there are.
    pub prefix: Option<u8>,
}

/// What stands in the answer, which is 200 even if the agent refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Interfaces(Vec<Interface>),
    /// The agent's own refusal, in its words.
    Refused(String),
}

impl Client {
    /// `GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces`; `VM.GuestAgent.Audit` (or
    /// `VM.GuestAgent.Unrestricted`) on `/vms/{vmid}`, on PVE 8 `VM.Monitor`. It takes up to 8 s of one of the host's
    /// workers. At most [`MOST_INTERFACES`] and [`MOST_ADDRESSES`] are kept. [`ErrorKind::NoAgent`] if no agent answers
    /// or it refuses.
    pub async fn agent_interfaces(&self, at: &VmRef) -> Result<Vec<Interface>, ApiError> {
        match self.call(on_vm(&INTERFACES, at), read).await? {
            Said::Interfaces(interfaces) => Ok(interfaces),
            Said::Refused(words) => Err(ApiError::new(
                &INTERFACES,
                ErrorKind::NoAgent,
                Effect::None,
                words,
            )),
        }
    }
}

pub(crate) fn read(data: &Value) -> Result<Said, String> {
    match Fields::of(data)?.0.get("result") {
        Some(Value::Array(list)) => Ok(Said::Interfaces(interfaces(list))),
        Some(Value::Object(result)) => {
            let error = Fields(result).object("error").ok_or("no list, no error")?;
            let text = |key| error.text(key).unwrap_or_default();
            Ok(Said::Refused(tamed(&format!(
                "the agent refused: {} {}",
                text("class"),
                text("desc")
            ))))
        }
        _ => Err("no result".to_owned()),
    }
}

fn interfaces(list: &[Value]) -> Vec<Interface> {
    let named = list.iter().filter_map(|value| {
        let fields = Fields(value.as_object()?);
        Some((fields.text("name")?, fields))
    });
    let mut left = MOST_ADDRESSES;
    let mut all = Vec::new();
    for (name, fields) in named.take(MOST_INTERFACES) {
        let addresses: Vec<_> = addresses(fields).take(left).collect();
        left -= addresses.len();
        let mac = fields.text("hardware-address");
        all.push(Interface {
            name: name.chars().take(MOST_NAME).collect(),
            mac: mac.and_then(|text| mac_address(&text)),
            addresses,
        });
    }
    all
}

/// A guest without addresses on an interface leaves `ip-addresses` out.
fn addresses(fields: Fields<'_>) -> impl Iterator<Item = InterfaceAddress> {
    let list = fields.0.get("ip-addresses").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|value| {
        let fields = Fields(value.as_object()?);
        let text = fields.text("ip-address")?;
        // Windows adds the interface to a link-local address: `fe80::1%7`.
        let (address, _) = text.split_once('%').unwrap_or((&text, ""));
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = fields
            .number("prefix")
            .and_then(|prefix| u8::try_from(prefix).ok());
        Some(InterfaceAddress {
            address,
            prefix: prefix.filter(|prefix| *prefix <= bits),
        })
    })
}

/// Windows writes `-` between the bytes.
fn mac_address(text: &str) -> Option<String> {
    let bytes: Vec<&str> = text.split([':', '-']).collect();
    let hex = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    (bytes.len() == 6 && bytes.iter().all(hex)).then(|| bytes.join(":").to_ascii_lowercase())
}

/// Words of the guest for a line of a log.
fn tamed(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().take(MOST_WORDS).map(plain).collect()
}

#[cfg(test)]
mod tests;
