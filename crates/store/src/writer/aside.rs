//! Queue of items that wait for a lock of another session. They are retried periodically and do not block other
//! items.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::commits::{Commits, ENOUGH};
use super::job::Item;
use super::transaction::Applied;
use crate::error::StoreError;

/// Pause after a retry that hit a lock timeout.
const PAUSE: Duration = Duration::from_millis(500);
/// Lock timeout of each item after its batch hit a lock timeout.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// Lock timeout of the first retry: all other items wait meanwhile.
const GLANCE: Duration = Duration::from_millis(50);
/// Lock timeout of later retries: a contended lock may just pass from session to session.
const LONGEST_GLANCE: Duration = Duration::from_millis(200);
/// Maximum queued items, and their approximate bytes. Items beyond that fail at once.
const PLACES: usize = 1024;
const BYTES: usize = 16 * 1024 * 1024;
/// After a lock timeout fails an item, writes for the same key fail fast for this long.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Items of one run or conversation keep their order.
#[derive(Default)]
pub(super) struct Aside {
    waiting: VecDeque<Waiting>,
    /// Keys of failed items, with the expiry of each entry.
    given_up: VecDeque<(Needs, Instant)>,
    bytes: usize,
    again_at: Option<Instant>,
    /// Consecutive retries that hit a lock timeout.
    in_vain: u32,
}

/// A queued item.
pub(super) struct Waiting {
    pub(super) item: Box<dyn Item>,
    /// Deadline of the item.
    until: Instant,
    /// The error at the deadline.
    error: StoreError,
    needs: Needs,
}

/// The rows that an item locks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needs {
    /// Identity of a conversation, as in events.
    identity: Option<[String; 4]>,
    /// Key of a conversation.
    conversation: Option<String>,
    run: Option<Uuid>,
    /// True when a caller waits. Items without one lock no run; they only follow items of their kind.
    is_awaited: bool,
}

impl Needs {
    fn of(item: &dyn Item) -> Self {
        let takes_event = item.takes_event();
        let identity = || item.together()?.conversation();
        Self {
            identity: takes_event.then(identity).flatten(),
            conversation: item.conversation().map(str::to_owned),
            run: Some(item.order()).filter(|run| !takes_event && !run.is_nil()),
            is_awaited: item.is_awaited(),
        }
    }

    /// True when an item with these needs must follow one with `other`.
    fn is_behind(&self, other: &Self) -> bool {
        fn is_same<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.is_some() && one == other
        }
        let is_same_run = is_same(self.run.as_ref(), other.run.as_ref());
        is_same_run && (self.is_awaited || !other.is_awaited)
            || is_same(self.identity.as_ref(), other.identity.as_ref())
            || is_same(self.conversation.as_ref(), other.conversation.as_ref())
    }
}

impl Aside {
    /// Returns the item when the queue is full.
    fn put(&mut self, waiting: Waiting) -> Option<Waiting> {
        let bytes = self.bytes + waiting.item.weight();
        if self.waiting.len() >= PLACES || bytes > BYTES {
            return Some(waiting);
        }
        self.bytes = bytes;
        self.again_at.get_or_insert_with(|| Instant::now() + PAUSE);
        self.waiting.push_back(waiting);
        None
    }

    /// Re-queues an item after a lock timeout, with its dependents behind it and all other items before it.
    fn put_back(&mut self, tried: Waiting) {
        self.again_at = Some(Instant::now() + PAUSE);
        self.in_vain += 1;
        self.bytes += tried.item.weight();
        let mut behind = vec![tried];
        for waiting in std::mem::take(&mut self.waiting) {
            if behind.iter().any(|one| waiting.needs.is_behind(&one.needs)) {
                behind.push(waiting);
            } else {
                self.waiting.push_back(waiting);
            }
        }
        self.waiting.extend(behind);
    }

    /// Lock timeout of the next retry.
    fn glance(&self) -> Duration {
        LONGEST_GLANCE.min(GLANCE * 2_u32.pow(self.in_vain.min(8)))
    }

    /// True when the item must follow a queued or failed one.
    fn holds_back(&self, item: &dyn Item) -> bool {
        if self.waiting.is_empty() && self.given_up.is_empty() || item.is_urgent() {
            return false;
        }
        let needs = Needs::of(item);
        let waiting = self.waiting.iter().map(|waiting| &waiting.needs);
        let mut before = waiting.chain(self.given_up.iter().map(|(needs, _)| needs));
        before.any(|before| needs.is_behind(before))
    }

