//! Registry of the runs that this process drives.

mod inbox;
mod log;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dashmap::{DashMap, Entry};
use protocol::id::RunId;
use store::Renewed;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::grant::Grant;
use telemetry::metrics;

pub(crate) use inbox::AppendInbox;
pub(crate) use log::{CommittedFrames, RunLog, RunProgress, Tail};

/// A run that this process drives.
pub(crate) struct LiveRun {
    pub(crate) log: RunLog,
    /// Asks the run's task to end it as cancelled.
    pub(crate) cancel: CancellationToken,
    /// Cancelled when this process no longer holds the run's lease, or cannot prove it.
    pub(crate) lost: CancellationToken,
    /// End of the lease on the monotonic clock.
    held_until: Mutex<Option<Instant>>,
    grant: Mutex<Option<Arc<Grant>>>,
    agent_name: OnceLock<String>,
    cancel_requested_at: AtomicI64,
    /// End of the grace in which a cancelled run may end by itself.
    grace_until: OnceLock<Instant>,
    /// The runner appends its results.
    pub(crate) appends: AtomicBool,
    /// The runner works on after a lost connection.
    pub(crate) is_resumable: AtomicBool,
    pub(crate) inbox: AppendInbox,
    /// The terminal is being written.
    ending: AtomicBool,
    ended: AtomicBool,
}

impl LiveRun {
    pub(crate) fn new() -> Self {
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
            is_resumable: AtomicBool::new(false),
            inbox: AppendInbox::default(),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Sets the rights of the run's token.
    pub(crate) fn set_grant(&self, grant: Arc<Grant>) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
    }

    /// Notes an extended deadline of the run.
    pub(crate) fn extend_deadline(&self, at: i64) {
        let grant = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grant) = &*grant {
            grant.extend_deadline(at);
        }
    }

    /// True when the run may have child runs: its snapshot grants agents, or this process has not prepared it.
    pub(crate) fn may_have_children(&self) -> bool {
        let grant = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        grant
            .as_ref()
            .is_none_or(|grant| !grant.snapshot.resources.agents.is_empty())
    }

    /// Sets the name of the run's agent.
    pub(crate) fn set_agent_name(&self, name: &str) {
        self.agent_name.get_or_init(|| name.to_owned());
    }

    /// Name of the run's agent, if this process has prepared the run.
    pub(crate) fn agent_name(&self) -> Option<&str> {
        self.agent_name.get().map(String::as_str)
    }

    /// Extends the lease to `until`, counted from before its request. It ends no earlier in the database.
    pub(crate) fn hold_until(&self, until: Instant) {
        *self.held_until() = Some(until);
    }

    fn held_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.held_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// True while this process holds the lease.
    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.held_until().is_some_and(|until| now < until)
    }

    /// True while this process holds the lease and the results come with the runner's response.
    pub(crate) fn streams(&self, now: Instant) -> bool {
        self.is_held(now) && !self.appends.load(Ordering::Acquire)
    }

    /// Marks the terminal as being written. From here on only the table has the state of the run, because the answer to
    /// the commit may be late.
    pub(crate) fn begin_end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// True when the terminal may be in the table.
    pub(crate) fn is_ending(&self) -> bool {
        self.has_ended() || self.ending.load(Ordering::Acquire)
    }

    /// Rights of the run's token, while the run lives and this process holds the lease.
    pub(crate) fn grant(&self, now: Instant) -> Option<Arc<Grant>> {
        if self.is_ending() || self.lost.is_cancelled() || !self.is_held(now) {
            return None;
        }
        self.grant
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// True when another process may continue the run.
    fn may_move(&self) -> bool {
        self.appends.load(Ordering::Acquire) || self.is_resumable.load(Ordering::Acquire)
    }

    /// True when the terminal is committed or another process owns the run.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Time of the cancel request, in epoch milliseconds.
    pub(crate) fn cancel_requested_at(&self) -> Option<i64> {
        Some(self.cancel_requested_at.load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    /// Notes a stored cancel request, and wakes the run's task.
    pub(crate) fn request_cancel(&self, at: i64) {
        // The first request counts; later ones must not move its time.
        let _ = self
            .cancel_requested_at
            // The time is stored before the wake-up, so that the woken task sees it.
            .compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire);
        self.cancel.cancel();
    }

    /// End of the grace of a cancelled run. The first call sets it.
    pub(crate) fn grace_until(&self, end: impl FnOnce() -> Instant) -> Instant {
        *self.grace_until.get_or_init(end)
    }
}

/// Removes its run from the registry on drop; see [`LiveRegistry::guard`].
pub(crate) struct LiveGuard<'a> {
    live: &'a LiveRegistry,
    id: RunId,
    run: Arc<LiveRun>,
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        self.live.leave(self.id, &self.run);
    }
}

/// Entry of a run from its decision on, so that a cancel right after the commit finds it. Dropped before the run
/// is driven, it is removed.
pub(crate) struct LiveEntry {
    live: Arc<LiveRegistry>,
    id: RunId,
    run: Option<Arc<LiveRun>>,
}

impl LiveEntry {
    /// Adds a run that has no entry yet.
    pub(crate) fn enter(live: &Arc<LiveRegistry>, id: RunId) -> Self {
        Self {
            run: live.enter_new(id),
            live: Arc::clone(live),
            id,
        }
    }

