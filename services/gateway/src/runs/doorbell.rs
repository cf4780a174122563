//! Ringing other replicas, and being rung: latency alone hangs on it, never data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use protocol::id::RunId;
use tokio::sync::{Notify, mpsc};

use crate::bus::{Heard, Ring};
use crate::runs::{Inner, Runs};
use crate::telemetry::metrics::{self, Ringing};

/// Rings that wait to be sent. Full: the ring is lost, and others look by themselves.
const QUEUE: usize = 4096;

/// The button outside, and the bells of those who wait here.
pub(crate) struct Doorbell {
    out: mpsc::Sender<Ring>,
    /// Lent to the task that sends.
    pending: Mutex<Option<mpsc::Receiver<Ring>>>,
    bells: DashMap<RunId, Arc<Notify>>,
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
            bell.notify_waiters();
        }
    }

    fn wake_all(&self) {
        for bell in &self.bells {
            bell.notify_waiters();
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
    waker: Option<Arc<Notify>>,
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

    /// The next ring. Make it before you look, wait for it after: nothing falls between.
    pub(crate) fn next(&self) -> Arc<Notify> {
        self.waker.clone().unwrap_or_default()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.waker = None;
        let unused = |_: &RunId, bell: &Arc<Notify>| Arc::strong_count(bell) == 1;
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
    use super::*;

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
