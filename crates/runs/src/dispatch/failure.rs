//! Failed attempts of a dispatch.

use std::time::Duration;

use domain::normalize::{Reason, Rejection};
use domain::retry::AttemptFailure;
use domain::run::{Failure, FailureCode, Run};
use http::StatusCode;
use serde_json::json;
use store::Store;

use crate::endpoint::endpoint_name;
use runner_client::StartError;

/// Longest open circuit that a retry waits for. Each try costs commits.
const SHORT_BREAK: Duration = Duration::from_millis(500);

/// Logs a failed attempt that is repeated.
pub(super) async fn log_retry(
    store: &Store,
    run: &Run,
    attempt: u32,
    error: &StartError,
    wait: Duration,
) {
    let endpoint = endpoint_name(store, run.endpoint_id).await;
    tracing::warn!(
        run.id = %run.id, runner.id = %run.runner_id, endpoint.name = endpoint, attempt,
        error = error as &dyn std::error::Error, wait_ms = wait.as_millis(),
        "runner did not take run {}, trying again in {} ms", run.id, wait.as_millis()
    );
}

/// Class of the failure for the retry decision.
pub(super) fn class_of(error: &StartError) -> AttemptFailure {
    match error {
        StartError::Unreachable(error) if error.is_connect() => AttemptFailure::NotConnected,
        // Nothing was sent, so a repeated POST cannot start the run twice.
        StartError::CircuitOpen { wait } if *wait <= SHORT_BREAK => AttemptFailure::NotConnected,
        StartError::Refused {
            status: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
            retry_after: Some(wait),
            ..
        } => AttemptFailure::Throttled(*wait),
        _ => AttemptFailure::Uncertain,
    }
}

/// Decision after a failed resume, or a failed new start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeDecision {
    Repeat,
    /// The runner may have started: attach to it.
    Attach,
    /// The runner does not have the run.
    RunnerLost,
    /// The run ends as after a failed start.
    Fail,
}

/// Decides about a failed resume. A repetition starts nothing twice: the runner has the run, or answers 404.
pub(crate) fn after_failed_resume(error: &StartError) -> ResumeDecision {
    match error {
        StartError::Refused {
            status: StatusCode::NOT_FOUND,
            ..
        } => ResumeDecision::RunnerLost,
        StartError::Refused { status, .. }
            if status.is_server_error()
                || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(status) =>
        {
            ResumeDecision::Repeat
        }
        StartError::Unreachable(_)
        | StartError::Broken(_)
        | StartError::Silent
        | StartError::CircuitOpen { .. } => ResumeDecision::Repeat,
        StartError::Refused { .. }
        | StartError::BadContentType { .. }
        | StartError::Unprepared(_) => ResumeDecision::Fail,
    }
}

/// Decides about the failed POST of a new start. Only a POST that certainly started nothing is repeated.
pub(crate) fn after_failed_restart(error: &StartError) -> ResumeDecision {
    match error {
        StartError::Broken(_) => ResumeDecision::Attach,
        // The runner still has the run; it gives it up when its time is over.
        StartError::Refused {
            status: StatusCode::CONFLICT,
            ..
        }
        | StartError::CircuitOpen { .. } => ResumeDecision::Repeat,
        _ => match class_of(error) {
            AttemptFailure::NotConnected | AttemptFailure::Throttled(_) => ResumeDecision::Repeat,
            AttemptFailure::Uncertain => ResumeDecision::Fail,
        },
    }
}

/// The response of a runner that did not take the run, for operators.
pub(super) fn rejection_of(error: &StartError) -> Option<Rejection> {
    let excerpt = error.excerpt()?;
    let message = error.to_string();
    Some(Rejection::new(
        Reason::ErrorResponse,
        None,
        excerpt,
        message,
    ))
}

/// True when the runner may accept a later attempt.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// Failure of the run, and the status of the runner's answer.
pub(super) fn describe(error: &StartError) -> (Failure, Option<u16>) {
    let (code, status) = match error {
        StartError::Unreachable(_) => (FailureCode::RunnerUnreachable, None),
        StartError::Broken(_) => (FailureCode::RunnerStreamTruncated, None),
        StartError::Silent => (FailureCode::RunnerFirstByteTimeout, None),
        StartError::CircuitOpen { .. } => (FailureCode::RunnerCircuitOpen, None),
        StartError::Unprepared(_) => (FailureCode::HostInternal, None),
        StartError::Refused { status, .. } => (FailureCode::RunnerHttpError, Some(status.as_u16())),
        StartError::BadContentType { .. } => (FailureCode::RunnerBadContentType, Some(200)),
    };
    let failure = Failure::new(code, error.to_string());
    let failure = match status.filter(|_| code == FailureCode::RunnerHttpError) {
        Some(status) => Failure {
            retryable: is_passing(status),
            ..failure.with_details(json!({"status": status}))
        },
        None => failure,
    };
    (failure, status)
}
