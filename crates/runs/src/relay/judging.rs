//! Validation of results: each goes into the buffer, or ends the run.

use std::collections::HashSet;

use domain::normalize::{
    EarlierVerdict, Reason, Rejection, ResultEffect, ResultReplay, Verdict, announced_artifact,
    is_extension, reports_failure, unknown_type_advice,
};
use domain::run::{Failure, FailureCode};
use protocol::id::{RunId, WorkspaceId};
use protocol::result::ResultType;
use store::{AuditEntry, ResumePoint};
use uuid::Uuid;

use super::machine::{RelayMachine, disconnect};
use super::reader::{Deviation, ResultReader, TooLarge};
use super::steps::{RelayFacts, RelayOutput};
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use telemetry::tolerance::{Peer, tolerated, unknown_result_type};

/// Maximum number of unknown types of a run that are noted in its ledger.
const MAX_UNKNOWN_TYPES: usize = 8;

/// Progress of the validation of appended results. Their numbers have no gaps.
#[derive(Default)]
pub(super) struct JudgedNumbers {
    pub(super) judged: u64,
    /// The ledger has the results up to this number. They are replayed to the validator.
    pub(super) stored_through: u64,
    /// Those of them that were rejected.
    rejected: HashSet<u64>,
}

impl JudgedNumbers {
    /// Starts after the results that the former owner has validated.
    pub(super) fn of(resume_point: ResumePoint) -> Self {
        Self {
            judged: 0,
            stored_through: resume_point.judged_through,
            rejected: resume_point.rejected,
        }
    }
}

/// A result before its validation.
pub(super) struct PendingResult {
    raw: Vec<u8>,
    /// The announced artifact, until its lookup.
    pub(super) artifact: Option<Uuid>,
    /// The row was read for a cancel request.
    has_cancel_lookup: bool,
}

