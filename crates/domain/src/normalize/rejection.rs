//! Rejected events: counted, with a reason.

use protocol::result::ResultType;
use serde_json::json;

use super::{ResultValidator, Verdict};
use crate::nearest::nearest;
use crate::run::{Failure, FailureCode};

/// Number of invalid payloads that fails the run.
const STRIKES: u32 = 3;

const EXCERPT_BYTES: usize = 4096;
/// Maximum characters of an excerpt in the failure of a run.
const EXCERPT_CHARS: usize = 200;
/// Maximum characters of a quote in the message of a failure.
const QUOTE_CHARS: usize = 80;

/// Name of [`Reason::ErrorResponse`].
pub const ERROR_RESPONSE: &str = "error_response";

/// Reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    LineTooLong,
    EventTooLarge,
    InvalidUtf8,
    InvalidJson,
    InvalidEnvelope,
    SequenceConflict,
    SequenceBackward,
    InvalidPayload,
    Unauthorized,
    WrongRunId,
    AfterTerminal,
    NoOutput,
    UnknownArtifact,
    /// The result was accepted without this part, or with a truncated part.
    PartTooLarge,
    /// The runner answered the run with an error, or not with results.
    ErrorResponse,
}

impl Reason {
    /// Returns the name in the rejections table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LineTooLong => "line_too_long",
            Self::EventTooLarge => "event_too_large",
            Self::InvalidUtf8 => "invalid_utf8",
            Self::InvalidJson => "invalid_json",
            Self::InvalidEnvelope => "invalid_envelope",
            Self::SequenceConflict => "sequence_conflict",
            Self::SequenceBackward => "sequence_backward",
            Self::InvalidPayload => "invalid_payload",
            Self::Unauthorized => "unauthorized",
            Self::WrongRunId => "wrong_run_id",
            Self::AfterTerminal => "after_terminal",
            Self::NoOutput => "no_output",
            Self::UnknownArtifact => "unknown_artifact",
            Self::PartTooLarge => "part_too_large",
            Self::ErrorResponse => ERROR_RESPONSE,
        }
    }
}

/// A rejected event, as the ledger stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    /// Cause, for the author of the runner; one sentence.
    pub message: String,
    pub runner_sequence: Option<u64>,
    pub bytes: usize,
    /// Start of the event, at most 4 KiB.
    pub excerpt: String,
}

impl Rejection {
    pub fn new(
        reason: Reason,
        runner_sequence: Option<u64>,
        raw: &[u8],
        message: impl Into<String>,
    ) -> Self {
        // A cut within a character is replaced below.
        let head = &raw[..raw.len().min(EXCERPT_BYTES)];
        // PostgreSQL rejects U+0000.
        let excerpt = String::from_utf8_lossy(head).replace('\0', "");
        Self {
            reason,
            message: message.into(),
            runner_sequence,
            bytes: raw.len(),
            excerpt,
        }
    }

    pub(super) fn after_terminal(raw: &[u8]) -> Self {
        let message = "the run had ended when this came";
        Self::new(Reason::AfterTerminal, None, raw, message)
    }
}

/// The first rejected result of a run.
#[derive(Clone, Debug)]
pub(super) struct FirstRejection {
    /// Number of the event in the stream.
    event: u64,
    reason: Reason,
    message: String,
    excerpt: String,
}

/// Results with types that the gateway does not know. They are stored without effect.
#[derive(Clone, Debug)]
pub(super) struct UnknownTypes {
    first: String,
    count: u64,
}

impl UnknownTypes {
    fn describe(&self) -> String {
        let Self { first, count } = self;
        let (results, have) = match count {
            1 => ("result", "has"),
            _ => ("results", "have"),
        };
        let advice = unknown_type_advice(first);
        format!("{count} {results} {have} an unknown type, first {first:?} ({advice})")
    }
}

/// Returns true for a type that is an extension. Clients that support it read it; the gateway only stores it.
pub fn is_extension(kind: &str) -> bool {
    kind.starts_with("x.")
}

/// Advice for the author of a runner that sends results of this type.
pub fn unknown_type_advice(kind: &str) -> String {
    let types = ResultType::ALL.iter().map(|kind| kind.as_str());
    match nearest(kind, types) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => "text is sent as message.delta or message.completed".to_owned(),
    }
}

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
        (reason, message): (Reason, &str),
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
