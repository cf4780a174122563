//! Memory of request bodies whose signature is not verified yet, bounded for the process.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Four of the largest bodies that a gateway sends.
const PROCESS_BYTES: usize = 32 * 1024 * 1024;

/// Bytes of all bodies that are being read. Full: the oldest unfinished body is dropped, so that stalled senders
/// do not lock out the gateway, whose bodies arrive at once.
pub(super) struct UnverifiedBytes {
    limit: usize,
    bodies: Mutex<UnfinishedBodies>,
}

#[derive(Default)]
struct UnfinishedBodies {
    total: usize,
    next: u64,
    /// Oldest first.
    by_age: BTreeMap<u64, (usize, CancellationToken)>,
}

impl UnverifiedBytes {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let bodies = Mutex::default();
        Arc::new(Self { limit, bodies })
    }

    /// The bound shared by all routers of this process.
    pub(super) fn of_process() -> Arc<Self> {
        static PROCESS: LazyLock<Arc<UnverifiedBytes>> =
            LazyLock::new(|| UnverifiedBytes::new(PROCESS_BYTES));
        Arc::clone(&PROCESS)
    }

    pub(super) fn begin(self: &Arc<Self>) -> UnverifiedBody {
        let dropped = CancellationToken::new();
        let mut bodies = self.bodies();
        let age = bodies.next;
        bodies.next += 1;
        bodies.by_age.insert(age, (0, dropped.clone()));
        // The handle's `drop` takes the same lock.
        drop(bodies);
        UnverifiedBody {
            all: Arc::clone(self),
            age,
            dropped,
        }
    }

    fn bodies(&self) -> MutexGuard<'_, UnfinishedBodies> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of one body. Freed on drop.
pub(super) struct UnverifiedBody {
    all: Arc<UnverifiedBytes>,
    age: u64,
    dropped: CancellationToken,
}

impl UnverifiedBody {
    /// Counts the memory of this body, and drops the oldest others above the limit.
    pub(super) fn grow_to(&self, bytes: usize) {
        let mut bodies = self.all.bodies();
        // Absent: this body was evicted, and its task is about to stop.
        let Some((counted, _)) = bodies.by_age.get_mut(&self.age) else {
            return;
        };
        let before = std::mem::replace(counted, bytes);
        bodies.total = bodies.total - before + bytes;
        while bodies.total > self.all.limit {
            // Bodies without bytes free nothing.
            let ages = bodies.by_age.iter().filter(|(_, (bytes, _))| *bytes > 0);
            let Some(oldest) = ages.map(|(age, _)| *age).find(|age| *age != self.age) else {
                return;
            };
            bodies.remove(oldest);
        }
    }

    /// Completes when the body is dropped in favour of newer ones.
    pub(super) async fn dropped(&self) {
        self.dropped.cancelled().await;
    }
}

impl Drop for UnverifiedBody {
    fn drop(&mut self) {
        self.all.bodies().remove(self.age);
    }
}

impl UnfinishedBodies {
    fn remove(&mut self, age: u64) {
        if let Some((bytes, dropped)) = self.by_age.remove(&age) {
            self.total -= bytes;
            dropped.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_oldest_bodies_above_limit() {
        let all = UnverifiedBytes::new(10);
        let (first, second, third) = (all.begin(), all.begin(), all.begin());
        let dropped = || [&first, &second, &third].map(|body| body.dropped.is_cancelled());
        second.grow_to(4);
        first.grow_to(6);
        assert_eq!(dropped(), [false; 3]);
        third.grow_to(1);
        assert_eq!(dropped(), [true, false, false]);
        first.grow_to(9);
        assert_eq!(all.bodies().total, 5, "a dropped body counts no more");
        third.grow_to(11);
        assert_eq!(dropped(), [true, true, false], "a body drops others only");
        drop(third);
        assert_eq!(all.bodies().total, 0);
    }
}
