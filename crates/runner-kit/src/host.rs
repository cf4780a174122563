//! Host API client of a run (contracts §12).
//!
//! Every call ends by the run's deadline. The token is renewed before it expires, for all clones at once.

mod assets;
mod children;
mod client;
mod error;
mod interactions;
mod models;
mod runs;
mod sse;
mod storage;
mod token;

use std::sync::Arc;
use std::time::Duration;

use protocol::context::AgentRunContext;
use protocol::history::{HistorySearch, HistorySearchResult, TranscriptItem};
use protocol::host_api::{RenewedToken, StateKeys, StatePut, StateValue, StateVersion};
use protocol::resources::StateScope;
use protocol::run::{AgentRun, Page};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use client::HostClient;
pub use error::HostError;
pub use models::ModelStream;
pub use runs::{RunEventsQuery, RunsQuery};
pub use storage::{Blob, PutCondition, StorageQuery};

use token::{CallTime, Credentials, GatewayClock, Times};

/// Margin of a call beyond the gateway's wait.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Host API of one run. Clones share the token.
#[derive(Clone, Debug)]
pub struct Host(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    client: HostClient,
    base_url: String,
    clock: GatewayClock,
    times: Times,
    credentials: Credentials,
}

/// Selection of history items; absent fields take the gateway's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HistoryQuery {
    /// Conversation of the run; any other is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Only items before this one; may be combined with `after_cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<String>,
    /// Only items after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
    /// At most 100. Pages with large items have fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Includes `attachment_refs`; empty otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_attachments: bool,
}

/// Reading direction of a page. Default: backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Backward,
    Forward,
}

impl Host {
    /// The base URL of the host API, such as `http://127.0.0.1:8700/host/v1`.
    pub fn base_url(&self) -> &str {
        &self.0.base_url
    }

    /// Run token, renewed when due: for a host API client outside of the kit. A secret.
    pub async fn token(&self) -> String {
        self.renew_token_if_due().await;
        self.0.credentials.token()
    }

    /// Fetches the run's context again, as it was dispatched.
    pub async fn context(&self) -> Result<AgentRunContext, HostError> {
        self.get(&["context"]).await
    }

    /// Fetches the run's record: status and cancel request.
    pub async fn run(&self) -> Result<AgentRun, HostError> {
        self.get(&["run"]).await
    }

