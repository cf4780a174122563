//! What a judgement comes to.

use std::borrow::Cow;

use protocol::result::RunOutcome;
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bounds::Shortened;
use super::payload::{Question, StateUpdate};
use super::rejection::{Reason, Rejection};
use super::text::Said;
use crate::run::{Failure, FailureCode};

/// An event for the ledger. What needs no change is the runner's own bytes.
#[derive(Debug)]
pub struct Accepted<'r> {
    /// The type as the runner wrote it.
    pub kind: Cow<'r, str>,
    /// One line of JSON, an object.
    pub data: Cow<'r, RawValue>,
    /// One line of JSON, an object.
    pub usage: Option<Cow<'r, RawValue>>,
    /// Parts that were over their bound: cut, or dropped.
    pub shortened: Vec<Shortened>,
    pub runner_sequence: Option<u64>,
    /// True when numbers before this one never came.
    pub gap: bool,
    /// True when `run.completed` repeated the last message and lost it here.
    pub message_omitted: bool,
    /// True when characters were replaced that no string may hold.
    pub is_repaired: bool,
    pub effect: Effect,
}

impl Accepted<'_> {
    fn into_owned(self) -> Accepted<'static> {
        Accepted {
            kind: Cow::Owned(self.kind.into_owned()),
            data: Cow::Owned(self.data.into_owned()),
            usage: self.usage.map(|usage| Cow::Owned(usage.into_owned())),
            shortened: self.shortened,
            runner_sequence: self.runner_sequence,
            gap: self.gap,
            message_omitted: self.message_omitted,
            is_repaired: self.is_repaired,
            effect: self.effect,
        }
    }

    /// The `metadata` of the ledger event that gets number `sequence`; null for none.
    pub fn metadata(&self, sequence: u64) -> Value {
        let mut metadata = serde_json::Map::new();
        if let Some(number) = self.runner_sequence.filter(|number| *number != sequence) {
            metadata.insert("runner_sequence".to_owned(), json!(number));
        }
        if self.gap {
            metadata.insert("gap".to_owned(), json!(true));
        }
        if self.is_repaired {
            metadata.insert("repaired".to_owned(), json!(true));
        }
        if self.message_omitted {
            metadata.insert(
                "message_omitted".to_owned(),
                json!("equal to the last message.completed"),
            );
        }
        if !self.shortened.is_empty() {
            let parts = self.shortened.iter().map(|part| part.as_str());
            metadata.insert("shortened".to_owned(), parts.collect());
        }
        if metadata.is_empty() {
            Value::Null
        } else {
            Value::Object(metadata)
        }
    }
}

/// What an accepted event does besides standing in the ledger.
#[derive(Debug, PartialEq)]
pub enum Effect {
    None,
    SetState(StateUpdate),
    /// It announces this artifact of its run.
    BindArtifact(Uuid),
    /// A person is asked.
    Ask(Box<Question>),
    /// The run is over.
    End(Box<RunnerEnding>),
}

/// How the runner ended its run.
#[derive(Debug, PartialEq)]
pub struct RunnerEnding {
    pub status: RunStatus,
    pub reason: String,
    /// Of a completed run: whether its task is done, where the runner says so.
    pub outcome: Option<RunOutcome>,
    /// `{code, message, retryable}`, null when the run completed.
    pub error: Value,
    /// The messages of the run, for transcript and output.
    pub said: Said,
}

/// The judgement of one event.
#[derive(Debug)]
pub enum Verdict<'r> {
    Accept(Accepted<'r>),
    /// Came before with equal bytes: counted, not stored.
    Duplicate,
    Reject(Rejection),
    /// The run cannot go on.
    Fail(Rejection, Failure),
}

/// What was not taken as it stood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub rejected: u64,
    pub duplicates: u64,
    pub gaps: u64,
}

impl Tally {
    /// The counts as the run's `metadata`.
    pub fn to_json(self) -> Value {
        json!({"rejected": self.rejected, "duplicates": self.duplicates, "gaps": self.gaps})
    }
}

impl Verdict<'_> {
    /// The same, which borrows nothing.
    pub(super) fn into_owned(self) -> Verdict<'static> {
        match self {
            Self::Accept(accepted) => Verdict::Accept(accepted.into_owned()),
            Self::Duplicate => Verdict::Duplicate,
            Self::Reject(rejection) => Verdict::Reject(rejection),
            Self::Fail(rejection, failure) => Verdict::Fail(rejection, failure),
        }
    }

    /// The result breaks the protocol: the run ends with it.
    pub(super) fn violation(
        reason: Reason,
        number: Option<u64>,
        raw: &[u8],
        message: &str,
    ) -> Self {
        let failure = Failure::new(FailureCode::RunnerProtocolViolation, message);
        Self::fail(reason, number, raw, failure)
    }

    /// The run ends with this result.
    pub(super) fn fail(reason: Reason, number: Option<u64>, raw: &[u8], failure: Failure) -> Self {
        let rejection = Rejection::new(reason, number, raw, failure.message.as_str());
        Self::Fail(rejection, failure)
    }
}
