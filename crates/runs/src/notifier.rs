//! Notifications between replicas, and their local waiters. A lost notification delays a run and loses no data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use protocol::id::RunId;
use store::{Store, StoreError};
use tokio::sync::futures::{Notified, OwnedNotified};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::bus::{Inbound, Notification};
use crate::deps::RunDeps;
use crate::feed::{Change, FeedHub};
use telemetry::metrics::{self, NotificationOutcome};

/// Maximum number of unsent notifications. Beyond it they are dropped, and other replicas find the changes by
/// polling.
const QUEUE: usize = 4096;

/// Queue of notifications to other replicas, and the local waiters.
pub(crate) struct Notifier {
    out: mpsc::Sender<Notification>,
    /// Borrowed by the sending task.
    pending: Mutex<Option<mpsc::Receiver<Notification>>>,
    waiters: DashMap<RunId, Arc<WaiterState>>,
    /// Notified when a live run may have a new cancel request.
    pub(super) cancels: Notify,
    /// Viewers of the workspace feeds.
    pub(super) feed: FeedHub,
    /// Notified when a message to webhooks may be committed.
    pub(super) webhooks: Notify,
}

impl Default for Notifier {
    fn default() -> Self {
        let (out, pending) = mpsc::channel(QUEUE);
        Self {
            out,
            pending: Mutex::new(Some(pending)),
            waiters: DashMap::new(),
            cancels: Notify::new(),
            feed: FeedHub::default(),
            webhooks: Notify::new(),
        }
    }
}

impl Notifier {
    /// Notifies other replicas. Never waits.
    pub(crate) fn notify(&self, notification: Notification) {
        // Dropped if the queue is full: waiters also poll.
        let sent = self.out.try_send(notification).is_ok();
        metrics::notified(if sent {
            NotificationOutcome::Sent
        } else {
            NotificationOutcome::Lost
        });
    }

    /// Notifies viewers and other replicas of a created run or of another status.
    pub(crate) fn notify_changed(&self, run: RunId) {
        self.feed.note(Change::Run(run));
        self.webhooks.notify_one();
        self.notify(Notification::Changed(run));
    }

    /// Notifies viewers and other replicas of an opened or answered question.
    pub(crate) fn notify_question(&self, run: RunId) {
        self.feed.note(Change::Interaction(run));
        self.webhooks.notify_one();
        self.notify(Notification::QuestionChanged(run));
    }

    /// Notifies viewers and other replicas of a platform action that was opened or changed.
    pub(crate) fn notify_action(&self, run: RunId) {
        self.feed.note(Change::Action(run));
        self.notify(Notification::ActionChanged(run));
    }

    fn borrow_queue(&self) -> Option<BorrowedQueue<'_>> {
        let queue = self.pending().take()?;
        Some(BorrowedQueue {
            notifier: self,
            queue: Some(queue),
        })
    }

    // Consistent after a panic: the receiver is there or not.
    fn pending(&self) -> MutexGuard<'_, Option<mpsc::Receiver<Notification>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the local waiters of this run.
    pub(super) fn wake(&self, run: RunId) {
        if let Some(waiting) = self.waiters.get(&run) {
            waiting.notify.notify_waiters();
        }
    }

    fn wake_all(&self) {
        for waiting in &self.waiters {
            waiting.notify.notify_waiters();
        }
    }
}

/// The queue of unsent notifications, returned on drop. After a panic of the sender, the next one continues.
struct BorrowedQueue<'a> {
    notifier: &'a Notifier,
    queue: Option<mpsc::Receiver<Notification>>,
}

impl BorrowedQueue<'_> {
    fn queue(&mut self) -> &mut mpsc::Receiver<Notification> {
        self.queue.as_mut().expect("it is there until the drop")
    }
}

impl Drop for BorrowedQueue<'_> {
    fn drop(&mut self) {
        *self.notifier.pending() = self.queue.take();
    }
}

/// Waits for notifications about one run. Its entry is removed with the last waiter of the run.
pub(crate) struct RunWaiter {
    notifier: Arc<Notifier>,
    run: RunId,
    waiting: Option<Arc<WaiterState>>,
}

/// State that all local waiters of one run share.
#[derive(Default)]
struct WaiterState {
    notify: Arc<Notify>,
    look: SharedRead,
}

impl RunWaiter {
    /// From here on, notifications about this run are received.
    pub(crate) fn of(notifier: &Arc<Notifier>, run: RunId) -> Self {
        let waiting = Arc::clone(&notifier.waiters.entry(run).or_default());
        Self {
            notifier: Arc::clone(notifier),
            run,
            waiting: Some(waiting),
        }
    }

    /// Notifications about this run. Enable the wait before the look and await it afterwards, so that none is missed.
    pub(crate) fn notifications(&self) -> RunNotifications {
        RunNotifications(self.waiting.clone().unwrap_or_default())
    }

    /// The next notification from now on, polled or not.
    pub(crate) fn next_notification(&self) -> OwnedNotified {
        let waiting = self.waiting.clone().unwrap_or_default();
        Arc::clone(&waiting.notify).notified_owned()
    }

    /// The run's row as it is at `since` or later. All local waiters of the run share one query.
    pub(crate) async fn look(
        &self,
        store: &Store,
        since: Instant,
    ) -> Result<RunRowState, StoreError> {
        let waiting = self.waiting.clone().unwrap_or_default();
        let ask = async || {
            let run = store.runs().find_run_anywhere(self.run).await?;
            let found = run.map(|run| (run.last_sequence, run.status.is_terminal()));
            // A run that was deleted has ended.
            Ok(found.unwrap_or((0, true)))
        };
        waiting.look.since(since, ask).await
    }
}

