//! Host API client of a run.
//!
//! Every call ends by the run's deadline. The token is renewed before it expires, for all clones at once.

mod artifacts;
mod children;
mod client;
mod connection;
mod error;
mod history;
mod interactions;
mod models;
mod platform_actions;
mod repeat;
mod runs;
mod sse;
mod state;
mod storage;
mod token;
mod tools;
mod wakes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::context::AgentRunContext;
use protocol::host_api::{
    CheckpointPut, CheckpointVersion, EffectivePrompt, SteeringInputItem, SteeringMode,
    SteeringPull, SteeringPullResult,
};
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry, RetrievalResults};
use protocol::message::Message;
use protocol::request::HostAccess;
use protocol::run::AgentRun;
use reqwest::Method;
use serde_json::Value;
use tokio::time::Instant;

pub use artifacts::ArtifactsApi;
pub use children::ChildRunsApi;
pub use client::HostClient;
pub use error::HostError;
pub use history::{HistoryApi, HistoryPageQuery, PageDirection};
pub use interactions::InteractionsApi;
pub use models::{ModelStream, ModelsApi};
pub use platform_actions::PlatformActionsApi;
pub use runs::{RunEventsQuery, RunPageQuery, RunsApi};
pub use state::StateApi;
pub use storage::{Blob, PutCondition, StorageApi, StorageKeyQuery};
pub use token::CallAccess;
pub use tools::{CallOptions, ToolsApi};
pub use wakes::WakesApi;

use connection::HostConnection;
use repeat::RepeatTime;
use token::{Credentials, GatewayClock, Times};

/// Host API of one run. Clones share the token.
#[derive(Clone, Debug)]
pub struct Host(Arc<HostConnection>);

impl HostClient {
    /// Host API for a run's access. `now_seconds` is the current time of the gateway's clock, which may differ
    /// from ours.
    pub fn host(&self, access: HostAccess, deadline_at: Option<f64>, now_seconds: i64) -> Host {
        Host(Arc::new(HostConnection {
            client: self.clone(),
            base_url: access.base_url.clone(),
            clock: GatewayClock::new(now_seconds),
            times: Times::new(deadline_at, self.call_timeout),
            credentials: Credentials::new(access, 1),
            resume_within: None,
            last_result: AtomicU64::new(0),
        }))
    }

    /// Host API of a resumable run. A call that loses its gateway waits up to `within` for a resume.
    pub(crate) fn resumable_host(&self, access: HostAccess, terms: ResumeTerms) -> Host {
        Host(Arc::new(HostConnection {
            client: self.clone(),
            base_url: access.base_url.clone(),
            clock: GatewayClock::new(terms.now_seconds),
            times: Times::new(terms.deadline_at, self.call_timeout),
            credentials: Credentials::new(access, terms.attempt),
            resume_within: Some(terms.within),
            last_result: AtomicU64::new(0),
        }))
    }
}

/// Terms of a resumable run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResumeTerms {
    /// Attempt of the run request.
    pub(crate) attempt: u32,
    pub(crate) within: Duration,
    pub(crate) deadline_at: Option<f64>,
    /// Time of the gateway's clock.
    pub(crate) now_seconds: i64,
}

/// The run, its token and its context.
impl Host {
    /// Current access, its token renewed when due: for a host API client outside of the kit. A resume changes it.
    pub async fn access(&self) -> CallAccess {
        self.0.access().await
    }

    /// Waits before the repetition of a call that has failed since `since`: for a resume, at most a second. False: the
    /// run is not resumable, or no gateway resumed it in time.
    pub async fn wait_to_repeat(&self, failed: &CallAccess, since: Instant) -> bool {
        self.0
            .wait_for(RepeatTime::Soon, failed.attempt, since)
            .await
    }

    /// Current attempt of the run.
    pub(crate) fn attempt(&self) -> u32 {
        self.0.credentials.attempt()
    }

    /// Takes the access of a resume; calls that wait for it continue.
    pub(crate) fn resume(&self, access: HostAccess, attempt: u32) {
        self.0.credentials.resume(access, attempt);
    }

    /// Rest of the run.
    pub(crate) fn time_left(&self) -> Duration {
        self.0.time_left()
    }

    /// Renews the token for all clones. Calls do this automatically near its expiry.
    pub async fn renew_token(&self) -> Result<(), HostError> {
        self.0.renew_token().await
    }

