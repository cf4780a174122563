//! One run, from its start to its terminal result.

use std::sync::Arc;
use std::time::Duration;

use protocol::context::AgentRunContext;
use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use protocol::result::AgentRunResult;
use runner_kit::runner::CANCELLED;
use runner_kit::{
    CancellationToken, HostError, ResultSender, ResultStream, RunHandle, Runner, results, stream,
};
use serde_json::Value;

use crate::config::Config;
use crate::host::AgentHost;
use crate::manifest::manifest;
use crate::message_writer::MessageWriter;
use crate::model::FinishKind;
use crate::side_effects::SideEffects;
use crate::turns::{self, TurnParts};
use crate::usage::UsageLog;

/// No model of the configuration was granted.
const NO_MODEL: &str = "runner.no_model";
/// The event and the configuration have no input for a model.
const NO_INPUT: &str = "runner.no_input";
/// The configured timeout, or the gateway's deadline, has passed.
const TIMEOUT: &str = "runner.timeout";
/// No model answered, or a model's stream broke off.
pub(crate) const LLM_ERROR: &str = "runner.llm_error";
/// Any other failure.
pub(crate) const ERROR: &str = "runner.error";

/// The agent. It has no state between runs; runs are concurrent without a limit of its own.
#[derive(Debug)]
pub struct LocalAgent {
    id: RunnerId,
}

/// Cause of a failed run, as its user sees it.
#[derive(Debug)]
pub(crate) struct AgentFailure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// True when the same event may succeed in a second run. Never true after side effects.
    pub(crate) retryable: bool,
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
    host: impl AgentHost,
    cancel: CancellationToken,
) -> ResultStream {
    stream(move |out| async move {
        // Outside of the cancellable future: a cancelled run still reports its usage and side effects.
        let (usage, side_effects) = (UsageLog::default(), SideEffects::default());
        let work = work(&context, &host, &out, (&usage, &side_effects));
        let ended = cancel.run_until_cancelled(work).await;
        // A cancel that arrives before the terminal result is sent wins, even if the work has just completed.
        let ended = match ended {
            Some(ended) if !cancel.is_cancelled() => ended,
            _ => Err(AgentFailure::cancelled()),
        };
        // Sent in every case: the gateway fails a run whose stream ends without a terminal result.
        out.send(terminal(ended, &usage, &side_effects)).await;
        Ok(())
    })
}

async fn work(
    context: &AgentRunContext,
    host: &impl AgentHost,
    out: &ResultSender,
    (usage, side_effects): (&UsageLog, &SideEffects),
) -> Result<FinishKind, AgentFailure> {
    let config = Config::read(&context.config, &context.resources);
    // The grant may have removed every configured model, so the error names the policy, too.
    if config.models.is_empty() {
        return Err(AgentFailure {
            code: NO_MODEL,
            message: "No authorized model for local-agent: set `model` of the agent's config to a model that its resource policy grants".to_owned(),
            retryable: false,
        });
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
    turns: impl Future<Output = Result<FinishKind, AgentFailure>>,
) -> Result<FinishKind, AgentFailure> {
    let ended = tokio::time::timeout(time, turns).await;
    ended.unwrap_or_else(|_| Err(AgentFailure::timeout()))
}

fn terminal(
    ended: Result<FinishKind, AgentFailure>,
    usage: &UsageLog,
    side_effects: &SideEffects,
) -> AgentRunResult {
    let usage = usage.total();
    let terminal = match ended {
        Ok(ending) => results::run_completed_because(ending.as_str()),
        // A second run of the same event could repeat a write.
        Err(failure) => {
            let retryable = failure.retryable && !side_effects.any();
            results::run_failed(failure.code, failure.message, retryable)
        }
    };
    AgentRunResult { usage, ..terminal }
}

impl AgentFailure {
    /// No input for a model.
    pub(crate) fn no_input() -> Self {
        Self {
            code: NO_INPUT,
            message: "The event has no text, picture or file, and there is no prompt and no history: set `prompt` of the agent's config, or bind the agent to events that have an input".to_owned(),
            retryable: false,
        }
    }

    fn cancelled() -> Self {
        Self {
            code: CANCELLED,
            message: "Run cancellation requested".to_owned(),
            retryable: false,
        }
    }

    fn timeout() -> Self {
        Self {
            code: TIMEOUT,
            message: "Agent run timed out".to_owned(),
            retryable: true,
        }
    }
}

impl From<HostError> for AgentFailure {
    fn from(failed: HostError) -> Self {
        // Before the generic mapping: a cancelled run and one past its deadline have codes of their own.
        if failed.is_cancelled() {
            return Self::cancelled();
        }
        if failed.is_deadline_exceeded() {
            return Self::timeout();
        }
        // The reason names the gateway's cause (such as `upstream_timeout`), which the message omits.
        let reason = failed.details.get("reason").and_then(Value::as_str);
        let reason = reason
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default();
        Self {
            code: ERROR,
            message: format!("{failed}{reason}"),
            retryable: failed.retryable,
        }
    }
}
