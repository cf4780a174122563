//! Runs that live in this process: their frames, and who may cancel them (runs §3).
//!
//! A [`RunLog`] keeps the newest committed frames in a bounded ring. A subscriber reads the ring, or
//! the table when it has fallen behind the ring: a slow client costs its run nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use dashmap::{DashMap, Entry};
use protocol::id::RunId;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runs::Inner;
use crate::runs::grant::Grant;
use crate::telemetry::metrics;

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
    fn new() -> Self {
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
    fn end(&self, settled: bool) {
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

/// A run of this process.
pub(crate) struct LiveRun {
    pub(crate) log: RunLog,
    /// Asks the run's task to end it as cancelled.
    pub(crate) cancel: CancellationToken,
    /// Cancelled when the run's lease is not ours any more, or cannot be shown to be.
    pub(crate) lost: CancellationToken,
    /// Until when this process may speak for the run, by the clock that nobody sets.
    held_until: Mutex<Option<Instant>>,
    grant: Mutex<Option<Arc<Grant>>>,
    agent_name: OnceLock<String>,
    cancel_requested_at: AtomicI64,
    /// Its runner appends its results.
    pub(crate) appends: AtomicBool,
    /// The terminal is on its way into the table.
    ending: AtomicBool,
    ended: AtomicBool,
}

impl LiveRun {
    fn new() -> Self {
        Self {
            log: RunLog::new(),
            cancel: CancellationToken::new(),
            lost: CancellationToken::new(),
            held_until: Mutex::new(None),
            grant: Mutex::new(None),
            agent_name: OnceLock::new(),
            cancel_requested_at: AtomicI64::new(0),
            appends: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// What the run's token opens from now on.
    pub(crate) fn set_grant(&self, grant: Arc<Grant>) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
    }

    /// Whose run it is.
    pub(crate) fn name_agent(&self, name: &str) {
        self.agent_name.get_or_init(|| name.to_owned());
    }

    /// Whose run it is, once it has been prepared here.
    pub(crate) fn agent_name(&self) -> Option<&str> {
        self.agent_name.get().map(String::as_str)
    }

    /// The lease is ours until then. It was asked for before it began: it ends no earlier.
    pub(crate) fn hold_until(&self, until: Instant) {
        *self.held_until() = Some(until);
    }

    fn held_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.held_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// True while the lease is surely ours.
    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.held_until().is_some_and(|until| now < until)
    }

    /// Surely ours, and its results come by the answer of its runner alone.
    pub(crate) fn streams(&self, now: Instant) -> bool {
        self.is_held(now) && !self.appends.load(Ordering::Acquire)
    }

    /// The terminal goes into the table now: whether the run lives is asked there, for between the
    /// commit and the moment we hear of it nobody here would know.
    pub(crate) fn begin_end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// What the run's token opens, while the run surely lives and its lease is surely ours.
    pub(crate) fn grant(&self, now: Instant) -> Option<Arc<Grant>> {
        let is_ending = self.has_ended() || self.ending.load(Ordering::Acquire);
        if is_ending || !self.is_held(now) {
            return None;
        }
        self.grant
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The terminal is committed, or the run is somebody else's.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// When the run was asked to end, in epoch milliseconds.
    pub(crate) fn cancel_requested_at(&self) -> Option<i64> {
        Some(self.cancel_requested_at.load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    /// Notes a cancel that is stored, and wakes the run's task.
    pub(crate) fn request_cancel(&self, at: i64) {
        let _ =
            self.cancel_requested_at
                .compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire);
        self.cancel.cancel();
    }
}

/// See [`Live::leaving`].
pub(crate) struct Leaving<'a> {
    live: &'a Live,
    id: RunId,
    run: Arc<LiveRun>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.live.leave(self.id, &self.run);
    }
}

/// A run that lives here from the moment at which it is decided about: who cancels it as soon as it is committed
/// finds it. It leaves again if it is dropped before it is driven.
pub(crate) struct Entered {
    inner: Arc<Inner>,
    id: RunId,
    run: Option<Arc<LiveRun>>,
}

impl Entered {
    /// Enters a run that is not there yet.
    pub(crate) fn enter(inner: &Arc<Inner>, id: RunId) -> Self {
        Self {
            run: inner.live.enter_new(id),
            inner: Arc::clone(inner),
            id,
        }
    }

    /// To be driven. `None`: it is there already.
    pub(crate) fn into_run(mut self) -> Option<Arc<LiveRun>> {
        self.run.take()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.inner.live.leave(self.id, &run);
        }
    }
}

/// All live runs of this process.
#[derive(Default)]
pub(crate) struct Live {
    runs: DashMap<RunId, Arc<LiveRun>>,
}

impl Live {
    /// Enters a run; gives the one that is there already.
    pub(crate) fn enter(&self, id: RunId) -> Arc<LiveRun> {
        Arc::clone(
            &self
                .runs
                .entry(id)
                .or_insert_with(|| Arc::new(LiveRun::new())),
        )
    }

    /// Enters a run that is not there yet.
    pub(crate) fn enter_new(&self, id: RunId) -> Option<Arc<LiveRun>> {
        match self.runs.entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => Some(Arc::clone(&vacant.insert(Arc::new(LiveRun::new())))),
        }
    }

    pub(crate) fn get(&self, id: RunId) -> Option<Arc<LiveRun>> {
        self.runs.get(&id).map(|run| Arc::clone(&run))
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn contains(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// The ids of those whose lease this process has taken.
    pub(crate) fn leased(&self) -> Vec<RunId> {
        let leased = |live: &LiveRun| live.held_until().is_some();
        self.runs
            .iter()
            .filter(|entry| leased(entry))
            .map(|entry| *entry.key())
            .collect()
    }

    /// Lets go of those whose lease has ended by `now`.
    pub(crate) fn let_go(&self, now: Instant) {
        for entry in &self.runs {
            let has_lapsed = entry.held_until().is_some_and(|until| until <= now);
            if has_lapsed && !entry.lost.is_cancelled() && !entry.has_ended() {
                tracing::warn!(run.id = %entry.key(), "run {} is let go: its lease has ended", entry.key());
                metrics::lease_lost();
                entry.lost.cancel();
            }
        }
    }

    /// The terminal is committed: the token dies first, then clients see the end.
    pub(crate) fn settle(&self, id: RunId, run: &LiveRun, last: Frames) {
        run.ended.store(true, Ordering::Release);
        run.log.publish(last);
        self.remove(id, run);
        run.log.end(true);
    }

    /// Leaves the run when what this gives is dropped, also by a panic: nobody waits here for ever.
    pub(crate) fn leaving(&self, id: RunId, run: &Arc<LiveRun>) -> Leaving<'_> {
        let run = Arc::clone(run);
        Leaving {
            live: self,
            id,
            run,
        }
    }

    /// The run is over for this process, whether its terminal was written here or not.
    fn leave(&self, id: RunId, run: &LiveRun) {
        run.ended.store(true, Ordering::Release);
        self.remove(id, run);
        run.log.end(false);
    }

    fn remove(&self, id: RunId, run: &LiveRun) {
        self.runs
            .remove_if(&id, |_, entered| std::ptr::eq(Arc::as_ptr(entered), run));
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
