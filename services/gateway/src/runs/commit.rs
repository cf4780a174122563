//! Commits that are made again while the database is away.

use std::sync::Arc;
use std::time::Duration;

use protocol::id::RunId;
use store::writer::Work;
use store::{Append, Appended, OpenAppend, PullSteering, SteeredEvent, StoreError, failpoint};
use tokio::time::Instant;

use crate::runs::book::SharedBook;
use crate::runs::{Inner, Runs};
use crate::telemetry::metrics;

/// Writes what stands in a book once the writer takes it, again while the database is away, for as long as the
/// lease can hold.
pub(super) fn commit(
    inner: Arc<Inner>,
    run: RunId,
    book: &SharedBook,
) -> impl Future<Output = Result<Appended, StoreError>> + Send + use<> {
    let (book, clock) = (book.clone(), inner.clock);
    let bytes = book.open().bytes();
    let append = Arc::new(OpenAppend::new(run, bytes, move || {
        book.open().take(clock.now_ms())
    }));
    commit_append(inner, append)
}

async fn commit_append(inner: Arc<Inner>, append: Arc<OpenAppend>) -> Result<Appended, StoreError> {
    let after_commit = || append.made().failpoints().1;
    let outcome = write_surely(&inner, append.run_id(), &append, after_commit).await?;
    let append = append.made();
    match outcome {
        // A commit whose answer was lost looks like somebody else's when it is tried again.
        Appended::Lost => confirm(&inner, append).await,
        written @ Appended::Written { .. } => {
            metrics::appended(append.to - append.from, append.lines.len());
            Ok(written)
        }
    }
}

/// Writes what knows whether it was written before, again while the database is away, for as long
/// as a lease can hold.
async fn write_surely<W: Work>(
    inner: &Inner,
    run: RunId,
    work: &Arc<W>,
    after_commit: impl Fn() -> &'static str,
) -> Result<W::Output, StoreError> {
    const PAUSE: Duration = Duration::from_millis(200);
    let give_up = Instant::now() + inner.limits.lease;
    loop {
        let writing = async {
            let written = inner.store.write(Arc::clone(work)).await?;
            failpoint::pass(after_commit()).await?;
            Ok::<_, StoreError>(written)
        };
        let error = match tokio::time::timeout_at(give_up, writing).await {
            Ok(Ok(written)) => return Ok(written),
            Ok(Err(error)) if error.may_pass() => error,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(StoreError::Unreachable),
        };
        if Instant::now() + PAUSE >= give_up {
            return Err(error);
        }
        tracing::warn!(
            run.id = %run, error = &error as &dyn std::error::Error,
            "what run {run} brought is not stored yet, trying again"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

impl Runs {
    /// Takes absorbed events out of the queue of a run. What was taken is told, also when the
    /// database went away over it.
    pub async fn pull_steering(
        &self,
        run: RunId,
        pull: PullSteering,
    ) -> Result<Option<Vec<SteeredEvent>>, StoreError> {
        let after_commit = || "steering.after_commit";
        write_surely(&self.0, run, &Arc::new(pull), after_commit).await
    }
}

async fn confirm(inner: &Inner, append: &Append) -> Result<Appended, StoreError> {
    let row = inner
        .store
        .find_run(&append.workspace, append.run_id)
        .await?;
    let ours = row.is_some_and(|row| {
        let ended = append
            .terminal
            .as_ref()
            .is_none_or(|terminal| row.status == terminal.status);
        row.lease_epoch == append.epoch && row.last_sequence == append.to && ended
    });
    // Who came next was let go by the commit; the sweep dispatches it.
    Ok(if ours {
        metrics::appended(append.to - append.from, append.lines.len());
        Appended::Written { next: Vec::new() }
    } else {
        Appended::Lost
    })
}
