//! Validation of results: each goes into the buffer, or ends the run.

use std::collections::HashSet;

use domain::normalize::{
    Reason, Rejection, ResultEffect, Verdict, announced_artifact, is_extension, reports_failure,
    unknown_type_advice,
};
use domain::run::{Failure, FailureCode};
use protocol::result::ResultType;
use store::{AuditEntry, ResumePoint};
use uuid::Uuid;

use super::reader::{Deviation, ResultReader, TooLarge};
use super::{RelayState, RelayStop};
use crate::ending::EndCause;
use telemetry::tolerance::{Peer, tolerated, unknown_result_type};

/// Maximum number of unknown types of a run that are noted in its ledger.
const MAX_UNKNOWN_TYPES: usize = 8;

/// Progress of the validation of appended results. Their numbers have no gaps.
#[derive(Default)]
pub(super) struct JudgedNumbers {
    judged: u64,
    /// The ledger has the results up to this number. They are replayed to the validator.
    stored_through: u64,
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

impl RelayState<'_> {
    /// Validates queued results until the buffer is full. Returns the end if there is one.
    pub(super) async fn validate_waiting(
        &mut self,
        cancelling: bool,
    ) -> Result<Option<EndCause>, RelayStop> {
        while !self.buffer.is_full() {
            let Some(raw) = self.waiting.pop_front() else {
                let Some(failure) = self.input_ended.take() else {
                    return Ok(None);
                };
                // Boxed: few runs end so.
                return Ok(Some(Box::pin(self.ended_early(failure, cancelling)).await));
            };
            if self.replay(&raw) {
                continue;
            }
            self.check_artifact(&raw).await?;
            self.check_cancel(&raw).await;
            if let Some(ending) = self.validate_result(&raw) {
                // Results after the end in the same chunk are counted; no more are read.
                for raw in std::mem::take(&mut self.waiting) {
                    if let Verdict::Reject(rejection) = self
                        .validator
                        .validate(&raw, self.parts.clock.now_seconds())
                    {
                        self.buffer.reject(rejection);
                    }
                }
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }

    /// Registers an announced artifact with the validator, if the run has uploaded it.
    async fn check_artifact(&mut self, raw: &[u8]) -> Result<(), RelayStop> {
        let Some(id) = announced_artifact(raw) else {
            return Ok(());
        };
        let (parts, run) = (self.parts, self.run);
        let ask = || {
            parts
                .store
                .artifacts()
                .is_artifact_of(&run.workspace, run.id, id)
        };
        // Boxed: few results announce an artifact, and the future would enlarge every run.
        let found = tokio::select! {
            found = Box::pin(parts.ledger.retry_within_lease(run.id, ask)) => found.map_err(RelayStop::Unwritable)?,
            () = self.live.lost.cancelled() => return Err(RelayStop::Lost),
        };
        if found {
            self.validator.add_artifact(id);
        }
        Ok(())
    }

    /// Reports a cancel to the validator. The runner may have received it from another replica.
    async fn check_cancel(&mut self, raw: &[u8]) {
        if self.live.cancel.is_cancelled()
            || reports_failure(raw)
                // Boxed: few results report a failure, and the future would enlarge every run.
                && Box::pin(self.parts.interrupts.was_cancelled_elsewhere(self.live, self.run)).await
        {
            self.validator.note_cancelled();
        }
    }

    async fn ended_early(&mut self, failure: Failure, cancelling: bool) -> EndCause {
        // A runner that hangs up or falls silent after a cancel has obeyed it.
        let has_gone = matches!(
            failure.code,
            FailureCode::RunnerStreamTruncated
                | FailureCode::RunnerIdleTimeout
                | FailureCode::RunnerOrphaned
        );
        let failure = if cancelling && has_gone {
            self.parts.interrupts.interruption(self.live)
        } else if has_gone
            && self
                .parts
                .interrupts
                .was_cancelled_elsewhere(self.live, self.run)
                .await
        {
            Failure::cancelled()
        } else {
            failure
        };
        let is_of_runner = matches!(
            failure.code,
            FailureCode::RunnerStreamTruncated
                | FailureCode::RunnerIdleTimeout
                | FailureCode::RunnerOrphaned
        );
        let failure = if is_of_runner {
            self.validator.explain(failure)
        } else {
            failure
        };
        self.ended_by_gateway(failure)
    }

    pub(super) fn over_limit(&mut self, error: TooLarge, chunk: &[u8]) -> Failure {
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
        self.buffer
            .reject(Rejection::new(reason, None, chunk, message));
        Failure::new(FailureCode::RunnerOutputLimit, message)
    }

    /// Validates one result. Returns the end if the result is one.
    fn validate_result(&mut self, raw: &[u8]) -> Option<EndCause> {
        let now = self.parts.clock.now_seconds();
        match self.validator.validate(raw, now) {
            Verdict::Accept(accepted) => {
                // Noted first, because nothing follows a terminal.
                if accepted.is_repaired && !std::mem::replace(&mut self.has_noted_repair, true) {
                    self.note(Deviation::Text);
                }
                self.note_unknown_type(&accepted.kind, now);
                self.buffer.accept(&accepted, now);
                for part in &accepted.shortened {
                    tolerated(Peer::Runner, "part_too_large", self.run.id);
                    self.buffer.reject(part.rejection(raw));
                }
                match accepted.effect {
                    ResultEffect::End(end) => Some(EndCause::Runner(*end)),
                    ResultEffect::None
                    | ResultEffect::SetState(_)
                    | ResultEffect::BindArtifact(_)
                    | ResultEffect::Ask(_) => None,
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
                    let audit = self.security_audit();
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
        unknown_result_type(&self.run.runner_id.to_string(), kind, self.run.id);
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
        let was_rejected = numbers.rejected.contains(&number);
        if announced_artifact(raw).is_some() {
            self.buffer.note_announced();
        }
        let usage = self.validator.replay(number, raw, was_rejected);
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
    pub(super) fn note_deviations(&mut self, reader: &mut ResultReader) {
        for deviation in reader.take_deviations() {
            self.note(deviation);
        }
    }

    fn note(&mut self, deviation: Deviation) {
        tolerated(Peer::Runner, deviation.kind(), self.run.id);
        self.buffer
            .note(deviation.note(), self.parts.clock.now_seconds());
    }

    fn security_audit(&self) -> AuditEntry {
        AuditEntry {
            id: Uuid::now_v7(),
            workspace: self.run.workspace.clone(),
            run_id: self.run.id,
            action: "result",
            resource: "run".to_owned(),
            operation: "append",
            allowed: false,
            rule: "a result named another run".into(),
            bytes: 0,
            at: self.parts.clock.now_ms(),
            is_shared: false,
        }
    }
}
