//! Validates the result stream event by event (`docs/protocol.md`, Result stream).
//!
//! Each event passes UTF-8 → JSON → envelope → `run_id` → sequence → payload → size → domain checks. The result
//! is a ledger event with its effects, or a counted rejection with a reason.

use std::borrow::Cow;
use std::collections::HashSet;

use protocol::admin::DeltaMode;
use protocol::platform_action::MAX_RUN_ACTIONS;
use protocol::result::{DEFAULT_FINISH_REASON, GATEWAY_TYPES, RUNNER_ERROR, ResultType};
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::authorization::AuthorizationSnapshot;
use crate::json_repair::SurrogateJoiner;
use crate::run::{FailureCode, is_reserved_code};
use ending::Unfinished;
use reading::ResultEnvelope;
use replay::content_digest;
use sequences::SequencePosition;

mod announced;
mod bounds;
mod ending;
mod payload;
mod reading;
mod rejection;
mod replay;
mod sequences;
mod strikes;
mod text;
mod verdict;

pub use announced::{announced_artifact, is_result, is_terminal_result, reports_failure};
pub use bounds::TruncatedPart;
pub use ending::ExpectedOutput;
pub use payload::{RunQuestion, StateUpdate};
pub use rejection::{ERROR_RESPONSE, Reason, Rejection, is_extension, unknown_type_advice};
pub use replay::{EarlierVerdict, ResultReplay, StoredResult, open_text};
pub use text::RunMessages;
pub use verdict::{AcceptedResult, ResultCounts, ResultEffect, RunnerEnding, Verdict};

/// Limits of a run's results. The runner receives them in `ctx.runtime.metadata.limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimits {
    pub event_bytes: usize,
    pub run_bytes: usize,
    pub run_events: u64,
    pub state_value_bytes: usize,
}

/// Validates the results of one run in order.
pub struct ResultValidator<'a> {
    snapshot: &'a AuthorizationSnapshot,
    run_id: String,
    limits: ResultLimits,
    expected_output: ExpectedOutput,
    events: u64,
    bytes: usize,
    taken: sequences::AcceptedSequences,
    strikes: u32,
    first_rejection: Option<rejection::FirstRejection>,
    unknown: Option<rejection::UnknownTypes>,
    question_ids: HashSet<String>,
    /// Questions from before a new start of the run. They stay open, so a repeated one has no effect.
    earlier_question_ids: HashSet<String>,
    /// Requested platform actions.
    actions: usize,
    /// Results must be numbered without gaps.
    is_numbered: bool,
    ended: bool,
    /// True after the gateway accepted a cancel of the run.
    cancelled: bool,
    messages: text::Messages,
    /// Half of a surrogate pair, which the next delta may complete.
    halves: SurrogateJoiner,
    /// Reason of a rejected complete message without a replacement.
    rejected_message: Option<String>,
    tally: ResultCounts,
    /// Uploaded artifacts that the run may announce. `None`: any announcement is accepted.
    artifacts: Option<HashSet<Uuid>>,
}

impl<'a> ResultValidator<'a> {
    pub fn new(
        snapshot: &'a AuthorizationSnapshot,
        limits: ResultLimits,
        delta_mode: DeltaMode,
        expected_output: ExpectedOutput,
    ) -> Self {
        Self {
            snapshot,
            run_id: snapshot.run_id.to_string(),
            limits,
            expected_output,
            events: 0,
            bytes: 0,
            taken: sequences::AcceptedSequences::default(),
            strikes: 0,
            first_rejection: None,
            unknown: None,
            question_ids: HashSet::new(),
            earlier_question_ids: HashSet::new(),
            actions: 0,
            is_numbered: false,
            ended: false,
            cancelled: false,
            messages: text::Messages::new(delta_mode, limits.event_bytes),
            halves: SurrogateJoiner::default(),
            rejected_message: None,
            tally: ResultCounts::default(),
            artifacts: None,
        }
    }

