//! Rejected events: counted, with a reason.

use protocol::result::ResultType;

use super::{ResultValidator, Verdict};

/// Number of invalid payloads that fails the run.
const STRIKES: u32 = 3;

const EXCERPT_BYTES: usize = 4096;

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
        let head = &raw[..raw.len().min(EXCERPT_BYTES)];
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

impl ResultValidator<'_> {
    /// Returns the text of an ending, with the number of rejected results and the first cause.
    pub fn with_rejections(&self, ending: &str) -> String {
        match &self.refused {
            Some(first) => format!(
                "{ending}; of its results, {} were rejected, the first because {first}",
                self.tally.rejected
            ),
            None => ending.to_owned(),
        }
    }

    /// A rejected terminal result also ends the run: the runner sends nothing more.
    pub(super) fn refuse(
        &mut self,
        kind: Option<ResultType>,
        (reason, message): (Reason, &str),
        number: Option<u64>,
        raw: &[u8],
    ) -> Verdict<'static> {
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
        self.refused.get_or_insert_with(|| message.to_owned());
        if self.strikes >= STRIKES {
            return Verdict::violation(reason, number, raw, message);
        }
        Verdict::Reject(Rejection::new(reason, number, raw, message))
    }
}
