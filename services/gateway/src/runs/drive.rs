//! One run, from its dispatch to its terminal.

use std::sync::Arc;

use domain::normalize::Tally;
use domain::run::{Failure, FailureCode};
use protocol::id::{RunId, WorkspaceId};
use store::{Leases, failpoint};

use crate::runs::Inner;
use crate::runs::book::Book;
use crate::runs::dispatch::{Outcome, dispatch};
use crate::runs::live::LiveRun;
use crate::runs::prepare::{Fresh, PrepareError, prepare};
use crate::runs::relay::{Relayed, Stopped, relay};
use crate::runs::settle::{Ending, settle, settle_orphan};

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
        Err(PrepareError::Broken(why)) => {
            tracing::error!(run.id = %id, "run {id} cannot be dispatched: {why}");
            let failure = Failure::new(FailureCode::HostInternal, why);
            // Another replica may have prepared it, and drives it.
            let settled = settle_orphan(inner, id, workspace, Leases::None, failure);
            return Box::pin(settled).await;
        }
        Err(PrepareError::Store(error)) => return unwritable(id, &error),
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
                message: None,
            };
            let book = Book::new(&run);
            let settled = settle(inner, live, &run, book, Tally::default(), ending);
            return Box::pin(settled).await;
        }
        Ok(Outcome::Lost) => {
            tracing::warn!(run.id = %id, "run {id} is driven by somebody else");
            return;
        }
        Err(error) => return unwritable(id, &error),
    };
    if let Err(error) = failpoint::pass("run.task").await {
        return unwritable(id, &error);
    }
    prepared.context = String::new();
    let run = &grant.run;
    match Box::pin(relay(inner, live, &prepared, run, started)).await {
        Ok(Relayed {
            book,
            tally,
            ending,
        }) => {
            Box::pin(settle(inner, live, run, book, tally, ending)).await;
        }
        Err(Stopped::Lost) => {
            tracing::warn!(run.id = %id, "run {id} was taken over, its stream is closed");
        }
        Err(Stopped::Unwritable(error)) => unwritable(id, &error),
    }
}

fn unwritable(id: RunId, error: &store::StoreError) {
    tracing::error!(
        run.id = %id, error = error as &dyn std::error::Error,
        "run {id} stops: its ledger cannot be written; the sweep will end it"
    );
}
