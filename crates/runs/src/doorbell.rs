//! Ringing other replicas, and being rung: latency alone hangs on it, never data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use protocol::id::RunId;
use store::StoreError;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::bus::{Heard, Ring};
use crate::{Inner, Runs};
use telemetry::metrics::{self, Ringing};

/// Rings that wait to be sent. Full: the ring is lost, and others look by themselves.
const QUEUE: usize = 4096;

/// The button outside, and the bells of those who wait here.
pub(crate) struct Doorbell {
    out: mpsc::Sender<Ring>,
    /// Lent to the task that sends.
    pending: Mutex<Option<mpsc::Receiver<Ring>>>,
    bells: DashMap<RunId, Arc<Waiting>>,
    /// Rings when somebody may have asked for the end of a run that lives here.
    pub(super) cancels: Notify,
}

impl Default for Doorbell {
    fn default() -> Self {
        let (out, pending) = mpsc::channel(QUEUE);
        Self {
            out,
            pending: Mutex::new(Some(pending)),
            bells: DashMap::new(),
            cancels: Notify::new(),
        }
    }
}

impl Doorbell {
    /// Tells other replicas. Never waits.
    pub(crate) fn ring(&self, ring: Ring) {
        // Lost when the queue is full: whoever waits also looks by itself.
        let sent = self.out.try_send(ring).is_ok();
        metrics::rang(if sent { Ringing::Sent } else { Ringing::Lost });
    }

    fn lend(&self) -> Option<Lent<'_>> {
        let rings = self.pending().take()?;
        Some(Lent {
            doorbell: self,
            rings: Some(rings),
        })
    }

    // Whole after any panic: it is there or not.
    fn pending(&self) -> MutexGuard<'_, Option<mpsc::Receiver<Ring>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait here for this run.
    pub(super) fn wake(&self, run: RunId) {
        if let Some(bell) = self.bells.get(&run) {
            bell.ring.notify_waiters();
        }
    }

    fn wake_all(&self) {
        for bell in &self.bells {
            bell.ring.notify_waiters();
        }
    }
}

/// What waits to be sent, given back on drop: whoever sends may panic, and the next goes on.
struct Lent<'a> {
    doorbell: &'a Doorbell,
    rings: Option<mpsc::Receiver<Ring>>,
}

impl Lent<'_> {
    fn rings(&mut self) -> &mut mpsc::Receiver<Ring> {
        self.rings.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.doorbell.pending() = self.rings.take();
    }
}

/// The bell of one run that lives elsewhere. Gone when the last who waits for it is.
pub(crate) struct Bell {
    inner: Arc<Inner>,
    run: RunId,
    waker: Option<Arc<Waiting>>,
}

/// The state that all local waiters of one run share.
#[derive(Default)]
struct Waiting {
    ring: Notify,
    look: LastLook,
}

impl Bell {
    /// From here on rings for this run are heard.
    pub(crate) fn of(inner: &Arc<Inner>, run: RunId) -> Self {
        let bell = Arc::clone(&inner.doorbell.bells.entry(run).or_default());
        Self {
            inner: Arc::clone(inner),
            run,
            waker: Some(bell),
        }
    }

    /// Rings of this run. Enable the wait before the look, and await it after: no ring is missed.
    pub(crate) fn ring(&self) -> Rings {
        Rings(self.waker.clone().unwrap_or_default())
    }

    /// The run's row as it is at `since` or later. All who wait here for the run share one query.
    pub(crate) async fn look(&self, since: Instant) -> Result<Look, StoreError> {
        let waiting = self.waker.clone().unwrap_or_default();
        let ask = async || {
            let run = self.inner.store.runs().find_run_anywhere(self.run).await?;
            let found = run.map(|run| (run.last_sequence, run.status.is_terminal()));
            // A run that is gone has ended.
            Ok(found.unwrap_or((0, true)))
        };
        waiting.look.since(since, ask).await
    }
}

/// Waits for rings of one run.
pub(crate) struct Rings(Arc<Waiting>);

impl Rings {
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.0.ring.notified()
    }
}

/// The state in a run's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// When it was asked for.
    pub(crate) at: Instant,
    pub(crate) last_sequence: u64,
    pub(crate) has_ended: bool,
}

/// The newest look at a run; `None` within: the database did not answer. Held while the database is asked.
#[derive(Default)]
struct LastLook(tokio::sync::Mutex<Option<(Instant, Option<Look>)>>);

impl LastLook {
    async fn since(
        &self,
        since: Instant,
        ask: impl AsyncFnOnce() -> Result<(u64, bool), StoreError>,
    ) -> Result<Look, StoreError> {
        let mut last = self.0.lock().await;
        if let Some((at, look)) = *last
            && at >= since
        {
            return look.ok_or(StoreError::Unreachable);
        }
        let at = Instant::now();
        let asked = ask().await.map(|(last_sequence, has_ended)| Look {
            at,
            last_sequence,
            has_ended,
        });
        *last = Some((at, asked.as_ref().ok().copied()));
        asked
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.waker = None;
        let unused = |_: &RunId, bell: &Arc<Waiting>| Arc::strong_count(bell) == 1;
        self.inner.doorbell.bells.remove_if(&self.run, unused);
    }
}

impl Runs {
    /// Sends rings and hears those of other replicas, until the process stops.
    pub async fn keep_ringing(&self) {
        let Some(mut pending) = self.0.doorbell.lend() else {
            return;
        };
        let hear = |heard| self.0.hear(heard);
        tokio::select! {
            () = self.0.closing.cancelled() => {}
            () = self.0.bus.attend(pending.rings(), &hear) => {}
        }
    }
}

impl Inner {
    fn hear(&self, heard: Heard) {
        metrics::rang(match heard {
            Heard::Ring(_) => Ringing::Heard,
            Heard::Missed => Ringing::Missed,
        });
        match heard {
            Heard::Ring(Ring::Advanced(run)) => self.doorbell.wake(run),
            Heard::Ring(Ring::Cancelled(run)) => {
                if self.live.contains(run) {
                    self.doorbell.cancels.notify_one();
                }
                self.doorbell.wake(run);
            }
            Heard::Missed => {
                self.doorbell.cancels.notify_one();
                self.doorbell.wake_all();
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
    async fn shares_one_look_among_all_watchers() {
        let (last, looks) = (LastLook::default(), AtomicU64::new(0));
        let look = |since| {
            last.since(since, async || {
                // The others come meanwhile.
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
        // After a ring, or a pause, all want a newer one.
        let later = Instant::now();
        join_all((0..1_500).map(|_| look(later))).await;
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn shares_a_failed_look_among_all_watchers() {
        let (last, looks) = (LastLook::default(), AtomicU64::new(0));
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
    fn who_sends_and_panics_leaves_the_rings_to_the_next() {
        let doorbell = Doorbell::default();
        doorbell.ring(Ring::Advanced(RunId(uuid::Uuid::nil())));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _pending = doorbell.lend().unwrap();
            assert!(doorbell.lend().is_none(), "one sends");
            panic!("as a bus may");
        }));
        assert!(panicked.is_err());
        let mut pending = doorbell.lend().unwrap();
        assert!(pending.rings().try_recv().is_ok());
    }
}