impl RelayMachine<'_> {
    /// Validates queued results until the buffer is full, the relay concludes, or a lookup is needed.
    pub(super) fn validate_waiting(&mut self, facts: RelayFacts) -> Option<RelayOutput> {
        while !self.buffer.is_full() {
            let Some(mut result) = self.next_result() else {
                let failure = self.input_ended.take()?;
                return self.end_early(failure);
            };
            if let Some(lookup) = self.lookup_of(&mut result, facts) {
                self.pending = Some(result);
                return Some(lookup);
            }
            if let Some(cause) = self.validate_result(&result.raw, facts) {
                // Results after the end in the same chunk are counted; no more are read.
                for raw in std::mem::take(&mut self.waiting) {
                    if let Verdict::Reject(rejection) =
                        self.validator.validate(&raw, facts.seconds())
                    {
                        self.buffer.reject(rejection);
                    }
                }
                self.conclude(cause);
                return None;
            }
        }
        None
    }

    /// The next result whose effects are not in the ledger.
    fn next_result(&mut self) -> Option<PendingResult> {
        if let Some(pending) = self.pending.take() {
            return Some(pending);
        }
        loop {
            let raw = self.waiting.pop_front()?;
            if !self.replay(&raw) {
                return Some(PendingResult {
                    artifact: announced_artifact(&raw),
                    raw,
                    has_cancel_lookup: false,
                });
            }
        }
    }

    /// A lookup that must precede the validation.
    fn lookup_of(&mut self, result: &mut PendingResult, facts: RelayFacts) -> Option<RelayOutput> {
        if let Some(id) = result.artifact {
            return Some(RelayOutput::FindArtifact(id));
        }
        if facts.is_cancelled {
            self.validator.note_cancelled();
            return None;
        }
        // The runner may have received a cancel from another replica.
        let is_needed = !result.has_cancel_lookup && reports_failure(&result.raw);
        result.has_cancel_lookup |= is_needed;
        is_needed.then_some(RelayOutput::FindCancel)
    }

    /// Takes a cancel request for the pending result, or for an input that has ended.
    pub(super) fn on_cancel_found(&mut self) {
        if self.gone.take().is_some() {
            self.conclude_with(Failure::cancelled());
        } else {
            self.validator.note_cancelled();
        }
    }

    /// Ends a relay whose input has ended without a cancel request.
    pub(super) fn on_no_cancel_found(&mut self) {
        if let Some(failure) = self.gone.take() {
            let is_cut = failure.code == FailureCode::RunnerStreamTruncated;
            // A silent runner is attached already; a second connection would be as silent.
            if is_cut && self.is_resumable {
                return disconnect(self);
            }
            let failure = self.validator.explain(failure);
            self.conclude_with(failure);
        }
    }

    /// Ends the relay after an input without a terminal.
    fn end_early(&mut self, failure: Failure) -> Option<RelayOutput> {
        let has_gone = matches!(
            failure.code,
            FailureCode::RunnerStreamTruncated
                | FailureCode::RunnerIdleTimeout
                | FailureCode::RunnerOrphaned
        );
        if !has_gone {
            self.conclude_with(failure);
        } else if self.cancelling {
            // A runner that hangs up or falls silent after a cancel has obeyed it.
            self.conclude_with(Failure::cancelled());
        } else {
            self.gone = Some(failure);
            return Some(RelayOutput::FindCancel);
        }
        None
    }

    /// Validates one result. Returns the end if the result is one.
    fn validate_result(&mut self, raw: &[u8], facts: RelayFacts) -> Option<EndCause> {
        let now = facts.seconds();
        match self.validator.validate(raw, now) {
            Verdict::Accept(accepted) => {
                // Noted first, because nothing follows a terminal.
                if accepted.is_repaired && !std::mem::replace(&mut self.has_noted_repair, true) {
                    self.note(Deviation::Text, facts);
                }
                self.note_unknown_type(&accepted.kind, now);
                self.buffer.accept(&accepted, now);
                for part in &accepted.shortened {
                    tolerated(Peer::Runner, "part_too_large", self.run_id);
                    self.buffer.reject(part.rejection(raw));
                }
                match accepted.effect {
                    ResultEffect::End(end) => Some(EndCause::Runner(*end)),
                    ResultEffect::None
                    | ResultEffect::SetState(_)
                    | ResultEffect::BindArtifact(_)
                    | ResultEffect::Ask(_)
                    | ResultEffect::Act(_) => None,
                }
            }
            Verdict::Duplicate => None,
            Verdict::Reject(rejection) => {
                self.buffer.reject(rejection);
                None
            }
            Verdict::Fail(rejection, failure) => {
                // A runner that writes to another run is faulty or compromised; operators must see it.
                if rejection.reason == Reason::WrongRunId {
                    let workspace = self.workspace.clone();
                    let audit = wrong_run_audit(self.run_id, workspace, facts.epoch_ms);
                    self.buffer.audit(audit);
                }
                self.buffer.reject(rejection);
                Some(self.ended_by_gateway(failure))
            }
        }
    }

    /// Notes the first result of each unknown type in the ledger. Types that begin with `x.` are extensions.
    fn note_unknown_type(&mut self, kind: &str, now: i64) {
        if ResultType::parse(kind).is_some() || is_extension(kind) {
            return;
        }
        unknown_result_type(&self.runner_id.to_string(), kind, self.run_id);
        if self.unknown_types.len() < MAX_UNKNOWN_TYPES
            && self.unknown_types.insert(kind.to_owned())
        {
            let advice = unknown_type_advice(kind);
            self.buffer.note(
                &format!("results of type {kind:?} are stored without effect, because the type is unknown: {advice}"),
                now,
            );
        }
    }

    /// Counts an appended result. True: the ledger has its effects.
    fn replay(&mut self, raw: &[u8]) -> bool {
        let Some(numbers) = &mut self.appended else {
            return false;
        };
        numbers.judged += 1;
        let number = numbers.judged;
        if number > numbers.stored_through {
            self.buffer.note_judged(number);
            return false;
        }
        let verdict = if numbers.rejected.contains(&number) {
            EarlierVerdict::Rejected
        } else {
            EarlierVerdict::Accepted
        };
        if announced_artifact(raw).is_some() {
            self.buffer.note_announced();
        }
        let usage = ResultReplay(&mut self.validator).sent(number, raw, verdict);
        self.buffer.note_usage(usage);
        true
    }

    pub(super) fn ended_by_gateway(&self, failure: Failure) -> EndCause {
        EndCause::Gateway {
            failure,
            messages: self.validator.completed_messages(),
        }
    }

    /// Logs deviations from the framing, and notes them in the ledger.
    pub(super) fn note_deviations(&mut self, reader: &mut ResultReader, facts: RelayFacts) {
        for deviation in reader.take_deviations() {
            self.note(deviation, facts);
        }
    }

    fn note(&mut self, deviation: Deviation, facts: RelayFacts) {
        tolerated(Peer::Runner, deviation.kind(), self.run_id);
        self.buffer.note(deviation.note(), facts.seconds());
    }
}

/// Rejects bytes over a limit. Returns the failure of the run.
pub(super) fn over_limit(buffer: &mut EventBuffer, error: TooLarge, chunk: &[u8]) -> Failure {
    let (reason, message) = match error {
        TooLarge::Line => (
            Reason::LineTooLong,
            "a line is longer than limits.line_bytes; send large data as an artifact or to the storage, and its id in the result",
        ),
        TooLarge::Event => (
            Reason::EventTooLarge,
            "an event is larger than limits.event_bytes; send large data as an artifact or to the storage, and its id in the result",
        ),
        TooLarge::Document => (
            Reason::EventTooLarge,
            "one JSON document holds no more than 8 MiB and limits.run_bytes: answer by lines of JSON",
        ),
        TooLarge::Other => (
            Reason::EventTooLarge,
            "what is no result (comments, empty lines, unknown fields) is larger than twice limits.run_bytes: \
             send fewer heartbeats",
        ),
    };
    buffer.reject(Rejection::new(reason, None, chunk, message));
    Failure::new(FailureCode::RunnerOutputLimit, message)
}

/// Audit entry of a result for another run.
fn wrong_run_audit(run_id: RunId, workspace: WorkspaceId, at: i64) -> AuditEntry {
    AuditEntry {
        id: Uuid::now_v7(),
        workspace,
        run_id,
        action: "result",
        resource: "run".to_owned(),
        operation: "append",
        allowed: false,
        rule: "a result named another run".into(),
        interaction_id: None,
        bytes: 0,
        at,
        is_shared: false,
    }
}
