//! Settings of a conformance test, and the errors that prevent it.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::JsonObject;
use protocol::admin::{DeltaMode, Fault};
use protocol::id::RunnerId;
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use egress::EgressError;
use runner_client::Endpoint;
use runs::RunLimits;

/// Settings of a conformance test.
pub struct ConformOptions {
    pub endpoint: Endpoint,
    /// Secrets to redact: the signing secret and the values of static headers.
    pub secrets: Vec<SecretString>,
    pub delta_mode: DeltaMode,
    /// The runner to test; `None`: all listed runners.
    pub runner: Option<RunnerId>,
    /// The manifests of an endpoint that cannot list its own.
    pub manifests: Option<Vec<Value>>,
    /// Message of test runs.
    pub text: String,
    /// Message of the run that is cancelled; it must keep the runner busy.
    pub cancel_text: String,
    /// The agent's configuration.
    pub config: JsonObject,
    /// Maximum duration of a run.
    pub timeout: Duration,
    /// The bounds of runs, as a gateway has them by default.
    pub limits: RunLimits,
    pub callback_listen: SocketAddr,
    /// Origin of the mock host API for the runner. Default: the listening address.
    pub callback_url: Option<Url>,
}

/// Failure before any check.
#[derive(Debug, thiserror::Error)]
pub enum ConformError {
    #[error("the endpoint cannot be reached")]
    Unreachable(#[source] EgressError),
    #[error("requests to this address are not allowed")]
    Refused(#[source] EgressError),
    #[error("the endpoint refuses the signed list call: {0}")]
    Unauthorized(String),
    #[error("cannot listen on {0} for callbacks; choose another --callback-listen")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("the endpoint does not list {wanted}; it lists {listed}")]
    NoSuchRunner { wanted: RunnerId, listed: String },
    #[error("--config does not fit {runner}: {} {}", fault.pointer, fault.message)]
    Config { runner: RunnerId, fault: Fault },
}
