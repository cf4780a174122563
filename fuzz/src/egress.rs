//! The guard of URLs, without its HTTP client.

#[path = "../../crates/egress/src/address.rs"]
mod address;
#[path = "../../crates/egress/src/allow_rule.rs"]
mod allow_rule;
#[path = "../../crates/egress/src/plain_url.rs"]
mod plain_url;
#[path = "../../crates/egress/src/policy.rs"]
mod policy;

use std::net::{IpAddr, SocketAddr};

use url::Url;

pub(crate) struct Guard(policy::Policy);

impl Guard {
    pub(crate) fn allowing(rules: &[&str]) -> Self {
        let rules = rules.iter().map(|rule| rule.parse().expect("a rule"));
        Self(policy::Policy::new(rules.collect()))
    }

    pub(crate) fn check_text(&self, raw: &str) -> Option<Url> {
        self.0.check_text(raw).ok()
    }

    pub(crate) fn check_url(&self, url: &Url) -> bool {
        self.0.check_url(url).is_ok()
    }

    pub(crate) fn check_peer(&self, url: &Url, peer: SocketAddr) -> bool {
        self.0.check_peer(url, Some(peer)).is_ok()
    }

    pub(crate) fn check_resolved(&self, name: &str, address: SocketAddr) -> bool {
        self.0.check_resolved(name, &[address]).is_ok()
    }
}

pub(crate) fn is_public(address: IpAddr) -> bool {
    address::is_public(address)
}

pub(crate) fn literal(url: &Url) -> Option<SocketAddr> {
    policy::literal(url)
}
