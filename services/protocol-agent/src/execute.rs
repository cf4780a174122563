//! Executors: each executes one attempt and reports its end. None of them changes a graph.

pub(crate) mod agent;
pub(crate) mod human;
pub(crate) mod remote;
pub(crate) mod runtime;
pub(crate) mod tool;

use std::sync::Arc;
use std::time::Duration;

use action_graph::catalog::Catalog;
use action_graph::graph::Millis;
use action_graph::schedule::ActionOutcome;
use agent_core::usage::UsageLog;
use protocol::context::AgentRunContext;
use protocol::id::RunId;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::config::Config;
use crate::run_clock::RunClock;

/// Environment shared by all executors of a run. Clones share its parts.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorEnv<H> {
    pub(crate) host: H,
    pub(crate) context: Arc<AgentRunContext>,
    pub(crate) config: Arc<Config>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) clock: RunClock,
    pub(crate) usage: UsageLog,
    /// End of work, before the run's deadline.
    pub(crate) end: Instant,
}

/// Report of an executor.
#[derive(Debug)]
pub(crate) enum AttemptReport {
    /// The attempt ended with this outcome.
    Finished(ActionOutcome),
    /// A child run continues the attempt.
    Spawned(RunId),
}

impl<H> ExecutorEnv<H> {
    /// Timeout of one attempt: its own limit, within the remaining time of the run.
    pub(crate) fn time_of(&self, limit_ms: u32) -> Duration {
        self.left().min(Duration::from_millis(u64::from(limit_ms)))
    }

    /// Remaining time of the run.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Expiry of a question that is sent now.
    pub(crate) fn until(&self) -> Millis {
        let seconds = u64::from(self.config.interaction_seconds);
        self.clock.now().saturating_add(seconds * 1_000)
    }

    /// True if the token budget of the run is exhausted.
    pub(crate) fn is_spent(&self) -> bool {
        let (input, output) = self.usage.tokens();
        let budget = self.config.budgets.tokens;
        budget.is_some_and(|budget| input + output >= budget)
    }

    /// True if the host grants a tool of this name.
    pub(crate) fn has_host_tool(&self, name: &str) -> bool {
        let mut tools = self.context.resources.tools.iter();
        tools.any(|tool| tool.tool_name == name)
    }

    /// Event data that references of a declaration can read.
    pub(crate) fn event(&self) -> Value {
        let context = &self.context;
        json!({
            "event_id": context.event.event_id,
            "event_type": context.event.event_type,
            "data": context.event.data,
            "text": context.input.text,
            "attachments": context.input.attachments,
        })
    }
}

/// Random jitter of a retry delay, in thousandths: −200 to 200.
pub(crate) fn jitter() -> i16 {
    let random = Uuid::new_v4().as_u128() % 401;
    i16::try_from(random).unwrap_or(200) - 200
}
