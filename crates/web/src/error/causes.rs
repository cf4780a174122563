//! Conversions from errors of lower layers to API errors.

use std::time::Duration;

use domain::authorization::{LimitedId, ModelNotGranted, NotGranted};
use http::StatusCode;
use serde_json::json;
use store::{ChildRefused, StoreError};

use super::api_error::ApiError;
use egress::upstream::UpstreamError;
use keys::cursor::InvalidCursor;
use runs::call_abort::AbortReason;
use runs::intake::{IntakeError, RetryError, RetryPointError};
use runs::own_limits::{StartLimit, TokenLimitReached};

impl From<UpstreamError> for ApiError {
    fn from(error: UpstreamError) -> Self {
        let status = match error.code() {
            "rate_limited" => StatusCode::TOO_MANY_REQUESTS,
            "deadline_exceeded" => StatusCode::GATEWAY_TIMEOUT,
            "invalid_argument" => StatusCode::BAD_REQUEST,
            "unauthorized" => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_GATEWAY,
        };
        let mut answer = Self {
            retryable: error.is_retryable(),
            ..Self::new(status, error.code(), error.to_string())
        }
        .with("reason", json!(error.reason()));
        match error {
            UpstreamError::RateLimited { retry_after } => {
                answer.retry_after_seconds = Some(seconds_of(retry_after));
            }
            // 503 and 529 mean that the provider is overloaded, so its `Retry-After` counts.
            UpstreamError::Failing {
                status: status @ (503 | 529),
                retry_after,
                ..
            } => {
                answer = answer.with("upstream_status", json!(status));
                answer.retry_after_seconds = Some(seconds_of(retry_after));
            }
            UpstreamError::Busy { wait, .. } => {
                let wait = wait.unwrap_or_default();
                answer.retry_after_seconds = Some(rounded_up_seconds(wait));
            }
            UpstreamError::Refused { status, .. }
            | UpstreamError::Credential { status }
            | UpstreamError::Failing { status, .. } => {
                answer = answer.with("upstream_status", json!(status));
            }
            _ => {}
        }
        answer
    }
}

/// Rounded up: a retry before the end of the wait is refused again.
fn rounded_up_seconds(wait: Duration) -> u32 {
    let seconds = u32::try_from(wait.as_millis().div_ceil(1000));
    seconds.unwrap_or(u32::MAX).max(1)
}

