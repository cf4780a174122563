//! Counts rejected results of a run. Too many end it, and the first one explains its failure.

use protocol::result::ResultType;
use serde_json::json;

use super::rejection::{FirstRejection, Reason, Rejection, UnknownTypes};
use super::{ResultValidator, Verdict};
use crate::run::{Failure, FailureCode};

/// Number of invalid payloads that fails the run.
const STRIKES: u32 = 3;
/// Maximum characters of an excerpt in the failure of a run.
const EXCERPT_CHARS: usize = 200;
/// Maximum characters of a quote in the message of a failure.
const QUOTE_CHARS: usize = 80;

impl ResultValidator<'_> {
    /// Adds to a failure of the runner the deviations before it: rejected results and unknown types. After
    /// rejected results it is not retryable, because a new run would meet the same fault.
    #[must_use]
    pub fn explain(&self, mut failure: Failure) -> Failure {
        if let Some(unknown) = &self.unknown {
            failure.message = format!("{}; {}", failure.message, unknown.describe());
        }
        let Some(first) = &self.first_rejection else {
            return failure;
        };
        let (event, why) = (first.event, &first.message);
        // The tally misses a result that is being rejected right now.
        let rejected = match self.tally.rejected {
            0 | 1 => format!("1 of its results was rejected (event {event}: {why})"),
            count => format!("{count} of its results were rejected (first event {event}: {why})"),
        };
        failure.message = format!(
            "{}; {rejected}: see GET /v1/runs/{}/rejections",
            failure.message, self.run_id
        );
        // A new run of the same runner would meet the same fault.
        failure.retryable = false;
        // Details of a more specific failure stay.
        if failure.details.is_null() {
            failure.details = json!({"rejected": self.tally.rejected.max(1), "first_rejection": {
                "event": event, "reason": first.reason.as_str(), "message": why, "excerpt": first.excerpt,
            }});
        }
        failure
    }

    /// Counts a result with an unknown type.
    pub(super) fn note_unknown(&mut self, kind: &str) {
        let unknown = self.unknown.get_or_insert_with(|| UnknownTypes {
            first: kind.to_owned(),
            count: 0,
        });
        unknown.count += 1;
    }

    /// A rejected terminal result also ends the run: the runner sends nothing more.
    pub(super) fn refuse(
        &mut self,
        kind: Option<ResultType>,
        reason: Reason,
        message: &str,
        number: Option<u64>,
        raw: &[u8],
    ) -> Verdict<'static> {
        // The runner sends nothing more, so the run would wait for its deadline.
        if kind.is_some_and(ResultType::is_terminal) {
            return Verdict::violation(reason, number, raw, message);
        }
        self.strike(reason, number, raw, message)
    }

    pub(super) fn strike(
        &mut self,
        reason: Reason,
        number: Option<u64>,
        raw: &[u8],
        message: &str,
    ) -> Verdict<'static> {
        self.strikes += 1;
        let rejection = Rejection::new(reason, number, raw, message);
        // The first rejection explains the others in most cases.
        self.first_rejection.get_or_insert_with(|| FirstRejection {
            event: self.events,
            reason,
            message: message.to_owned(),
            excerpt: rejection.excerpt.chars().take(EXCERPT_CHARS).collect(),
        });
        if self.strikes >= STRIKES {
            let quote: String = rejection.excerpt.chars().take(QUOTE_CHARS).collect();
            // The author sees the quote in the failure, without a look at the rejections.
            let message = format!("{message}; it begins with {quote:?}");
            let failure = Failure::new(FailureCode::RunnerProtocolViolation, message);
            return Verdict::Fail(rejection, self.explain(failure));
        }
        Verdict::Reject(rejection)
    }
}