    fn note_given_up(&mut self, needs: Needs) {
        if self.given_up.len() < PLACES {
            let until = Instant::now() + REMEMBERED;
            self.given_up.push_back((needs, until));
        }
    }

    /// An item got its lock.
    fn note_done(&mut self, needs: &Needs) {
        self.in_vain = 0;
        self.given_up.retain(|(before, _)| !needs.is_behind(before));
    }

    fn forget(&mut self) {
        let now = Instant::now();
        while self
            .given_up
            .front()
            .is_some_and(|(_, until)| *until <= now)
        {
            self.given_up.pop_front();
        }
    }

    /// Time of the next retry. `None`: the queue is empty.
    fn due(&self) -> Option<Instant> {
        self.again_at.filter(|_| !self.waiting.is_empty())
    }

    /// The next item, when due.
    fn next(&mut self) -> Option<Waiting> {
        let is_due = self.due().is_some_and(|due| due <= Instant::now());
        let next = is_due.then(|| self.waiting.pop_front())??;
        self.took(std::slice::from_ref(&next));
        Some(next)
    }

    /// Takes the items past their deadline, or all.
    fn take_overdue(&mut self, now: Option<Instant>) -> Vec<Waiting> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (overdue, waiting): (Vec<_>, Vec<_>) =
            waiting.partition(|one| now.is_none_or(|now| one.until <= now));
        self.waiting = waiting.into();
        self.took(&overdue);
        overdue
    }

    fn took(&mut self, taken: &[Waiting]) {
        self.bytes -= taken.iter().map(|one| one.item.weight()).sum::<usize>();
        if self.waiting.is_empty() {
            self.again_at = None;
        }
    }
}

impl Commits {
    /// Queues an item that needs a locked row.
    pub(super) fn set_aside(&self, item: Box<dyn Item>, error: StoreError) {
        let waiting = Waiting {
            needs: Needs::of(&*item),
            item,
            until: Instant::now() + self.patience.silence,
            error,
        };
        let left = self.aside().put(waiting);
        if let Some(Waiting { item, error, .. }) = left {
            self.fail(item, error);
        }
    }

    /// Queues an item that must follow a queued one; returns any other.
    pub(super) fn hold_back(&self, item: Box<dyn Item>) -> Option<Box<dyn Item>> {
        if self.aside().holds_back(&*item) {
            self.set_aside(item, StoreError::Locked);
            return None;
        }
        Some(item)
    }

    /// Time of the next retry. `None`: the queue is empty.
    pub(super) fn aside_due(&self) -> Option<Instant> {
        self.aside().due()
    }

    /// Retries due items until one hits a lock timeout.
    pub(super) async fn try_aside(&self) {
        self.give_up_aside(Some(Instant::now()));
        let enough = Instant::now() + self.patience.silence / ENOUGH;
        while Instant::now() < enough
            && let Some(waiting) = self.next_aside()
        {
            let Waiting {
                item, until, needs, ..
            } = waiting;
            let glance = self.aside().glance();
            let mut alone = vec![item];
            let outcome = self.try_once(&mut alone, Some(glance)).await;
            let Some(item) = alone.pop() else { return };
            match outcome {
                Ok(mut applied) => {
                    self.aside().note_done(&needs);
                    item.settle(applied.pop().and_then(Applied::refusal));
                }
                // A broken connection may have committed: the next try checks.
                Err(error) if error.may_pass() => {
                    let error = if error.is_lock_wait() {
                        StoreError::Locked
                    } else {
                        error
                    };
                    return self.aside().put_back(Waiting {
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
    pub(super) fn give_up_aside(&self, now: Option<Instant>) {
        self.aside().forget();
        let overdue = self.aside().take_overdue(now);
        for waiting in overdue {
            let Waiting {
                item, error, needs, ..
            } = waiting;
            self.aside().note_given_up(needs);
            let told = &error as &dyn std::error::Error;
            tracing::warn!(error = told, "write abandoned, its lock was held too long");
            self.fail(item, error);
        }
    }

    fn next_aside(&self) -> Option<Waiting> {
        self.aside().next()
    }

    // Valid after a panic: each change is one step.
    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