    /// Renews the token near its expiry while polled.
    pub(crate) async fn keep_token_fresh(&self) -> std::convert::Infallible {
        self.0.keep_token_fresh().await
    }

    /// Counts a result that the run has sent.
    pub(crate) fn note_result(&self, sequence: u64) {
        self.0.last_result.store(sequence, Ordering::Release);
    }

    /// Stores the state from which a new attempt continues the run if this process is lost; at most 256 KiB of JSON. It
    /// includes the results sent so far, and the gateway answers once they are stored. The agent's `retry` decides about
    /// a new attempt; its context has the value as `runtime.resume`.
    pub async fn checkpoint(
        &self,
        value: impl Into<Value>,
    ) -> Result<CheckpointVersion, HostError> {
        // The kit numbers a sent result when the work yields.
        tokio::task::yield_now().await;
        let last = self.0.last_result.load(Ordering::Acquire);
        let put = CheckpointPut {
            value: value.into(),
            sequence: (last > 0).then_some(last),
        };
        let call = self.0.request(Method::PUT, &["checkpoint"]).await?;
        self.0.answer(call.json(&put)).await
    }

    /// Fetches the run's context again, as it was dispatched.
    pub async fn context(&self) -> Result<AgentRunContext, HostError> {
        self.0.get(&["context"]).await
    }

    /// Fetches the run's record: status and cancel request.
    pub async fn run(&self) -> Result<AgentRun, HostError> {
        self.0.get(&["run"]).await
    }

    /// Prompt that the entry has built, or `None`.
    pub async fn prompt(&self) -> Result<Option<Vec<Message>>, HostError> {
        match self.0.get::<EffectivePrompt>(&["prompt"]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => Ok(Some(answer?.prompt)),
        }
    }

    /// Passages of a knowledge base for a query, best first.
    pub async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> Result<Vec<RetrievalResultEntry>, HostError> {
        let path = ["knowledge-bases", kb_id, "retrieve"];
        let call = self.0.request(Method::POST, &path).await?;
        let found: RetrievalResults = self.0.long_answer(call.json(query)).await?;
        Ok(found.results)
    }

    /// Takes events that steer this run, oldest first; 1 to 100 items.
    pub async fn pull_steering(
        &self,
        mode: SteeringMode,
        limit: Option<u64>,
    ) -> Result<Vec<SteeringInputItem>, HostError> {
        let call = self.0.request(Method::POST, &["steering", "pull"]).await?;
        let pull = SteeringPull { mode, limit };
        let pulled: SteeringPullResult = self.0.answer(call.json(&pull)).await?;
        Ok(pulled.items)
    }
}

/// Resources of the run. A group borrows the host.
impl Host {
    /// Versioned state entries.
    pub fn state(&self) -> StateApi<'_> {
        StateApi(&self.0)
    }

    /// Blob storage.
    pub fn storage(&self) -> StorageApi<'_> {
        StorageApi(&self.0)
    }

    /// Transcript of the conversation.
    pub fn history(&self) -> HistoryApi<'_> {
        HistoryApi(&self.0)
    }

    /// Granted models.
    pub fn models(&self) -> ModelsApi<'_> {
        ModelsApi(&self.0)
    }

    /// Granted tools.
    pub fn tools(&self) -> ToolsApi<'_> {
        ToolsApi(&self.0)
    }

    /// Files of the run.
    pub fn artifacts(&self) -> ArtifactsApi<'_> {
        ArtifactsApi(&self.0)
    }

    /// Interactions that the run awaits.
    pub fn interactions(&self) -> InteractionsApi<'_> {
        InteractionsApi(&self.0)
    }

    /// Acts of the chat platform that the run requests.
    pub fn platform_actions(&self) -> PlatformActionsApi<'_> {
        PlatformActionsApi(&self.0)
    }

    /// Wakes of the run's agent.
    pub fn wakes(&self) -> WakesApi<'_> {
        WakesApi(&self.0)
    }

    /// Runs of other agents that this run starts and follows.
    pub fn child_runs(&self) -> ChildRunsApi<'_> {
        ChildRunsApi(&self.0)
    }

    /// Run ledger: this run, and runs of the same runner in the conversation.
    pub fn runs(&self) -> RunsApi<'_> {
        RunsApi(&self.0)
    }
}

#[cfg(test)]
mod tests;
