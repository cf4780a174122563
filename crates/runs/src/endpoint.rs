//! Opening the stored address of a runner endpoint.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::admin::Fault;
use protocol::id::{DEFAULT_WORKSPACE, EndpointId, WorkspaceId};
use secrecy::{ExposeSecret, SecretString};
use store::{EndpointAddress, Store};

use egress::outgoing_header_name;
use runner_client::Endpoint;
use secrets::seal::MasterKey;
use secrets::signature::SigningSecret;

pub(super) const SECRET_PURPOSE: &str = "runner_endpoints.secret";
pub(super) const HEADERS_PURPOSE: &str = "runner_endpoints.headers";

/// A stored endpoint that cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint's secrets cannot be decrypted with this master key")]
pub(crate) struct Unopenable;

/// Opens the address of a stored endpoint for calling.
pub(crate) fn open_endpoint(
    key: &MasterKey,
    record: &EndpointAddress,
) -> Result<Endpoint, Unopenable> {
    let text = |purpose, sealed| {
        let plain = key.open(purpose, sealed).map_err(|_| Unopenable)?;
        String::from_utf8(plain)
            .map(SecretString::from)
            .map_err(|_| Unopenable)
    };
    let secret = text(SECRET_PURPOSE, &record.secret)?;
    let headers = text(HEADERS_PURPOSE, &record.headers)?;
    let headers: BTreeMap<String, String> =
        serde_json::from_str(headers.expose_secret()).map_err(|_| Unopenable)?;
    Ok(Endpoint {
        base_url: record.base_url.parse().map_err(|_| Unopenable)?,
        mode: record.mode,
        secret: SigningSecret::parse(&secret).map_err(|_| Unopenable)?,
        headers: header_map(&headers).map_err(|_| Unopenable)?,
    })
}

pub(super) fn header_map(headers: &BTreeMap<String, String>) -> Result<HeaderMap, Fault> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let pointer = format!("/headers/{}", domain::form::escape_pointer(name));
        let name: HeaderName = outgoing_header_name(name)
            .map_err(|error| Fault::new(pointer.clone(), error.to_string()))?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| Fault::new(pointer, "has characters that no header may have"))?;
        // Keeps the value out of `Debug` output.
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

/// Name of an endpoint for log lines; its id if the name cannot be read.
pub(super) async fn endpoint_name(store: &Store, id: EndpointId) -> String {
    let found = store.endpoints().find_endpoint_name(id).await;
    match found.ok().flatten() {
        Some((workspace, name)) => endpoint_label(&workspace, &name),
        None => id.to_string(),
    }
}

/// Metric label of an endpoint: its name, prefixed with its workspace unless that is the default one.
pub(super) fn endpoint_label(workspace: &WorkspaceId, name: &str) -> String {
    if workspace.as_str() == DEFAULT_WORKSPACE {
        name.to_owned()
    } else {
        format!("{workspace}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_endpoints_uniquely_across_workspaces() {
        let label = |workspace: &str| endpoint_label(&WorkspaceId(workspace.to_owned()), "stub");
        assert_eq!(label(DEFAULT_WORKSPACE), "stub");
        assert_eq!(label("team-a"), "team-a/stub");
    }
}
