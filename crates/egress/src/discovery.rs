//! Documents of `OpenID` providers and OAuth authorization servers.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use crate::{Egress, EgressError, read_up_to};

/// Timeout of one request to a provider.
pub const PROVIDER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a document.
const DOCUMENT_BYTES: usize = 256 * 1024;

/// A document that cannot be read. Names its URL and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DiscoveryError(String);

/// Reads the metadata of an issuer by `OpenID` Connect Discovery.
pub async fn discover(egress: &Egress, issuer: &str) -> Result<Value, DiscoveryError> {
    let url = format!(
        "{}/.well-known/openid-configuration",
        issuer.trim_end_matches('/')
    );
    let document = fetch_document(egress, &url).await?;
    // A document of another issuer would bring foreign keys and endpoints.
    match document["issuer"].as_str() {
        Some(of) if of == issuer => Ok(document),
        of => {
            let of = of.unwrap_or("none");
            Err(DiscoveryError(format!(
                "its discovery document is of issuer {of}"
            )))
        }
    }
}

/// Reads a JSON document of a provider.
pub async fn fetch_document(egress: &Egress, url: &str) -> Result<Value, DiscoveryError> {
    let unavailable = |message: String| DiscoveryError(format!("{url}: {message}"));
    let failed = |error: EgressError| unavailable(error.in_words());
    let parsed = egress.check_url(url).map_err(failed)?;
    let request = egress.request(Method::GET, &parsed).map_err(failed)?;
    let response = egress
        .send(request.timeout(PROVIDER_TIMEOUT))
        .await
        .map_err(failed)?;
    if !response.status().is_success() {
        return Err(unavailable(format!("HTTP {}", response.status().as_u16())));
    }
    // One byte more shows that a document is too long.
    let body = read_up_to(response, DOCUMENT_BYTES + 1)
        .await
        .map_err(failed)?;
    if body.len() > DOCUMENT_BYTES {
        return Err(unavailable("it is larger than 256 KiB".to_owned()));
    }
    serde_json::from_slice(&body).map_err(|error| unavailable(error.to_string()))
}
