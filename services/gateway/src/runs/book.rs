//! What a run has gathered since its last commit: one append, and the frames that follow it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use domain::ledger::{LedgerEvent, Source, write_frame};
use domain::normalize::{Accepted, Effect, Rejection, StateUpdate};
use domain::run::{Failure, Run};
use protocol::id::{RunId, WorkspaceId};
use protocol::result::ResultType;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use store::{Append, AuditEntry, NewInteraction, Terminal};
use uuid::Uuid;

use crate::runs::live::Frames;
use crate::telemetry::metrics;

/// A full book stops the reading of the runner's socket until the commit before it is done.
const MOST_BYTES: usize = 512 * 1024;
const MOST_EVENTS: usize = 1024;
const MOST_REJECTIONS: usize = 64;
/// Rejections of one run that stand in the table.
const MOST_REJECTIONS_KEPT: u64 = 1000;

/// A book that the run's task writes into, and that the writer takes what it commits from.
#[derive(Clone)]
pub(super) struct SharedBook(Arc<Mutex<Book>>);

impl SharedBook {
    pub(super) fn new(run: &Run) -> Self {
        Self(Arc::new(Mutex::new(Book::new(run))))
    }

    // An event is entered as a whole, or its run's task is gone.
    pub(super) fn open(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The uncommitted part of one run.
pub(super) struct Book {
    run_id: RunId,
    workspace: WorkspaceId,
    epoch: i64,
    /// The last sequence that is committed or on its way.
    from: u64,
    lines: String,
    frames: Vec<u8>,
    ends: Vec<usize>,
    states: Vec<StateUpdate>,
    rejections: Vec<Rejection>,
    rejections_before: u64,
    audits: Vec<AuditEntry>,
    artifacts: Vec<(Uuid, u64)>,
    interactions: Vec<NewInteraction>,
    usage: Option<String>,
    /// Where the event stands with which its runner ends the run: it goes with the terminal, and not before.
    last: Option<Place>,
    /// With it the run ends.
    terminal: Option<Terminal>,
    /// The frames of what the writer has taken and not committed yet.
    taken: Option<Frames>,
}

/// How far a book was written.
#[derive(Clone, Copy, Default)]
struct Place {
    lines: usize,
    frames: usize,
    ends: usize,
}

impl Book {
    /// A book that goes on where the run's row stands.
    fn new(run: &Run) -> Self {
        Self {
            run_id: run.id,
            workspace: run.workspace.clone(),
            epoch: run.lease_epoch,
            from: run.last_sequence,
            lines: String::new(),
            frames: Vec::new(),
            ends: Vec::new(),
            states: Vec::new(),
            rejections: Vec::new(),
            rejections_before: 0,
            audits: Vec::new(),
            artifacts: Vec::new(),
            interactions: Vec::new(),
            usage: None,
            last: None,
            terminal: None,
            taken: None,
        }
    }

    /// True when there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.rejections.is_empty() && self.audits.is_empty()
    }

    /// The bytes of its events.
    pub(super) fn bytes(&self) -> usize {
        self.lines.len()
    }

    /// True when the next event should wait for a commit.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= MOST_BYTES
            || self.ends.len() >= MOST_EVENTS
            || self.rejections.len() >= MOST_REJECTIONS
    }

    /// The newest usage that the runner told.
    pub(super) fn usage(&self) -> Option<String> {
        self.usage.clone()
    }

    /// Enters a result that was accepted. `now`: epoch seconds.
    pub(super) fn accept(&mut self, accepted: &Accepted, now: i64) {
        let sequence = self.next_sequence();
        let mut metadata = accepted.metadata(sequence);
        if let Effect::Ask(question) = &accepted.effect {
            let id = Uuid::now_v7();
            metadata["interaction"] = json!({"id": id, "expires_at": question.expires_at});
            self.interactions.push(NewInteraction {
                id,
                sequence,
                question: (**question).clone(),
            });
        }
        let usage = accepted.usage.as_deref();
        if matches!(accepted.effect, Effect::End(_)) {
            self.hold_last();
        }
        self.enter(
            &accepted.kind,
            &accepted.data,
            usage,
            Source::Runner,
            &metadata,
            now,
        );
        match &accepted.effect {
            Effect::SetState(update) => self.states.push(update.clone()),
            Effect::BindArtifact(id) => self.artifacts.push((*id, sequence)),
            Effect::None | Effect::End(_) | Effect::Ask(_) => {}
        }
        if let Some(usage) = usage {
            self.usage = Some(usage.get().to_owned());
        }
    }

    /// Enters the gateway's own `run.failed`.
    pub(super) fn fail(&mut self, failure: &Failure, now: i64) {
        let data = RawValue::from_string(failure.data().to_string())
            .expect("a value serialises to JSON on one line");
        let metadata = match &failure.details {
            Value::Null => Value::Null,
            details => json!({"details": details}),
        };
        self.enter(
            ResultType::RunFailed.as_str(),
            &data,
            None,
            Source::Host,
            &metadata,
            now,
        );
    }

    /// Enters an event that was not taken. Past the most that one run keeps it is only counted.
    pub(super) fn reject(&mut self, rejection: Rejection) {
        metrics::result_rejected(rejection.reason.as_str());
        let kept = self.rejections_before + self.rejections.len() as u64;
        if kept < MOST_REJECTIONS_KEPT {
            self.rejections.push(rejection);
        }
    }

    /// Enters an audit row.
    pub(super) fn audit(&mut self, entry: AuditEntry) {
        self.audits.push(entry);
    }

