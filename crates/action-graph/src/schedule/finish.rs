//! Rules 7 to 10, 14 and 16: ends of attempts, approvals, and reconciliation after a take-over.

use crate::action::{Class, ExecutorKind, FailureMode};
use crate::code::Code;
use crate::graph::StopReason;
use crate::ids::ActionId;
use crate::node::{ActionError, ActionOutput, NodeState, Sent, Wait};
use crate::result::excerpt::GAP;
use crate::result::tokens::{head_bytes, tail_bytes};
use crate::schedule::{
    ActionFailure, ActionOutcome, AttemptEvents, Command, DecisionEvents, Denial, IgnoredEvent,
    RecoveredAttempt, StepState,
};

/// Bytes of an error message that are kept from its beginning and its end.
const MESSAGE: (usize, usize) = (1 << 10, 15 << 10);

impl AttemptEvents<'_, '_> {
    pub(super) fn finished(&mut self, id: &ActionId, attempt: u32, outcome: ActionOutcome) {
        let Some(position) = self.step.open(id, attempt) else {
            return;
        };
        self.end(position, outcome);
    }

    /// The end of an open attempt.
    pub(super) fn end(&mut self, position: usize, outcome: ActionOutcome) {
        let max = self.step.graph.settings.output_bytes;
        match outcome {
            // Not cut: a part of a structured output would be another value.
            ActionOutcome::Ok { output, .. } if output.bytes > max => {
                let message = format!("the output exceeds {max} bytes");
                self.failed(
                    position,
                    &ActionFailure::new(Code::OutputTooLarge, &message, Sent::Yes),
                );
            }
            ActionOutcome::Ok { output, satisfying } => {
                self.completed(position, output, satisfying);
            }
            ActionOutcome::Err(failure) => self.failed(position, &failure),
        }
    }

    /// Rule 7: completed, or once more until the condition holds.
    fn completed(&mut self, position: usize, output: ActionOutput, satisfying: bool) {
        let now = self.step.now;
        let node = &mut self.step.graph.nodes[position];
        // The attempt ends before its output decides about a repetition.
        node.end_attempt(now, None, Some(Sent::Yes));
        node.output = Some(output);
        node.error = None;
        node.child = None;
        let is_aborting = std::mem::take(&mut node.aborting);
        // An abort and a stop end the repetition, too.
        if !is_aborting && self.step.graph.stop.is_none() && self.repeats(position) {
            return;
        }
        let node = &mut self.step.graph.nodes[position];
        node.satisfying = satisfying;
        // For a question, an unsatisfying end means that the user refused.
        let why = match node.kind() {
            _ if satisfying => None,
            ExecutorKind::Human => Some(Code::ApprovalDenied),
            _ => Some(Code::ChildUnsatisfying),
        };
        self.step.go(position, NodeState::Completed, why);
    }

    fn repeats(&mut self, position: usize) -> bool {
        let node = &self.step.graph.nodes[position];
        let Some(repeat) = &node.action.repeat else {
            return false;
        };
        let is_last = node.iteration + 1 >= repeat.max;
        if is_last || self.step.graph.holds(&repeat.until, Some(node)) {
            return false;
        }
        let delay = repeat.delay_ms;
        let node = &mut self.step.graph.nodes[position];
        node.iteration += 1;
        node.tries = 0;
        // Each iteration needs an approval of its own.
        node.cleared = false;
        if delay == 0 {
            self.step.go(position, NodeState::Pending, None);
        } else {
            self.step.retry_at(position, delay, None);
        }
        true
    }

