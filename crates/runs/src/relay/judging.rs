//! Results that have come, judged one by one: into the book, or to the end of the run.

use std::collections::HashSet;

use domain::normalize::{Effect, Reason, Rejection, Verdict, announced_artifact, says_cancelled};
use domain::run::{Failure, FailureCode};
use store::{AuditEntry, ResumePoint};
use uuid::Uuid;

use super::reader::{Deviation, ResultReader, TooLarge};
use super::{Relay, Stopped};
use crate::dispatch::{interruption, was_cancelled_elsewhere};
use crate::settle::{Ending, surely};
use telemetry::tolerance::{Peer, tolerated};

/// How far the judging of appended results has come. They are numbered without a gap.
#[derive(Default)]
pub(super) struct Numbers {
    judged: u64,
    /// Up to here the ledger has it: the judge is told, to know what has been said.
    known: u64,
    /// What of that was rejected.
    rejected: HashSet<u64>,
}

impl Numbers {
    /// The first to be judged are known.
    pub(super) fn of(left_off: ResumePoint) -> Self {
        Self {
            judged: 0,
            known: left_off.judged_through,
            rejected: left_off.rejected,
        }
    }
}

impl Relay<'_> {
    /// Judges what waits while the book has room; gives the ending when there is one.
    pub(super) async fn judge_waiting(
        &mut self,
        cancelling: bool,
    ) -> Result<Option<Ending>, Stopped> {
        while !self.book.is_full() {
            let Some(raw) = self.waiting.pop_front() else {
                let Some(failure) = self.input_ended.take() else {
                    return Ok(None);
                };
                // In a box of its own: few runs end so.
                return Ok(Some(Box::pin(self.ended_early(failure, cancelling)).await));
            };
            if self.recall(&raw) {
                continue;
            }
            self.look_for_artifact(&raw).await?;
            self.look_for_cancel(&raw).await;
            if let Some(ending) = self.judge_result(&raw) {
                // What came behind the end in the same breath is counted, and no more is read.
                for raw in std::mem::take(&mut self.waiting) {
                    if let Verdict::Reject(rejection) =
                        self.judge.judge(&raw, self.inner.clock.now_seconds())
                    {
                        self.book.reject(rejection);
                    }
                }
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }

    /// Tells the judge of the artifact that a result announces, if the run has uploaded it.
    async fn look_for_artifact(&mut self, raw: &[u8]) -> Result<(), Stopped> {
        let Some(id) = announced_artifact(raw) else {
            return Ok(());
        };
        let (store, run) = (&self.inner.store, self.run);
        let ask = || store.artifacts().is_artifact_of(&run.workspace, run.id, id);
        // In a box of its own: few results announce one, and every run would keep its room.
        let found = tokio::select! {
            found = Box::pin(surely(self.inner, run.id, ask)) => found.map_err(Stopped::Unwritable)?,
            () = self.live.lost.cancelled() => return Err(Stopped::Lost),
        };
        if found {
            self.judge.know_artifact(id);
        }
        Ok(())
    }

    /// Tells the judge of a cancel: a runner may have heard of one from another replica.
    async fn look_for_cancel(&mut self, raw: &[u8]) {
        if self.live.cancel.is_cancelled()
            || says_cancelled(raw)
                // In a box of its own: few results say so, and every run would keep its room.
                && Box::pin(was_cancelled_elsewhere(self.inner, self.live, self.run)).await
        {
            self.judge.note_cancelled();
        }
    }

    async fn ended_early(&mut self, failure: Failure, cancelling: bool) -> Ending {
        // A runner that hangs up after a cancel, or is not heard of any more, has done what it was asked to.
        let has_gone = matches!(
            failure.code,
            FailureCode::RunnerStreamTruncated
                | FailureCode::RunnerIdleTimeout
                | FailureCode::RunnerOrphaned
        );
        let failure = if cancelling && has_gone {
            interruption(self.inner, self.live)
        } else if has_gone && was_cancelled_elsewhere(self.inner, self.live, self.run).await {
            Failure::cancelled()
        } else {
            failure
        };
        let failure = if failure.code == FailureCode::RunnerStreamTruncated {
            let message = self.judge.with_refused(&failure.message);
            Failure { message, ..failure }
        } else {
            failure
        };
        self.ended_by_gateway(failure)
    }

    pub(super) fn over_limit(&mut self, error: TooLarge, chunk: &[u8]) -> Failure {
        let (reason, message) = match error {
            TooLarge::Line => (
                Reason::LineTooLong,
                "a line is longer than limits.line_bytes",
            ),
            TooLarge::Event => (
                Reason::EventTooLarge,
                "an event is larger than limits.event_bytes",
            ),
            TooLarge::Document => (
                Reason::EventTooLarge,
                "one JSON document holds no more than 8 MiB and limits.run_bytes: answer by lines of JSON",
            ),
            TooLarge::Beside => (
                Reason::EventTooLarge,
                "what is no result (comments, empty lines, unknown fields) is larger than twice limits.run_bytes: \
                 send fewer heartbeats",
            ),
        };
        self.book
            .reject(Rejection::new(reason, None, chunk, message));
        Failure::new(FailureCode::RunnerOutputLimit, message)
    }

    /// Judges one result; gives the ending when it was that.
    fn judge_result(&mut self, raw: &[u8]) -> Option<Ending> {
        let now = self.inner.clock.now_seconds();
        match self.judge.judge(raw, now) {
            Verdict::Accept(accepted) => {
                // Before it: nothing follows a terminal.
                if accepted.is_repaired && !std::mem::replace(&mut self.has_noted_repair, true) {
                    self.note(Deviation::Text);
                }
                self.book.accept(&accepted, now);
                for part in &accepted.shortened {
                    tolerated(Peer::Runner, "part_too_large", self.run.id);
                    self.book.reject(part.rejection(raw));
                }
                match accepted.effect {
                    Effect::End(end) => Some(Ending::Runner(*end)),
                    Effect::None
                    | Effect::SetState(_)
                    | Effect::BindArtifact(_)
                    | Effect::Ask(_) => None,
                }
            }
            Verdict::Duplicate => None,
            Verdict::Reject(rejection) => {
                self.book.reject(rejection);
                None
            }
            Verdict::Fail(rejection, failure) => {
                if rejection.reason == Reason::WrongRunId {
                    let audit = self.security_audit();
                    self.book.audit(audit);
                }
                self.book.reject(rejection);
                Some(self.ended_by_gateway(failure))
            }
        }
    }

    /// Counts a result that was appended; true when the ledger has what came of it.
    fn recall(&mut self, raw: &[u8]) -> bool {
        let Some(numbers) = &mut self.appended else {
            return false;
        };
        numbers.judged += 1;
        let number = numbers.judged;
        if number > numbers.known {
            self.book.note_judged(number);
            return false;
        }
        let was_rejected = numbers.rejected.contains(&number);
        if announced_artifact(raw).is_some() {
            self.book.note_announced();
        }
        let usage = self.judge.recall(number, raw, was_rejected);
        self.book.note_usage(usage);
        true
    }

    pub(super) fn ended_by_gateway(&self, failure: Failure) -> Ending {
        Ending::Gateway {
            failure,
            said: self.judge.said(),
        }
    }

    /// Says in the log and in the ledger what was read although it departs from the framing.
    pub(super) fn note_deviations(&mut self, reader: &mut ResultReader) {
        for deviation in reader.take_deviations() {
            self.note(deviation);
        }
    }

    fn note(&mut self, deviation: Deviation) {
        tolerated(Peer::Runner, deviation.kind(), self.run.id);
        self.book
            .note(deviation.note(), self.inner.clock.now_seconds());
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
            at: self.inner.clock.now_ms(),
            is_shared: false,
        }
    }
}
