//! Line of `egress.allow`: a target that is allowed although it is not public HTTPS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use url::Host;

/// Allowed target. Addresses are canonical: IPv4-mapped IPv6 counts as IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowRule {
    /// Host name (lower case) at one port, for any address it resolves to.
    Host { name: String, port: u16 },
    /// Address at one port, for URLs with that literal address.
    Address(SocketAddr),
    /// All ports of all addresses in a network, also for names that resolve into it.
    Network(IpNet),
}

/// Cause of an invalid line of `egress.allow`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowRuleError {
    #[error("is not `host:port`, `ip:port`, `[v6]:port` or a network like `10.1.0.0/16`")]
    Malformed,
    #[error("has no port; write `host:port`, or `address/32` for every port of an address")]
    NoPort,
    #[error("names an address inside a network; write the network itself, `{0}`")]
    HostBits(IpNet),
    #[error("is an IPv4 network in IPv6 notation; write it as IPv4")]
    MappedNetwork,
}

impl AllowRule {
    /// True when the rule allows `name` at `port`.
    pub fn covers_name(&self, name: &str, port: u16) -> bool {
        matches!(self, Self::Host { name: ours, port: at } if ours == name && *at == port)
    }

    /// True when the rule allows the literal `address` at `port`.
    pub fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        match self {
            Self::Host { .. } => false,
            Self::Address(ours) => *ours == SocketAddr::new(address, port),
            Self::Network(network) => network.contains(&address),
        }
    }

    fn parse_network(text: &str) -> Result<Self, AllowRuleError> {
        let network: IpNet = text.parse().map_err(|_| AllowRuleError::Malformed)?;
        if network.addr().to_canonical() != network.addr() {
            return Err(AllowRuleError::MappedNetwork);
        }
        if network.addr() != network.network() {
            return Err(AllowRuleError::HostBits(network.trunc()));
        }
        Ok(Self::Network(network))
    }

    fn parse_name(text: &str) -> Result<Self, AllowRuleError> {
        let (name, port) = text.rsplit_once(':').ok_or(AllowRuleError::NoPort)?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or(AllowRuleError::NoPort)?;
        // Text that the parser reads as an address (`127.1`, `0x7f000001`) is not a name.
        match Host::parse(name) {
            Ok(Host::Domain(parsed)) if is_plain_name(&parsed, name) => {
                Ok(Self::Host { name: parsed, port })
            }
            _ => Err(AllowRuleError::Malformed),
        }
    }
}

fn is_plain_name(parsed: &str, written: &str) -> bool {
    parsed.eq_ignore_ascii_case(written) && !parsed.ends_with('.') && !parsed.contains('*')
}

impl From<SocketAddr> for AllowRule {
    fn from(address: SocketAddr) -> Self {
        Self::Address(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl FromStr for AllowRule {
    type Err = AllowRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.contains('/') {
            return Self::parse_network(text);
        }
        if text.parse::<IpAddr>().is_ok() {
            return Err(AllowRuleError::NoPort);
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => Err(AllowRuleError::NoPort),
            Ok(address) => Ok(Self::from(address)),
            Err(_) => Self::parse_name(text),
        }
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { name, port } => write!(formatter, "{name}:{port}"),
            Self::Address(address) => address.fmt(formatter),
            Self::Network(network) => network.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_written_form_reads_and_prints() {
        for (text, printed) in [
            ("127.0.0.1:9100", "127.0.0.1:9100"),
            (" Runner.Internal:9100 ", "runner.internal:9100"),
            ("[fd00::1]:8080", "[fd00::1]:8080"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("fd00::/8", "fd00::/8"),
        ] {
            assert_eq!(text.parse::<AllowRule>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn rejects_ambiguous_rules() {
        for (text, error) in [
            ("", AllowRuleError::NoPort),
            ("localhost", AllowRuleError::NoPort),
            ("localhost:0", AllowRuleError::NoPort),
            ("localhost:http", AllowRuleError::NoPort),
            ("10.0.0.1", AllowRuleError::NoPort),
            ("fd00::1", AllowRuleError::NoPort),
            ("127.1:80", AllowRuleError::Malformed),
            ("0x7f000001:80", AllowRuleError::Malformed),
            ("http://host:80", AllowRuleError::Malformed),
            ("*.internal:80", AllowRuleError::Malformed),
            ("a b:80", AllowRuleError::Malformed),
            ("bücher.example:80", AllowRuleError::Malformed),
            ("10.0.0.0/33", AllowRuleError::Malformed),
            (
                "10.0.0.1/8",
                AllowRuleError::HostBits("10.0.0.0/8".parse().unwrap()),
            ),
            ("::ffff:10.0.0.0/104", AllowRuleError::MappedNetwork),
        ] {
            assert_eq!(text.parse::<AllowRule>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn rule_allows_exactly_its_target() {
        let rule = |text: &str| text.parse::<AllowRule>().unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();

        assert!(rule("runner:9100").covers_name("runner", 9100));
        assert!(!rule("runner:9100").covers_name("runner", 9101));
        assert!(!rule("runner:9100").covers_name("a.runner", 9100));
        assert!(!rule("runner:9100").covers_address(address("10.0.0.1"), 9100));

        assert!(rule("10.0.0.1:80").covers_address(address("::ffff:10.0.0.1"), 80));
        assert!(!rule("10.0.0.1:80").covers_address(address("10.0.0.1"), 81));
        assert!(!rule("10.0.0.1:80").covers_name("10.0.0.1", 80));

        assert!(rule("10.0.0.0/8").covers_address(address("10.9.9.9"), 22));
        assert!(!rule("10.0.0.0/8").covers_address(address("11.0.0.1"), 22));
        assert!(!rule("10.0.0.0/8").covers_address(address("::1"), 22));
    }
}
