//! Runs: from an event to the end of its run.
//!
//! Each run has a task of its own, and outlives every response that streams it. Clients see an event of a run only
//! after it is in the ledger; an acknowledgement follows the commit.

pub mod artifacts;
pub mod async_runs;
pub mod awaited;
pub mod bus;
pub mod call_abort;
pub mod call_limits;
pub mod children;
pub mod denials;
pub mod discovery;
pub mod grant;
pub mod intake;
pub mod interactions;
pub mod key_uses;
pub mod preview;
pub mod rate;
pub mod watch;

mod agent_cache;
mod breakers;
mod budgets;
mod call_usage;
mod cancel;
mod cancel_signals;
mod child_cancellation;
mod context;
mod decide;
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
mod notifier;
mod parts;
mod prepare;
mod recovery;
mod relay;
mod services;
#[cfg(test)]
mod tests;
mod ticks;
mod unconfirmed;
mod upkeep;

use std::ops::Deref;
use std::sync::Arc;

use domain::authorization::ResourceCatalog;
use domain::budget::Budget;
use protocol::id::{RunId, WorkspaceId};
use store::Store;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use clock::Clock;
use keys::cursor::Cursors;
use keys::keyring::Keyring;
use keys::token::RunTokens;
use telemetry::spans::Spans;

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
        Self(Arc::new(Services::new(parts)))
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub fn keys(&self) -> &Keyring {
        &self.0.keys
    }

    /// Mints and verifies run tokens.
    pub fn tokens(&self) -> &RunTokens {
        &self.0.keys.tokens
    }

    /// Rotates the signing keys until the process stops.
    pub async fn keep_keys(&self) {
        tokio::select! {
            () = self.0.lifecycle.closing.cancelled() => {}
            () = self.0.keys.keep() => {}
        }
    }

    /// The current catalog of resources.
    pub fn catalog(&self) -> Arc<ResourceCatalog> {
        self.0.catalog.load_full()
    }

    pub fn spans(&self) -> &Spans {
        &self.0.spans
    }

    pub fn budgets(&self) -> &[Budget] {
        &self.0.budgets
    }

    pub fn limits(&self) -> &RunLimits {
        &self.0.limits
    }

    /// The name of this process in leases.
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// Signs and reads cursors.
    pub fn cursors(&self) -> &Cursors {
        &self.0.keys.cursors
    }

    /// Runs that this process ends from now on. A slow reader loses the oldest.
    pub fn ended_runs(&self) -> broadcast::Receiver<(WorkspaceId, RunId)> {
        self.0.ended.subscribe()
    }

    /// Cancelled when no new run is taken.
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.lifecycle.stopping
    }

    /// Takes no new run, and gives live ones the grace to end.
    pub async fn finish(&self) {
        self.0.lifecycle.finish(self.0.limits.shutdown_grace).await;
    }

    /// Ends live runs as `host.shutdown`. Returns when all ends are written.
    pub async fn end(&self) {
        self.0.lifecycle.end().await;
    }
}
