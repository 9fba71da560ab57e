//! Which addresses a Node should have. Decided by what is known now and what the Node has; no I/O.
//!
//! The guest is the tenant's and says what it likes: nothing here tells machines apart, it only fills `status.addresses`.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use pve_client::{Interface, InterfaceAddress};
use pve_runtime::config::AddressPolicy;

/// How many addresses a Node gets of its guest, which may name more than a Node can bear.
const MOST: usize = 64;

/// What an address of a Node is for (`k8s.io/api/core/v1` `NodeAddressType`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddressKind {
    /// The name under which the Node is known to itself.
    Hostname,
    /// Reached from inside the cluster.
    InternalIp,
    /// Reached from outside.
    ExternalIp,
    /// Any other: `InternalDNS`, `ExternalDNS`, ….
    Other(String),
}

impl AddressKind {
    /// The name in Kubernetes.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Hostname => "Hostname",
            Self::InternalIp => "InternalIP",
            Self::ExternalIp => "ExternalIP",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for AddressKind {
    fn from(name: &str) -> Self {
        match name {
            "Hostname" => Self::Hostname,
            "InternalIP" => Self::InternalIp,
            "ExternalIP" => Self::ExternalIp,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// One entry of a Node's `status.addresses`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// What it is for.
    pub kind: AddressKind,
    /// An IP address or a name.
    pub address: String,
}

/// All that is known of one Node's addresses.
#[derive(Debug, Clone)]
pub struct Sources<'a> {
    /// The Node's name.
    pub name: &'a str,
    /// Those of the kubelet's `--node-ip`, as [`provided`] reads them.
    pub provided: Vec<IpAddr>,
    /// What the guest agent says; none if it was not asked, did not answer or told nothing.
    pub agent: Option<&'a [Interface]>,
    /// Hardware addresses in lower case, by the number of the VM's `netN`.
    pub macs: &'a BTreeMap<u8, String>,
    /// What cloud-init sets in the guest.
    pub fixed: &'a [IpAddr],
    /// What the Node has now.
    pub current: &'a [Address],
}

/// Reads the annotation `alpha.kubernetes.io/provided-node-ip`: addresses divided by commas. What is none is left out,
/// as is what the kubelet itself refuses as `--node-ip` (`pkg/kubelet/kubelet_node_status.go` `validateNodeIP`).
pub fn provided(text: &str) -> Vec<IpAddr> {
    let parsed = text.split(',').filter_map(|part| part.trim().parse().ok());
    parsed
        .map(|address: IpAddr| address.to_canonical())
        .filter(is_usable)
        .collect()
}

/// The addresses that the Node should have, in their order. `None` if nothing is known: the Node keeps what it has. One that
/// has nothing gets its name at least: a kubelet without `--node-ip` leaves all of it to us.
///
/// Those of `provided-node-ip` come first, and no other `InternalIP` of their family is taken beside them
/// (`k8s.io/cloud-provider/node/helpers` `GetNodeAddressesFromNodeIP`). If the guest agent should have been heard and
/// told nothing that can be used, what the Node has stays.
pub fn wanted(sources: &Sources<'_>, policy: &AddressPolicy) -> Option<Vec<Address>> {
    let mut found = Found::new(&sources.provided);
    let told = match sources.agent {
        Some(interfaces) if policy.agent => told(interfaces, sources, policy),
        _ => Vec::new(),
    };
    let fixed = if policy.cloud_init {
        sources.fixed
    } else {
        &[]
    };
    let fixed = fixed.iter().filter_map(|address| admit(*address, policy));
    let kept = policy.agent && told.is_empty();
    let mut rest: Vec<IpAddr> = told.into_iter().chain(fixed).collect();
    let name = Address {
        kind: AddressKind::Hostname,
        address: sources.name.to_owned(),
    };
    if rest.is_empty() && found.is_empty() {
        return sources.current.is_empty().then(|| vec![name]);
    }
    if kept {
        found.keep(sources.current);
    }
    let last = policy.order.len();
    let place = |address: &IpAddr| {
        let mut order = policy.order.iter();
        order.position(|net| net.contains(*address)).unwrap_or(last)
    };
    rest.sort_by_key(place);
    for address in rest {
        if found.list.len() < MOST {
            found.add(address, kind(address, policy));
        }
    }
    let names = sources
        .current
        .iter()
        .filter(|known| matches!(known.kind, AddressKind::Other(_)));
    let mut all = vec![name];
    all.extend(found.list);
    for other in names {
        if !all.contains(other) {
            all.push(other.clone());
        }
    }
    Some(all)
}

/// IP addresses for a Node, each once.
#[derive(Debug, Default)]
struct Found {
    list: Vec<Address>,
    seen: HashSet<IpAddr>,
    /// Families whose internal addresses the kubelet has chosen: whether of IPv4.
    chosen: HashSet<bool>,
}

impl Found {
    fn new(provided: &[IpAddr]) -> Self {
        let mut found = Self::default();
        for address in provided.iter().map(IpAddr::to_canonical) {
            if is_usable(&address) {
                found.add(address, AddressKind::InternalIp);
            }
        }
        found.chosen = found.seen.iter().map(IpAddr::is_ipv4).collect();
        found
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn add(&mut self, address: IpAddr, kind: AddressKind) {
        let second = kind == AddressKind::InternalIp && self.chosen.contains(&address.is_ipv4());
        if !second && self.seen.insert(address) {
            let address = address.to_string();
            self.list.push(Address { kind, address });
        }
    }

    fn keep(&mut self, current: &[Address]) {
        for known in current {
            if let Some(address) = ip(known).filter(is_usable) {
                self.add(address, known.kind.clone());
            }
        }
    }
}

/// The address, if it is one that is written here.
fn ip(known: &Address) -> Option<IpAddr> {
    match known.kind {
        AddressKind::InternalIp | AddressKind::ExternalIp => {
            let address: IpAddr = known.address.parse().ok()?;
            Some(address.to_canonical())
        }
        AddressKind::Hostname | AddressKind::Other(_) => None,
    }
}

/// What other machines can send to. Unique local addresses (`fc00::/7`) are all that some clusters have.
fn is_usable(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The address, if policy takes it.
fn admit(address: IpAddr, policy: &AddressPolicy) -> Option<IpAddr> {
    let address = address.to_canonical();
    let included =
        policy.include.is_empty() || policy.include.iter().any(|net| net.contains(address));
    let excluded = policy.exclude.iter().any(|net| net.contains(address));
    let family = policy.ipv6 || address.is_ipv4();
    (is_usable(&address) && family && included && !excluded).then_some(address)
}

fn kind(address: IpAddr, policy: &AddressPolicy) -> AddressKind {
    if policy.external.iter().any(|net| net.contains(address)) {
        AddressKind::ExternalIp
    } else {
        AddressKind::InternalIp
    }
}

/// What the agent tells, by the number of the VM's interface. Within one, what the Node has stays in front, so that an
/// address that comes and goes never takes the place of one that stays.
fn told(interfaces: &[Interface], sources: &Sources<'_>, policy: &AddressPolicy) -> Vec<IpAddr> {
    let known: Vec<IpAddr> = sources.current.iter().filter_map(ip).collect();
    let place = |address: &IpAddr| {
        known
            .iter()
            .position(|k| k == address)
            .unwrap_or(known.len())
    };
    let mut nets: BTreeMap<u8, Vec<&Interface>> = BTreeMap::new();
    for interface in interfaces {
        if let Some(net) = net_of(interface, sources.macs) {
            nets.entry(net).or_default().push(interface);
        }
    }
    if nets.is_empty() {
        let real = interfaces.iter().filter(|interface| !is_virtual(interface));
        nets.insert(0, real.collect());
    }
    let wide = wide(interfaces);
    let mut all = Vec::new();
    for mut net in nets.into_values() {
        net.sort_by(|a, b| by_name(a).cmp(&by_name(b)));
        let addresses = net
            .into_iter()
            .flat_map(|interface| own_addresses(interface, &wide));
        let mut addresses: Vec<IpAddr> = addresses.filter_map(|one| admit(one, policy)).collect();
        addresses.sort_by_key(place);
        all.extend(addresses);
    }
    all
}

fn net_of(interface: &Interface, macs: &BTreeMap<u8, String>) -> Option<u8> {
    let mac = interface.mac.as_ref()?;
    let mut own = macs.iter();
    own.find_map(|(net, own)| own.eq_ignore_ascii_case(mac).then_some(*net))
}

/// `eth2` before `eth10`; the addresses last, so that equal names have an order, too.
fn by_name(interface: &Interface) -> (&str, usize, &str, &[InterfaceAddress]) {
    let name = interface.name.as_str();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name.len(), name, &interface.addresses)
}

/// The interface without the label of an alias: the agent tells `eth0:1` by itself (`getifaddrs`).
fn device(interface: &Interface) -> &str {
    let name = interface.name.as_str();
    name.split_once(':').map_or(name, |(device, _)| device)
}

/// Whether the prefix has all bits of the address.
fn is_narrow(one: &InterfaceAddress) -> bool {
    one.prefix == Some(if one.address.is_ipv4() { 32 } else { 128 })
}

/// The families in which interfaces have an address with a net around it: whether of IPv4.
fn wide(interfaces: &[Interface]) -> HashSet<(&str, bool)> {
    let mut wide = HashSet::new();
    for interface in interfaces {
        for one in &interface.addresses {
            if one.prefix.is_some() && !is_narrow(one) && is_usable(&one.address) {
                wide.insert((device(interface), one.address.is_ipv4()));
            }
        }
    }
    wide
}

/// The interface's addresses without those that kube-vip and others set beside the machine's own, with all bits as
/// prefix. One that DHCP gave has such a prefix, too, and stands alone.
fn own_addresses(interface: &Interface, wide: &HashSet<(&str, bool)>) -> Vec<IpAddr> {
    let beside = |one: &InterfaceAddress| {
        is_narrow(one) && wide.contains(&(device(interface), one.address.is_ipv4()))
    };
    let own = interface.addresses.iter().filter(|one| !beside(one));
    own.map(|one| one.address).collect()
}

/// Well-known interfaces of container networks, bridges and tunnels inside a guest.
fn is_virtual(interface: &Interface) -> bool {
    const PREFIXES: [&str; 18] = [
        "docker",
        "cni",
        "flannel",
        "cilium",
        "lxc",
        "veth",
        "cali",
        "kube-ipvs",
        "nodelocaldns",
        "dummy",
        "br-",
        "virbr",
        "tunl",
        "vxlan",
        "weave",
        "tailscale",
        "wg",
        "tap",
    ];
    let name = device(interface);
    name == "lo" || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests;
