//! One run, from its start to its terminal result.

use std::sync::Arc;
use std::time::Duration;

use agent_core::model::FinishKind;
use agent_core::usage::UsageLog;
use agent_core::{RunFailure, failure};
use protocol::context::AgentRunContext;
use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use protocol::result::AgentRunResult;
use runner_kit::{CancellationToken, ResultSender, ResultStream, RunHandle, Runner, stream};

use crate::config::Config;
use crate::failure::{cancelled, no_model, timeout};
use crate::host::LocalAgentHost;
use crate::manifest::manifest;
use crate::message_writer::MessageWriter;
use crate::side_effects::SideEffects;
use crate::turns::{self, TurnParts};

/// The agent. It has no state between runs; runs are concurrent without a limit of its own.
#[derive(Debug)]
pub struct LocalAgent {
    id: RunnerId,
}

impl LocalAgent {
    /// Creates the agent with this id.
    pub fn new(id: RunnerId) -> Self {
        Self { id }
    }

    /// Creates the agent as a runner for a server.
    pub fn runner(id: RunnerId) -> Arc<dyn Runner> {
        Arc::new(Self::new(id))
    }
}

impl Runner for LocalAgent {
    fn manifest(&self) -> AgentRunnerManifest {
        manifest(self.id.clone())
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        run_on(run.context, run.host, run.cancel)
    }
}

/// Executes a run on `host`. The last result is terminal in every case.
pub(crate) fn run_on(
    context: AgentRunContext,
    host: impl LocalAgentHost,
    cancel: CancellationToken,
) -> ResultStream {
    stream(move |out| async move {
        // Outside of the cancellable future: a cancelled run still reports its usage and side effects.
        let (usage, side_effects) = (UsageLog::default(), SideEffects::default());
        let work = work(&context, &host, &out, &usage, &side_effects);
        let ended = cancel.run_until_cancelled(work).await;
        // A cancel that arrives before the terminal result is sent wins, even if the work has just completed.
        let ended = match ended {
            Some(ended) if !cancel.is_cancelled() => ended,
            _ => Err(cancelled()),
        };
        // Sent in every case: the gateway fails a run whose stream ends without a terminal result.
        out.send(terminal(ended, &usage, &side_effects)).await;
        Ok(())
    })
}

async fn work(
    context: &AgentRunContext,
    host: &impl LocalAgentHost,
    out: &ResultSender,
    usage: &UsageLog,
    side_effects: &SideEffects,
) -> Result<FinishKind, RunFailure> {
    let config = Config::read(&context.config, &context.resources);
    if config.models.is_empty() {
        return Err(no_model());
    }
    let work = TurnParts {
        context,
        host,
        config: &config,
        usage,
        side_effects,
    };
    let turns = turns::converse(&work, MessageWriter::new(out.clone(), context, &config));
    // Covers assembly and all turns: a slow read of the history counts against the timeout, too.
    match config.timeout {
        None => turns.await,
        Some(time) => within(time, turns).await,
    }
}

async fn within(
    time: Duration,
    turns: impl Future<Output = Result<FinishKind, RunFailure>>,
) -> Result<FinishKind, RunFailure> {
    let ended = tokio::time::timeout(time, turns).await;
    ended.unwrap_or_else(|_| Err(timeout()))
}

fn terminal(
    ended: Result<FinishKind, RunFailure>,
    usage: &UsageLog,
    side_effects: &SideEffects,
) -> AgentRunResult {
    let ended = ended.map(FinishKind::as_str).map_err(|failure| RunFailure {
        // A second run of the same event could repeat a write.
        retryable: failure.retryable && !side_effects.any(),
        ..failure
    });
    failure::terminal(ended, usage.total_with_turns())
}
