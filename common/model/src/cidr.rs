//! Networks of IP addresses: `10.0.0.0/8`, `fd00::/8`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::ids::ParseIdError;

const REFUSED: ParseIdError = ParseIdError("network (as 10.0.0.0/8 or fd00::/8)");

/// A network: its first address and the length of its prefix in bits.
///
/// Bits behind the prefix are cleared on reading, as the former CCM does, whose documents write networks with them. An
/// address without a prefix is refused, and so is an IPv4 network in the clothes of IPv6 (`::ffff:10.0.0.0/104`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Whether the address is in the network. An IPv4 address that is written as an IPv6 one counts as what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.first.is_ipv4() && first_of(address, self.prefix) == self.first
    }
}

/// The address with nothing but its first `prefix` bits.
fn first_of(address: IpAddr, prefix: u8) -> IpAddr {
    let behind = |bits: u32| bits.saturating_sub(prefix.into());
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(behind(u32::BITS)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(behind(u128::BITS)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

impl FromStr for Cidr {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (address, prefix) = text.split_once('/').ok_or(REFUSED)?;
        let address: IpAddr = address.parse().map_err(|_| REFUSED)?;
        let canonical =
            prefix == "0" || !prefix.starts_with('0') && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = prefix.parse().map_err(|_| REFUSED)?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if !canonical || prefix > longest || address.to_canonical() != address {
            return Err(REFUSED);
        }
        Ok(Self {
            first: first_of(address, prefix),
            prefix,
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_its_first_and_its_last_address_and_not_their_neighbours() {
        for (network, inside, outside) in [
            (
                "10.0.0.0/8",
                ["10.0.0.0", "10.255.255.255"],
                ["9.255.255.255", "11.0.0.0"],
            ),
            (
                "192.0.2.7/32",
                ["192.0.2.7", "::ffff:192.0.2.7"],
                ["192.0.2.6", "192.0.2.8"],
            ),
            ("0.0.0.0/0", ["0.0.0.0", "255.255.255.255"], ["::", "::1"]),
            (
                "fd00::/8",
                ["fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
                ["fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fe00::"],
            ),
            (
                "::/0",
                ["::", "2001:db8::1"],
                ["0.0.0.0", "::ffff:10.0.0.1"],
            ),
            (
                "2001:db8::1/128",
                ["2001:db8::1", "2001:db8:0::1"],
                ["2001:db8::", "2001:db8::2"],
            ),
        ] {
            let network = cidr(network);
            for address in inside {
                assert!(network.contains(address.parse().unwrap()), "{address}");
            }
            for address in outside {
                assert!(!network.contains(address.parse().unwrap()), "{address}");
            }
        }
    }

    #[test]
    fn bits_behind_the_prefix_are_cleared() {
        for (written, read) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("192.0.2.255/25", "192.0.2.128/25"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            (
                "2001:db8:85a3::8a2e:370:7334/112",
                "2001:db8:85a3::8a2e:370:0/112",
            ),
        ] {
            assert_eq!(cidr(written), cidr(read));
            assert_eq!(cidr(written).to_string(), read);
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "/8",
            "10.0.0/8",
            "10.0.0.0/33",
            "10.0.0.0/256",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "10.0.0.0/255.0.0.0",
            " 10.0.0.0/8",
            "10.0.0.0/8 ",
            "!10.0.0.0/8",
            "010.0.0.0/8",
            "fd00::/129",
            "fe80::1%eth0/64",
            "::ffff:10.0.0.0/104",
            "localhost/8",
        ] {
            assert_eq!(bad.parse::<Cidr>(), Err(REFUSED), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_in_a_network_if_their_first_bits_are_equal(
            first: Ipv4Addr, other: Ipv4Addr, shared in 0_u8..=32, prefix in 0_u8..=32,
        ) {
            // Half of the time the other address has a beginning in common with the first.
            let other = [other, Ipv4Addr::from_bits(
                first.to_bits() ^ 1_u32.checked_shl(32 - u32::from(shared)).unwrap_or(0),
            )];
            let network: Cidr = format!("{first}/{prefix}").parse().unwrap();
            prop_assert_eq!(network.to_string().parse::<Cidr>(), Ok(network));
            prop_assert!(network.contains(first.into()));
            let bits = |address: Ipv4Addr| format!("{:032b}", address.to_bits());
            for other in other {
                let equal = bits(first).chars().zip(bits(other).chars()).take(prefix.into()).all(|(a, b)| a == b);
                prop_assert_eq!(network.contains(other.into()), equal, "{} {}", network, other);
            }
        }

        #[test]
        fn an_ipv6_address_is_in_a_network_if_their_first_bits_are_equal(
            first: Ipv6Addr, flipped in 0_u32..128, prefix in 0_u8..=128,
        ) {
            prop_assume!(first.to_ipv4_mapped().is_none());
            let other = Ipv6Addr::from_bits(first.to_bits() ^ (1 << (127 - flipped)));
            prop_assume!(other.to_ipv4_mapped().is_none());
            let network: Cidr = format!("{first}/{prefix}").parse().unwrap();
            prop_assert_eq!(network.to_string().parse::<Cidr>(), Ok(network));
            prop_assert!(network.contains(first.into()));
            prop_assert_eq!(network.contains(other.into()), flipped >= prefix.into());
        }
    }
}
