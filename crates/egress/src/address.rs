//! Classifies addresses as public internet or not. Pure: registration, resolution and the open connection use
//! the same rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 ranges outside of the public internet (IANA's special-purpose registry, multicast and reserved ranges).
const SPECIAL_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::UNSPECIFIED, 8),            // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // carrier-grade NAT; some clouds' metadata
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // Azure's host address, public by number only
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local; most clouds' metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, broadcast
];

/// The only IPv6 range in global use. NAT64, link-local, unique local and multicast lie outside.
const GLOBAL_UNICAST: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);

/// Ranges within [`GLOBAL_UNICAST`] that are not the public internet.
const SPECIAL_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments: Teredo, ORCHID, …
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4: embeds any IPv4 address
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// True for an address of the public internet. IPv4-mapped IPv6 addresses count as IPv4.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !SPECIAL_V4
            .iter()
            .any(|(network, length)| contains_v4(*network, *length, address)),
        IpAddr::V6(address) => {
            contains_v6(GLOBAL_UNICAST, 3, address)
                && !SPECIAL_V6
                    .iter()
                    .any(|(network, length)| contains_v6(*network, *length, address))
        }
    }
}

fn contains_v4(network: Ipv4Addr, length: u32, address: Ipv4Addr) -> bool {
    (network.to_bits() ^ address.to_bits()).leading_zeros() >= length
}

fn contains_v6(network: Ipv6Addr, length: u32, address: Ipv6Addr) -> bool {
    (network.to_bits() ^ address.to_bits()).leading_zeros() >= length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(public: bool, addresses: &[&str]) {
        for address in addresses {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
    }

    #[test]
    fn special_ipv4_ranges_are_not_public() {
        check(
            false,
            &[
                "0.0.0.0",
                "0.255.255.255",
                "10.0.0.0",
                "10.255.255.255",
                "100.64.0.0",
                "100.100.100.200",
                "100.127.255.255",
                "127.0.0.1",
                "127.255.255.255",
                "168.63.129.16",
                "169.254.0.0",
                "169.254.169.254",
                "169.254.255.255",
                "172.16.0.0",
                "172.31.255.255",
                "192.0.0.0",
                "192.0.0.192",
                "192.0.0.255",
                "192.0.2.1",
                "192.88.99.1",
                "192.168.0.0",
                "192.168.255.255",
                "198.18.0.0",
                "198.19.255.255",
                "198.51.100.7",
                "203.0.113.7",
                "224.0.0.1",
                "239.255.255.255",
                "240.0.0.1",
                "255.255.255.255",
            ],
        );
    }

    #[test]
    fn addresses_beside_special_ranges_are_public() {
        check(
            true,
            &[
                "1.0.0.0",
                "8.8.8.8",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "100.128.0.0",
                "126.255.255.255",
                "128.0.0.0",
                "168.63.129.15",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.0.1.0",
                "192.0.3.0",
                "192.167.255.255",
                "192.169.0.0",
                "198.17.255.255",
                "198.20.0.0",
                "223.255.255.255",
                "2606:4700:4700::1111",
                "2a00:1450:4001::1",
                "2001:200::1",
                "2001:4860:4860::8888",
                "2003::1",
                "::ffff:8.8.8.8",
            ],
        );
    }

    #[test]
    fn special_ipv6_and_mapped_ipv4_are_not_public() {
        check(
            false,
            &[
                "::",
                "::1",
                "::7f00:1",
                "::10.0.0.1",
                "::ffff:127.0.0.1",
                "::ffff:169.254.169.254",
                "::ffff:10.0.0.1",
                "::ffff:0:127.0.0.1",
                "64:ff9b::169.254.169.254",
                "64:ff9b::8.8.8.8",
                "64:ff9b:1::1",
                "100::1",
                "2001::1",
                "2001:0:53aa:64c::1",
                "2001:2::1",
                "2001:10::1",
                "2001:20::1",
                "2001:1ff:ffff::1",
                "2001:db8::1",
                "2002:7f00:1::",
                "2002:a9fe:a9fe::",
                "3fff::1",
                "3fff:fff:ffff::1",
                "4000::1",
                "5f00::1",
                "fc00::1",
                "fd00:ec2::254",
                "fdff:ffff::1",
                "fe80::1",
                "febf::1",
                "fec0::1",
                "ff02::1",
            ],
        );
    }
}
