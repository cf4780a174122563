//! The end of a run: one terminal, by compare-and-set, in the transaction that writes it (runs §1).

use std::sync::Arc;

use domain::normalize::{RunnerEnding, Tally};
use domain::run::{Failure, FailureCode, Run};
use protocol::id::{RunId, WorkspaceId};
use protocol::message::Message;
use protocol::run::RunStatus;
use serde_json::Value;
use store::{
    Appended, Dispatch, Dispatched, Leases, StoreError, Succession, Terminal, TranscriptWrite,
    failpoint,
};
use uuid::Uuid;

use crate::bus::Ring;
use crate::runs::book::{Book, SharedBook};
use crate::runs::commit::commit;
use crate::runs::decide::{take_up, transcript_text};
use crate::runs::live::{Frames, LiveRun};
use crate::runs::relay::{InFlight, show};
use crate::runs::{Inner, Runs};
use crate::telemetry::metrics;

/// Who ended the run.
pub(super) enum Ending {
    Runner(RunnerEnding),
    Gateway {
        failure: Failure,
        message: Option<Message>,
    },
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

/// Somebody asked for it.
pub(super) fn cancelled() -> Failure {
    Failure::new(FailureCode::Cancelled, "the run was cancelled")
}

/// What was gathered of a run until its end.
pub(super) struct Gathered {
    /// The commit that is on its way still.
    pub(super) in_flight: Option<InFlight>,
    pub(super) book: SharedBook,
    pub(super) tally: Tally,
}

impl Gathered {
    /// Nothing: the run ends without its runner.
    pub(super) fn nothing(run: &Run) -> Self {
        Self {
            in_flight: None,
            book: SharedBook::new(run),
            tally: Tally::default(),
        }
    }
}

/// Commits the rest of what was gathered with the terminal, then lets clients see it.
pub(super) async fn settle(
    inner: &Arc<Inner>,
    live: &LiveRun,
    run: &Run,
    gathered: Gathered,
    ending: Ending,
) {
    let code = ending.code();
    live.begin_end();
    let Ended {
        status,
        reason,
        frames,
        outcome,
    } = commit_end(inner, live, run, gathered, ending).await;
    match outcome {
        Ok(Appended::Written { next }) => {
            inner.live.settle(run.id, live, frames);
            inner.doorbell.ring(Ring::Advanced(run.id));
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
        Err(error) => {
            tracing::error!(
                run.id = %run.id, error = &error as &dyn std::error::Error,
                "run {} could not be settled; the sweep will", run.id
            );
        }
    }
}

/// The end of a run, as it was written or not.
struct Ended {
    status: RunStatus,
    reason: String,
    /// Those that are not shown yet.
    frames: Frames,
    outcome: Result<Appended, StoreError>,
}

/// Writes the end: with the commit that is on its way, if the writer has not taken that yet.
async fn commit_end(
    inner: &Arc<Inner>,
    live: &LiveRun,
    run: &Run,
    gathered: Gathered,
    ending: Ending,
) -> Ended {
    let Gathered {
        in_flight,
        book,
        tally,
    } = gathered;
    // Whoever takes the book takes its end with it, or neither.
    let end = |book: &mut Book, ending| {
        let terminal = terminal_of(inner, run, book, &tally, ending);
        let told = (terminal.status, terminal.reason.clone());
        book.end(terminal);
        told
    };
    let ended = |(status, reason), outcome| Ended {
        status,
        reason,
        frames: book.open().take_frames(),
        outcome,
    };
    let Some(in_flight) = in_flight else {
        let told = end(&mut book.open(), ending);
        return ended(told, commit(Arc::clone(inner), run.id, &book).await);
    };
    let entered = {
        let mut open = book.open();
        if open.is_taken() {
            Err(ending)
        } else {
            Ok(end(&mut open, ending))
        }
    };
    let outcome = in_flight.finish().await;
    let ending = match entered {
        Ok(told) => return ended(told, outcome),
        Err(ending) => ending,
    };
    let frames = book.open().take_frames();
    let told = end(&mut book.open(), ending);
    match outcome {
        Ok(Appended::Written { .. }) => show(inner, (live, run.id), frames),
        failed => return ended(told, failed),
    }
    let outcome = commit(Arc::clone(inner), run.id, &book).await;
    ended(told, outcome)
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
    let found = inner.store.find_agent(&run.workspace, run.agent_id).await;
    let found = found.ok().flatten();
    let name = found.map_or_else(|| run.agent_id.to_string(), |agent| agent.spec.name);
    inner.spans.run_ended(run, &name, now, error);
}

fn terminal_of(
    inner: &Arc<Inner>,
    run: &Run,
    book: &mut Book,
    tally: &Tally,
    ending: Ending,
) -> Terminal {
    let now = inner.clock.now_seconds();
    let (status, reason, error, message) = match ending {
        Ending::Runner(ending) => (ending.status, ending.reason, ending.error, ending.message),
        Ending::Gateway { failure, message } => {
            book.fail(&failure, now);
            let reason = failure.code.as_str().to_owned();
            (failure.code.status(), reason, failure.error(), message)
        }
    };
    let transcript = run
        .conversation_key
        .as_ref()
        .zip(message.as_ref())
        .map(|(key, message)| {
            let text = message.plain_text();
            TranscriptWrite {
                id: Uuid::now_v7(),
                conversation_key: key.clone(),
                event_id: run.event_id.clone(),
                role: "assistant",
                content: (!text.is_empty()).then(|| transcript_text(&text)),
                content_json: message_json(message),
                attachment_refs: "[]".to_owned(),
            }
        });
    Terminal {
        status,
        reason,
        output: message.as_ref().map(message_json),
        error: (error != Value::Null).then(|| error.to_string()),
        usage: book.usage(),
        metadata: tally.to_json().to_string(),
        transcript,
        succession: run.conversation_key.as_ref().map(|key| Succession {
            conversation_key: key.clone(),
            take_up: take_up(inner, &run.workspace, run.agent_id),
        }),
    }
}

fn message_json(message: &Message) -> String {
    domain::canonical::canonical_json(message)
}

/// Ends a run that nobody drives any more, when its lease is among `leases` or nobody has it. Its old
/// owner's writes are fenced off by the new epoch.
pub(super) async fn settle_orphan(
    inner: &Arc<Inner>,
    id: RunId,
    workspace: &WorkspaceId,
    leases: Leases,
    failure: Failure,
) {
    match own_orphan(inner, id, workspace, leases).await {
        Ok(Some(run)) => settle_taken(inner, &run, failure).await,
        Ok(None) => {}
        Err(error) => {
            tracing::error!(run.id = %id, error = &error as &dyn std::error::Error, "run {id} could not be taken over");
        }
    }
}

/// Ends a run that was taken over.
pub(super) async fn settle_taken(inner: &Arc<Inner>, run: &Run, failure: Failure) {
    let live = inner.live.enter(run.id);
    let _leaving = inner.live.leaving(run.id, &live);
    let ending = Ending::Gateway {
        failure,
        message: None,
    };
    settle(inner, &live, run, Gathered::nothing(run), ending).await;
}

/// Takes the run's lease, whoever had it.
async fn own_orphan(
    inner: &Inner,
    id: RunId,
    workspace: &WorkspaceId,
    leases: Leases,
) -> Result<Option<Run>, StoreError> {
    let Some(run) = inner.store.find_run(workspace, id).await? else {
        return Ok(None);
    };
    let lease = inner.limits.lease;
    match run.status {
        RunStatus::Running => {
            let taken = inner
                .store
                .take_over(&run, &inner.owner, lease, leases)
                .await?;
            let Some(epoch) = taken else { return Ok(None) };
            failpoint::pass("orphan.after_takeover").await?;
            // Read again under the new epoch: nothing is appended by anybody else from here on.
            let row = inner.store.find_run(workspace, id).await?;
            Ok(row.filter(|row| row.lease_epoch == epoch))
        }
        RunStatus::Created | RunStatus::Queued => {
            let dispatch = Dispatch {
                attempt: run.attempt + 1,
                owner: inner.owner.clone(),
                lease,
                context: "null".to_owned(),
                deadline_at: run.deadline_at,
                at: inner.clock.now_ms(),
                run,
            };
            match inner.store.write(dispatch).await? {
                Dispatched::Owned(run) => Ok(Some(*run)),
                Dispatched::Lost => Ok(None),
            }
        }
        _ => Ok(None),
    }
}
