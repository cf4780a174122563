//! An accepted URL leads to the public internet over HTTPS, or to an allowed address, and every parser reads the
//! same host.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use url::{Host, Url};

use crate::egress::{Guard, is_public, literal};

static CLOSED: LazyLock<Guard> = LazyLock::new(|| Guard::allowing(&[]));
static OPENED: LazyLock<Guard> =
    LazyLock::new(|| Guard::allowing(&["10.0.0.0/8", "runner.internal:9100", "127.0.0.1:9100"]));

pub fn check(data: &[u8]) {
    check_address(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for text in [text, &format!("https://{text}"), &format!("http://{text}:9100/")] {
        let parsed = Url::parse(text).ok();
        let taken = CLOSED.check_text(text);
        if let Some(url) = &taken {
            check_plain(text, url);
            assert_eq!((url.scheme(), url.port_or_known_default()), ("https", Some(443)), "{text}");
            check_host(url, text);
        }
        // An accepted URL is also valid for registration in its normalized form (except with a backslash).
        let is_plain = |url: &Url| url.as_str().len() <= 2048 && !url.as_str().contains('\\');
        if let Some(url) = parsed.filter(|url| CLOSED.check_url(url) && is_plain(url)) {
            assert!(CLOSED.check_text(url.as_str()).is_some(), "{url} of {text:?}");
        }
        if let Some(url) = OPENED.check_text(text) {
            check_plain(text, &url);
            let opened = match url.host() {
                Some(Host::Domain(name)) => name == "runner.internal" && url.port() == Some(9100),
                Some(Host::Ipv4(address)) => {
                    address.octets()[0] == 10 || url.port() == Some(9100) && address.octets() == [127, 0, 0, 1]
                }
                Some(Host::Ipv6(address)) => {
                    address.to_ipv4_mapped().is_some_and(|address| address.octets()[0] == 10)
                        || url.port() == Some(9100) && address.to_ipv4_mapped().is_some_and(|a| a.octets() == [127, 0, 0, 1])
                }
                None => false,
            };
            assert!(opened || taken.is_some(), "{text} is opened by nothing");
        }
    }
}

fn check_plain(text: &str, url: &Url) {
    assert!(text.is_ascii() && text.len() <= 2048, "{text}");
    assert!(url.as_str() == text || url.as_str().strip_suffix('/') == Some(text), "{text} is read as {url}");
    assert_eq!(Url::parse(url.as_str()).as_ref(), Ok(url), "read twice");
    assert!(url.username().is_empty() && url.password().is_none() && url.fragment().is_none(), "{text}");
    // A second way to find the host: the text between the slashes, without the port.
    let authority = url.as_str().split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    let authority = authority.expect("an authority");
    let host = url.host_str().expect("a host");
    assert!(authority == host || authority.strip_prefix(host).is_some_and(|port| port.starts_with(':')), "{text}");
}

fn check_host(url: &Url, text: &str) {
    match literal(url) {
        Some(address) => assert!(!is_private_by_std(address.ip()), "{text}"),
        None => {
            let name = url.domain().expect("a name");
            assert!(name != "localhost" && !name.ends_with(".localhost"), "{text}");
            assert!(name.parse::<IpAddr>().is_err(), "{text}");
        }
    }
}

/// Private address, according to the standard library.
fn is_private_by_std(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(a) => {
            a.is_loopback() || a.is_private() || a.is_link_local() || a.is_unspecified() || a.is_multicast()
                || a.is_broadcast() || a.is_documentation()
        }
        IpAddr::V6(a) => {
            a.is_loopback() || a.is_unspecified() || a.is_multicast() || a.is_unique_local()
                || a.is_unicast_link_local() || a.segments()[0] == 0x2002 || a.segments()[..2] == [0x64, 0xff9b]
        }
    }
}

fn check_address(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<16>() else {
        return;
    };
    let wide = IpAddr::from(*bytes);
    let narrow: [u8; 4] = [bytes[0], bytes[1], bytes[2], bytes[3]];
    let mapped = IpAddr::from(std::net::Ipv4Addr::from(narrow).to_ipv6_mapped());
    assert_eq!(is_public(mapped), is_public(IpAddr::from(narrow)), "{mapped}");
    for address in [wide, IpAddr::from(narrow), mapped] {
        assert!(!(is_public(address) && is_private_by_std(address)), "{address}");
        let at = SocketAddr::new(address, 443);
        assert_eq!(CLOSED.check_resolved("a.example", at), is_public(address), "{address}");
        let named = Url::parse("https://a.example/").expect("a URL");
        assert_eq!(CLOSED.check_peer(&named, at), is_public(address), "{address}");
    }
}
