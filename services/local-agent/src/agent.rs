//! One run from its start to its one terminal.

use std::sync::Arc;
use std::time::Duration;

use protocol::context::AgentRunContext;
use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use protocol::result::AgentRunResult;
use runner_kit::runner::CANCELLED;
use runner_kit::{
    CancellationToken, HostError, ResultStream, Results, Run, Runner, results, stream,
};
use serde_json::Value;

use crate::acts::Acts;
use crate::config::Config;
use crate::host::AgentHost;
use crate::manifest::manifest;
use crate::model::Ending;
use crate::speaker::Speaker;
use crate::turns::{self, Work};
use crate::usage::UsageLog;

/// No model of the configuration was granted.
const NO_MODEL: &str = "runner.no_model";
/// Neither the event nor the configuration says anything to a model.
const NO_INPUT: &str = "runner.no_input";
/// The configured time, or the gateway's, is over.
const TIMEOUT: &str = "runner.timeout";
/// No model has answered, or one has broken off.
pub(crate) const LLM_ERROR: &str = "runner.llm_error";
/// Whatever else went wrong.
pub(crate) const ERROR: &str = "runner.error";

/// The agent. It keeps nothing between runs; any number of them go on at once.
#[derive(Debug)]
pub struct LocalAgent {
    id: RunnerId,
}

/// Why a run fails, as its user is told.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// True when the same event may well succeed a second time. What has acted is not told so.
    pub(crate) retryable: bool,
}

impl LocalAgent {
    /// The agent under that id.
    pub fn new(id: RunnerId) -> Self {
        Self { id }
    }

    /// The same, ready to be served.
    pub fn runner(id: RunnerId) -> Arc<dyn Runner> {
        Arc::new(Self::new(id))
    }
}

impl Runner for LocalAgent {
    fn manifest(&self) -> AgentRunnerManifest {
        manifest(self.id.clone())
    }

    fn run(&self, run: Run) -> ResultStream {
        run_on(run.context, run.host, run.cancel)
    }
}

/// Runs on that host. The last result is the terminal, whatever happens.
pub(crate) fn run_on(
    context: AgentRunContext,
    host: impl AgentHost,
    cancel: CancellationToken,
) -> ResultStream {
    stream(move |out| async move {
        let (usage, acts) = (UsageLog::default(), Acts::default());
        let work = work(&context, &host, &out, (&usage, &acts));
        let ended = cancel.run_until_cancelled(work).await;
        // A cancel that came before the end was told is obeyed.
        let ended = match ended {
            Some(ended) if !cancel.is_cancelled() => ended,
            _ => Err(Failure::cancelled()),
        };
        out.send(terminal(ended, &usage, &acts)).await;
        Ok(())
    })
}

async fn work(
    context: &AgentRunContext,
    host: &impl AgentHost,
    out: &Results,
    (usage, acts): (&UsageLog, &Acts),
) -> Result<Ending, Failure> {
    let config = Config::read(&context.config, &context.resources);
    if config.models.is_empty() {
        return Err(Failure {
            code: NO_MODEL,
            message: "No authorized model for local-agent: set `model` of the agent's config to a model that its resource policy grants".to_owned(),
            retryable: false,
        });
    }
    let work = Work {
        context,
        host,
        config: &config,
        usage,
        acts,
    };
    let turns = turns::converse(&work, Speaker::new(out.clone(), context));
    match config.timeout {
        None => turns.await,
        Some(time) => within(time, turns).await,
    }
}

async fn within(
    time: Duration,
    turns: impl Future<Output = Result<Ending, Failure>>,
) -> Result<Ending, Failure> {
    let ended = tokio::time::timeout(time, turns).await;
    ended.unwrap_or_else(|_| Err(Failure::timeout()))
}

fn terminal(ended: Result<Ending, Failure>, usage: &UsageLog, acts: &Acts) -> AgentRunResult {
    let usage = usage.total();
    let terminal = match ended {
        Ok(ending) => results::run_completed_because(ending.as_str()),
        Err(failure) => {
            let retryable = failure.retryable && !acts.any();
            results::run_failed(failure.code, failure.message, retryable)
        }
    };
    AgentRunResult { usage, ..terminal }
}

impl Failure {
    /// There is nothing to ask a model with.
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

impl From<HostError> for Failure {
    fn from(failed: HostError) -> Self {
        if failed.is_cancelled() {
            return Self::cancelled();
        }
        if failed.is_deadline_exceeded() {
            return Self::timeout();
        }
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
