//! Queue of items that wait for a lock of another session. They are retried periodically and do not block other
//! items.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::commits::{Commits, SILENCE_DIVISOR};
use super::job::Item;
use super::transaction::Applied;
use crate::error::StoreError;

/// Pause after a retry that hit a lock timeout.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Lock timeout of each item after its batch hit a lock timeout.
pub(super) const BATCH_LOCK_TIMEOUT: Duration = Duration::from_millis(20);
/// Lock timeout of the first retry: all other items wait meanwhile.
const FIRST_LOCK_TIMEOUT: Duration = Duration::from_millis(50);
/// Lock timeout of later retries: a contended lock may just pass from session to session.
const MAX_LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum queued items, and their approximate bytes. Items beyond that fail at once.
const MAX_ITEMS: usize = 1024;
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// After a lock timeout fails an item, writes for the same key fail fast for this long.
const FAIL_FAST_FOR: Duration = Duration::from_secs(30);

/// Items of one run or conversation keep their order.
#[derive(Default)]
pub(super) struct LockWaitQueue {
    waiting: VecDeque<LockWait>,
    /// Keys of failed items, with the expiry of each entry.
    failed_keys: VecDeque<(RowKeys, Instant)>,
    bytes: usize,
    retry_at: Option<Instant>,
    /// Consecutive retries that hit a lock timeout.
    failed_tries: u32,
}

/// A queued item.
pub(super) struct LockWait {
    pub(super) item: Box<dyn Item>,
    /// Deadline of the item.
    until: Instant,
    /// The error at the deadline.
    error: StoreError,
    needs: RowKeys,
}

/// The rows that an item locks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RowKeys {
    /// Identity of a conversation, as in events.
    identity: Option<[String; 4]>,
    /// Key of a conversation.
    conversation: Option<String>,
    run: Option<Uuid>,
    /// True when a caller waits. Items without one lock no run; they only follow items of their kind.
    is_awaited: bool,
}

impl RowKeys {
    fn of(item: &dyn Item) -> Self {
        let takes_event = item.takes_event();
        let identity = || item.batched()?.conversation();
        Self {
            identity: takes_event.then(identity).flatten(),
            conversation: item.conversation().map(str::to_owned),
            run: Some(item.order()).filter(|run| !takes_event && !run.is_nil()),
            is_awaited: item.is_awaited(),
        }
    }

    /// True when an item with these needs must follow one with `other`.
    fn must_follow(&self, other: &Self) -> bool {
        fn is_same<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.is_some() && one == other
        }
        let is_same_run = is_same(self.run.as_ref(), other.run.as_ref());
        is_same_run && (self.is_awaited || !other.is_awaited)
            || is_same(self.identity.as_ref(), other.identity.as_ref())
            || is_same(self.conversation.as_ref(), other.conversation.as_ref())
    }
}

impl LockWaitQueue {
    /// Returns the item when the queue is full.
    fn put(&mut self, waiting: LockWait) -> Option<LockWait> {
        let bytes = self.bytes + waiting.item.weight();
        if self.waiting.len() >= MAX_ITEMS || bytes > MAX_BYTES {
            return Some(waiting);
        }
        self.bytes = bytes;
        self.retry_at
            .get_or_insert_with(|| Instant::now() + RETRY_PAUSE);
        self.waiting.push_back(waiting);
        None
    }

    /// Re-queues an item after a lock timeout, at the end with its dependents. All other items move before it.
    fn requeue(&mut self, tried: LockWait) {
        self.retry_at = Some(Instant::now() + RETRY_PAUSE);
        self.failed_tries += 1;
        self.bytes += tried.item.weight();
        let mut behind = vec![tried];
        // Dependents keep their order after it; the others need other locks and can succeed first.
        for waiting in std::mem::take(&mut self.waiting) {
            if behind
                .iter()
                .any(|one| waiting.needs.must_follow(&one.needs))
            {
                behind.push(waiting);
            } else {
                self.waiting.push_back(waiting);
            }
        }
        self.waiting.extend(behind);
    }

    /// Lock timeout of the next retry.
    fn lock_timeout(&self) -> Duration {
        MAX_LOCK_TIMEOUT.min(FIRST_LOCK_TIMEOUT * 2_u32.pow(self.failed_tries.min(8)))
    }

    /// True when the item must follow a queued or failed one.
    fn is_blocked(&self, item: &dyn Item) -> bool {
        // Urgent items are lease renewals, which never wait for other items.
        if self.waiting.is_empty() && self.failed_keys.is_empty() || item.is_urgent() {
            return false;
        }
        let needs = RowKeys::of(item);
        let waiting = self.waiting.iter().map(|waiting| &waiting.needs);
        let mut before = waiting.chain(self.failed_keys.iter().map(|(needs, _)| needs));
        before.any(|before| needs.must_follow(before))
    }

