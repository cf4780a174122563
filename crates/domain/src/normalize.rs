//! The result stream, judged event by event (protocol §4).
//!
//! Each event passes UTF-8 → JSON → envelope → `run_id` → sequence → payload → size → domain checks.
//! What comes out is a ledger event with its projections, or a counted, reasoned rejection.

use std::borrow::Cow;
use std::collections::HashSet;

use protocol::admin::DeltaMode;
use protocol::message::Message;
use protocol::result::ResultType;
use protocol::run::RunStatus;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::authorization::AuthorizationSnapshot;
use crate::json_text::check_json_text;
use crate::run::{Failure, FailureCode};
use places::Place;

mod announced;
mod bounds;
mod payload;
mod places;
mod recall;
mod rejection;
mod text;
mod verdict;

pub use announced::announced_artifact;
pub use bounds::Shortened;
pub use payload::{Question, StateUpdate};
pub use rejection::{Reason, Rejection};
pub use verdict::{Accepted, Effect, RunnerEnding, Tally, Verdict};

/// What a run may send at most. Told to the runner in `ctx.runtime.metadata.limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimits {
    pub event_bytes: usize,
    pub run_bytes: usize,
    pub run_events: u64,
    pub state_value_bytes: usize,
}

/// Judges the results of one run, in order.
pub struct Judge<'a> {
    snapshot: &'a AuthorizationSnapshot,
    run_id: String,
    limits: ResultLimits,
    expects_message: bool,
    events: u64,
    bytes: usize,
    taken: places::Places,
    strikes: u32,
    /// Why the first result was refused.
    refused: Option<String>,
    asked: HashSet<String>,
    ended: bool,
    messages: text::Messages,
    tally: Tally,
    /// Artifacts of the run that may be announced; `None`: whatever is announced is taken.
    artifacts: Option<HashSet<Uuid>>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    run_id: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sequence: Option<&'a RawValue>,
}

impl<'a> Judge<'a> {
    /// `expects_message`: the event was a message, so a run that says nothing has failed.
    pub fn new(
        snapshot: &'a AuthorizationSnapshot,
        limits: ResultLimits,
        delta_mode: DeltaMode,
        expects_message: bool,
    ) -> Self {
        Self {
            snapshot,
            run_id: snapshot.run_id.to_string(),
            limits,
            expects_message,
            events: 0,
            bytes: 0,
            taken: places::Places::default(),
            strikes: 0,
            refused: None,
            asked: HashSet::new(),
            ended: false,
            messages: text::Messages::new(delta_mode, limits.event_bytes),
            tally: Tally::default(),
            artifacts: None,
        }
    }

    /// The same judge, which takes no announcement of an artifact that it has not been told of.
    #[must_use]
    pub fn knowing_artifacts(mut self) -> Self {
        self.artifacts = Some(HashSet::new());
        self
    }

    /// Tells of an artifact that its run has uploaded.
    pub fn know_artifact(&mut self, id: Uuid) {
        self.artifacts.get_or_insert_default().insert(id);
    }

    /// The counts so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The last whole message, for the transcript of a run that the gateway ends.
    pub fn last_message(&self) -> Option<Message> {
        self.messages.completed().cloned()
    }

