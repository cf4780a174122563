//! Runs: from an event to the end of its run.
//!
//! Each run has a task of its own, and outlives every response that streams it. Clients see an event of a run only
//! after it is in the ledger; an acknowledgement follows the commit.

pub mod artifacts;
pub mod async_runs;
pub mod awaited;
pub mod budget_waits;
pub mod bus;
pub mod call_abort;
pub mod call_limits;
pub mod call_wait;
pub mod checkpoints;
pub mod children;
pub mod denials;
pub mod discovery;
pub mod feed;
pub mod grant;
pub mod hooks;
pub mod intake;
pub mod interactions;
pub mod jobs;
pub mod key_uses;
pub mod own_limits;
mod pause_board;
pub mod pauses;
pub mod platform_actions;
pub mod preview;
pub mod rate;
pub mod schedules;
pub mod sources;
pub mod watch;
pub mod webhooks;

mod actor_tokens;
mod agent_cache;
mod breakers;
mod budget_cache;
mod budgets;
mod call_usage;
mod cancel;
mod child_cancellation;
mod context;
mod decide;
mod deps;
mod dispatch;
mod ended_runs;
mod ending;
mod endpoint;
mod endpoint_cache;
mod event_buffer;
mod executor;
mod finish;
mod gauges;
mod grant_lookup;
mod inputs;
mod interrupts;
mod lease_renewal;
mod ledger;
mod lifecycle;
mod limits;
mod live;
mod named_agents;
mod notifier;
mod parts;
mod prepare;
mod recent_calls;
mod recovery;
mod relay;
mod retry_origin;
mod services;
#[cfg(test)]
mod tests;
mod ticks;
mod unconfirmed;
mod upkeep;

use std::ops::Deref;
use std::sync::Arc;

use domain::authorization::ResourceCatalog;
use protocol::id::{RunId, WorkspaceId};
use protocol::limiter::LimiterStatus;
use protocol::principal::Principal;
use store::{ChangeStamp, Store, StoreError};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::breakers::Breakers;
use crate::call_limits::CallLimits;
use crate::deps::RunDeps;
use crate::grant::Grant;
use crate::hooks::{HookEntryError, HookSpec};
use crate::ledger::LedgerWriter;
use crate::own_limits::{HeldTokens, TokenLimitReached};
use clock::Clock;
use keys::cursor::Cursors;
use keys::keyring::Keyring;
use keys::token::RunTokens;
use telemetry::spans::Spans;

pub use budget_cache::{BudgetChange, WorkspaceBudget};
pub use call_usage::Reservation;
pub use limits::{RunLimits, context_limits};

pub use parts::RunParts;
pub use relay::reader;
pub use services::Services;

/// All runs of this process. Cheap to clone.
#[derive(Clone)]
pub struct Runs(Arc<Services>);

impl Deref for Runs {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.0
    }
}

impl Runs {
    pub fn new(parts: RunParts) -> Self {
        Self(Arc::new(Services::new(Arc::new(RunDeps::new(parts)))))
    }

    pub fn store(&self) -> &Store {
        &self.deps.store
    }

    pub fn clock(&self) -> &Clock {
        &self.deps.clock
    }

    pub fn keys(&self) -> &Keyring {
        &self.deps.keys
    }

    /// Mints and verifies run tokens.
    pub fn tokens(&self) -> &RunTokens {
        &self.deps.keys.tokens
    }

    /// Rotates the signing keys until the process stops.
    pub async fn keep_keys(&self) {
        self.deps.until_closing(self.deps.keys.keep()).await;
    }

    /// The current catalog of resources.
    pub fn catalog(&self) -> Arc<ResourceCatalog> {
        self.deps.catalog.load_full()
    }

    /// Enters the hooks of the configuration. Called once, before the gateway serves.
    pub async fn configure_hooks(
        &self,
        workspace: &WorkspaceId,
        hooks: Vec<HookSpec>,
    ) -> Result<(), HookEntryError> {
        let store = self.store();
        self.deps.hooks.configure(store, workspace, hooks).await
    }

    pub fn spans(&self) -> &Spans {
        &self.deps.spans
    }

    pub fn limits(&self) -> &RunLimits {
        &self.deps.limits
    }

    /// Limiters of a workspace: agents with limits, and API keys that have started runs on this replica.
    pub async fn own_limiters(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<LimiterStatus>, StoreError> {
        self.deps.own_limits.list(self.store(), workspace).await
    }

    /// Reserves tokens of a model call in the limits of the run's key and agent.
    pub async fn reserve_tokens(
        &self,
        grant: &Grant,
        tokens: u64,
    ) -> Result<Result<HeldTokens, TokenLimitReached>, StoreError> {
        let limiters = &self.deps.own_limits;
        limiters.reserve_tokens(self.store(), grant, tokens).await
    }

    /// Limits of the calls of each run.
    pub fn calls(&self) -> &CallLimits {
        &self.deps.calls
    }

    /// Writes to the ledgers of live runs.
    pub fn ledger(&self) -> &LedgerWriter {
        &self.deps.ledger
    }

    /// Circuit breakers of the runners' endpoints.
    pub fn breakers(&self) -> &Breakers {
        &self.deps.breakers
    }

    /// The name of this process in leases.
    pub fn owner(&self) -> &str {
        &self.deps.owner
    }

    /// Signs and reads cursors.
    pub fn cursors(&self) -> &Cursors {
        &self.deps.keys.cursors
    }

    /// Author and time of an administrative change that begins now.
    pub fn stamp(&self, by: impl Into<Principal>) -> ChangeStamp {
        self.deps.stamp(by)
    }

    /// The mark of a secret in the record of changes.
    pub fn secret_mark(&self, secret: &str) -> String {
        store::secret_mark(&self.deps.master_key, secret)
    }

    /// Runs that this process ends from now on. A slow reader loses the oldest.
    pub fn ended_runs(&self) -> broadcast::Receiver<(WorkspaceId, RunId)> {
        self.deps.ended.subscribe()
    }

    /// Cancelled when no new run is taken.
    pub fn stopping(&self) -> &CancellationToken {
        &self.deps.lifecycle.stopping
    }

    /// Takes no new run, and gives live ones the grace to end.
    pub async fn finish(&self) {
        let grace = self.deps.limits.shutdown_grace;
        self.deps.lifecycle.finish(grace).await;
    }

    /// Ends live runs as `host.shutdown`. Returns when all ends are written.
    pub async fn end(&self) {
        self.deps.lifecycle.end().await;
    }
}
