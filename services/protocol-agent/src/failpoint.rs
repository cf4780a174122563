//! Failpoints: tests kill a run at these points. They compile to nothing outside tests.

/// Marks a failpoint. A test that has armed it stops the run here and drops it.
#[cfg(not(test))]
pub(crate) async fn reach(_point: &'static str) {}

#[cfg(test)]
pub(crate) use armed::{Kill, reach, with};

#[cfg(test)]
mod armed {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    /// Failpoint at which a run dies, and the number of passes before.
    #[derive(Clone, Debug)]
    pub(crate) struct Kill {
        point: &'static str,
        left: Arc<AtomicUsize>,
        dead: Arc<Notify>,
    }

    impl Kill {
        /// Kills the run at the first pass.
        pub(crate) fn at(point: &'static str) -> Self {
            Self::after(point, 0)
        }

        /// Kills the run after this number of passes.
        pub(crate) fn after(point: &'static str, passes: usize) -> Self {
            Self {
                point,
                left: Arc::new(AtomicUsize::new(passes)),
                dead: Arc::default(),
            }
        }

        /// Continues unless this is the armed point; then the run never resumes.
        pub(crate) async fn pass(&self, point: &'static str) {
            if self.point != point {
                return;
            }
            let passes = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                });
            if passes.is_err() {
                self.dead.notify_one();
                std::future::pending::<()>().await;
            }
        }
    }

    tokio::task_local! {
        static KILL: Option<Kill>;
    }

    /// Polls a run until it ends or dies. `None`: it died and was dropped.
    pub(crate) async fn with<T>(kill: Option<Kill>, run: impl Future<Output = T>) -> Option<T> {
        let dead = kill.as_ref().map(|kill| Arc::clone(&kill.dead));
        let died = async {
            match dead {
                Some(dead) => dead.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = died => None,
            done = KILL.scope(kill, run) => Some(done),
        }
    }

    /// Continues unless this point is armed.
    pub(crate) async fn reach(point: &'static str) {
        let kill = KILL.try_with(Clone::clone).ok().flatten();
        if let Some(kill) = kill {
            kill.pass(point).await;
        }
    }
}
