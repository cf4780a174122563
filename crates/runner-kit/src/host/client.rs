//! The one HTTP client of the kit, and what is done with an answer.

use std::sync::Arc;
use std::time::Duration;

use protocol::error::ErrorBody;
use protocol::request::HostAccess;
use reqwest::{Client, RequestBuilder, Response, redirect};
use serde::de::DeserializeOwned;

use crate::host::error::HostError;
use crate::host::token::{CallTime, Credentials, GatewayClock, Times};
use crate::host::{Connection, Host};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default time of a call; the run's deadline may leave less.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// More than any answer of the host API has.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Connections to gateways, shared by the runs of a server. It knows no proxy and follows no redirect.
#[derive(Clone, Debug)]
pub struct HostClient {
    /// Absent when the system gave us no means to open connections.
    client: Option<Client>,
    call_timeout: Duration,
}

impl Default for HostClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HostClient {
    /// A client without connections. If none can be made, each call says so.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the kit makes its client"
    )]
    pub fn new() -> Self {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            // Streams of models that shared a connection would wait for each other behind a proxy that takes so many.
            .http1_only()
            .build()
            .inspect_err(|error| tracing::error!(error = %error, "no HTTP client can be made"))
            .ok();
        Self {
            client,
            call_timeout: CALL_TIMEOUT,
        }
    }

    /// The same connections, another default for the time of a call.
    #[must_use]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self {
            call_timeout,
            ..self
        }
    }

    /// The gateway as the run of this access sees it. `now_seconds` is what the gateway's clock
    /// says at this moment: ours may differ.
    pub fn host(&self, access: HostAccess, deadline_at: Option<f64>, now_seconds: i64) -> Host {
        Host(Arc::new(Connection {
            client: self.clone(),
            base_url: access.base_url,
            clock: GatewayClock::new(now_seconds),
            times: Times::new(deadline_at, self.call_timeout),
            credentials: Credentials::new(access.token, access.token_expires_at),
        }))
    }

    pub(crate) fn inner(&self) -> Result<&Client, HostError> {
        self.client.as_ref().ok_or_else(HostError::no_client)
    }
}

/// Sends a request and lets only 2xx pass. The time holds for the whole answer, its body included.
pub(super) async fn send(request: RequestBuilder, time: CallTime) -> Result<Response, HostError> {
    let time = match time {
        CallTime::Over => return Err(HostError::deadline_exceeded()),
        CallTime::Left(time) => time,
    };
    let answer = request
        .timeout(time)
        .send()
        .await
        .map_err(HostError::transport)?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let body = read(answer).await?;
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(body) => Err(body.error.into()),
        Err(_) => Err(HostError::foreign_answer(status)),
    }
}

/// The JSON of an answer.
pub(super) async fn read_json<T: DeserializeOwned>(answer: Response) -> Result<T, HostError> {
    let body = read(answer).await?;
    serde_json::from_slice(&body).map_err(HostError::unreadable_answer)
}

pub(super) async fn read(mut answer: Response) -> Result<Vec<u8>, HostError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(HostError::transport)? {
        if body.len() + chunk.len() > ANSWER_BYTES {
            return Err(HostError::answer_too_large(ANSWER_BYTES));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
