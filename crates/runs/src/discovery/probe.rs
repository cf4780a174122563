//! Probe of a configured endpoint, without a database.

use domain::manifest::{Discovered, validate_manifests};
use protocol::admin::EndpointSpec;
use secrecy::SecretString;

use super::outcome::ListOutcome;
use crate::endpoint::header_map;
use runner_client::{Endpoint, RunnerClient};
use secrets::signature::SigningSecret;

/// Requests an endpoint's runners. The error has the cause of a missing list.
pub async fn list_of(client: &RunnerClient, spec: &EndpointSpec) -> Result<Discovered, String> {
    if let Some(manifests) = &spec.manifests {
        return Ok(validate_manifests(manifests));
    }
    let secret = SecretString::from(spec.secret.as_deref().unwrap_or_default());
    let endpoint = Endpoint {
        base_url: spec
            .base_url
            .parse()
            .map_err(|_| "its base_url is no URL".to_owned())?,
        mode: spec.mode,
        secret: SigningSecret::parse(&secret).map_err(|error| error.to_string())?,
        headers: header_map(&spec.headers)
            .map_err(|fault| format!("{} {}", fault.pointer, fault.message))?,
    };
    match ListOutcome::of(client.list_runners(&endpoint).await) {
        ListOutcome::Found(discovered) => Ok(discovered),
        ListOutcome::Failed { reason, cause, .. } => Err(match cause {
            Some(cause) => format!("{cause} ({})", spec.base_url),
            None => reason,
        }),
    }
}