/// Waits for notifications about one run.
pub(crate) struct RunNotifications(Arc<WaiterState>);

impl RunNotifications {
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.0.notify.notified()
    }
}

/// State of a run's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunRowState {
    /// Time of the query.
    pub(crate) at: Instant,
    pub(crate) last_sequence: u64,
    pub(crate) has_ended: bool,
}

/// The newest result of the shared query; `None` within: the database did not answer. Locked during the query.
#[derive(Default)]
struct SharedRead(tokio::sync::Mutex<Option<(Instant, Option<RunRowState>)>>);

impl SharedRead {
    async fn since(
        &self,
        since: Instant,
        ask: impl AsyncFnOnce() -> Result<(u64, bool), StoreError>,
    ) -> Result<RunRowState, StoreError> {
        let mut last = self.0.lock().await;
        if let Some((at, look)) = *last
            // Waiters that were queued on the lock share the result of the first.
            && at >= since
        {
            return look.ok_or(StoreError::Unreachable);
        }
        // Before the query: its result must not count for a later change.
        let at = Instant::now();
        let row_state = ask().await.map(|(last_sequence, has_ended)| RunRowState {
            at,
            last_sequence,
            has_ended,
        });
        *last = Some((at, row_state.as_ref().ok().copied()));
        row_state
    }
}

impl Drop for RunWaiter {
    fn drop(&mut self) {
        // Dropped first, so that the count below is that of the other waiters.
        self.waiting = None;
        let unused = |_: &RunId, waiting: &Arc<WaiterState>| Arc::strong_count(waiting) == 1;
        self.notifier.waiters.remove_if(&self.run, unused);
    }
}

/// Exchanges notifications with other replicas.
pub struct PeerNotifications {
    pub(super) deps: Arc<RunDeps>,
}

impl PeerNotifications {
    /// Sends and receives notifications until the process stops.
    pub async fn keep_notifying(&self) {
        let Some(mut pending) = self.deps.notifier.borrow_queue() else {
            return;
        };
        let receive = |inbound| self.receive(inbound);
        let running = self.deps.bus.run(pending.queue(), &receive);
        self.deps.until_closing(running).await;
    }

    fn receive(&self, inbound: Inbound) {
        metrics::notified(match inbound {
            Inbound::Notification(_) => NotificationOutcome::Inbound,
            Inbound::Missed => NotificationOutcome::Missed,
        });
        match inbound {
            Inbound::Notification(Notification::Advanced(run)) => self.deps.notifier.wake(run),
            Inbound::Notification(Notification::Changed(run)) => {
                self.deps.notifier.feed.note(Change::Run(run));
                self.deps.notifier.wake(run);
            }
            Inbound::Notification(Notification::QuestionChanged(run)) => {
                self.deps.notifier.feed.note(Change::Interaction(run));
                self.deps.notifier.wake(run);
            }
            Inbound::Notification(Notification::ActionChanged(run)) => {
                self.deps.notifier.feed.note(Change::Action(run));
                self.deps.notifier.wake(run);
            }
            Inbound::Notification(Notification::Cancelled(run)) => {
                // Notifications may be forged: only a run of this process causes a query.
                if self.deps.live.contains(run) {
                    self.deps.notifier.cancels.notify_one();
                }
                self.deps.notifier.feed.note(Change::Run(run));
                self.deps.notifier.wake(run);
            }
            Inbound::Missed => {
                self.deps.notifier.feed.note_loss();
                self.deps.notifier.cancels.notify_one();
                self.deps.notifier.wake_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn shares_one_query_among_all_waiters() {
        let (last, looks) = (SharedRead::default(), AtomicU64::new(0));
        let look = |since| {
            last.since(since, async || {
                // The others arrive during the query.
                tokio::task::yield_now().await;
                Ok((looks.fetch_add(1, Ordering::Relaxed), false))
            })
        };
        let first = Instant::now();
        let seen = join_all((0..1_500).map(|_| look(first))).await;
        assert!(
            seen.iter()
                .all(|one| one.as_ref().unwrap().last_sequence == 0)
        );
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        // After a notification or a pause, all want a newer row.
        let later = Instant::now();
        join_all((0..1_500).map(|_| look(later))).await;
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn shares_a_failed_query_among_all_waiters() {
        let (last, looks) = (SharedRead::default(), AtomicU64::new(0));
        let since = Instant::now();
        let look = || {
            last.since(since, async || {
                looks.fetch_add(1, Ordering::Relaxed);
                Err(StoreError::Unreachable)
            })
        };
        let seen = join_all((0..3).map(|_| look())).await;
        assert!(seen.iter().all(Result::is_err));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn returns_queue_after_panic_of_sender() {
        let notifier = Notifier::default();
        notifier.notify(Notification::Advanced(RunId(uuid::Uuid::nil())));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _pending = notifier.borrow_queue().unwrap();
            assert!(notifier.borrow_queue().is_none(), "one sends");
            panic!("as a bus may");
        }));
        assert!(panicked.is_err());
        let mut pending = notifier.borrow_queue().unwrap();
        assert!(pending.queue().try_recv().is_ok());
    }
}
