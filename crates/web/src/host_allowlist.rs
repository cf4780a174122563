//! Host allow-list against DNS rebinding: a web page can map a name of its own to an address of this machine and
//! reach local listeners. Its name is then in `Host`, and its origin in `Origin`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::extract::Request;
use http::Version;
use http::header::{HOST, HeaderValue, ORIGIN};

use crate::error::routing::{host_not_allowed, origin_not_allowed};
use crate::error::{ApiError, ApiResult};

/// Allowed hosts and origins.
#[derive(Clone, Debug, Default)]
pub struct HostAllowlist {
    /// Host names in lower case: that of `public_url` and those of `server.allowed_hosts`.
    names: BTreeSet<String>,
    /// Exact origins: `server.cors_origins`.
    origins: BTreeSet<String>,
}

impl HostAllowlist {
    /// Takes host names without ports.
    pub fn new(host_allowlist: impl IntoIterator<Item = String>) -> Self {
        Self {
            names: host_allowlist
                .into_iter()
                .map(|name| plain(&name))
                .collect(),
            origins: BTreeSet::new(),
        }
    }

    /// Allows these origins as well.
    #[must_use]
    pub fn with_origins(mut self, origins: impl IntoIterator<Item = String>) -> Self {
        self.origins.extend(origins);
        self
    }

    /// A rebinding attack needs a name, so IP addresses are allowed.
    fn allows_host(&self, authority: &str) -> bool {
        let host = host_of(authority);
        address_of(host).is_some() || self.is_own(host)
    }

    /// Allows origins on loopback addresses and origins of the gateway itself.
    fn allows_origin(&self, origin: &str, host: Option<&str>) -> bool {
        if self.origins.contains(origin) {
            return true;
        }
        let Some((_, authority)) = origin.split_once("://") else {
            return false;
        };
        let name = host_of(authority);
        // A rebinding attack has the attacker's name as its origin, never a loopback address.
        let is_loopback = address_of(name).is_some_and(|address| address.is_loopback());
        is_loopback || self.is_own(name) || Some(authority) == host
    }

    fn is_own(&self, host: &str) -> bool {
        let name = plain(host);
        // RFC 6761 reserves these names for loopback.
        name == "localhost" || name.ends_with(".localhost") || self.names.contains(&name)
    }
}

fn plain(name: &str) -> String {
    // A trailing dot is the same name.
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The host without the port.
fn host_of(authority: &str) -> &str {
    let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match authority.rsplit_once(':') {
        // An IPv6 address in brackets also has colons.
        Some((host, digits)) if port(digits) && !host.is_empty() => host,
        _ => authority,
    }
}

fn address_of(host: &str) -> Option<IpAddr> {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

/// Rejects a request with a foreign `Host` or `Origin`.
pub fn check_host_and_origin(host_allowlist: &HostAllowlist, request: &Request) -> ApiResult<()> {
    let header = host_header(request)?;
    // A request target with an authority takes precedence over `Host` (RFC 9112, 3.2.2).
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => header.map(readable).transpose()?,
    };
    if host.is_some_and(|host| !host_allowlist.allows_host(host)) {
        return Err(host_not_allowed());
    }
    for origin in request.headers().get_all(ORIGIN) {
        if !host_allowlist.allows_origin(readable(origin)?, host) {
            return Err(origin_not_allowed());
        }
    }
    Ok(())
}

/// The single `Host` header. Only HTTP/1.0 may omit it (RFC 9112 section 3.2).
pub fn host_header(request: &Request) -> ApiResult<Option<&HeaderValue>> {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Ok(Some(host)),
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        _ => Err(ApiError::invalid_argument("send one `Host` header")),
    }
}

fn readable(header: &HeaderValue) -> ApiResult<&str> {
    header.to_str().map_err(|_| host_not_allowed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_listed_hosts_ip_addresses_and_localhost() {
        let host_allowlist =
            HostAllowlist::new(["Runnel.Example".to_owned(), "gateway".to_owned()]);
        for (host, is_good) in [
            ("127.0.0.1:8700", true),
            ("127.0.0.1", true),
            ("10.0.0.5:8700", true),
            ("[::1]:8700", true),
            ("[::1]", true),
            ("localhost", true),
            ("LocalHost:8700", true),
            ("localhost.:8700", true),
            ("a.localhost:1", true),
            ("runnel.example", true),
            ("RUNNEL.EXAMPLE.:443", true),
            ("gateway:80", true),
            ("", false),
            (":8700", false),
            ("evil.example", false),
            ("evil.example:8700", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("evillocalhost", false),
            ("runnel.example.evil", false),
            ("xrunnel.example", false),
            ("a@127.0.0.1", false),
            ("127.0.0.1:80@evil.example", false),
            ("127.0.0.1, evil.example", false),
            ("0x7f000001", false),
            ("2130706433", false),
            ("127.1", false),
            ("::1", false),
            ("[::1", false),
            ("[::ffff:127.0.0.1]:1", true),
            ("gateway..", false),
        ] {
            assert_eq!(host_allowlist.allows_host(host), is_good, "{host}");
        }
    }

    #[test]
    fn allows_loopback_and_own_origins() {
        let host_allowlist = HostAllowlist::new(["runnel.example".to_owned()]);
        for (origin, host, is_good) in [
            ("http://127.0.0.1:3000", "127.0.0.1:8700", true),
            ("http://localhost:3000", "127.0.0.1:8700", true),
            ("http://[::1]:3000", "127.0.0.1:8700", true),
            ("https://runnel.example", "127.0.0.1:8700", true),
            ("http://10.0.0.5:8700", "10.0.0.5:8700", true),
            ("http://10.0.0.6:8700", "10.0.0.5:8700", false),
            ("http://evil.example", "127.0.0.1:8700", false),
            ("https://runnel.example.evil", "127.0.0.1:8700", false),
            ("null", "127.0.0.1:8700", false),
            ("", "127.0.0.1:8700", false),
            ("file://", "127.0.0.1:8700", false),
            ("chrome-extension://abc", "127.0.0.1:8700", false),
        ] {
            assert_eq!(
                host_allowlist.allows_origin(origin, Some(host)),
                is_good,
                "{origin}"
            );
        }
    }
}