    /// What is entered next ends the run.
    fn hold_last(&mut self) {
        self.last = Some(Place {
            lines: self.lines.len(),
            frames: self.frames.len(),
            ends: self.ends.len(),
        });
    }

    fn next_sequence(&self) -> u64 {
        self.from + self.ends.len() as u64 + 1
    }

    fn enter(
        &mut self,
        kind: &str,
        data: &RawValue,
        usage: Option<&RawValue>,
        source: Source,
        metadata: &Value,
        now: i64,
    ) {
        let sequence = self.next_sequence();
        let run_id = self.run_id;
        let event = LedgerEvent {
            run_id,
            sequence,
            kind,
            data,
            usage,
            created_at: now,
            source,
            metadata,
        };
        let line = event.to_line();
        write_frame(&mut self.frames, sequence, kind, &line);
        self.ends.push(self.frames.len());
        self.lines.push_str(&line);
        self.lines.push('\n');
    }

    /// The run ends with what stands here.
    pub(super) fn end(&mut self, terminal: Terminal) {
        self.terminal = Some(terminal);
    }

    /// True between [`Self::take`] and [`Self::take_frames`]: what is entered now goes with the next append.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The frames of what was taken, to be shown once it is committed.
    pub(super) fn take_frames(&mut self) -> Frames {
        self.taken.take().unwrap_or_default()
    }

    /// Takes everything out as one append, the event apart with which the run ends as long as it has no terminal:
    /// nobody may find the one without the other. `at`: epoch milliseconds.
    pub(super) fn take(&mut self, at: i64) -> Append {
        let Some(last) = self.last.filter(|_| self.terminal.is_none()) else {
            self.last = None;
            return self.take_all(at);
        };
        let lines = self.lines.split_off(last.lines);
        let frames = self.frames.split_off(last.frames);
        let ends = self.ends.split_off(last.ends);
        let append = self.take_all(at);
        self.lines = lines;
        self.frames = frames;
        self.ends = ends.iter().map(|end| end - last.frames).collect();
        self.last = Some(Place::default());
        append
    }

    fn take_all(&mut self, at: i64) -> Append {
        let from = self.from;
        let to = from + self.ends.len() as u64;
        let rejections = std::mem::take(&mut self.rejections);
        let first_rejection = self.rejections_before + 1;
        self.rejections_before += rejections.len() as u64;
        self.from = to;
        let append = Append {
            run_id: self.run_id,
            workspace: self.workspace.clone(),
            epoch: self.epoch,
            from,
            to,
            lines: std::mem::take(&mut self.lines),
            states: std::mem::take(&mut self.states),
            rejections,
            first_rejection,
            audits: std::mem::take(&mut self.audits),
            artifacts: std::mem::take(&mut self.artifacts),
            interactions: std::mem::take(&mut self.interactions),
            terminal: self.terminal.take(),
            at,
        };
        self.taken = Some(Frames {
            first: from + 1,
            bytes: Bytes::from(std::mem::take(&mut self.frames)),
            ends: std::mem::take(&mut self.ends),
        });
        append
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::{AgentId, EndpointId};
    use protocol::run::RunStatus;

    use super::*;

    fn book() -> Book {
        Book::new(&Run {
            id: RunId(Uuid::nil()),
            workspace: WorkspaceId("default".to_owned()),
            event_id: String::new(),
            trace_parent: None,
            agent_id: AgentId(Uuid::nil()),
            agent_version: 1,
            runner_id: "plugin:a/b/c".parse().unwrap(),
            endpoint_id: EndpointId(Uuid::nil()),
            conversation_key: None,
            status: RunStatus::Running,
            status_reason: None,
            attempt: 1,
            lease_epoch: 1,
            last_sequence: 0,
            deadline_at: 0,
            cancel_requested_at: None,
            snapshot_sha256: String::new(),
            output: None,
            error: None,
            usage: None,
            metadata: Value::Null,
            created_at: 0,
            started_at: None,
            finished_at: None,
            pruned_at: None,
        })
    }

    fn terminal() -> Terminal {
        Terminal {
            status: RunStatus::Completed,
            reason: String::new(),
            output: None,
            error: None,
            usage: None,
            metadata: String::new(),
            transcript: None,
            succession: None,
        }
    }

    fn enter(book: &mut Book, kind: &str) {
        let data = RawValue::from_string("{}".to_owned()).unwrap();
        if kind == "run.completed" {
            book.hold_last();
        }
        book.enter(kind, &data, None, Source::Runner, &Value::Null, 0);
    }

    #[test]
    fn the_event_that_ends_a_run_goes_with_its_terminal_whoever_takes_the_book_when() {
        let mut book = book();
        enter(&mut book, "message.delta");
        enter(&mut book, "run.completed");
        let before = book.take(0);
        assert_eq!((before.from, before.to), (0, 1));
        assert!(before.terminal.is_none() && !before.lines.contains("run.completed"));
        let shown = book.take_frames();
        assert_eq!(
            (shown.first, shown.ends.as_slice()),
            (1, &[shown.bytes.len()][..])
        );
        // Taken once more, there is nothing to be had.
        assert_eq!(book.take(0).to, 1);
        book.end(terminal());
        let end = book.take(0);
        assert_eq!((end.from, end.to), (1, 2));
        assert!(end.terminal.is_some() && end.lines.contains("run.completed"));
        let shown = book.take_frames();
        assert_eq!(
            (shown.first, shown.ends.as_slice()),
            (2, &[shown.bytes.len()][..])
        );
    }
}
