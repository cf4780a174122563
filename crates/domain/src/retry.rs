//! Retry policy for the POST to a runner (`docs/protocol.md`, `RUN_AGENT`).

use std::time::Duration;

/// Failure of an attempt before the first result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The connection failed, so the runner received nothing.
    NotConnected,
    /// 429 or 503 with `Retry-After`: the runner asks for a retry.
    Throttled(Duration),
    /// Any other failure. The runner may have started, so the POST is never repeated.
    Uncertain,
}

/// Decision after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    RetryAfter(Duration),
    Fail,
}

/// Decides after attempt number `attempt` (from 1). `left`: time until the deadline; `jitter`: 0 to 1.
pub fn after_failure(
    attempt: u32,
    max_retries: u32,
    failure: AttemptFailure,
    left: Duration,
    jitter: f64,
) -> RetryDecision {
    if attempt > max_retries {
        return RetryDecision::Fail;
    }
    let wait = match failure {
        // The runner may have started: a second POST would run its side effects twice.
        AttemptFailure::Uncertain => return RetryDecision::Fail,
        // Jitter, so that clients with the same `Retry-After` do not retry together.
        AttemptFailure::Throttled(wait) => wait + wait.mul_f64(jitter.clamp(0.0, 1.0) / 10.0),
        AttemptFailure::NotConnected => {
            // The cap of the shift limits the delay to 6.4 seconds.
            let ceiling = Duration::from_millis(100 << attempt.min(6));
            ceiling.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
        }
    };
    // A retry after the deadline would only delay the failure.
    if wait < left {
        RetryDecision::RetryAfter(wait)
    } else {
        RetryDecision::Fail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Duration = Duration::from_secs(10);

    fn check(attempt: u32, failure: AttemptFailure, expected: RetryDecision) {
        assert_eq!(
            after_failure(attempt, 2, failure, LEFT, 1.0),
            expected,
            "{attempt} {failure:?}"
        );
    }

    #[test]
    fn retries_only_unstarted_runs_up_to_limit() {
        check(
            1,
            AttemptFailure::NotConnected,
            RetryDecision::RetryAfter(Duration::from_millis(200)),
        );
        check(
            2,
            AttemptFailure::NotConnected,
            RetryDecision::RetryAfter(Duration::from_millis(400)),
        );
        check(3, AttemptFailure::NotConnected, RetryDecision::Fail);
        check(1, AttemptFailure::Uncertain, RetryDecision::Fail);
        check(
            1,
            AttemptFailure::Throttled(Duration::ZERO),
            RetryDecision::RetryAfter(Duration::ZERO),
        );
        check(1, AttemptFailure::Throttled(LEFT), RetryDecision::Fail);
    }
}