fn seconds_of(wait: Option<Duration>) -> u32 {
    // At least one second: with 0, clients would retry at once.
    let seconds = wait.map_or(1, |wait| wait.as_secs().max(1));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

impl From<NotGranted> for ApiError {
    fn from(error: NotGranted) -> Self {
        Self::unauthorized(error.to_string()).with("operation", json!(error.operation))
    }
}

impl From<ModelNotGranted> for ApiError {
    fn from(error: ModelNotGranted) -> Self {
        Self::unauthorized(error.to_string())
            .with("operation", json!(error.operation))
            .with("model", json!(error.model))
            .with("granted", json!(error.granted))
    }
}

impl From<InvalidCursor> for ApiError {
    fn from(_: InvalidCursor) -> Self {
        Self::invalid_argument(
            "the cursor is not valid or belongs to another list; start without one",
        )
    }
}

impl From<AbortReason> for ApiError {
    fn from(over: AbortReason) -> Self {
        match over {
            AbortReason::Cancelled => Self::cancelled(),
            // The token of an ended run is as invalid as any other.
            AbortReason::Ended => Self::unauthenticated(),
            AbortReason::Deadline => Self::deadline_exceeded(),
            AbortReason::Stopping => IntakeError::Stopping.into(),
        }
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        let message = error.to_string();
        match error {
            IntakeError::IdempotencyMismatch => Self::conflict("idempotency_mismatch", message),
            IntakeError::EventExists => Self::conflict("event_exists", message),
            IntakeError::BindingConflict(agents) => {
                Self::conflict("binding_conflict", message).with("agents", json!(agents))
            }
            IntakeError::RunActive(run) => {
                Self::conflict("run_active", message).with("run_id", json!(run))
            }
            IntakeError::OutsideScope(agents) => Self::unauthorized(message)
                .with("reason", json!("key_agents"))
                .with("agents", json!(agents)),
            IntakeError::AgentGone | IntakeError::CalledAgentGone => {
                Self::conflict("agent_gone", message)
            }
            IntakeError::NotResumable(_) => {
                Self::invalid("/from", message).with("reason", json!("not_resumable"))
            }
            IntakeError::RunnerChanged(runner) => {
                Self::conflict("runner_changed", message).with("runner_id", json!(runner))
            }
            IntakeError::ChildRefused(ChildRefused::Ended) => Self::unauthenticated(),
            IntakeError::ChildRefused(ChildRefused::Cancelled) => Self::cancelled(),
            IntakeError::ChildRefused(ChildRefused::TooMany) => {
                Self::conflict("too_many_child_runs", message)
            }
            IntakeError::Unanswerable(_) => Self::conflict("unanswerable", message),
            IntakeError::QueueFull => Self::rate_limited_by("queue_full", message, 10),
            IntakeError::WorkspaceFull { limit } => {
                Self::rate_limited_by("workspace_runs", message, 5).with("limit", json!(limit))
            }
            IntakeError::EndpointFull { limit } => {
                Self::rate_limited_by("endpoint_runs", message, 5).with("limit", json!(limit))
            }
            IntakeError::TooFast { wait } => {
                Self::rate_limited_by("workspace_events", message, rounded_up_seconds(wait))
            }
            IntakeError::Limit(limit) => limit.into(),
            IntakeError::Hook(refused) => refused.into(),
            IntakeError::RunnerUnavailable { runner, status, .. } => Self::unavailable(message)
                .with("reason", json!("runner_unavailable"))
                .with("runner_id", json!(runner))
                .with("runner_status", json!(status))
                .retryable_after(10),
            IntakeError::Attachment(error) => error.into(),
            IntakeError::Reference(fault) => Self::faults(&[fault]),
            IntakeError::Stopping => Self::unavailable(message).with("reason", json!("stopping")),
            IntakeError::Store(error) => error.into(),
        }
    }
}

impl From<StartLimit> for ApiError {
    fn from(reached: StartLimit) -> Self {
        let message = reached.to_string();
        match reached {
            StartLimit::KeyRate { wait } => {
                Self::rate_limited_by("key_rate", message, rounded_up_seconds(wait))
            }
            StartLimit::KeyRuns { limit } => {
                Self::rate_limited_by("key_runs", message, 5).with("limit", json!(limit))
            }
            StartLimit::AgentRate { agent, name, wait } => {
                Self::rate_limited_by("agent_rate", message, rounded_up_seconds(wait))
                    .with("agent_id", json!(agent))
                    .with("name", json!(name))
            }
            StartLimit::AgentRuns { agent, name, limit } => {
                Self::rate_limited_by("agent_runs", message, 5)
                    .with("limit", json!(limit))
                    .with("agent_id", json!(agent))
                    .with("name", json!(name))
            }
        }
    }
}

impl From<TokenLimitReached> for ApiError {
    fn from(reached: TokenLimitReached) -> Self {
        let reason = match reached.of {
            LimitedId::ApiKey(_) => "key_tokens",
            LimitedId::Agent(_) => "agent_tokens",
        };
        let seconds = rounded_up_seconds(reached.wait);
        Self::rate_limited_by(reason, reached.to_string(), seconds)
            .with("name", json!(reached.name))
            .with("limit", json!(reached.per_minute))
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        // A reached memory budget is no fault of the store, and is not logged as one.
        if let StoreError::OverBudget(over) = error {
            return over.into();
        }
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "a request failed in the store"
        );
        // All cases by name: a new one must be classified here.
        match error {
            StoreError::Db(_)
            | StoreError::Sqlite(_)
            | StoreError::Postgres(_)
            | StoreError::Server { .. }
            | StoreError::OlderDatabase
            | StoreError::UnknownMigration(_)
            | StoreError::Address(_)
            | StoreError::Closed
            | StoreError::Unreachable => {
                let message = "the database does not respond; try again";
                Self::unavailable(message)
            }
            StoreError::Locked => {
                let message = "a database row is locked by another transaction; try again";
                Self::unavailable(message)
            }
            StoreError::Taken
            | StoreError::Refused
            | StoreError::Pruned
            | StoreError::Panicked
            | StoreError::OverBudget(_)
            | StoreError::Corrupt { .. } => Self::internal(),
        }
    }
}

impl From<RetryError> for ApiError {
    fn from(error: RetryError) -> Self {
        let message = error.to_string();
        match error {
            RetryError::Unknown(run) => Self::not_found("run", run),
            RetryError::Live(status) => {
                Self::conflict("run_live", message).with("status", json!(status))
            }
            RetryError::Completed => Self::conflict("run_completed", message),
            RetryError::Child(parent) => {
                Self::conflict("child_run", message).with("parent_run_id", json!(parent))
            }
            RetryError::Retried(run) => {
                Self::conflict("already_retried", message).with("run_id", json!(run))
            }
            RetryError::Point(RetryPointError::Store(error)) => error.into(),
            RetryError::Point(_) => Self::invalid("/from", message),
            RetryError::NoAgent(_) => Self::conflict("no_agent", message),
            RetryError::Refused(refused) => refused.into(),
        }
    }
}
