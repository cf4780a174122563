//! One run, from its dispatch to its terminal.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::normalize::{Said, Tally};
use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use serde_json::value::RawValue;
use store::{LeaseFilter, ResumePoint, StoreError, failpoint};
use tokio::time::Instant;

use crate::Inner;
use crate::book::Book;
use crate::dispatch::{Outcome, dispatch};
use crate::grant::Grant;
use crate::live::LiveRun;
use crate::prepare::{Fresh, PrepareError, Prepared, prepare, prepare_again};
use crate::relay::{Origin, Relayed, Stopped, relay};
use crate::settle::{Ending, internal, settle, settle_orphan};

/// Drives a created run to its end. What cannot be ended here, the sweep ends.
pub(super) async fn drive(
    inner: &Arc<Inner>,
    live: &LiveRun,
    (id, workspace): (RunId, &WorkspaceId),
    fresh: Option<Box<Fresh>>,
) {
    if let Err(error) = failpoint::pass("dispatch.before_run").await {
        return unwritable(id, &error);
    }
    // Each step in a box of its own: a run that waits for its runner holds nothing of the steps before.
    let (run, mut prepared) = match Box::pin(prepare(inner, workspace, id, fresh)).await {
        Ok(Some(ready)) => ready,
        Ok(None) => return,
        // Another replica may have prepared it, and drives it.
        Err(PrepareError::Store(error)) => {
            return give_up(inner, (id, workspace), LeaseFilter::None, &error).await;
        }
        Err(PrepareError::Never(failure)) => {
            tracing::warn!(run.id = %id, "run {id} cannot be dispatched: {}", failure.message);
            // Another replica may have prepared it, and drives it.
            let settled = settle_orphan(inner, id, workspace, LeaseFilter::None, failure);
            return Box::pin(settled).await;
        }
    };
    live.name_agent(&prepared.agent_name);
    tracing::info!(
        run.id = %id, runner.id = %run.runner_id, agent.name = prepared.agent_name,
        "run {id} starts"
    );
    let (grant, started) = match Box::pin(dispatch(inner, live, run, &prepared)).await {
        Ok(Outcome::Started(grant, started)) => (grant, started),
        Ok(Outcome::Failed(run, failure)) => {
            let ending = Ending::Gateway {
                failure,
                said: Said::default(),
            };
            let book = Book::new(&run);
            let settled = settle(inner, live, &run, book, Tally::default(), ending);
            // What this does not end, the sweep does.
            return drop(Box::pin(settled).await);
        }
        Ok(Outcome::Lost) => {
            tracing::warn!(run.id = %id, "run {id} is driven by somebody else");
            return;
        }
        Err(error) => return give_up(inner, (id, workspace), LeaseFilter::Own, &error).await,
    };
    if let Err(error) = failpoint::pass("run.task").await {
        return unwritable(id, &error);
    }
    prepared.context = RawValue::NULL.to_owned().into();
    let origin = Origin::Answer(started);
    see_through(inner, live, &prepared, &grant.run, origin).await;
}

/// Relays the results of a run that its runner has taken, and settles it.
async fn see_through(
    inner: &Arc<Inner>,
    live: &LiveRun,
    prepared: &Prepared,
    run: &Run,
    origin: Origin,
) {
    let id = run.id;
    match Box::pin(relay(inner, live, prepared, run, origin)).await {
        Ok(Relayed {
            book,
            tally,
            ending,
        }) => {
            let settled = Box::pin(settle(inner, live, run, book, tally, ending)).await;
            if let Err(error) = settled {
                give_up(inner, (id, &run.workspace), LeaseFilter::Own, &error).await;
            }
        }
        Err(Stopped::Lost) => {
            tracing::warn!(run.id = %id, "run {id} was taken over, its stream is closed");
        }
        Err(Stopped::HandedOn) => release(inner, run).await,
        Err(Stopped::Unwritable(error)) => {
            give_up(inner, (id, &run.workspace), LeaseFilter::Own, &error).await;
        }
    }
}

/// A run that was taken over, and may be gone on with.
pub(super) struct TakenOver {
    pub(super) run: Run,
    pub(super) left_off: ResumePoint,
    /// Before the database's clock was asked for its lease.
    pub(super) held_until: Instant,
}

/// Goes on with a run whose runner appends its results, behind what its last owner has judged.
pub(super) async fn resume(inner: &Arc<Inner>, live: &LiveRun, taken: TakenOver) {
    let TakenOver {
        run,
        left_off,
        held_until,
    } = taken;
    let (id, workspace) = (run.id, run.workspace.clone());
    live.appends.store(true, Ordering::Release);
    live.hold_until(held_until);
    live.log.begin_behind(run.last_sequence);
    let (run, prepared) = match Box::pin(prepare_again(inner, run)).await {
        Ok(ready) => ready,
        Err(PrepareError::Never(failure)) => {
            tracing::error!(run.id = %id, "run {id} cannot be gone on with: {}", failure.message);
            let settled = settle_orphan(inner, id, &workspace, LeaseFilter::Own, failure);
            return Box::pin(settled).await;
        }
        Err(PrepareError::Store(error)) => {
            return give_up(inner, (id, &workspace), LeaseFilter::Own, &error).await;
        }
    };
    live.name_agent(&prepared.agent_name);
    tracing::info!(
        run.id = %id, runner.id = %run.runner_id, agent.name = prepared.agent_name,
        "run {id} goes on here"
    );
    let grant = Arc::new(Grant {
        attempt: run.attempt,
        snapshot: Arc::clone(&prepared.snapshot),
        run,
    });
    live.set_grant(Arc::clone(&grant));
    if let Some(at) = grant.run.cancel_requested_at {
        live.request_cancel(at);
    }
    let origin = Origin::ResumePoint(left_off);
    see_through(inner, live, &prepared, &grant.run, origin).await;
}

/// While it waits for its runner, nobody needs to wait for it here: another replica, or the next start, goes on.
async fn release(inner: &Inner, run: &Run) {
    let id = run.id;
    match inner.store.leases().release(id, run.lease_epoch).await {
        Ok(()) => tracing::info!(run.id = %id, "run {id} is handed on"),
        Err(error) => tracing::warn!(
            run.id = %id, error = &error as &dyn std::error::Error,
            "run {id} could not be handed on: it is taken over when its lease has ended"
        ),
    }
}

/// Stops driving a run. What would go wrong again and again is not left to whoever has the run next.
async fn give_up(
    inner: &Arc<Inner>,
    (id, workspace): (RunId, &WorkspaceId),
    leases: LeaseFilter,
    error: &StoreError,
) {
    unwritable(id, error);
    if !error.is_transient() {
        let settled = settle_orphan(inner, id, workspace, leases, internal());
        Box::pin(settled).await;
    }
}

fn unwritable(id: RunId, error: &StoreError) {
    tracing::error!(
        run.id = %id, error = error as &dyn std::error::Error,
        "run {id} stops: its ledger cannot be written; the sweep sees to it"
    );
}
