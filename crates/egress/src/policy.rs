//! Egress policy: checks a URL, then the resolved addresses, then the peer address. Pure.

use std::net::{IpAddr, SocketAddr};

use url::{Host, Url};

use super::address::is_public;
use super::allow_rule::AllowRule;
use super::plain_url::{PlainUrlError, check_parsed_url, parse_plain_url};

const HTTPS_PORT: u16 = 443;

/// Cause of a blocked request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the url {0}")]
    Url(PlainUrlError),
    #[error("plain http needs `egress.allow = [\"{0}\"]`; or serve it by https")]
    PlainHttp(String),
    #[error("a port other than 443 needs `egress.allow = [\"{0}\"]`")]
    Port(String),
    #[error("the address is not public; it needs `egress.allow = [\"{0}\"]`")]
    Address(String),
    #[error("the name belongs to this machine; it needs `egress.allow = [\"{0}\"]`")]
    LocalName(String),
    #[error("egress.allow opens this name at other ports only; it needs `{0}` too")]
    OtherPort(String),
    #[error("the name resolves to an address that is not public")]
    ResolvedAddress,
    #[error("the connection went to an address that is not allowed")]
    Peer,
    #[error("the gateway listens there itself")]
    Own,
}

impl From<PlainUrlError> for Refusal {
    fn from(error: PlainUrlError) -> Self {
        Self::Url(error)
    }
}

/// Operator's rules on top of "public HTTPS only".
#[derive(Debug)]
pub(super) struct Policy {
    allow: Vec<AllowRule>,
}

impl Policy {
    pub(super) fn new(allow: Vec<AllowRule>) -> Self {
        Self { allow }
    }

    /// Checks a URL text.
    pub(super) fn check_text(&self, raw: &str) -> Result<Url, Refusal> {
        let url = parse_plain_url(raw)?;
        self.check_url(&url)?;
        Ok(url)
    }

    /// Checks scheme, host and port of a URL. Names are checked again after resolution.
    pub(super) fn check_url(&self, url: &Url) -> Result<(), Refusal> {
        check_parsed_url(url)?;
        let (host, port) = target(url)?;
        let rule = format!("{host}:{port}");
        if self.opens(&host, port) {
            return Ok(());
        }
        match address_of(&host) {
            Some(address) if !is_public(address) => return Err(Refusal::Address(rule)),
            None if is_local_name(url) => return Err(Refusal::LocalName(rule)),
            _ => {}
        }
        if url.scheme() != "https" {
            return Err(Refusal::PlainHttp(rule));
        }
        if port != HTTPS_PORT {
            return Err(Refusal::Port(rule));
        }
        // The resolver does not know ports: a name that any rule opens may resolve to any address, so it must
        // not be used at other ports.
        if url.domain().is_some_and(|name| self.knows_name(name)) {
            return Err(Refusal::OtherPort(rule));
        }
        Ok(())
    }

    /// True when a rule matches, or may match after resolution: the name may be one of the operator's.
    pub(super) fn is_opened(&self, url: &Url) -> bool {
        let opens_networks = || {
            let mut rules = self.allow.iter();
            rules.any(|rule| matches!(rule, AllowRule::Network(_)))
        };
        target(url).is_ok_and(|(host, port)| self.opens(&host, port))
            || url.domain().is_some() && opens_networks()
    }

    /// Checks all addresses of a name: one forbidden address rejects all, because any may be dialled.
    pub(super) fn check_resolved(
        &self,
        name: &str,
        addresses: &[SocketAddr],
    ) -> Result<(), Refusal> {
        let passes = |address: &SocketAddr| self.opens_resolved(address.ip());
        if self.knows_name(name) || addresses.iter().all(passes) {
            Ok(())
        } else {
            Err(Refusal::ResolvedAddress)
        }
    }

    /// Checks the peer address of the connection for `url`.
    pub(super) fn check_peer(&self, url: &Url, peer: Option<SocketAddr>) -> Result<(), Refusal> {
        let (host, port) = target(url)?;
        let peer = peer.ok_or(Refusal::Peer)?.ip();
        let expected = address_of(&host).is_none_or(|address| address == peer.to_canonical());
        if expected && (self.opens(&host, port) || self.opens_resolved(peer)) {
            Ok(())
        } else {
            Err(Refusal::Peer)
        }
    }

    fn opens(&self, host: &Host<&str>, port: u16) -> bool {
        self.allow.iter().any(|rule| match host {
            Host::Domain(name) => rule.covers_name(name, port),
            Host::Ipv4(address) => rule.covers_address(IpAddr::V4(*address), port),
            Host::Ipv6(address) => rule.covers_address(IpAddr::V6(*address), port),
        })
    }

    fn opens_resolved(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let in_network = |rule: &AllowRule| match rule {
            AllowRule::Network(network) => network.contains(&address),
            AllowRule::Host { .. } | AllowRule::Address(_) => false,
        };
        is_public(address) || self.allow.iter().any(in_network)
    }

    fn knows_name(&self, name: &str) -> bool {
        let ours =
            |rule: &AllowRule| matches!(rule, AllowRule::Host { name: ours, .. } if ours == name);
        self.allow.iter().any(ours)
    }
}

/// Address of a URL with a literal address.
pub(super) fn literal(url: &Url) -> Option<SocketAddr> {
    let (host, port) = target(url).ok()?;
    address_of(&host).map(|address| SocketAddr::new(address, port))
}

fn target(url: &Url) -> Result<(Host<&str>, u16), Refusal> {
    url.host()
        .zip(url.port_or_known_default())
        .ok_or(Refusal::Url(PlainUrlError::Malformed))
}

