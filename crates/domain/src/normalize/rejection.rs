//! Rejected events: counted, with a reason.

use protocol::result::ResultType;

use crate::nearest::nearest;

const EXCERPT_BYTES: usize = 4096;

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
    pub(super) event: u64,
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) excerpt: String,
}

/// Results with types that the gateway does not know. They are stored without effect.
#[derive(Clone, Debug)]
pub(super) struct UnknownTypes {
    pub(super) first: String,
    pub(super) count: u64,
}

impl UnknownTypes {
    pub(super) fn describe(&self) -> String {
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
