//! The renewal of leases, on a thread of its own: busy workers do not delay it, so they orphan no run.

use std::panic::resume_unwind;
use std::thread;

use store::{LeaseKeeper, StoreError, failpoint};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::tick_of;
use crate::Runs;
use telemetry::metrics;

impl Runs {
    /// Renews leases until the process stops. A panic of the thread is one of the caller.
    pub async fn keep_leases(&self) {
        let (done, ended) = oneshot::channel();
        let runs = self.clone();
        let renewing = thread::Builder::new().name("leases".to_owned()).spawn(move || {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(runs.renew_until_stopped()),
                Err(error) => tracing::error!(%error, "the lease thread has no runtime: leases are not renewed"),
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
                tracing::error!(%error, "no thread for leases: busy workers may delay their renewal");
                self.renew_until_stopped().await;
            }
        }
    }

    async fn renew_until_stopped(&self) {
        let renewing = self.keep_renewing();
        self.0.closing.run_until_cancelled(renewing).await;
    }

    /// Five times within a lease: an outage of the database of two thirds of it costs no run.
    async fn keep_renewing(&self) {
        let mut tick = tick_of(self.0.limits.lease / 5);
        let mut keeper = None;
        loop {
            tick.tick().await;
            if let Err(error) = self.renew_leases(&mut keeper).await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "leases could not be renewed"
                );
            }
        }
    }

    /// Renews the leases of all runs that live here, takes up cancels that came by another way, and lets go of runs whose
    /// lease another process has taken.
    async fn renew_leases(&self, keeper: &mut Option<LeaseKeeper>) -> Result<(), StoreError> {
        let ids = self.0.live.leased();
        if ids.is_empty() {
            return Ok(());
        }
        let keeper = match keeper {
            Some(keeper) => keeper,
            None => keeper.insert(self.0.store.leases().lease_keeper().await?),
        };
        // Before the database's clock is asked: ours ends first.
        let until = Instant::now() + self.0.limits.lease;
        failpoint::pass("lease.before_renew").await?;
        let renewed = keeper.renew(&self.0.owner, ids.clone(), self.0.limits.lease);
        let renewed = renewed.await?;
        for id in ids {
            let Some(live) = self.0.live.get(id) else {
                continue;
            };
            match renewed.held.get(&id) {
                Some(cancel_requested_at) => {
                    live.hold_until(until);
                    if let Some(at) = cancel_requested_at {
                        live.request_cancel(*at);
                    }
                }
                // Released runs are counted.
                None if live.is_ending() || live.lost.is_cancelled() => {}
                // Its lease goes on to its end.
                None if renewed.busy.contains(&id) => {}
                None => {
                    metrics::lease_lost();
                    live.lost.cancel();
                }
            }
        }
        Ok(())
    }
}