    /// Judges one event: the bytes of one JSON document. `now`: epoch seconds.
    pub fn judge<'r>(&mut self, raw: &'r [u8], now: i64) -> Verdict<'r> {
        let verdict = self.judge_event(raw, Some(now));
        self.count(&verdict);
        verdict
    }

    fn count(&mut self, verdict: &Verdict<'_>) {
        match verdict {
            Verdict::Accept(accepted) => {
                self.tally.gaps += u64::from(accepted.gap);
                self.tally.rejected += accepted.shortened.len() as u64;
                self.ended |= matches!(accepted.effect, Effect::End(_));
            }
            Verdict::Duplicate => self.tally.duplicates += 1,
            Verdict::Reject(_) | Verdict::Fail(..) => self.tally.rejected += 1,
        }
    }

    /// `now`: `None` where times have been looked at before.
    fn judge_event<'r>(&mut self, raw: &'r [u8], now: Option<i64>) -> Verdict<'r> {
        self.events += 1;
        self.bytes = self.bytes.saturating_add(raw.len());
        if self.ended {
            return Verdict::Reject(Rejection::after_terminal(raw));
        }
        if let Some(message) = self.over_limit(raw) {
            let failure = Failure::new(FailureCode::RunnerOutputLimit, message);
            return Verdict::fail(Reason::EventTooLarge, None, raw, failure);
        }
        let Ok(line) = std::str::from_utf8(raw) else {
            return self.strike(Reason::InvalidUtf8, None, raw, "an event is not UTF-8");
        };
        if let Err(fault) = check_json_text(raw) {
            let message = format!("an event {fault}");
            let fault = (Reason::InvalidJson, message.as_str());
            return self.refuse(announced::kind_in(line), fault, None, raw);
        }
        let envelope = match serde_json::from_str::<Envelope<'r>>(line) {
            Ok(envelope) => envelope,
            Err(error) => {
                let reason = if error.is_data() {
                    Reason::InvalidEnvelope
                } else {
                    Reason::InvalidJson
                };
                return self.strike(reason, None, raw, "an event is not an AgentRunResult");
            }
        };
        self.judge_envelope(envelope, (raw, now))
    }

    fn over_limit(&self, raw: &[u8]) -> Option<&'static str> {
        if raw.len() > self.limits.event_bytes {
            Some("an event is larger than limits.event_bytes")
        } else if self.events > self.limits.run_events {
            Some("the run sent more events than limits.run_events")
        } else if self.bytes > self.limits.run_bytes {
            Some("the run sent more bytes than limits.run_bytes")
        } else {
            None
        }
    }

    fn judge_envelope<'r>(
        &mut self,
        envelope: Envelope<'r>,
        (raw, now): (&'r [u8], Option<i64>),
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
        let number = match envelope.sequence.map(|raw| raw.get().parse::<u64>()) {
            None => None,
            Some(Ok(number)) if number > 0 => Some(number),
            Some(_) => {
                let message = "a sequence is no whole number from 1 on";
                return Verdict::violation(Reason::InvalidEnvelope, None, raw, message);
            }
        };
        let gap = match self.taken.place(number, raw) {
            Place::Next { gap } => gap,
            Place::Duplicate => return Verdict::Duplicate,
            Place::Refused(reason, message) => {
                // It says that the run is over, and nothing better will come.
                if ResultType::parse(&envelope.kind).is_some_and(ResultType::is_terminal) {
                    let message = "the sequence of a terminal does not rise";
                    return Verdict::violation(reason, number, raw, message);
                }
                return Verdict::Reject(Rejection::new(reason, number, raw, message));
            }
        };
        self.judge_payload(envelope, (number, gap), raw, now)
    }

    fn judge_payload<'r>(
        &mut self,
        envelope: Envelope<'r>,
        (number, gap): (Option<u64>, bool),
        raw: &'r [u8],
        now: Option<i64>,
    ) -> Verdict<'r> {
        let known = ResultType::parse(&envelope.kind);
        let data = envelope.data.map_or("{}", RawValue::get);
        if !data.starts_with('{')
            || envelope
                .usage
                .is_some_and(|usage| !usage.get().starts_with('{'))
        {
            let message = "a result's data and usage must be objects";
            return self.refuse(known, (Reason::InvalidEnvelope, message), number, raw);
        }
        let payload = match known {
            Some(kind) => {
                let most = self.limits.state_value_bytes;
                payload::check(kind, data, self.snapshot, most, now)
            }
            None => Ok(payload::Checked::Plain),
        };
        let mut checked = match payload {
            Ok(checked) => checked,
            Err(fault) => return self.refuse(known, (fault.reason, fault.message), number, raw),
        };
        if let payload::Checked::Artifact(id) = checked
            && !self.may_announce(id)
        {
            let message = "artifact.created names no artifact that this run has uploaded";
            return self.strike(Reason::UnknownArtifact, number, raw, message);
        }
        if let payload::Checked::Question(question) = &checked
            && !self.is_new(question)
        {
            let message = "a run asks each interaction_id once, and 100 at most";
            return self.strike(Reason::InvalidPayload, number, raw, message);
        }
        let mut shortened = Vec::new();
        bounds::cut_ending(&mut checked, &mut shortened);
        let (effect, told) = match self.apply(checked) {
            Ok(applied) => applied,
            Err((reason, failure)) => {
                return Verdict::fail(reason, number, raw, failure);
            }
        };
        let message_omitted = matches!(told, Told::WithoutMessage);
        let data = match told {
            Told::AsSent => envelope
                .data
                .map_or_else(|| Cow::Owned(text::nothing()), text::one_line),
            Told::WithoutMessage => Cow::Owned(text::without_message(data)),
            Told::Snapshot(shown) => Cow::Owned(text::with_snapshot(data, shown)),
        };
        Verdict::Accept(Accepted {
            kind: envelope.kind,
            data,
            usage: (envelope.usage).map(|usage| bounds::usage(usage, &mut shortened)),
            shortened,
            runner_sequence: number,
            gap,
            message_omitted,
            effect,
        })
    }

    fn may_announce(&self, id: Option<Uuid>) -> bool {
        let known = self.artifacts.as_ref();
        known.is_none_or(|known| id.is_some_and(|id| known.contains(&id)))
    }

    fn apply(&mut self, checked: payload::Checked<'_>) -> Result<(Effect, Told), Unfinished> {
        let mut told = Told::AsSent;
        let effect = match checked {
            payload::Checked::Plain => Effect::None,
            payload::Checked::Delta(delta) => {
                if let Some(shown) = self.messages.add_delta(delta) {
                    told = Told::Snapshot(shown);
                }
                Effect::None
            }
            payload::Checked::Message(message) => {
                self.messages.complete(*message);
                Effect::None
            }
            payload::Checked::State(update) => Effect::SetState(update),
            payload::Checked::Artifact(id) => id.map_or(Effect::None, Effect::BindArtifact),
            payload::Checked::Question(question) => Effect::Ask(question),
            payload::Checked::Completed {
                finish_reason,
                message,
            } => {
                if message.is_some() && self.messages.completed() == message.as_ref() {
                    told = Told::WithoutMessage;
                }
                let message = self.final_message(message)?;
                Effect::End(Box::new(RunnerEnding {
                    status: RunStatus::Completed,
                    reason: finish_reason,
                    error: Value::Null,
                    message,
                }))
            }
            payload::Checked::Failed {
                code,
                message,
                retryable,
            } => Effect::End(Box::new(RunnerEnding {
                status: if code == FailureCode::Cancelled.as_str() {
                    RunStatus::Cancelled
                } else {
                    RunStatus::Failed
                },
                reason: code.clone(),
                error: json!({"code": code, "message": message, "retryable": retryable}),
                message: self.messages.completed().cloned(),
            })),
        };
        Ok((effect, told))
    }

    /// The last whole message, else the one that the terminal brought, else what the deltas make.
    fn final_message(
        &mut self,
        of_terminal: Option<Message>,
    ) -> Result<Option<Message>, Unfinished> {
        let whole = self.messages.completed().cloned().or(of_terminal);
        if whole.is_some() {
            return Ok(whole);
        }
        let gathered = self.messages.take_gathered().map_err(|text::Outgrown| {
            let message = "the deltas say more than one message holds: end with a message.completed of its own";
            let failure = Failure::new(FailureCode::RunnerOutputLimit, message);
            (Reason::EventTooLarge, failure)
        })?;
        if gathered.is_none() && self.expects_message {
            let message = self.with_refused("the runner completed without any message");
            let failure = Failure::new(FailureCode::RunnerNoOutput, message);
            return Err((Reason::NoOutput, failure));
        }
        Ok(gathered)
    }

    fn is_new(&mut self, question: &Question) -> bool {
        self.asked.len() < payload::QUESTIONS && self.asked.insert(question.interaction_id.clone())
    }
}

/// Why a run that says that it is completed is not.
type Unfinished = (Reason, Failure);

/// How the data of a result goes on to clients.
enum Told {
    AsSent,
    /// Its message was delivered before.
    WithoutMessage,
    Snapshot(text::Shown),
}

#[cfg(test)]
mod tests;