    /// A state entry, or `None` when there is none.
    pub async fn state_get(
        &self,
        scope: StateScope,
        key: &str,
    ) -> Result<Option<StateValue>, HostError> {
        match self.get(&["state", scope.as_str(), key]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Writes a state entry without a condition; returns the new version.
    pub async fn state_put(
        &self,
        scope: StateScope,
        key: &str,
        value: impl Into<Value>,
    ) -> Result<i64, HostError> {
        let request = self
            .request(Method::PUT, &["state", scope.as_str(), key])
            .await?;
        let answer: StateVersion = self
            .answer(request.json(&StatePut {
                value: value.into(),
            }))
            .await?;
        Ok(answer.version)
    }

    /// Writes a state entry at `version`; fails with `conflict` at another one.
    pub async fn state_put_if_version(
        &self,
        scope: StateScope,
        key: &str,
        value: impl Into<Value>,
        version: i64,
    ) -> Result<i64, HostError> {
        let request = self
            .request(Method::PUT, &["state", scope.as_str(), key])
            .await?;
        let request = request.header("if-match", version.to_string());
        let answer: StateVersion = self
            .answer(request.json(&StatePut {
                value: value.into(),
            }))
            .await?;
        Ok(answer.version)
    }

    /// Removes a state entry; false when there was none.
    pub async fn state_delete(&self, scope: StateScope, key: &str) -> Result<bool, HostError> {
        let request = self
            .request(Method::DELETE, &["state", scope.as_str(), key])
            .await?;
        match self.send(request).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keys of a scope with `prefix`, in byte order, at most `limit`.
    pub async fn state_list(
        &self,
        scope: StateScope,
        prefix: &str,
        limit: u32,
    ) -> Result<StateKeys, HostError> {
        #[derive(Serialize)]
        struct Query<'a> {
            prefix: &'a str,
            limit: u32,
        }
        let request = self
            .request(Method::GET, &["state", scope.as_str()])
            .await?;
        self.answer(request.query(&Query { prefix, limit })).await
    }

    /// Page of the conversation's transcript. `next_cursor` continues in the page's direction, `prev_cursor`
    /// reverses it.
    pub async fn history(&self, query: &HistoryQuery) -> Result<Page<TranscriptItem>, HostError> {
        let request = self.request(Method::GET, &["history"]).await?;
        self.answer(request.query(query)).await
    }

    /// Searches the conversation's transcript, newest first.
    pub async fn search_history(
        &self,
        search: &HistorySearch,
    ) -> Result<HistorySearchResult, HostError> {
        let request = self.request(Method::POST, &["history", "search"]).await?;
        self.answer(request.json(search)).await
    }

    /// Renews the token for all clones. Calls do this automatically near its expiry.
    pub async fn renew_token(&self) -> Result<(), HostError> {
        let request = self.authorized(Method::POST, &["token"])?;
        let answer = self.send(request.json(&serde_json::json!({}))).await?;
        let renewed: RenewedToken = client::read_json(answer).await?;
        self.0
            .credentials
            .replace(renewed.token, renewed.token_expires_at);
        Ok(())
    }

    /// Renews the token near its expiry while polled.
    pub(crate) async fn keep_token_fresh(&self) -> std::convert::Infallible {
        loop {
            let Connection {
                credentials,
                clock,
                times,
                ..
            } = &*self.0;
            match credentials.until_renewal(times, clock.now()) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
            self.renew_token_if_due().await;
        }
    }

    async fn renew_token_if_due(&self) {
        let Connection {
            credentials,
            clock,
            times,
            ..
        } = &*self.0;
        if !credentials.claim_renewal(times, clock.now()) {
            return;
        }
        if let Err(error) = self.renew_token().await {
            // The token is still valid for a while; a call with an expired one reports it.
            tracing::warn!(code = error.code, "the run token could not be renewed");
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, HostError> {
        let request = self.request(Method::GET, path).await?;
        self.answer(request).await
    }

    async fn request(&self, method: Method, path: &[&str]) -> Result<RequestBuilder, HostError> {
        self.renew_token_if_due().await;
        self.authorized(method, path)
    }

    fn authorized(&self, method: Method, path: &[&str]) -> Result<RequestBuilder, HostError> {
        let url = self.url(path)?;
        let client = self.0.client.inner()?;
        Ok(client
            .request(method, url)
            .bearer_auth(self.0.credentials.token()))
    }

    /// Each part of `path` is one segment, percent-encoded, slashes included.
    fn url(&self, path: &[&str]) -> Result<Url, HostError> {
        // Dot segments would leave the path, even encoded.
        if let Some(bad) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            return Err(HostError::invalid_argument(format!("`{bad}` is no key")));
        }
        let mut url = Url::parse(&self.0.base_url)
            .map_err(|_| HostError::invalid_argument("the host's base_url is no URL"))?;
        url.path_segments_mut()
            .map_err(|()| HostError::invalid_argument("the host's base_url takes no path"))?
            .pop_if_empty()
            .extend(path);
        Ok(url)
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, HostError> {
        client::read_json(self.send(request).await?).await
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, HostError> {
        client::send(request, self.0.times.call_time(self.0.clock.now())).await
    }

    /// Response of a call that may take the rest of the run.
    async fn long_answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, HostError> {
        client::read_json(self.send_long(request).await?).await
    }

    /// Response of a call that the gateway holds for `wait_seconds`.
    async fn polled<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        wait_seconds: u64,
    ) -> Result<T, HostError> {
        let most = Duration::from_secs(wait_seconds) + ANSWER_TIME;
        let time = match self.0.times.run_time(self.0.clock.now()) {
            CallTime::Left(left) => CallTime::Left(left.min(most)),
            CallTime::Over => CallTime::Over,
        };
        client::read_json(client::send(request, time).await?).await
    }

    async fn send_long(&self, request: RequestBuilder) -> Result<Response, HostError> {
        client::send(request, self.0.times.run_time(self.0.clock.now())).await
    }
}

#[cfg(test)]
mod tests;
