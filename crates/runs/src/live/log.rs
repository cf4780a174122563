//! Committed events of a live run, for its subscribers.
//!
//! A [`RunLog`] keeps the newest committed frames in a bounded buffer. A subscriber with an older cursor reads the
//! table, so a slow client does not delay its run.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// Maximum bytes of buffered frames of one run.
const BUFFER_BYTES: usize = 1024 * 1024;

/// Frames of one commit. All subscribers share the bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommittedFrames {
    /// The sequence of the first event.
    pub(crate) first: u64,
    pub(crate) bytes: Bytes,
    /// End of each event in `bytes`.
    pub(crate) ends: Vec<usize>,
}

impl CommittedFrames {
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

/// Result of a read after a cursor.
#[derive(Debug)]
pub(crate) enum Tail {
    /// Frames, and the sequence of the last one.
    Frames(Bytes, u64),
    /// The buffer begins later: the table must be read.
    Behind,
    UpToDate,
}

#[derive(Default)]
struct FrameBuffer {
    batches: VecDeque<CommittedFrames>,
    bytes: usize,
}

/// The committed events of one live run.
pub(crate) struct RunLog {
    buffer: Mutex<FrameBuffer>,
    progress: watch::Sender<RunProgress>,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunProgress {
    pub(crate) last_sequence: u64,
    /// This process adds no more events.
    pub(crate) ended: bool,
    /// The last event is the run's terminal.
    pub(crate) settled: bool,
}

impl RunLog {
    pub(super) fn new() -> Self {
        Self {
            buffer: Mutex::default(),
            progress: watch::Sender::new(RunProgress::default()),
        }
    }

    /// Publishes committed frames, and drops the oldest batches above the limit.
    pub(crate) fn publish(&self, frames: CommittedFrames) {
        if frames.ends.is_empty() {
            return;
        }
        let last_sequence = frames.last();
        let mut buffer = self.buffer();
        buffer.bytes += frames.bytes.len();
        buffer.batches.push_back(frames);
        // The newest batch stays, even above the limit: subscribers must get it.
        while buffer.bytes > BUFFER_BYTES && buffer.batches.len() > 1 {
            if let Some(oldest) = buffer.batches.pop_front() {
                buffer.bytes -= oldest.bytes.len();
            }
        }
        // Before the wake-up: every woken subscriber takes this lock.
        drop(buffer);
        self.progress
            .send_modify(|progress| progress.last_sequence = last_sequence);
    }

    /// Marks events up to this one as present in the table only, because another process wrote them.
    pub(crate) fn begin_after(&self, last_sequence: u64) {
        let note = |progress: &mut RunProgress| progress.last_sequence = last_sequence;
        self.progress.send_modify(note);
    }

    /// Ends the log of this process.
    pub(super) fn end(&self, settled: bool) {
        self.progress.send_modify(|progress| {
            progress.ended = true;
            progress.settled |= settled;
        });
    }

    /// Frames of the first batch after `cursor`.
    pub(crate) fn tail(&self, cursor: u64) -> Tail {
        let buffer = self.buffer();
        let last = buffer.batches.back().map_or(0, CommittedFrames::last);
        if cursor >= last {
            let behind = cursor < self.progress.borrow().last_sequence;
            return if behind { Tail::Behind } else { Tail::UpToDate };
        }
        match buffer.batches.iter().find(|batch| batch.last() > cursor) {
            Some(batch) if batch.first <= cursor + 1 => {
                Tail::Frames(batch.after(cursor), batch.last())
            }
            _ => Tail::Behind,
        }
    }

    /// Subscribes to progress. Subscribe first, then read, so that no event is missed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<RunProgress> {
        self.progress.subscribe()
    }

    pub(crate) fn progress(&self) -> RunProgress {
        *self.progress.borrow()
    }

    // Consistent after a panic: it changes by one push at a time.
    fn buffer(&self) -> MutexGuard<'_, FrameBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(first: u64, texts: &[&str]) -> CommittedFrames {
        let mut ends = Vec::new();
        let mut length = 0;
        for text in texts {
            length += text.len();
            ends.push(length);
        }
        CommittedFrames {
            first,
            bytes: Bytes::from(texts.concat()),
            ends,
        }
    }

    #[test]
    fn returns_frames_after_cursor_within_a_commit() {
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
    fn directs_slow_subscribers_to_the_table() {
        let log = RunLog::new();
        let large = "x".repeat(BUFFER_BYTES);
        log.publish(frames(1, &[&large]));
        log.publish(frames(2, &[&large]));
        assert!(matches!(log.tail(0), Tail::Behind));
        assert!(matches!(log.tail(1), Tail::Frames(_, 2)));
    }
}
