//! Order of the runner's sequence numbers: next, duplicate, or late (`docs/protocol.md`, `AgentRunResult`).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::Reason;

/// Position of an event relative to the earlier events.
pub(super) enum SequencePosition {
    Next {
        gap: bool,
    },
    Duplicate,
    /// Reason, and a message for the author of the runner.
    Refused(Reason, &'static str),
}

/// Accepted numbers in order, each with a digest of its event.
#[derive(Default)]
pub(super) struct AcceptedSequences {
    taken: Vec<(u64, u64)>,
}

impl AcceptedSequences {
    /// Accepts the number of an event if its position is valid. An event without a number is always next.
    pub(super) fn accept(&mut self, number: Option<u64>, raw: &[u8]) -> SequencePosition {
        let Some(number) = number else {
            return SequencePosition::Next { gap: false };
        };
        let last = self.taken.last().map_or(0, |(last, _)| *last);
        // A digest, not the bytes: a run may have tens of thousands of results.
        let mut hasher = DefaultHasher::new();
        raw.hash(&mut hasher);
        let digest = hasher.finish();
        if number > last {
            self.taken.push((number, digest));
            let gap = number > last + 1;
            return SequencePosition::Next { gap };
        }
        let found = self
            .taken
            .binary_search_by_key(&number, |(taken, _)| *taken);
        match found {
            // Equal bytes are a retry of the runner after a lost connection.
            Ok(at) if self.taken[at].1 == digest => SequencePosition::Duplicate,
            Ok(_) => SequencePosition::Refused(
                Reason::SequenceConflict,
                "another result has come under this sequence",
            ),
            Err(_) => SequencePosition::Refused(
                Reason::SequenceBackward,
                "the sequence is not above the one before it",
            ),
        }
    }
}
