//! Renewal of leases, on a thread of its own, so that busy workers do not delay it.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use store::{LeaseKeeper, StoreError, failpoint};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::ticks::ticks_every;
use telemetry::metrics;

/// Renews the leases of the runs that live here.
#[derive(Clone)]
pub struct LeaseRenewal {
    pub(super) deps: Arc<RunDeps>,
}

impl LeaseRenewal {
    /// Renews leases until the process stops. A panic of the thread is resumed in the caller.
    pub async fn keep_leases(&self) {
        let (done, ended) = oneshot::channel();
        let renewal = self.clone();
        let renewing = thread::Builder::new().name("leases".to_owned()).spawn(move || {
            // A runtime of its own, because long computations on the shared workers would delay the timer.
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(renewal.renew_until_stopped()),
                Err(error) => tracing::error!(%error, "the lease thread has no runtime; leases are not renewed"),
            }
            let _ = done.send(());
        });
        match renewing {
            Ok(_) => {
                if ended.await.is_err() {
                    resume_unwind(Box::new("the lease thread panicked"));
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot start the lease thread; busy workers may delay lease renewal");
                self.renew_until_stopped().await;
            }
        }
    }

    async fn renew_until_stopped(&self) {
        self.deps.until_closing(self.keep_renewing()).await;
    }

    /// Renews five times within a lease, so that a database outage of two thirds of a lease costs no run.
    async fn keep_renewing(&self) {
        let mut tick = ticks_every(self.deps.limits.lease / 5);
        let mut keeper = None;
        loop {
            tick.tick().await;
            if let Err(error) = self.renew_leases(&mut keeper).await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot renew leases"
                );
            }
        }
    }

    /// Renews the leases of all live runs, applies cancel requests from their rows, and marks runs as lost whose
    /// lease another process has taken.
    async fn renew_leases(&self, keeper: &mut Option<LeaseKeeper>) -> Result<(), StoreError> {
        let ids = self.deps.live.leased();
        if ids.is_empty() {
            return Ok(());
        }
        let keeper = match keeper {
            Some(keeper) => keeper,
            // Kept over the rounds: a renewal must not wait for a connection of the pool.
            None => keeper.insert(self.deps.store.leases().lease_keeper().await?),
        };
        // Taken before the database reads its clock, so that the lease ends here first.
        let until = Instant::now() + self.deps.limits.lease;
        failpoint::pass("lease.before_renew").await?;
        let renewed = keeper.renew(&self.deps.owner, ids.clone(), self.deps.limits.lease);
        let renewed = renewed.await?;
        for _ in 0..self.deps.live.renew(&ids, &renewed, until) {
            metrics::lease_lost();
        }
        Ok(())
    }
}