    /// Takes the run for its task. `None`: it had an entry already.
    pub(crate) fn into_run(mut self) -> Option<Arc<LiveRun>> {
        self.run.take()
    }
}

impl Drop for LiveEntry {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.live.leave(self.id, &run);
        }
    }
}

/// All runs that this process drives.
#[derive(Default)]
pub(crate) struct LiveRegistry {
    runs: DashMap<RunId, Arc<LiveRun>>,
    /// This process has lost its session lock, so others may have taken runs before their leases end.
    is_unlocked: AtomicBool,
}

impl LiveRegistry {
    /// Returns the entry of a run, and adds it if there is none.
    pub(crate) fn enter(&self, id: RunId) -> Arc<LiveRun> {
        Arc::clone(
            &self
                .runs
                .entry(id)
                .or_insert_with(|| Arc::new(LiveRun::new())),
        )
    }

    /// Adds a run that has no entry yet.
    pub(crate) fn enter_new(&self, id: RunId) -> Option<Arc<LiveRun>> {
        match self.runs.entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => Some(Arc::clone(&vacant.insert(Arc::new(LiveRun::new())))),
        }
    }

    pub(crate) fn get(&self, id: RunId) -> Option<Arc<LiveRun>> {
        self.runs.get(&id).map(|run| Arc::clone(&run))
    }

    /// Rights of the token of a run, unless only its row shows whether this process still owns it.
    pub(crate) fn grant(&self, id: RunId, now: Instant) -> Option<Arc<Grant>> {
        let live = self.get(id)?;
        let is_certain = !self.is_unlocked.load(Ordering::Acquire) || !live.may_move();
        live.grant(now).filter(|_| is_certain)
    }

    /// Notes that the session lock of this process is lost.
    pub(crate) fn unlock(&self) {
        self.is_unlocked.store(true, Ordering::Release);
    }

    /// Notes that the session lock is held, and that a renewal has marked the runs that others have taken.
    pub(crate) fn lock(&self) {
        self.is_unlocked.store(false, Ordering::Release);
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn contains(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// True when cancellation of the run was requested.
    pub(crate) fn is_cancel_requested(&self, grant: &Grant) -> bool {
        // A grant that was just read may have a request that this process has not received yet.
        let live = self.get(grant.run.id);
        live.is_some_and(|live| live.cancel_requested_at().is_some())
            || grant.run.cancel_requested_at.is_some()
    }

    /// Runs whose lease this process has taken.
    pub(crate) fn leased(&self) -> Vec<RunId> {
        let leased = |live: &LiveRun| live.held_until().is_some();
        self.runs
            .iter()
            .filter(|entry| leased(entry))
            .map(|entry| *entry.key())
            .collect()
    }

    /// Applies the renewal of these runs: extends held leases to `until`, passes cancel requests on, and marks runs as
    /// lost that another process has taken. Returns their number.
    pub(crate) fn renew(&self, ids: &[RunId], renewed: &Renewed, until: Instant) -> usize {
        let mut lost = 0;
        for id in ids {
            let Some(live) = self.get(*id) else {
                continue;
            };
            match renewed.held.get(id) {
                Some(cancel_requested_at) => {
                    live.hold_until(until);
                    if let Some(at) = cancel_requested_at {
                        live.request_cancel(*at);
                    }
                }
                // Their loss is counted already, or they are about to release the lease themselves.
                None if live.is_ending() || live.lost.is_cancelled() => {}
                // The row is locked by another transaction; the lease holds until its current end.
                None if renewed.busy.contains(id) => {}
                None => {
                    lost += 1;
                    live.lost.cancel();
                }
            }
        }
        lost
    }

    /// Marks runs as lost whose lease has ended by `now`.
    pub(crate) fn mark_lapsed(&self, now: Instant) {
        for entry in &self.runs {
            let has_lapsed = entry.held_until().is_some_and(|until| until <= now);
            if has_lapsed && !entry.lost.is_cancelled() && !entry.has_ended() {
                tracing::warn!(run.id = %entry.key(), "run {} stops on this replica: its lease expired", entry.key());
                metrics::lease_lost();
                entry.lost.cancel();
            }
        }
    }

    /// Publishes the committed end.
    pub(crate) fn settle(&self, id: RunId, run: &LiveRun, last: CommittedFrames) {
        // The token first: a client that has seen the end must not reach the host API with it.
        run.ended.store(true, Ordering::Release);
        run.log.publish(last);
        // The end has written the results of the calls that the relay has taken.
        run.inbox.note_judged(u64::MAX);
        run.inbox.close();
        self.remove(id, run);
        run.log.end(true);
    }

    /// Removes the run when the guard is dropped, also by a panic, so that no client waits for ever.
    pub(crate) fn guard(&self, id: RunId, run: &Arc<LiveRun>) -> LiveGuard<'_> {
        let run = Arc::clone(run);
        LiveGuard {
            live: self,
            id,
            run,
        }
    }

    /// Removes a run that this process drives no longer, whether it wrote the terminal or not.
    fn leave(&self, id: RunId, run: &LiveRun) {
        run.ended.store(true, Ordering::Release);
        run.inbox.close();
        self.remove(id, run);
        run.log.end(false);
    }

    fn remove(&self, id: RunId, run: &LiveRun) {
        self.runs.remove_if(&id, |_, live_entry| {
            // A resumed run may have a new entry under the same id.
            std::ptr::eq(Arc::as_ptr(live_entry), run)
        });
    }
}