    fn failed(&mut self, position: usize, failure: &ActionFailure) {
        let now = self.step.now;
        let node = &mut self.step.graph.nodes[position];
        node.end_attempt(now, Some(failure.code), Some(failure.sent));
        node.child = None;
        let message = shortened(&failure.message);
        let code = failure.code;
        let error = ActionError { code, message };
        // The call may have been made, and must not be made twice.
        let is_unclear = node.class() == Class::AtMostOnce && failure.sent == Sent::Maybe;
        // An aborted attempt is not retried, whatever its policy.
        if std::mem::take(&mut node.aborting) {
            node.error = Some(error);
            let state = if is_unclear {
                NodeState::Uncertain
            } else {
                NodeState::Canceled
            };
            return self.step.go(position, state, Some(Code::Canceled));
        }
        if is_unclear {
            node.error = Some(error);
            return self
                .step
                .go(position, NodeState::Uncertain, Some(Code::UncertainEffect));
        }
        let policy = &node.action.failure;
        // A call that was certainly not sent may be repeated by every class.
        let may_repeat = node.class() != Class::AtMostOnce || failure.sent == Sent::No;
        let is_retried = policy.mode == FailureMode::Retry
            && node.tries < policy.max_attempts
            && failure.retryable
            && may_repeat
            && self.step.graph.stop.is_none();
        if !is_retried {
            return self.step.fail(position, error);
        }
        // The shift is bounded: a large count would overflow it.
        let backoff =
            u64::from(policy.backoff_ms) << u32::from(node.tries.saturating_sub(1)).min(16);
        // A longer delay that the executor requests wins over the policy.
        let requested = u64::from(failure.retry_after.unwrap_or(0));
        let max = u64::from(self.step.graph.settings.retry_delay_ms);
        let base = backoff.max(requested).min(max);
        // The caller draws the jitter, so that a step stays deterministic.
        let jitter = i64::from(failure.jitter.clamp(-200, 200));
        let change = i64::try_from(base).unwrap_or(0) * jitter / 1_000;
        // Jitter must not shorten the requested delay.
        let delay = base
            .saturating_add_signed(change)
            .min(max)
            .max(requested.min(max));
        self.step.graph.nodes[position].error = Some(error);
        self.step.retry_at(
            position,
            u32::try_from(delay).unwrap_or(u32::MAX),
            Some(code),
        );
    }

    /// Rule 16: reconciliation of an open attempt after a take-over.
    pub(super) fn recovered(&mut self, id: &ActionId, attempt: u32, found: RecoveredAttempt) {
        let Some(position) = self.step.open(id, attempt) else {
            return;
        };
        let node = &self.step.graph.nodes[position];
        match (found, node.state) {
            (RecoveredAttempt::Ended(outcome), _) => self.end(position, outcome),
            // The process that had to confirm the abort is gone.
            (RecoveredAttempt::Nothing | RecoveredAttempt::Unknown, NodeState::Running)
                if node.aborting =>
            {
                self.step.grace_over(position);
            }
            (RecoveredAttempt::Nothing | RecoveredAttempt::Unknown, NodeState::Running) => {
                // The same attempt again: the idempotency key finds a result that was lost.
                match node.class() {
                    Class::Replayable | Class::Keyed => {
                        self.step.graph.nodes[position].resumes = true;
                        self.step.go(position, NodeState::Pending, None);
                    }
                    Class::AtMostOnce => {
                        // The call may have been made by the earlier process.
                        let now = self.step.now;
                        self.step.graph.nodes[position].end_attempt(now, None, Some(Sent::Maybe));
                        self.step
                            .go(position, NodeState::Uncertain, Some(Code::UncertainEffect));
                    }
                }
            }
            (RecoveredAttempt::Unknown, NodeState::Waiting(Wait::Child)) => {
                let message = "the child run is not known any more";
                // Not sent: without a record of the child run, a second one repeats nothing.
                let mut failure = ActionFailure::new(Code::ChildFailed, message, Sent::No);
                failure.retryable = true;
                self.end(position, ActionOutcome::Err(failure));
            }
            // The question is lost; a new attempt puts it to the user again.
            (RecoveredAttempt::Unknown, NodeState::Waiting(Wait::User)) => {
                self.step.go(position, NodeState::Pending, None);
            }
            // The timer was lost with the process; the runner evaluates the wait again.
            (RecoveredAttempt::Nothing, NodeState::Waiting(Wait::Timer)) => {
                self.step.go(position, NodeState::Running, None);
            }
            (RecoveredAttempt::Alive, _)
            | (RecoveredAttempt::Nothing | RecoveredAttempt::Unknown, NodeState::Waiting(_)) => {}
            _ => self.step.count(IgnoredEvent::Refused),
        }
    }
}

