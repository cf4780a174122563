//! Buffer of events between two commits: one append, and the frames to publish after it.

use bytes::Bytes;
use domain::ledger::{LedgerEvent, LedgerSource};
use domain::normalize::{AcceptedResult, Rejection, ResultEffect, StateUpdate};
use domain::run::{Failure, Run};
use protocol::JsonObject;
use protocol::id::{ApprovalId, RunId, WorkspaceId};
use protocol::result::{
    RUN_AMENDED, RUN_RESTARTED, ResultType, RunAmendedPayload, RunRestartedPayload,
};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use store::{
    AcceptedCall, Append, AppendResults, ApprovalRecord, AuditEntry, CoveredCalls, NewInteraction,
    NewPlatformAction, PlatformActionRecord, RunEnd,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::live::CommittedFrames;
use telemetry::metrics;

/// Limits of the buffer. While it is full, the relay does not read the runner's socket.
const MAX_BYTES: usize = 512 * 1024;
const MAX_EVENTS: usize = 1024;
const MAX_REJECTIONS: usize = 64;
/// Maximum number of stored rejections of one run.
const MAX_STORED_REJECTIONS: u64 = 1000;

/// The uncommitted part of one run.
pub(super) struct EventBuffer {
    run_id: RunId,
    workspace: WorkspaceId,
    epoch: i64,
    /// The last sequence that is committed or in flight.
    from: u64,
    lines: String,
    frames: Vec<u8>,
    ends: Vec<usize>,
    states: Vec<StateUpdate>,
    rejections: Vec<Rejection>,
    rejections_before: u64,
    audits: Vec<AuditEntry>,
    artifacts: Vec<(Uuid, u64)>,
    has_announced: bool,
    interactions: Vec<NewInteraction>,
    actions: Vec<NewPlatformAction>,
    announced: Vec<(String, u64)>,
    amended: Vec<(ApprovalId, u64)>,
    judged_through: Option<u64>,
    accepted: Vec<AcceptedCall>,
    usage: Option<String>,
    /// Time at which the oldest buffered bytes were read.
    read_at: Option<Instant>,
}

impl EventBuffer {
    /// An empty buffer that continues at the run's row.
    pub(super) fn new(run: &Run) -> Self {
        Self {
            run_id: run.id,
            workspace: run.workspace.clone(),
            epoch: run.fencing_token,
            from: run.last_sequence,
            lines: String::new(),
            frames: Vec::new(),
            ends: Vec::new(),
            states: Vec::new(),
            rejections: Vec::new(),
            rejections_before: 0,
            audits: Vec::new(),
            artifacts: Vec::new(),
            has_announced: false,
            interactions: Vec::new(),
            actions: Vec::new(),
            announced: Vec::new(),
            amended: Vec::new(),
            judged_through: None,
            accepted: Vec::new(),
            usage: None,
            read_at: None,
        }
    }

    /// The same buffer, after this number of stored rejections.
    pub(super) fn after_rejections(mut self, before: u64) -> Self {
        self.rejections_before = self.rejections_before.max(before);
        self
    }

    /// The commit of this buffer accepts the results of this call.
    pub(super) fn accept_call(&mut self, call: &AppendResults) {
        self.accepted.extend(call.accepted());
        self.audits.push(call.audit.clone());
    }

    /// With this buffer, all appended results up to this number are validated.
    pub(super) fn note_judged(&mut self, through: u64) {
        self.judged_through = Some(through);
    }

    /// Notes the time of a read whose results will be buffered.
    pub(super) fn begin(&mut self, now: Instant) {
        self.read_at.get_or_insert(now);
    }

    /// Read time of the oldest bytes in the next append.
    pub(super) fn take_read_at(&mut self) -> Option<Instant> {
        self.read_at.take()
    }

    /// True when there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.rejections.is_empty() && self.audits.is_empty()
    }

    /// True when the next event should wait for a commit.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= MAX_BYTES
            || self.ends.len() >= MAX_EVENTS
            || self.rejections.len() >= MAX_REJECTIONS
    }

    /// The newest usage that the runner has reported.
    pub(super) fn usage(&self) -> Option<String> {
        self.usage.clone()
    }

    /// Adds an accepted result. `now`: epoch seconds.
    pub(super) fn accept(&mut self, accepted: &AcceptedResult<'_>, now: i64) {
        let sequence = self.next_sequence();
        let mut metadata = accepted.metadata(sequence);
        if let ResultEffect::Ask(question) = &accepted.effect {
            let id = Uuid::now_v7();
            metadata["interaction"] = json!({"id": id, "expires_at": question.expires_at});
            self.interactions.push(NewInteraction {
                id,
                sequence,
                question: (**question).clone(),
            });
        }
        if let ResultEffect::Act(action) = &accepted.effect {
            let action = (**action).clone();
            let action = NewPlatformAction::new(self.run_id, action, Some(sequence));
            metadata["action"] = json!({"id": action.id, "status": action.status()});
            self.actions.push(action);
        }
        let usage = accepted.usage.as_deref();
        self.enter(
            &accepted.kind,
            &accepted.data,
            usage,
            LedgerSource::Runner,
            &metadata,
            now,
        );
        match &accepted.effect {
            ResultEffect::SetState(update) => self.states.push(update.clone()),
            ResultEffect::BindArtifact(id) => {
                // A runner may announce a file twice; the first announcement is its position in the ledger.
                if !self.artifacts.iter().any(|(bound, _)| bound == id) {
                    self.artifacts.push((*id, sequence));
                }
                self.note_announced();
            }
            ResultEffect::None
            | ResultEffect::End(_)
            | ResultEffect::Ask(_)
            | ResultEffect::Act(_) => {}
        }
        self.note_usage(usage.map(|usage| usage.get().to_owned()));
    }

    /// The run has announced an artifact.
    pub(super) fn note_announced(&mut self) {
        self.has_announced = true;
    }

    /// Artifacts that the buffered events announce. `None`: the run has announced none at all.
    pub(super) fn announcing(&self) -> Option<Vec<Uuid>> {
        let ids = self.artifacts.iter().map(|(id, _)| *id);
        self.has_announced.then(|| ids.collect())
    }

    /// Replaces the usage by a newer one.
    pub(super) fn note_usage(&mut self, usage: Option<String>) {
        if usage.is_some() {
            self.usage = usage;
        }
    }

    /// Adds the event of a platform action that a host call has requested. `now`: epoch milliseconds.
    pub(super) fn announce(&mut self, record: &PlatformActionRecord, now: i64) {
        let sequence = self.next_sequence();
        let mut data: JsonObject = serde_json::from_str(&record.request).unwrap_or_default();
        data.insert("action".to_owned(), json!(record.action));
        let data = to_raw_value(&data).expect("a value serialises to JSON");
        let metadata = json!({"action": {"id": record.id, "status": record.status_at(now)}});
        self.announced.push((record.id.clone(), sequence));
        let kind = ResultType::ActionRequested.as_str();
        let seconds = now.div_euclid(1000);
        self.enter(kind, &data, None, LedgerSource::Host, &metadata, seconds);
    }

    /// Adds the event of an amendment, unless the buffer has it. `now`: epoch seconds.
    pub(super) fn amend(&mut self, amendment: &ApprovalRecord, now: i64) {
        if self.amended.iter().any(|(id, _)| *id == amendment.id) {
            return;
        }
        let payload = RunAmendedPayload {
            approval_id: amendment.id,
            interaction_id: amendment.interaction_id.clone(),
            tool: amendment.tool.clone(),
            arguments: match &amendment.covered {
                CoveredCalls::Rules(rules) => Some(rules.clone()),
                // The question shows the call.
                CoveredCalls::Exact { .. } => None,
            },
            count: amendment.max_uses,
            expires_at: amendment.expires_at.div_euclid(1000),
            allowed_by: amendment.created_by.clone(),
        };
        let data = to_raw_value(&payload).expect("a value serialises to JSON");
        self.amended.push((amendment.id, self.next_sequence()));
        let metadata = Value::Null;
        self.enter(RUN_AMENDED, &data, None, LedgerSource::Host, &metadata, now);
    }

    /// Adds the gateway's own `processor.log`.
    pub(super) fn note(&mut self, text: &str, now: i64) {
        let data = json!({"text": text, "level": "warning"}).to_string();
        let data = RawValue::from_string(data).expect("a value serialises to JSON on one line");
        let kind = ResultType::ProcessorLog.as_str();
        self.enter(kind, &data, None, LedgerSource::Host, &Value::Null, now);
    }

    /// Adds the event of a new start.
    pub(super) fn restart(&mut self, restart: &RunRestartedPayload, now: i64) {
        let data = to_raw_value(restart).expect("numbers and texts always serialise");
        self.enter(
            RUN_RESTARTED,
            &data,
            None,
            LedgerSource::Host,
            &Value::Null,
            now,
        );
    }

    /// Adds a delta with the text that replaces the deltas so far.
    pub(super) fn replace_text(&mut self, text: &str, now: i64) {
        let chunk = json!({"role": "assistant", "content": "", "all_content": text});
        let data = to_raw_value(&json!({"chunk": chunk})).expect("a value serialises to JSON");
        let kind = ResultType::MessageDelta.as_str();
        self.enter(kind, &data, None, LedgerSource::Host, &Value::Null, now);
    }

    /// Adds the gateway's own `run.failed`.
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
            LedgerSource::Host,
            &metadata,
            now,
        );
    }

    /// Adds a rejected result. Beyond the limit of a run, it is only counted.
    pub(super) fn reject(&mut self, rejection: Rejection) {
        metrics::result_rejected(rejection.reason.as_str());
        // A faulty runner must not fill the table.
        let stored = self.rejections_before + self.rejections.len() as u64;
        if stored < MAX_STORED_REJECTIONS {
            self.rejections.push(rejection);
        }
    }

    /// Adds the response of a runner that did not take the run. It is no result, so no metric counts it.
    pub(super) fn record_response(&mut self, response: Option<Rejection>) {
        self.rejections.extend(response);
    }

    /// Adds an audit row.
    pub(super) fn audit(&mut self, entry: AuditEntry) {
        self.audits.push(entry);
    }

    fn next_sequence(&self) -> u64 {
        self.from + self.ends.len() as u64 + 1
    }

    fn enter(
        &mut self,
        kind: &str,
        data: &RawValue,
        usage: Option<&RawValue>,
        source: LedgerSource,
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
        let line = event.write_frame(&mut self.frames);
        self.lines.push_str(line);
        self.lines.push('\n');
        self.ends.push(self.frames.len());
    }

    /// Drains the buffer into one append with its frames. `at`: epoch milliseconds.
    pub(super) fn take(&mut self, terminal: Option<RunEnd>, at: i64) -> (Append, CommittedFrames) {
        let from = self.from;
        let to = from + self.ends.len() as u64;
        let rejections = std::mem::take(&mut self.rejections);
        let first_rejection = self.rejections_before + 1;
        // Rejections are numbered across all appends of the run.
        self.rejections_before += rejections.len() as u64;
        self.from = to;
        let accepted = Some(std::mem::take(&mut self.accepted));
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
            actions: std::mem::take(&mut self.actions),
            announced: std::mem::take(&mut self.announced),
            amended: std::mem::take(&mut self.amended),
            // Results that the end leaves unjudged are dropped.
            judged_through: self.judged_through.filter(|_| terminal.is_none()),
            // An ended run accepts no more results, so none needs their numbers.
            accepted: accepted.filter(|_| terminal.is_none()).unwrap_or_default(),
            terminal,
            at,
        };
        let frames = CommittedFrames {
            first: from + 1,
            bytes: Bytes::from(std::mem::take(&mut self.frames)),
            ends: std::mem::take(&mut self.ends),
        };
        (append, frames)
    }
}

/// Measures the time from the read to the publication.
pub(super) fn relayed(read_at: Option<Instant>) {
    if let Some(read_at) = read_at {
        metrics::relayed(read_at.elapsed());
    }
}
