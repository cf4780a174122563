//! The host API: how a run calls back to the gateway (contracts §12).
//!
//! Every call ends by the run's deadline. The token is renewed before it ends, for all clones at once.

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

/// Time of a call beyond the wait of the gateway.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The gateway, as one run sees it. Clones share the token.
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

/// What of a conversation's history is wanted; the gateway fills in the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HistoryQuery {
    /// The run's own conversation; any other is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Only items before this one; may stand beside `after_cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<String>,
    /// Only items after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
    /// At most 100. Fewer come where items are large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// With `attachment_refs`; else they are empty.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_attachments: bool,
}

/// Which way a page reads. History reads backward unless told otherwise.
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

    /// The run token, renewed if it is due: for a client of the host API that the kit does not have. A secret.
    pub async fn token(&self) -> String {
        self.renew_token_if_due().await;
        self.0.credentials.token()
    }

    /// The run's context again, as it was sent.
    pub async fn context(&self) -> Result<AgentRunContext, HostError> {
        self.get(&["context"]).await
    }

    /// The run's own row in the ledger: its status, and whether it was asked to stop.
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

    /// Writes a state entry, whatever was there; answers the new version.
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

    /// Writes a state entry that still has `version`; otherwise fails with `conflict`.
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

    /// The keys of a scope that begin with `prefix`, in byte order, at most `limit`.
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

    /// A page of the conversation's transcript. `next_cursor` goes on in the page's direction,
    /// `prev_cursor` turns back.
    pub async fn history(&self, query: &HistoryQuery) -> Result<Page<TranscriptItem>, HostError> {
        let request = self.request(Method::GET, &["history"]).await?;
        self.answer(request.query(query)).await
    }

    /// What the conversation's transcript says about a query, newest first.
    pub async fn search_history(
        &self,
        search: &HistorySearch,
    ) -> Result<HistorySearchResult, HostError> {
        let request = self.request(Method::POST, &["history", "search"]).await?;
        self.answer(request.json(search)).await
    }

    /// Renews the token now, for all clones. Calls do so by themselves once it is near its end.
    pub async fn renew_token(&self) -> Result<(), HostError> {
        let request = self.authorized(Method::POST, &["token"])?;
        let answer = self.send(request.json(&serde_json::json!({}))).await?;
        let renewed: RenewedToken = client::read_json(answer).await?;
        self.0
            .credentials
            .replace(renewed.token, renewed.token_expires_at);
        Ok(())
    }

    /// Renews the token whenever it is near its end, for as long as this is polled.
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
            // The token still holds for a while; a call that finds it ended says so itself.
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

    /// Each part of the path is one segment, percent-encoded, slashes included.
    fn url(&self, path: &[&str]) -> Result<Url, HostError> {
        // A segment of dots alone would climb out of the path, encoded or not.
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

    /// The answer of a call that waits for somebody else, who may take all of the run's time.
    async fn long_answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, HostError> {
        client::read_json(self.send_long(request).await?).await
    }

    /// The answer of a call that the gateway holds open for `wait_seconds`.
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
