//! The end of a run: one terminal, by compare-and-set, in the transaction that writes it (runs §1).

use std::sync::Arc;
use std::time::Duration;

use domain::normalize::{RunnerEnding, Said, Tally};
use domain::run::{Failure, FailureCode, Run};
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use store::writer::Mutation;
use store::{
    Append, Appended, Dispatch, Dispatched, LeaseFilter, Promotion, PullSteering, RunEnd,
    SharedParts, SteeredEvent, StoreError, failpoint,
};
use tokio::time::Instant;

use crate::artifacts::announced_attachments;
use crate::book::{Book, relayed};
use crate::bus::Ring;
use crate::decide::promote_next;
use crate::live::LiveRun;
use crate::{Inner, Runs};
use said::{output_of, transcript_of};
use telemetry::metrics;

mod said;

/// Who ended the run.
pub(super) enum Ending {
    Runner(RunnerEnding),
    Gateway { failure: Failure, said: Said },
}

impl Ending {
    /// Of a bounded set: what a runner says of its failure is its own text.
    fn code(&self) -> &'static str {
        match self {
            Self::Runner(ending) if ending.status == RunStatus::Completed => "ok",
            Self::Runner(_) => "runner.failed",
            Self::Gateway { failure, .. } => failure.code.as_str(),
        }
    }
}

/// Something of ours broke.
pub(super) fn internal() -> Failure {
    Failure::new(FailureCode::HostInternal, "the gateway failed; see its log")
}

/// Commits the rest of the book with the terminal, then lets clients see it. An error: the run has no end yet.
pub(super) async fn settle(
    inner: &Arc<Inner>,
    live: &LiveRun,
    run: &Run,
    mut book: Book,
    tally: Tally,
    ending: Ending,
) -> Result<(), StoreError> {
    let code = ending.code();
    let mut terminal = terminal_of(inner, run, &mut book, tally, ending);
    if let Err(error) = name_announced(inner, run, &book, &mut terminal).await {
        return Err(unsettled(run, error));
    }
    let (mut status, reason) = (terminal.status, terminal.reason.clone());
    if live.cancel.is_cancelled() {
        // The commit writes it so, also where another replica has accepted the cancel.
        status = RunStatus::Cancelled;
    }
    let read_at = book.take_read_at();
    let (append, frames) = book.take(Some(terminal), inner.clock.now_ms());
    live.begin_end();
    match commit(inner, append).await {
        Ok(Appended::Written { next }) => {
            inner.live.settle(run.id, live, frames);
            relayed(read_at);
            inner.doorbell.ring(Ring::Advanced(run.id));
            // Calls that wait here for the end of a child run.
            inner.doorbell.wake(run.id);
            Runs(Arc::clone(inner)).end_children(live, run.id).await;
            // After a stop they stay `created`: the next start, or another replica, dispatches them.
            let passed = failpoint::pass("succession.before_dispatch").await;
            if !inner.stopping.is_cancelled() && passed.is_ok() {
                for next in next {
                    Runs(Arc::clone(inner)).spawn(next, run.workspace.clone(), None);
                }
            }
            let duration_ms = inner.clock.now_ms() - run.created_at;
            metrics::run_ended(status.as_str(), code, duration_ms);
            tell(inner, live, run, code).await;
            tracing::info!(
                run.id = %run.id, runner.id = %run.runner_id, status = status.as_str(),
                reason, duration_ms, "run {} ended as {}", run.id, status.as_str()
            );
        }
        Ok(Appended::Lost) => {
            tracing::warn!(run.id = %run.id, "run {} was settled by somebody else", run.id);
        }
        Err(error) => return Err(unsettled(run, error)),
    }
    Ok(())
}

fn unsettled(run: &Run, error: StoreError) -> StoreError {
    tracing::error!(
        run.id = %run.id, error = &error as &dyn std::error::Error,
        "run {} could not be settled; the sweep will", run.id
    );
    error
}