fn address_of(host: &Host<&str>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::V4(*address)),
        Host::Ipv6(address) => Some(IpAddr::V6(*address).to_canonical()),
    }
}

fn is_local_name(url: &Url) -> bool {
    url.domain()
        .is_some_and(|name| name == "localhost" || name.ends_with(".localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str]) -> Policy {
        Policy::new(allow.iter().map(|rule| rule.parse().unwrap()).collect())
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 443)
    }

    #[test]
    fn allows_only_public_https_by_default() {
        let policy = policy(&[]);
        for good in [
            "https://runner.example",
            "https://runner.example/a?b=c",
            "https://8.8.8.8/",
        ] {
            assert!(policy.check_text(good).is_ok(), "{good}");
        }
        for (bad, refusal) in [
            (
                "http://runner.example/",
                Refusal::PlainHttp("runner.example:80".to_owned()),
            ),
            (
                "https://runner.example:22/",
                Refusal::Port("runner.example:22".to_owned()),
            ),
            (
                "https://8.8.8.8:6379/",
                Refusal::Port("8.8.8.8:6379".to_owned()),
            ),
            (
                "https://127.0.0.1/",
                Refusal::Address("127.0.0.1:443".to_owned()),
            ),
            (
                "http://169.254.169.254/",
                Refusal::Address("169.254.169.254:80".to_owned()),
            ),
            ("https://[::1]/", Refusal::Address("[::1]:443".to_owned())),
            (
                "https://localhost/",
                Refusal::LocalName("localhost:443".to_owned()),
            ),
            (
                "https://x.localhost/",
                Refusal::LocalName("x.localhost:443".to_owned()),
            ),
            (
                "ftp://runner.example/",
                Refusal::Url(PlainUrlError::Malformed),
            ),
            ("https://127.1/", Refusal::Url(PlainUrlError::NotNormal)),
        ] {
            assert_eq!(policy.check_text(bad), Err(refusal), "{bad}");
        }
    }

    #[test]
    fn rejects_every_notation_of_private_addresses() {
        let policy = policy(&[]);
        for host in [
            "0x7f000001",
            "2130706433",
            "127.1",
            "0177.0.0.1",
            "%31%32%37.0.0.1",
            "１２７.0.0.1",
            "[::ffff:169.254.169.254]",
            "[::ffff:7f00:1]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:7f00:1::]",
            "[fd00:ec2::254]",
            "0",
            "ⓛocalhost",
        ] {
            let parsed = url(&format!("https://{host}/"));
            assert!(policy.check_url(&parsed).is_err(), "{host}");
        }
        assert!(
            policy
                .check_url(&url("https://user@runner.example/"))
                .is_err()
        );
        assert!(policy.check_url(&url("https://runner.example/#a")).is_err());
        assert!(policy.check_url(&url("https://runner.example./")).is_err());
    }

    #[test]
    fn rules_allow_http_and_other_ports_exactly() {
        let policy = policy(&[
            "127.0.0.1:9100",
            "runner.internal:9100",
            "10.0.0.0/8",
            "[fd00::1]:80",
        ]);
        for good in [
            "http://127.0.0.1:9100/",
            "http://runner.internal:9100/path",
            "https://runner.internal:9100/",
            "http://10.1.2.3:22/",
            "http://[fd00::1]/",
        ] {
            assert!(policy.check_text(good).is_ok(), "{good}");
        }
        for bad in [
            "http://127.0.0.1:9101/",
            "http://127.0.0.2:9100/",
            "http://runner.internal/",
            "https://runner.internal/",
            "http://a.runner.internal:9100/",
            "http://11.0.0.1/",
            "http://[fd00::2]/",
            "http://localhost:9100/",
        ] {
            assert!(policy.check_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_passes_only_when_every_address_does() {
        let policy = policy(&["runner.internal:9100", "10.0.0.0/8", "192.168.0.1:443"]);
        let check = |name: &str, addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|address| at(address)).collect();
            policy.check_resolved(name, &addresses).is_ok()
        };
        assert!(check("a.example", &["8.8.8.8", "2606:4700::1"]));
        assert!(check("a.example", &["8.8.8.8", "10.0.0.1"]));
        assert!(!check("a.example", &["8.8.8.8", "127.0.0.1"]));
        assert!(!check("a.example", &["::ffff:127.0.0.1"]));
        assert!(
            !check("a.example", &["192.168.0.1"]),
            "a rule with a port is for literals"
        );
        assert!(check("runner.internal", &["127.0.0.1", "::1"]));
    }

    #[test]
    fn peer_address_must_be_allowed() {
        let policy = policy(&["runner.internal:9100", "127.0.0.1:9100", "10.0.0.0/8"]);
        for (good, peer) in [
            ("https://a.example/", "8.8.8.8"),
            ("https://a.example/", "10.0.0.1"),
            ("http://runner.internal:9100/", "127.0.0.1"),
            ("http://127.0.0.1:9100/", "127.0.0.1"),
            ("https://8.8.8.8/", "8.8.8.8"),
        ] {
            assert_eq!(
                policy.check_peer(&url(good), Some(at(peer))),
                Ok(()),
                "{good} {peer}"
            );
        }
        for (bad, peer) in [
            ("https://a.example/", "127.0.0.1"),
            ("https://a.example/", "::ffff:127.0.0.1"),
            ("http://127.0.0.1:9100/", "127.0.0.2"),
            ("https://8.8.8.8/", "9.9.9.9"),
        ] {
            assert_eq!(
                policy.check_peer(&url(bad), Some(at(peer))),
                Err(Refusal::Peer),
                "{bad}"
            );
        }
        assert_eq!(
            policy.check_peer(&url("https://a.example/"), None),
            Err(Refusal::Peer)
        );
    }
}
