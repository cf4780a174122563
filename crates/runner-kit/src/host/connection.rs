//! Authorized calls to the host API of one run.

use std::time::Duration;

use protocol::host_api::RenewedToken;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;

use crate::host::token::{CallTime, Credentials, GatewayClock, Times};
use crate::host::{HostClient, HostError, client};

/// Margin of a call beyond the gateway's wait.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Access of one run: base URL, token and deadline.
#[derive(Debug)]
pub(super) struct HostConnection {
    pub(super) client: HostClient,
    pub(super) base_url: String,
    pub(super) clock: GatewayClock,
    pub(super) times: Times,
    pub(super) credentials: Credentials,
}

impl HostConnection {
    /// Run token, renewed when due: for a host API client outside of the kit. A secret.
    pub(super) async fn token(&self) -> String {
        self.renew_token_if_due().await;
        self.credentials.token()
    }

    /// Renews the token for all clones. Calls do this automatically near its expiry.
    pub(super) async fn renew_token(&self) -> Result<(), HostError> {
        let request = self.authorized(Method::POST, &["token"])?;
        let answer = self.send(request.json(&serde_json::json!({}))).await?;
        let renewed: RenewedToken = client::read_json(answer).await?;
        self.credentials
            .replace(renewed.token, renewed.token_expires_at);
        Ok(())
    }

    /// Renews the token near its expiry while polled.
    pub(super) async fn keep_token_fresh(&self) -> std::convert::Infallible {
        loop {
            let Self {
                credentials,
                clock,
                times,
                ..
            } = self;
            match credentials.until_renewal(times, clock.now()) {
                Some(wait) => tokio::time::sleep(wait).await,
                // Resolving would end the caller's select; the token lives as long as the run.
                None => std::future::pending().await,
            }
            self.renew_token_if_due().await;
        }
    }

    async fn renew_token_if_due(&self) {
        let Self {
            credentials,
            clock,
            times,
            ..
        } = self;
        if !credentials.claim_renewal(times, clock.now()) {
            return;
        }
        if let Err(error) = self.renew_token().await {
            // The token is still valid for a while; a call with an expired one reports it.
            tracing::warn!(code = error.code, "the run token could not be renewed");
        }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, HostError> {
        let request = self.request(Method::GET, path).await?;
        self.answer(request).await
    }

    pub(super) async fn request(
        &self,
        method: Method,
        path: &[&str],
    ) -> Result<RequestBuilder, HostError> {
        self.renew_token_if_due().await;
        self.authorized(method, path)
    }

    fn authorized(&self, method: Method, path: &[&str]) -> Result<RequestBuilder, HostError> {
        let url = self.url(path)?;
        let client = self.client.inner()?;
        Ok(client
            .request(method, url)
            .bearer_auth(self.credentials.token()))
    }

    /// Each part of `path` is one segment, percent-encoded, slashes included.
    fn url(&self, path: &[&str]) -> Result<Url, HostError> {
        // Dot segments would leave the path, even encoded.
        if let Some(bad) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            return Err(HostError::invalid_argument(format!("`{bad}` is no key")));
        }
        let mut url = Url::parse(&self.base_url)
            .map_err(|_| HostError::invalid_argument("the host's base_url is no URL"))?;
        url.path_segments_mut()
            .map_err(|()| HostError::invalid_argument("the host's base_url takes no path"))?
            .pop_if_empty()
            .extend(path);
        Ok(url)
    }

    pub(super) async fn answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, HostError> {
        client::read_json(self.send(request).await?).await
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, HostError> {
        client::send(request, self.times.call_time(self.clock.now())).await
    }

    /// Response of a call that may take the rest of the run.
    pub(super) async fn long_answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, HostError> {
        client::read_json(self.send_long(request).await?).await
    }

    /// Response of a call that the gateway holds for `wait_seconds`.
    pub(super) async fn polled<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        wait_seconds: u64,
    ) -> Result<T, HostError> {
        // Longer than the gateway's wait: it answers at the end of the wait, and the response needs time.
        let max_wait = Duration::from_secs(wait_seconds) + ANSWER_TIME;
        let time = match self.times.run_time(self.clock.now()) {
            CallTime::Left(left) => CallTime::Left(left.min(max_wait)),
            CallTime::Over => CallTime::Over,
        };
        client::read_json(client::send(request, time).await?).await
    }

    pub(super) async fn send_long(&self, request: RequestBuilder) -> Result<Response, HostError> {
        client::send(request, self.times.run_time(self.clock.now())).await
    }
}