/// Has the run's last message in the transcript name the artifacts that the run has announced.
async fn name_announced(
    inner: &Inner,
    run: &Run,
    book: &Book,
    terminal: &mut RunEnd,
) -> Result<(), StoreError> {
    if let Some(message) = terminal.transcript.last_mut()
        && let Some(announcing) = book.announcing()
    {
        let ask = || {
            inner
                .store
                .artifacts()
                .announced_artifacts(run.id, &announcing)
        };
        let announced = Box::pin(surely(inner, run.id, ask)).await?;
        message.attachment_refs = announced_attachments(&announced);
    }
    Ok(())
}

/// Tells whoever collects traces that a run has ended.
async fn tell(inner: &Inner, live: &LiveRun, run: &Run, code: &'static str) {
    if !inner.spans.tells_of(run) {
        return;
    }
    let now = inner.clock.now_ms();
    let error = (code != "ok").then_some(code);
    if let Some(name) = live.agent_name() {
        return inner.spans.run_ended(run, name, now, error);
    }
    // It was never prepared here.
    let found = inner
        .store
        .agents()
        .find_agent(&run.workspace, run.agent_id)
        .await;
    let found = found.ok().flatten();
    let name = found.map_or_else(|| run.agent_id.to_string(), |agent| agent.spec.name);
    inner.spans.run_ended(run, &name, now, error);
}

fn terminal_of(
    inner: &Arc<Inner>,
    run: &Run,
    book: &mut Book,
    tally: Tally,
    ending: Ending,
) -> RunEnd {
    let now = inner.clock.now_seconds();
    let mut metadata = tally.to_json();
    let (status, reason, error, said) = match ending {
        Ending::Runner(ending) => {
            if let Some(outcome) = ending.outcome {
                metadata["outcome"] = json!(outcome);
            }
            (ending.status, ending.reason, ending.error, ending.said)
        }
        Ending::Gateway { failure, said } => {
            book.fail(&failure, now);
            let reason = failure.code.as_str().to_owned();
            (failure.code.status(), reason, failure.error(), said)
        }
    };
    let transcript = match &run.conversation_key {
        Some(key) => said
            .messages
            .iter()
            .map(|message| transcript_of(run, key, message))
            .collect(),
        None => Vec::new(),
    };
    let output = output_of(&said);
    RunEnd {
        status,
        reason,
        output,
        error: (error != Value::Null).then(|| error.to_string()),
        usage: book.usage(),
        metadata: metadata.to_string(),
        transcript,
        promotion: run.conversation_key.as_ref().map(|key| Promotion {
            conversation_key: key.clone(),
            promote_next: promote_next(inner, &run.workspace, run.agent_id),
        }),
    }
}

/// Writes an append, again while the database is away, for as long as the lease can hold.
pub(super) async fn commit(inner: &Inner, append: Append) -> Result<Appended, StoreError> {
    let append = Arc::new(append);
    match write_surely(inner, append.run_id, &append, append.failpoints().1).await? {
        // A commit whose answer was lost looks like somebody else's when it is tried again.
        Appended::Lost => confirm(inner, &append).await,
        written @ Appended::Written { .. } => {
            metrics::appended(append.to - append.from, append.lines.len());
            Ok(written)
        }
    }
}

/// Writes what knows whether it was written before, again while the database is away, for as long
/// as a lease can hold.
async fn write_surely<W: Mutation>(
    inner: &Inner,
    run: RunId,
    work: &Arc<W>,
    after_commit: &'static str,
) -> Result<W::Output, StoreError> {
    surely(inner, run, || async {
        let written = inner.store.write(Arc::clone(work)).await?;
        failpoint::pass(after_commit).await?;
        Ok(written)
    })
    .await
}

/// Asks the database, again while it is away, for as long as a lease can hold from the first error on. An answer that
/// is long in coming is waited for: what is asked stays in the queue, and would be done with nobody to know. What is
/// asked must be the same when an earlier try was done and its answer lost.
pub(super) async fn surely<T, F>(
    inner: &Inner,
    run: RunId,
    ask: impl Fn() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    const PAUSE: Duration = Duration::from_millis(200);
    let mut give_up = None;
    loop {
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let is_first = give_up.is_none();
        let give_up = *give_up.get_or_insert_with(|| now + inner.limits.lease);
        if now + PAUSE >= give_up {
            return Err(error);
        }
        // Once: in an outage each live run tries five times a second.
        if is_first {
            tracing::warn!(
                run.id = %run, error = &error as &dyn std::error::Error,
                "the database does not take what run {run} brought, trying again"
            );
        }
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
        write_surely(&self.0, run, &Arc::new(pull), "steering.after_commit").await
    }
}

