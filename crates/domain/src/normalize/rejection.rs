//! Events that were not taken: counted, with a reason, never lost in silence.

const EXCERPT_BYTES: usize = 4096;

/// Why an event was not taken.
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
}

impl Reason {
    /// The name in the rejections table.
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
        }
    }
}

/// An event that was not taken, as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    pub runner_sequence: Option<u64>,
    pub bytes: usize,
    /// The beginning of it, at most 4 KiB.
    pub excerpt: String,
}

impl Rejection {
    pub fn new(reason: Reason, runner_sequence: Option<u64>, raw: &[u8]) -> Self {
        let head = &raw[..raw.len().min(EXCERPT_BYTES)];
        let excerpt = String::from_utf8_lossy(head).replace('\0', "");
        Self {
            reason,
            runner_sequence,
            bytes: raw.len(),
            excerpt,
        }
    }
}
