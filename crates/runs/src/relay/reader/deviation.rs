//! Deviations: answers that differ from their framing and are read nevertheless.

/// A deviation that leaves the results unambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// An event with a foreign name whose data are no result.
    ForeignEvent,
    /// Data such as `ping`, without a name of its event.
    KeepAlive,
    /// Events without an empty line between them.
    SingleLineBreaks,
    /// The terminal has no empty line after it.
    UnfinishedEvent,
    /// The framing differs from `Content-Type`.
    OtherFraming,
    /// Invalid characters of a string were replaced.
    Text,
}

impl Deviation {
    /// Value of the metric's `kind` label; a fixed set.
    pub fn kind(self) -> &'static str {
        match self {
            Self::ForeignEvent => "foreign_event",
            Self::KeepAlive => "keep_alive",
            Self::SingleLineBreaks => "single_line_breaks",
            Self::UnfinishedEvent => "unfinished_event",
            Self::OtherFraming => "other_framing",
            Self::Text => "text_repaired",
        }
    }

    /// Note for the author of the runner.
    pub fn note(self) -> &'static str {
        match self {
            Self::ForeignEvent => {
                "an event whose name is no result type and whose data are no result counts as a heartbeat; send a comment \
                 line (`: hi`) instead"
            }
            Self::KeepAlive => {
                "data that are a keep-alive, such as `ping`, count as a heartbeat; send a comment line (`: hi`) instead, or \
                 an empty line between lines of JSON"
            }
            Self::SingleLineBreaks => {
                "events have one line break between them and were separated; end each with an empty line"
            }
            Self::UnfinishedEvent => {
                "the last event has no empty line after it and was accepted; end each event with an empty line"
            }
            Self::OtherFraming => {
                "the body is not framed as its Content-Type declares and was read by its content: events, lines of JSON, or \
                 {\"results\": […]}"
            }
            Self::Text => {
                "half surrogate pairs, U+0000 or bytes that are no UTF-8 were replaced by U+FFFD; write complete characters"
            }
        }
    }
}

/// The deviations of one answer, each once.
#[derive(Default)]
pub(super) struct Deviations {
    seen: Vec<Deviation>,
    reported: usize,
}

impl Deviations {
    pub(super) fn add(&mut self, deviation: Deviation) {
        if !self.seen.contains(&deviation) {
            self.seen.push(deviation);
        }
    }

    /// Deviations that were not reported yet.
    pub(super) fn take(&mut self) -> Vec<Deviation> {
        let new = self.seen.split_off(self.reported.min(self.seen.len()));
        self.seen.extend(&new);
        self.reported = self.seen.len();
        new
    }
}
