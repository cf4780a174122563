//! Runs that live in this process: their frames, and who may cancel them (runs §3).

mod log;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dashmap::{DashMap, Entry};
use protocol::id::RunId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Inner;
use crate::grant::Grant;
use telemetry::metrics;

pub(crate) use log::{Frames, Progress, RunLog, Tail};

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
    /// Until when a cancelled run may end by itself.
    grace_until: OnceLock<Instant>,
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
            grace_until: OnceLock::new(),
            appends: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// What the run's token opens from now on.
    pub(crate) fn set_grant(&self, grant: Arc<Grant>) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
    }

    /// False: its snapshot grants no agent. True also of a run that was never prepared here.
    pub(crate) fn may_have_children(&self) -> bool {
        let grant = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        grant
            .as_ref()
            .is_none_or(|grant| !grant.snapshot.resources.agents.is_empty())
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

    /// Whether the terminal may be in the table by now.
    pub(crate) fn is_ending(&self) -> bool {
        self.has_ended() || self.ending.load(Ordering::Acquire)
    }

    /// What the run's token opens, while the run surely lives and its lease is surely ours.
    pub(crate) fn grant(&self, now: Instant) -> Option<Arc<Grant>> {
        if self.is_ending() || !self.is_held(now) {
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

    /// The end of the grace of a cancelled run: what was said first stays.
    pub(crate) fn grace_until(&self, end: impl FnOnce() -> Instant) -> Instant {
        *self.grace_until.get_or_init(end)
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
