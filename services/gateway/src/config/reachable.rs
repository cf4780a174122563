//! Addresses of listeners, as clients on this machine reach them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The listener's address, with loopback in place of a wildcard.
pub(crate) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_listeners_are_reached_over_loopback() {
        let check = |listen: &str, reached: &str| {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), reached);
        };
        check("0.0.0.0:8700", "127.0.0.1:8700");
        check("[::]:8700", "[::1]:8700");
        check("10.0.0.5:80", "10.0.0.5:80");
    }
}
