//! Connection counts per network.

use std::net::{IpAddr, Ipv6Addr};

use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Permit, Share};

/// The network of a caller: an IPv4 address, or a /64 of IPv6.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            // One subscriber has a complete /64.
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

/// Dropped without a response, so only the log has the message.
const FULL: LimitRefusal = LimitRefusal::new(
    "connections_of_address",
    "a connection was closed, its address has reached the limit",
);

/// Connections of all connected networks.
pub(crate) struct Peers(KeyedLimiter<IpAddr>);

/// A slot for one connection of a network, released on drop.
pub(crate) type ConnectionSlot = Permit<IpAddr>;

impl Default for Peers {
    fn default() -> Self {
        Self(KeyedLimiter::of_shares())
    }
}

impl Peers {
    /// Takes a slot, if the network has fewer than `max_connections` connections. 0 is unlimited.
    pub(crate) fn enter(
        &self,
        address: IpAddr,
        max_connections: usize,
    ) -> Result<ConnectionSlot, LimitSpec> {
        let max = match max_connections {
            0 => usize::MAX,
            max => max,
        };
        let share = Share {
            key: network_of(address),
            limit: FULL.at(max),
        };
        self.0.try_acquire([share], 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_connections_per_network() {
        let peers = Peers::default();
        let [one, other]: [IpAddr; 2] = ["10.0.0.1", "::1"].map(|text| text.parse().unwrap());
        let first = peers.enter(one, 2).unwrap();
        let _second = peers.enter("::ffff:10.0.0.1".parse().unwrap(), 2).unwrap();
        assert!(peers.enter(one, 2).is_err());
        assert!(peers.enter(other, 2).is_ok());
        assert!(peers.enter(one, 0).is_ok(), "without a bound");
        drop(first);
        assert!(peers.enter(one, 2).is_ok());
        assert_eq!(peers.0.used(), 1);
        let [here, there, elsewhere]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1"]
                .map(|text| text.parse().unwrap());
        let _slot = peers.enter(here, 1).unwrap();
        assert!(peers.enter(there, 1).is_err(), "a site is one");
        assert!(peers.enter(elsewhere, 1).is_ok());
    }
}
