//! Executors: each carries out one attempt and reports its end. None of them changes a graph.

pub(crate) mod agent;
pub(crate) mod human;
pub(crate) mod remote;
pub(crate) mod runtime;
pub(crate) mod tool;

use std::sync::Arc;
use std::time::Duration;

use action_graph::catalog::Catalog;
use action_graph::schedule::Outcome;
use protocol::context::AgentRunContext;
use protocol::id::RunId;
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::Clock;
use crate::config::Config;
use crate::usage::UsageLog;

/// Shared parts of all executors of a run. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Hands<H> {
    pub(crate) host: H,
    pub(crate) context: Arc<AgentRunContext>,
    pub(crate) config: Arc<Config>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) clock: Clock,
    pub(crate) usage: UsageLog,
    /// When the run must have ended its work.
    pub(crate) end: Instant,
}

/// The report of an executor.
#[derive(Debug)]
pub(crate) enum Report {
    /// The attempt ended.
    Finished(Outcome),
    /// A child run works on it.
    Spawned(RunId),
}

impl<H> Hands<H> {
    /// The time of one attempt: its own limit, within the run.
    pub(crate) fn time_of(&self, most_ms: u32) -> Duration {
        let left = self.end.saturating_duration_since(Instant::now());
        left.min(Duration::from_millis(u64::from(most_ms)))
    }
}

/// Random change of a retry's delay, in thousandths: −200 to 200.
pub(crate) fn jitter() -> i16 {
    let random = Uuid::new_v4().as_u128() % 401;
    i16::try_from(random).unwrap_or(200) - 200
}