impl StepState<'_> {
    pub(super) fn retry_at(&mut self, position: usize, delay: u32, why: Option<Code>) {
        let at = self.now.saturating_add(u64::from(delay));
        self.go(position, NodeState::Waiting(Wait::Retry), why);
        let node = &mut self.graph.nodes[position];
        node.due = Some(at);
        let (id, attempt) = (node.action.id.clone(), node.attempt);
        self.effects.push(Command::SetTimer { id, attempt, at });
    }

    /// Rule 10: failed for good; `abort` ends the graph, `continue` opens the edges.
    pub(super) fn fail(&mut self, position: usize, error: ActionError) {
        let node = &mut self.graph.nodes[position];
        let code = error.code;
        node.error = Some(error);
        let is_instance = node.parent.is_some();
        let last = node.action.failure.last();
        // `continue` opens the edges although the action failed.
        node.satisfying = last == FailureMode::Continue;
        self.go(position, NodeState::Failed, Some(code));
        // An instance fails its fan-out first, whose own policy decides.
        if last == FailureMode::Abort && !is_instance && self.graph.stop.is_none() {
            self.halt(StopReason::Aborted);
        }
    }
}

impl DecisionEvents<'_, '_> {
    /// Rule 14. An approval covers the bytes that it names, once.
    pub(super) fn approved(&mut self, ids: &[(ActionId, String)], by: Option<&String>) {
        for (id, hash) in ids {
            let Some(position) = self.waiting_for_approval(id) else {
                continue;
            };
            let node = &mut self.step.graph.nodes[position];
            // The user approved other arguments than those that would run now.
            if node.approval.as_ref() != Some(hash) {
                self.step.count(IgnoredEvent::Refused);
                continue;
            }
            node.cleared = true;
            node.cleared_by = by.cloned();
            self.step.go(position, NodeState::Pending, None);
        }
    }

    pub(super) fn denied(&mut self, ids: &[ActionId], why: Denial) {
        let (code, message) = match why {
            Denial::Refused => (Code::ApprovalDenied, "the user refused it"),
            Denial::Expired => (Code::InteractionExpired, "the user did not answer in time"),
            Denial::Unavailable => (Code::ApprovalUnavailable, "no person can approve it"),
            Denial::TooLong => (
                Code::ApprovalUnavailable,
                "its arguments are longer than a question can show: shorten them, or split the action",
            ),
        };
        for id in ids {
            // Answers may arrive after a cancel or a second time.
            if let Some(position) = self.waiting_for_approval(id) {
                let message = message.to_owned();
                self.step.fail(position, ActionError { code, message });
            }
        }
    }

    fn waiting_for_approval(&mut self, id: &ActionId) -> Option<usize> {
        let position = self.step.graph.position(id);
        let is_waiting = |position: &usize| {
            self.step.graph.nodes[*position].state == NodeState::Waiting(Wait::Approval)
        };
        let position = position.filter(is_waiting);
        if position.is_none() {
            self.step.count(IgnoredEvent::Late);
        }
        position
    }
}

/// A message without its middle when it is long: the first line names the failure, the last ones its cause.
fn shortened(message: &str) -> String {
    let (begin, end) = MESSAGE;
    if message.len() <= begin + end {
        return message.to_owned();
    }
    format!(
        "{}\n{GAP}\n{}",
        head_bytes(message, begin),
        tail_bytes(message, end)
    )
}