    fn note_failed(&mut self, needs: RowKeys) {
        // Bounded: without an entry a write for this key only waits again instead of failing fast.
        if self.failed_keys.len() < MAX_ITEMS {
            let until = Instant::now() + FAIL_FAST_FOR;
            self.failed_keys.push_back((needs, until));
        }
    }

    /// An item got its lock.
    fn note_done(&mut self, needs: &RowKeys) {
        self.failed_tries = 0;
        self.failed_keys
            .retain(|(before, _)| !needs.must_follow(before));
    }

    fn drop_expired_failures(&mut self) {
        let now = Instant::now();
        while self
            .failed_keys
            .front()
            .is_some_and(|(_, until)| *until <= now)
        {
            self.failed_keys.pop_front();
        }
    }

    /// Time of the next retry. `None`: the queue is empty.
    fn due(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.waiting.is_empty())
    }

    /// The next item, when due.
    fn next(&mut self) -> Option<LockWait> {
        let is_due = self.due().is_some_and(|due| due <= Instant::now());
        let next = is_due.then(|| self.waiting.pop_front())??;
        self.took(std::slice::from_ref(&next));
        Some(next)
    }

    /// Takes the items past their deadline, or all.
    fn take_expired(&mut self, now: Option<Instant>) -> Vec<LockWait> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (overdue, waiting): (Vec<_>, Vec<_>) =
            waiting.partition(|one| now.is_none_or(|now| one.until <= now));
        self.waiting = waiting.into();
        self.took(&overdue);
        overdue
    }

    fn took(&mut self, taken: &[LockWait]) {
        self.bytes -= taken.iter().map(|one| one.item.weight()).sum::<usize>();
        // The next queued item starts a new pause.
        if self.waiting.is_empty() {
            self.retry_at = None;
        }
    }
}

impl Commits {
    /// Queues an item that needs a locked row.
    pub(super) fn queue_for_lock(&self, item: Box<dyn Item>, error: StoreError) {
        let waiting = LockWait {
            needs: RowKeys::of(&*item),
            item,
            until: Instant::now() + self.tx_timeout.silence,
            error,
        };
        let left = self.lock_wait_queue().put(waiting);
        if let Some(LockWait { item, error, .. }) = left {
            self.fail(item, error);
        }
    }

    /// Queues an item that must follow a queued one; returns any other.
    pub(super) fn queue_if_blocked(&self, item: Box<dyn Item>) -> Option<Box<dyn Item>> {
        if self.lock_wait_queue().is_blocked(&*item) {
            self.queue_for_lock(item, StoreError::Locked);
            return None;
        }
        Some(item)
    }

    /// Time of the next retry. `None`: the queue is empty.
    pub(super) fn next_lock_retry(&self) -> Option<Instant> {
        self.lock_wait_queue().due()
    }

    /// Retries due items until one hits a lock timeout.
    // Before the retries: an item past its deadline must not cost another lock timeout.
    pub(super) async fn retry_lock_waits(&self) {
        self.fail_expired_lock_waits(Some(Instant::now()));
        let enough = Instant::now() + self.tx_timeout.silence / SILENCE_DIVISOR;
        while Instant::now() < enough
            && let Some(waiting) = self.next_lock_wait()
        {
            let LockWait {
                item, until, needs, ..
            } = waiting;
            let lock_timeout = self.lock_wait_queue().lock_timeout();
            let mut alone = vec![item];
            let outcome = self.try_once(&mut alone, Some(lock_timeout)).await;
            let Some(item) = alone.pop() else { return };
            match outcome {
                Ok(mut applied) => {
                    self.lock_wait_queue().note_done(&needs);
                    item.finish(applied.pop().and_then(Applied::refusal));
                }
                // A broken connection may have committed: the next try checks.
                Err(error) if error.is_transient() => {
                    let error = if error.is_lock_wait() {
                        StoreError::Locked
                    } else {
                        error
                    };
                    // The lock is still held, so the other items of the queue would probably wait, too: pause.
                    return self.lock_wait_queue().requeue(LockWait {
                        item,
                        until,
                        error,
                        needs,
                    });
                }
                Err(error) => self.fail(item, error),
            }
        }
    }

    /// Fails the items past their deadline, or all.
    pub(super) fn fail_expired_lock_waits(&self, now: Option<Instant>) {
        self.lock_wait_queue().drop_expired_failures();
        let overdue = self.lock_wait_queue().take_expired(now);
        for waiting in overdue {
            let LockWait {
                item, error, needs, ..
            } = waiting;
            self.lock_wait_queue().note_failed(needs);
            let cause = &error as &dyn std::error::Error;
            tracing::warn!(error = cause, "write abandoned, its lock was held too long");
            self.fail(item, error);
        }
    }

    fn next_lock_wait(&self) -> Option<LockWait> {
        self.lock_wait_queue().next()
    }

    // Valid after a panic: each change is one step.
    fn lock_wait_queue(&self) -> MutexGuard<'_, LockWaitQueue> {
        self.lock_wait_queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