    /// Restricts announcements to artifacts from [`Self::add_artifact`].
    #[must_use]
    pub fn with_uploaded_artifacts(mut self) -> Self {
        self.artifacts = Some(HashSet::new());
        self
    }

    /// Requires a number of each result, without gaps and conflicts: the results of a resumable runner.
    #[must_use]
    pub fn with_numbers(mut self) -> Self {
        self.is_numbered = true;
        self
    }

    /// Adds an artifact that the run has uploaded.
    pub fn add_artifact(&mut self, id: Uuid) {
        self.artifacts.get_or_insert_default().insert(id);
    }

    /// Allows the runner to report its run as cancelled.
    pub fn note_cancelled(&mut self) {
        self.cancelled = true;
    }

    /// Returns the counts so far.
    pub fn tally(&self) -> ResultCounts {
        self.tally
    }

    /// Returns the complete messages, for the transcript of a run that the gateway ends.
    pub fn completed_messages(&self) -> RunMessages {
        self.messages.stored().clone()
    }

    /// Validates one event: the bytes of one JSON document. `now`: epoch seconds.
    pub fn validate<'r>(&mut self, raw: &'r [u8], now: i64) -> Verdict<'r> {
        let verdict = self.validate_event(raw, Some(now));
        self.count(&verdict);
        verdict
    }

    fn count(&mut self, verdict: &Verdict<'_>) {
        match verdict {
            Verdict::Accept(accepted) => {
                self.tally.gaps += u64::from(accepted.gap);
                self.tally.rejected += accepted.shortened.len() as u64;
                self.ended |= matches!(accepted.effect, ResultEffect::End(_));
            }
            Verdict::Duplicate => self.tally.duplicates += 1,
            Verdict::Reject(_) | Verdict::Fail(..) => self.tally.rejected += 1,
        }
    }

    fn validate_envelope<'r>(
        &mut self,
        envelope: ResultEnvelope<'r>,
        raw: &[u8],
        now: Option<i64>,
    ) -> Verdict<'r> {
        if envelope.run_id != self.run_id {
            return Verdict::violation(Reason::WrongRunId, None, raw, "a result names another run");
        }
        if envelope.kind.is_empty() || envelope.kind.len() > 128 {
            return self.strike(
                Reason::InvalidEnvelope,
                None,
                raw,
                "a result's type is malformed",
            );
        }
        if GATEWAY_TYPES.contains(&envelope.kind.as_ref()) {
            let message = "only the gateway writes run.restarted and run.amended";
            return self.strike(Reason::InvalidEnvelope, None, raw, message);
        }
        let number = match envelope.sequence.map(|raw| raw.get().parse::<u64>()) {
            None => None,
            Some(Ok(number)) if number > 0 => Some(number),
            Some(_) => {
                let message = "sequence must be an integer of at least 1";
                return Verdict::violation(Reason::InvalidEnvelope, None, raw, message);
            }
        };
        if number.is_none() && self.is_numbered {
            let message = "a resumable runner must number its results in sequence";
            return Verdict::violation(Reason::InvalidEnvelope, None, raw, message);
        }
        let content = || content_digest(&envelope.kind, envelope.data);
        let gap = match self.taken.accept(number, raw, content) {
            // A rejected result without a readable number leaves a gap as well.
            SequencePosition::Next { gap: true } if self.is_numbered && self.strikes == 0 => {
                let message = "results are missing before this sequence of a resumable runner";
                return Verdict::violation(Reason::InvalidEnvelope, number, raw, message);
            }
            SequencePosition::Next { gap } => gap,
            SequencePosition::Duplicate => return Verdict::Duplicate,
            SequencePosition::Refused(reason, message) => {
                if self.is_numbered {
                    return Verdict::violation(reason, number, raw, message);
                }
                // A terminal result is the last, so the run ends.
                if ResultType::parse(&envelope.kind).is_some_and(ResultType::is_terminal) {
                    let message = "the sequence of a terminal does not rise";
                    return Verdict::violation(reason, number, raw, message);
                }
                return Verdict::Reject(Rejection::new(reason, number, raw, message));
            }
        };
        self.validate_payload(envelope, number, gap, raw, now)
    }

    fn validate_payload<'r>(
        &mut self,
        envelope: ResultEnvelope<'r>,
        number: Option<u64>,
        gap: bool,
        raw: &[u8],
        now: Option<i64>,
    ) -> Verdict<'r> {
        let result_type = ResultType::parse(&envelope.kind);
        let data = envelope.data.map_or("{}", RawValue::get);
        if !data.starts_with('{')
            || envelope
                .usage
                .is_some_and(|usage| !usage.get().starts_with('{'))
        {
            let message = "a result's data and usage must be objects";
            return self.refuse(result_type, Reason::InvalidEnvelope, message, number, raw);
        }
        let payload = if let Some(kind) = result_type {
            let max_bytes = self.limits.state_value_bytes;
            payload::check(kind, data, self.snapshot, max_bytes, now)
        } else {
            if !is_extension(&envelope.kind) {
                self.note_unknown(&envelope.kind);
            }
            Ok(payload::CheckedPayload::Plain)
        };
        let mut checked = match payload {
            Ok(checked) => checked,
            Err(fault) => {
                return self.refuse(result_type, fault.reason, fault.message, number, raw);
            }
        };
        if let payload::CheckedPayload::Artifact(id) = checked
            && !self.may_announce(id)
        {
            let message = "artifact.created names no artifact that this run has uploaded";
            return self.strike(Reason::UnknownArtifact, number, raw, message);
        }
        if let payload::CheckedPayload::RunQuestion(question) = &checked
            && !self.is_new(question)
        {
            if !self.earlier_question_ids.contains(&question.interaction_id) {
                let message =
                    "a run may request each interaction_id once, and at most 100 in total";
                return self.strike(Reason::InvalidPayload, number, raw, message);
            }
            checked = payload::CheckedPayload::Plain;
        }
        if matches!(checked, payload::CheckedPayload::PlatformAction(_)) {
            if self.actions == MAX_RUN_ACTIONS {
                let message = "a run may request at most 100 platform actions by results";
                return self.strike(Reason::InvalidPayload, number, raw, message);
            }
            self.actions += 1;
        }
        let mut shortened = Vec::new();
        bounds::cut_ending(&mut checked, &mut shortened);
        let (effect, client_form) = match self.apply(checked, data.len()) {
            Ok(applied) => applied,
            Err((reason, failure)) => {
                return Verdict::fail(reason, number, raw, failure);
            }
        };
        let message_omitted = matches!(
            client_form,
            ClientForm::WithoutMessage
                | ClientForm::AsStopped {
                    without_message: true,
                    ..
                }
        );
        let data = match client_form {
            ClientForm::AsSent => envelope
                .data
                .map_or_else(|| Cow::Owned(text::nothing()), text::one_line),
            ClientForm::WithoutMessage => Cow::Owned(text::without_message(data)),
            ClientForm::Snapshot(shown) => Cow::Owned(text::with_snapshot(data, shown)),
            ClientForm::AsFailure { code, own } => Cow::Owned(text::as_failure(data, code, &own)),
            ClientForm::AsStopped {
                own,
                without_message,
            } => Cow::Owned(text::as_stopped(data, &own, without_message)),
        };
        Verdict::Accept(AcceptedResult {
            kind: envelope.kind,
            data,
            usage: (envelope.usage).map(|usage| bounds::usage(usage, &mut shortened)),
            shortened,
            runner_sequence: number,
            gap,
            message_omitted,
            is_repaired: false,
            effect,
        })
    }

    fn may_announce(&self, id: Option<Uuid>) -> bool {
        let uploaded = self.artifacts.as_ref();
        uploaded.is_none_or(|uploaded| id.is_some_and(|id| uploaded.contains(&id)))
    }

    /// `bytes`: size of its data.
    fn apply(
        &mut self,
        checked: payload::CheckedPayload<'_>,
        bytes: usize,
    ) -> Result<(ResultEffect, ClientForm), Unfinished> {
        let mut client_form = ClientForm::AsSent;
        let effect = match checked {
            payload::CheckedPayload::Plain => ResultEffect::None,
            payload::CheckedPayload::Delta(delta) => {
                if let Some(shown) = self.messages.add_delta(delta) {
                    client_form = ClientForm::Snapshot(shown);
                }
                ResultEffect::None
            }
            payload::CheckedPayload::Message(message) => {
                self.messages.complete(*message, bytes);
                self.halves = SurrogateJoiner::default();
                self.rejected_message = None;
                ResultEffect::None
            }
            payload::CheckedPayload::State(update) => ResultEffect::SetState(update),
            payload::CheckedPayload::Artifact(id) => {
                id.map_or(ResultEffect::None, ResultEffect::BindArtifact)
            }
            payload::CheckedPayload::RunQuestion(question) => ResultEffect::Ask(question),
            payload::CheckedPayload::PlatformAction(action) => ResultEffect::Act(action),
            payload::CheckedPayload::Completed {
                finish_reason,
                message,
                outcome,
            } => {
                if message.is_some() && self.messages.stored().last() == message.as_ref() {
                    client_form = ClientForm::WithoutMessage;
                }
                let completed_messages = self.final_messages(message)?;
                // `cancelled` is correct for a run whose cancel was accepted.
                let is_cancel = self.cancelled && finish_reason == FailureCode::Cancelled.as_str();
                let is_reserved = !is_cancel && is_reserved_code(&finish_reason);
                let mut reason = finish_reason;
                if is_reserved {
                    let own = std::mem::replace(&mut reason, DEFAULT_FINISH_REASON.to_owned());
                    let without_message = matches!(client_form, ClientForm::WithoutMessage);
                    client_form = ClientForm::AsStopped {
                        own,
                        without_message,
                    };
                }
                ResultEffect::End(Box::new(RunnerEnding {
                    status: RunStatus::Completed,
                    reason,
                    outcome,
                    error: Value::Null,
                    completed_messages,
                }))
            }
            payload::CheckedPayload::Failed {
                code,
                message,
                retryable,
            } => {
                // A cancel breaks calls of the runner, which then reports their errors.
                let is_cancel = self.cancelled;
                let mut error = json!({"code": code, "message": message, "retryable": retryable});
                let cancelled = FailureCode::Cancelled.as_str();
                if is_cancel && code != cancelled || !is_cancel && is_reserved_code(&code) {
                    let as_code = if is_cancel { cancelled } else { RUNNER_ERROR };
                    error["code"] = json!(as_code);
                    error["details"] = json!({"code": code});
                    client_form = ClientForm::AsFailure {
                        code: as_code,
                        own: code,
                    };
                }
                ResultEffect::End(Box::new(RunnerEnding {
                    status: if is_cancel {
                        RunStatus::Cancelled
                    } else {
                        RunStatus::Failed
                    },
                    reason: error["code"].as_str().unwrap_or_default().to_owned(),
                    outcome: None,
                    error,
                    completed_messages: self.completed_messages(),
                }))
            }
        };
        Ok((effect, client_form))
    }

    fn is_new(&mut self, question: &RunQuestion) -> bool {
        let count = self.question_ids.len() + self.earlier_question_ids.len();
        count < payload::QUESTIONS
            && !self.earlier_question_ids.contains(&question.interaction_id)
            && self.question_ids.insert(question.interaction_id.clone())
    }
}

/// Form in which clients receive the data of a result.
enum ClientForm {
    AsSent,
    /// Without its message, which was delivered before.
    WithoutMessage,
    Snapshot(text::SnapshotDelta),
    /// With another code: its own is reserved, or follows from a cancel.
    AsFailure {
        code: &'static str,
        own: String,
    },
    /// As `stop`: its finish reason, this one, is reserved.
    AsStopped {
        own: String,
        without_message: bool,
    },
}

#[cfg(test)]
mod tests;
