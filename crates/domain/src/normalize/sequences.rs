//! Order of the runner's sequence numbers: next, duplicate, or late (`docs/protocol.md`, `AgentRunResult`).

use std::hash::{DefaultHasher, Hash, Hasher as _};

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

/// Comparison value of a repeated number. A digest, because a run may have tens of thousands of results.
enum ResultDigest {
    /// Digest of the bytes.
    Sent(u64),
    /// Digest of type and data, of a result from the ledger. `None`: the ledger has other data than the runner sent.
    Stored(Option<u64>),
}

/// Accepted numbers in order, each with a digest of its event.
#[derive(Default)]
pub(super) struct AcceptedSequences {
    taken: Vec<(u64, ResultDigest)>,
}

impl AcceptedSequences {
    /// Accepts the number of an event if its position is valid. An event without a number is always next. `content`:
    /// digest of type and data.
    pub(super) fn accept(
        &mut self,
        number: Option<u64>,
        raw: &[u8],
        content: impl FnOnce() -> u64,
    ) -> SequencePosition {
        let Some(number) = number else {
            return SequencePosition::Next { gap: false };
        };
        if let Some(gap) = self.push(number, || ResultDigest::Sent(digest_of(raw))) {
            return SequencePosition::Next { gap };
        }
        let found = self
            .taken
            .binary_search_by_key(&number, |(taken, _)| *taken);
        let Ok(at) = found else {
            return SequencePosition::Refused(
                Reason::SequenceBackward,
                "the sequence is not above the one before it",
            );
        };
        let is_equal = match self.taken[at].1 {
            ResultDigest::Sent(digest) => digest == digest_of(raw),
            ResultDigest::Stored(digest) => digest.is_none_or(|digest| digest == content()),
        };
        // Equal results are a retry of the runner after a lost connection.
        if is_equal {
            SequencePosition::Duplicate
        } else {
            SequencePosition::Refused(
                Reason::SequenceConflict,
                "another result has come under this sequence",
            )
        }
    }

    /// Adds the number of a stored result. Returns true if earlier numbers are missing.
    pub(super) fn restore(&mut self, number: u64, content: Option<u64>) -> bool {
        self.push(number, || ResultDigest::Stored(content)) == Some(true)
    }

    /// Adds a number above all others. Returns true if earlier numbers are missing. `None`: it is not above them.
    fn push(&mut self, number: u64, digest: impl FnOnce() -> ResultDigest) -> Option<bool> {
        let last = self.taken.last().map_or(0, |(last, _)| *last);
        (number > last).then(|| {
            self.taken.push((number, digest()));
            number > last + 1
        })
    }
}

/// Returns a digest within this process.
pub(super) fn digest_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
