//! Hosts that a variable with a secret may be sent to. Without them, the author of one agent could send the key of
//! another agent to an own address.

use url::Url;

use crate::upstream::config::SecretSource;
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// Suffix of the variable that lists the hosts of a variable.
const HOSTS: &str = "_HOSTS";

/// The hosts that a variable may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretHosts {
    /// The hosts listed in the variable `{NAME}_HOSTS`: agents come from several authors.
    Listed,
    /// Any host: the environment and the agents' files have one owner.
    Any,
}

/// Rejects variables, each with its key, that must not be sent to one of the addresses.
pub(super) fn check_hosts(
    source: &SecretSource,
    variables: &[(String, String)],
    urls: &[Url],
) -> Mapped {
    if source.hosts == SecretHosts::Any {
        return Ok(());
    }
    for (key, name) in variables {
        let list = format!("{name}{HOSTS}");
        let listed = (source.lookup)(&list).unwrap_or_default();
        // An unset list allows no host.
        if let Some(url) = urls.iter().find(|url| !is_listed(&listed, url)) {
            let host = authority(url);
            let fault = format!(
                "names {name}, which may not go to {host}: set {list} in the connectors' environment to the hosts that may get it, such as {host}"
            );
            return Err(ConnectorFailure::config(key, &fault));
        }
    }
    Ok(())
}

/// The host, with the port unless it is the one of HTTPS.
fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match (url.scheme(), url.port()) {
        ("https", None) => host.to_owned(),
        (_, port) => format!("{host}:{}", port.unwrap_or(80)),
    }
}

/// True if a comma-separated list has the URL's host and port. A host without a port means HTTPS.
fn is_listed(list: &str, url: &Url) -> bool {
    let host = authority(url);
    let mut listed = list
        .split(',')
        .map(|listed| listed.trim().to_ascii_lowercase());
    listed
        // The `url` crate drops the default port, so accept it in the list as well.
        .any(|listed| listed == host || url.scheme() == "https" && listed == format!("{host}:443"))
}
