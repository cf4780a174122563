//! The runner's own numbers: which come next, again, or too late (protocol §4).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::Reason;

/// Where an event stands among those before it.
pub(super) enum Place {
    Next {
        gap: bool,
    },
    Duplicate,
    /// Why, and that for who wrote the runner.
    Refused(Reason, &'static str),
}

/// The numbers that were taken, in their order, each with a digest of its event.
#[derive(Default)]
pub(super) struct Places {
    taken: Vec<(u64, u64)>,
}

impl Places {
    /// Takes the number of an event, if it can stand there. One without a number always comes next.
    pub(super) fn place(&mut self, number: Option<u64>, raw: &[u8]) -> Place {
        let Some(number) = number else {
            return Place::Next { gap: false };
        };
        let last = self.taken.last().map_or(0, |(last, _)| *last);
        let mut hasher = DefaultHasher::new();
        raw.hash(&mut hasher);
        let digest = hasher.finish();
        if number > last {
            self.taken.push((number, digest));
            let gap = number > last + 1;
            return Place::Next { gap };
        }
        let found = self
            .taken
            .binary_search_by_key(&number, |(taken, _)| *taken);
        match found {
            Ok(at) if self.taken[at].1 == digest => Place::Duplicate,
            Ok(_) => Place::Refused(
                Reason::SequenceConflict,
                "another result has come under this sequence",
            ),
            Err(_) => Place::Refused(
                Reason::SequenceBackward,
                "the sequence is not above the one before it",
            ),
        }
    }
}
