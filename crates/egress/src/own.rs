//! Detection of the process's own listen address.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Listen address of the gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnAddress(pub(super) SocketAddr);

impl OwnAddress {
    /// True when a connection to `address` would reach this process.
    pub(super) fn is_at(self, address: SocketAddr) -> bool {
        if address.port() != self.0.port() {
            return false;
        }
        let (ours, theirs) = (self.0.ip().to_canonical(), address.ip().to_canonical());
        // The kernel routes the unspecified address to loopback.
        theirs == ours || theirs.is_unspecified() || (ours.is_unspecified() && is_here(theirs))
    }
}

/// True for an address of this machine: only those can be bound.
fn is_here(address: IpAddr) -> bool {
    // UdpSocket || Port 0 takes any free port; UDP needs no listener.
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_own_port_under_every_local_address() {
        for (listen, address, expected) in [
            ("127.0.0.1:8700", "127.0.0.1:8700", true),
            ("127.0.0.1:8700", "[::ffff:127.0.0.1]:8700", true),
            ("127.0.0.1:8700", "0.0.0.0:8700", true),
            ("127.0.0.1:8700", "[::]:8700", true),
            ("127.0.0.1:8700", "127.0.0.1:8701", false),
            ("127.0.0.1:8700", "127.0.0.2:8700", false),
            ("127.0.0.1:8700", "10.0.0.1:8700", false),
            ("0.0.0.0:8700", "127.8.9.1:8700", true),
            ("[::]:8700", "127.0.0.1:8700", true),
            ("[::]:8700", "[::1]:8700", true),
            ("0.0.0.0:8700", "0.0.0.0:8700", true),
            ("0.0.0.0:8700", "8.8.8.8:8700", false),
            ("0.0.0.0:8700", "127.0.0.1:9100", false),
        ] {
            let own = OwnAddress(listen.parse().unwrap());
            assert_eq!(
                own.is_at(address.parse().unwrap()),
                expected,
                "{listen} {address}"
            );
        }
    }
}
