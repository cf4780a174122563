//! Connection counts per network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Connection counts of all connected networks.
#[derive(Clone, Default)]
pub(crate) struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A slot for one connection of a network, released on drop.
pub(crate) struct ConnectionSlot {
    peers: Peers,
    network: IpAddr,
}

impl Peers {
    /// Takes a slot; `None` if the network has `max_connections` connections. 0 is unlimited.
    pub(crate) fn enter(&self, address: IpAddr, max_connections: usize) -> Option<ConnectionSlot> {
        let network = network_of(address);
        let mut counts = self.counts();
        let count = counts.entry(network).or_default();
        if max_connections > 0 && *count >= max_connections {
            return None;
        }
        *count += 1;
        Some(ConnectionSlot {
            peers: self.clone(),
            network,
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut counts = self.peers.counts();
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            // Removed at 0, so that the table has connected networks only.
            if *count == 0 {
                counts.remove(&self.network);
            }
        }
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
        assert!(peers.enter(one, 2).is_none());
        assert!(peers.enter(other, 2).is_some());
        assert!(peers.enter(one, 0).is_some(), "without a bound");
        drop(first);
        assert!(peers.enter(one, 2).is_some());
        assert_eq!(peers.counts().len(), 1);
        let [here, there, elsewhere]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1"]
                .map(|text| text.parse().unwrap());
        let _slot = peers.enter(here, 1).unwrap();
        assert!(peers.enter(there, 1).is_none(), "a site is one");
        assert!(peers.enter(elsewhere, 1).is_some());
    }
}