async fn confirm(inner: &Inner, append: &Append) -> Result<Appended, StoreError> {
    let find = || {
        inner
            .store
            .runs()
            .find_run(&append.workspace, append.run_id)
    };
    let row = surely(inner, append.run_id, find).await?;
    let ours = row.is_some_and(|row| {
        let was_cancelled = row.cancel_requested_at.is_some();
        let ended = append
            .terminal
            .as_ref()
            .is_none_or(|terminal| row.status == terminal.status_after(was_cancelled));
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

/// Ends a run that nobody drives any more, when its lease is among `leases` or nobody has it. Its old
/// owner's writes are fenced off by the new epoch.
pub(super) async fn settle_orphan(
    inner: &Arc<Inner>,
    id: RunId,
    workspace: &WorkspaceId,
    leases: LeaseFilter,
    failure: Failure,
) {
    match own_orphan(inner, id, workspace, leases).await {
        Ok(Some(run)) => settle_taken(inner, &run, failure).await,
        Ok(None) => {}
        Err(error) => untaken(id, &error),
    }
}

/// Ends a run that waits behind others, unless it has been let go. False: it was not ended.
pub(super) async fn settle_waiting(inner: &Arc<Inner>, run: Run, failure: Failure) -> bool {
    let id = run.id;
    match own_unbegun(inner, run).await {
        Ok(Some(run)) => {
            settle_taken(inner, &run, failure).await;
            true
        }
        Ok(None) => false,
        Err(error) => {
            untaken(id, &error);
            false
        }
    }
}

fn untaken(id: RunId, error: &StoreError) {
    let error = error as &dyn std::error::Error;
    tracing::error!(run.id = %id, error, "run {id} could not be taken over");
}

/// Ends a run that was taken over.
pub(super) async fn settle_taken(inner: &Arc<Inner>, run: &Run, failure: Failure) {
    let live = inner.live.enter(run.id);
    let _leaving = inner.live.leaving(run.id, &live);
    let book = Book::new(run);
    let ending = Ending::Gateway {
        failure,
        said: Said::default(),
    };
    // What this does not end, the next sweep does.
    let _ = settle(inner, &live, run, book, Tally::default(), ending).await;
    // Who waits for it here has not known that it was.
    inner.doorbell.wake(run.id);
}

/// Takes the run's lease, whoever had it.
async fn own_orphan(
    inner: &Inner,
    id: RunId,
    workspace: &WorkspaceId,
    leases: LeaseFilter,
) -> Result<Option<Run>, StoreError> {
    let Some(run) = inner.store.runs().find_run(workspace, id).await? else {
        return Ok(None);
    };
    let lease = inner.limits.lease;
    match run.status {
        RunStatus::Running => {
            let taken = inner
                .store
                .leases()
                .take_over(&run, &inner.owner, lease, leases)
                .await?;
            let Some(epoch) = taken else { return Ok(None) };
            failpoint::pass("orphan.after_takeover").await?;
            // Read again under the new epoch: nothing is appended by anybody else from here on.
            let row = inner.store.runs().find_run(workspace, id).await?;
            Ok(row.filter(|row| row.lease_epoch == epoch))
        }
        RunStatus::Created | RunStatus::Queued => own_unbegun(inner, run).await,
        _ => Ok(None),
    }
}

/// Takes a run that has not begun, unless its status is another one by now.
async fn own_unbegun(inner: &Inner, run: Run) -> Result<Option<Run>, StoreError> {
    let dispatch = Dispatch {
        attempt: run.attempt + 1,
        owner: inner.owner.clone(),
        lease: inner.limits.lease,
        context: RawValue::NULL.to_owned().into(),
        shared: SharedParts::default(),
        deadline_at: run.deadline_at,
        at: inner.clock.now_ms(),
        run,
    };
    match inner.store.write(dispatch).await? {
        Dispatched::Owned(run) => Ok(Some(*run)),
        Dispatched::Lost => Ok(None),
    }
}
