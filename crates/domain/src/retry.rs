//! Retry policy: repeated POSTs to a runner, and new starts of a run (`docs/protocol.md`, `RUN_AGENT` and New starts).

use std::time::Duration;

use protocol::admin::{RestartPoint, RetryCause, RetryPolicy};

use crate::run::FailureCode;

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

/// Decides about a new start of a run after its failure. `starts`: new starts so far; `left`: time until the deadline.
/// `None`: the run ends with the failure.
pub fn after_loss(
    code: FailureCode,
    policy: &RetryPolicy,
    starts: u32,
    left: Duration,
) -> Option<RestartPoint> {
    let cause = match code {
        FailureCode::RunnerLost => RetryCause::RunnerLost,
        _ => return None,
    };
    let may_start = policy.on.contains(&cause) && starts < policy.max && !left.is_zero();
    may_start.then_some(policy.from)
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

    #[test]
    fn starts_lost_runs_again_up_to_limit() {
        let policy = |max, on: &[RetryCause]| RetryPolicy {
            max,
            on: on.to_vec(),
            from: RestartPoint::Checkpoint,
        };
        let lost = policy(2, &[RetryCause::RunnerLost]);
        let again = Some(RestartPoint::Checkpoint);
        for (code, policy, starts, left, expected) in [
            (FailureCode::RunnerLost, &lost, 0, LEFT, again),
            (FailureCode::RunnerLost, &lost, 1, LEFT, again),
            (FailureCode::RunnerLost, &lost, 2, LEFT, None),
            (FailureCode::RunnerLost, &lost, 0, Duration::ZERO, None),
            (FailureCode::RunnerLost, &policy(2, &[]), 0, LEFT, None),
            (FailureCode::RunnerStreamTruncated, &lost, 0, LEFT, None),
            (FailureCode::Cancelled, &lost, 0, LEFT, None),
        ] {
            let decided = after_loss(code, policy, starts, left);
            assert_eq!(decided, expected, "{code:?} {starts}");
        }
    }
}
