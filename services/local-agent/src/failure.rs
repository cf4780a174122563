//! Failures of the agent's runs, as their users see them.

use agent_core::RunFailure;
use agent_core::failure::{ERROR, LLM_ERROR, NO_INPUT, NO_MODEL, TIMEOUT};
use agent_core::model::ModelFailure;
use runner_kit::HostError;
use runner_kit::runner::CANCELLED;
use serde_json::Value;

/// No model of the configuration was granted.
pub(crate) fn no_model() -> RunFailure {
    // The grant may have removed every configured model, so the error names the policy, too.
    RunFailure::new(
        NO_MODEL,
        "No authorized model for local-agent: set `model` of the agent's config to a model that its resource policy grants",
    )
}

/// No input for a model.
pub(crate) fn no_input() -> RunFailure {
    RunFailure::new(
        NO_INPUT,
        "The event has no text, picture or file, and there is no prompt and no history: set `prompt` of the agent's config, or bind the agent to events that have an input",
    )
}

pub(crate) fn cancelled() -> RunFailure {
    RunFailure::new(CANCELLED, "Run cancellation requested")
}

pub(crate) fn timeout() -> RunFailure {
    RunFailure::new(TIMEOUT, "Agent run timed out").retryable()
}

/// Failure of a run by a failed host call.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn of_host(failed: HostError) -> RunFailure {
    // Before the generic mapping: a cancelled run and one past its deadline have codes of their own.
    if failed.is_cancelled() {
        return cancelled();
    }
    if failed.is_deadline_exceeded() {
        return timeout();
    }
    // The reason names the gateway's cause (such as `upstream_timeout`), which the message omits.
    let reason = failed.details.get("reason").and_then(Value::as_str);
    let reason = reason
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default();
    RunFailure {
        retryable: failed.retryable,
        ..RunFailure::new(ERROR, format!("{failed}{reason}"))
    }
}

/// Failure of a run by a failed model call.
pub(crate) fn of_model(failed: ModelFailure) -> RunFailure {
    match failed {
        // Cancel and deadline keep their codes; the others are failures of the model.
        ModelFailure::Over(failed) => of_host(failed),
        failed => RunFailure {
            // A broken answer was sent in part; a retry would repeat it.
            retryable: matches!(&failed, ModelFailure::Silent(silence) if silence.is_passing),
            ..RunFailure::new(LLM_ERROR, failed.to_string())
        },
    }
}
