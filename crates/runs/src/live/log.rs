//! What a run has committed, for those who follow it.
//!
//! A [`RunLog`] keeps the newest committed frames in a bounded ring. A subscriber reads the ring, or
//! the table when it has fallen behind the ring: a slow client costs its run nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// Bytes of frames that a ring keeps.
const RING_BYTES: usize = 1024 * 1024;

/// What one commit appended, as clients read it. Every subscriber shares the same bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames {
    /// The sequence of the first event.
    pub(crate) first: u64,
    pub(crate) bytes: Bytes,
    /// Where each event ends in `bytes`.
    pub(crate) ends: Vec<usize>,
}

impl Frames {
    pub(crate) fn last(&self) -> u64 {
        self.first + self.ends.len() as u64 - 1
    }

    /// The frames after `cursor`.
    fn after(&self, cursor: u64) -> Bytes {
        let Some(skipped) = cursor.checked_sub(self.first) else {
            return self.bytes.clone();
        };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        self.ends
            .get(skipped)
            .map_or_else(Bytes::new, |start| self.bytes.slice(*start..))
    }
}

/// What a subscriber finds past its cursor.
#[derive(Debug)]
pub(crate) enum Tail {
    /// These bytes, up to this sequence.
    Frames(Bytes, u64),
    /// The ring begins later: read the table.
    Behind,
    UpToDate,
}

#[derive(Default)]
struct Ring {
    batches: VecDeque<Frames>,
    bytes: usize,
}

/// The committed events of one live run.
pub(crate) struct RunLog {
    ring: Mutex<Ring>,
    progress: watch::Sender<Progress>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) last_sequence: u64,
    /// This process adds nothing more.
    pub(crate) ended: bool,
    /// The last event is the run's terminal.
    pub(crate) settled: bool,
}

impl RunLog {
    pub(super) fn new() -> Self {
        Self {
            ring: Mutex::default(),
            progress: watch::Sender::new(Progress::default()),
        }
    }

    /// Shows committed frames to every subscriber.
    pub(crate) fn publish(&self, frames: Frames) {
        if frames.ends.is_empty() {
            return;
        }
        let last_sequence = frames.last();
        let mut ring = self.ring();
        ring.bytes += frames.bytes.len();
        ring.batches.push_back(frames);
        while ring.bytes > RING_BYTES && ring.batches.len() > 1 {
            if let Some(oldest) = ring.batches.pop_front() {
                ring.bytes -= oldest.bytes.len();
            }
        }
        drop(ring);
        self.progress
            .send_modify(|progress| progress.last_sequence = last_sequence);
    }

    /// The events up to this one stand in the table: their run lived elsewhere.
    pub(crate) fn begin_behind(&self, last_sequence: u64) {
        let note = |progress: &mut Progress| progress.last_sequence = last_sequence;
        self.progress.send_modify(note);
    }

    /// Nothing more will come from here.
    pub(super) fn end(&self, settled: bool) {
        self.progress.send_modify(|progress| {
            progress.ended = true;
            progress.settled |= settled;
        });
    }

    /// What stands past `cursor`.
    pub(crate) fn tail(&self, cursor: u64) -> Tail {
        let ring = self.ring();
        let last = ring.batches.back().map_or(0, Frames::last);
        if cursor >= last {
            let behind = cursor < self.progress.borrow().last_sequence;
            return if behind { Tail::Behind } else { Tail::UpToDate };
        }
        match ring.batches.iter().find(|batch| batch.last() > cursor) {
            Some(batch) if batch.first <= cursor + 1 => {
                Tail::Frames(batch.after(cursor), batch.last())
            }
            _ => Tail::Behind,
        }
    }

    /// To wait for more. Subscribe first, then read: nothing falls between.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// How far the run has come.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    // The ring is whole after any panic: it is changed by one push at a time.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(first: u64, texts: &[&str]) -> Frames {
        let mut ends = Vec::new();
        let mut length = 0;
        for text in texts {
            length += text.len();
            ends.push(length);
        }
        Frames {
            first,
            bytes: Bytes::from(texts.concat()),
            ends,
        }
    }

    #[test]
    fn a_subscriber_gets_what_is_past_its_cursor_even_inside_a_batch() {
        let log = RunLog::new();
        log.publish(frames(1, &["a", "bb"]));
        log.publish(frames(3, &["c"]));
        let read = |cursor| match log.tail(cursor) {
            Tail::Frames(bytes, last) => (String::from_utf8(bytes.to_vec()).unwrap(), last),
            Tail::Behind => ("behind".to_owned(), 0),
            Tail::UpToDate => ("up to date".to_owned(), 0),
        };
        assert_eq!(read(0), ("abb".to_owned(), 2));
        assert_eq!(read(1), ("bb".to_owned(), 2));
        assert_eq!(read(2), ("c".to_owned(), 3));
        assert_eq!(read(3), ("up to date".to_owned(), 0));
    }

    #[test]
    fn who_has_fallen_behind_the_ring_is_sent_to_the_table() {
        let log = RunLog::new();
        let large = "x".repeat(RING_BYTES);
        log.publish(frames(1, &[&large]));
        log.publish(frames(2, &[&large]));
        assert!(matches!(log.tail(0), Tail::Behind));
        assert!(matches!(log.tail(1), Tail::Frames(_, 2)));
    }
}
