//! What waits for a lock that somebody else keeps: out of everybody's way, and tried again now and then.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::commits::{Commits, ENOUGH};
use super::job::Item;
use super::transaction::Applied;
use crate::error::StoreError;

/// Between two tries that found a lock kept.
const PAUSE: Duration = Duration::from_millis(500);
/// How long an item waits for its lock that was in a batch of which one found a lock kept.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// How long the first try of what was set aside waits for its lock: all others wait with it.
const GLANCE: Duration = Duration::from_millis(50);
/// And how long a later one: a lock that many take in turn is kept by none of them.
const LONGEST_GLANCE: Duration = Duration::from_millis(200);
/// Items that wait at most, and their bytes, roughly. What finds no place is given up at once.
const PLACES: usize = 1024;
const BYTES: usize = 16 * 1024 * 1024;
/// How long it is remembered whose lock was kept until one who needed it was given up: nobody else finds that out anew.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Those of a run or conversation in the order in which they came.
#[derive(Default)]
pub(super) struct Aside {
    waiting: VecDeque<Waiting>,
    /// Given up, and when that is forgotten.
    given_up: VecDeque<(Needs, Instant)>,
    bytes: usize,
    again_at: Option<Instant>,
    /// Tries in a row that found a lock kept.
    in_vain: u32,
}

/// An item that waits.
pub(super) struct Waiting {
    pub(super) item: Box<dyn Item>,
    /// When it is given up.
    until: Instant,
    /// What it is told then.
    error: StoreError,
    needs: Needs,
}

/// Whose rows an item locks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needs {
    /// Of a conversation, by which an event finds it.
    identity: Option<[String; 4]>,
    /// The key of a conversation.
    conversation: Option<String>,
    run: Option<Uuid>,
    /// Somebody waits for it. What nobody waits for locks no run: it only comes behind its own kind.
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

    /// Whether what needs this comes behind what needs the other.
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
    /// Gives back what finds no place.
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

    /// It was tried in vain: what comes behind it stays so, and all else is before it.
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

    /// How long the next try waits for its lock.
    fn glance(&self) -> Duration {
        LONGEST_GLANCE.min(GLANCE * 2_u32.pow(self.in_vain.min(8)))
    }

    /// Whether something waits that this comes behind.
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

    /// One came to its lock.
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

    /// When the next one is to be tried. `None`: none waits.
    fn due(&self) -> Option<Instant> {
        self.again_at.filter(|_| !self.waiting.is_empty())
    }

    /// The next one, when it is due.
    fn next(&mut self) -> Option<Waiting> {
        let is_due = self.due().is_some_and(|due| due <= Instant::now());
        let next = is_due.then(|| self.waiting.pop_front())??;
        self.took(std::slice::from_ref(&next));
        Some(next)
    }

    /// Those whose time is over by then, or all.
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
    /// Sets aside what needs a lock that somebody keeps.
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

    /// Sets aside what comes behind something that waits; gives what does not.
    pub(super) fn hold_back(&self, item: Box<dyn Item>) -> Option<Box<dyn Item>> {
        if self.aside().holds_back(&*item) {
            self.set_aside(item, StoreError::Locked);
            return None;
        }
        Some(item)
    }

    /// When what was set aside is to be tried again. `None`: nothing was.
    pub(super) fn aside_due(&self) -> Option<Instant> {
        self.aside().due()
    }

    /// Tries what was set aside and is due, until one is tried in vain.
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
                // What a connection took with it may stand: the next try asks.
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

    /// Gives up what has had its time by then, or all.
    pub(super) fn give_up_aside(&self, now: Option<Instant>) {
        self.aside().forget();
        let overdue = self.aside().take_overdue(now);
        for waiting in overdue {
            let Waiting {
                item, error, needs, ..
            } = waiting;
            self.aside().note_given_up(needs);
            let told = &error as &dyn std::error::Error;
            tracing::warn!(error = told, "a write that waited for a lock is given up");
            self.fail(item, error);
        }
    }

    fn next_aside(&self) -> Option<Waiting> {
        self.aside().next()
    }

    // Whole after any panic: it changes by one step at a time.
    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
