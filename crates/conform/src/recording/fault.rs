//! Faults that a run shows.

/// A rejected result.
#[derive(Debug)]
pub(crate) struct RecordedFault {
    pub(crate) kind: FaultKind,
    pub(crate) seen: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Result,
    Limit,
    /// A part exceeded its limit; the result counts without it.
    TruncatedPart,
    RunId,
    Sequence,
    Payload,
    StateKey,
    NoOutput,
    SecondTerminal,
    AfterTerminal,
}
