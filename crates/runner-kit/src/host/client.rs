//! HTTP client of the kit, and its response handling.

use std::time::Duration;

use protocol::error::ErrorBody;
use reqwest::header::HeaderMap;
use reqwest::{Client, Request, Response, redirect};
use serde::de::DeserializeOwned;

use crate::host::error::HostError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default timeout of a call; the run's deadline may be sooner.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of a response; the host API stays below it.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Connection pool to gateways, shared by the runs of a server. Uses no proxy and follows no redirect.
#[derive(Clone, Debug)]
pub struct HostClient {
    /// Absent when the operating system provided no TLS roots or sockets.
    client: Option<Client>,
    pub(super) call_timeout: Duration,
}

impl Default for HostClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HostClient {
    /// Client without open connections. If none can be built, each call returns the error.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the kit makes its client"
    )]
    pub fn new() -> Self {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            // On a shared connection, model streams would queue at a proxy's stream limit.
            .http1_only()
            .build()
            .inspect_err(|error| tracing::error!(error = %error, "no HTTP client can be made"))
            .ok();
        Self {
            client,
            call_timeout: CALL_TIMEOUT,
        }
    }

    /// Same pool with another default timeout.
    #[must_use]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self {
            call_timeout,
            ..self
        }
    }

    pub(crate) fn inner(&self) -> Result<&Client, HostError> {
        self.client.as_ref().ok_or_else(HostError::no_client)
    }
}

/// Complete response.
#[derive(Debug)]
pub(super) struct HostAnswer {
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Sends a request; responses outside of 2xx are errors.
pub(super) async fn send(client: &Client, request: Request) -> Result<Response, HostError> {
    let sent = client.execute(request).await;
    let answer = sent.map_err(HostError::transport)?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let body = read(answer).await?;
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(body) => Err(body.error.into()),
        // A proxy answered in place of the gateway; its page is not shown.
        Err(_) => Err(HostError::foreign_answer(status)),
    }
}

/// Sends a request and reads its response.
pub(super) async fn read_answer(
    client: &Client,
    request: Request,
) -> Result<HostAnswer, HostError> {
    let mut answer = send(client, request).await?;
    let headers = std::mem::take(answer.headers_mut());
    let body = read(answer).await?;
    Ok(HostAnswer { headers, body })
}

/// Parses a JSON response.
pub(super) fn read_json<T: DeserializeOwned>(answer: &HostAnswer) -> Result<T, HostError> {
    serde_json::from_slice(&answer.body).map_err(HostError::unreadable_answer)
}

async fn read(mut answer: Response) -> Result<Vec<u8>, HostError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(HostError::transport)? {
        // Counted while reading, because `content-length` is absent from chunked responses.
        if body.len() + chunk.len() > ANSWER_BYTES {
            return Err(HostError::answer_too_large(ANSWER_BYTES));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
