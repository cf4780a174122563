//! Result of the validation of an event.

use std::borrow::Cow;

use protocol::result::RunOutcome;
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bounds::TruncatedPart;
use super::payload::{RunQuestion, StateUpdate};
use super::rejection::{Reason, Rejection};
use super::text::RunMessages;
use crate::platform_action::CheckedAction;
use crate::run::{Failure, FailureCode};

/// An accepted event for the ledger. Unchanged parts are the runner's own bytes.
#[derive(Debug)]
pub struct AcceptedResult<'r> {
    /// Type as the runner wrote it.
    pub kind: Cow<'r, str>,
    /// One line of JSON, an object.
    pub data: Cow<'r, RawValue>,
    /// One line of JSON, an object.
    pub usage: Option<Cow<'r, RawValue>>,
    /// Parts above their limit, truncated or dropped.
    pub shortened: Vec<TruncatedPart>,
    pub runner_sequence: Option<u64>,
    /// True if earlier numbers are missing.
    pub gap: bool,
    /// True if `run.completed` repeated the last message, which was removed.
    pub message_omitted: bool,
    /// True if invalid characters in strings were replaced.
    pub is_repaired: bool,
    pub effect: ResultEffect,
}

impl AcceptedResult<'_> {
    fn into_owned(self) -> AcceptedResult<'static> {
        AcceptedResult {
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

    /// Returns the `metadata` of the ledger event with number `sequence`, or null.
    pub fn metadata(&self, sequence: u64) -> Value {
        let mut metadata = serde_json::Map::new();
        // Absent if equal: readers take the number of the ledger then.
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
            // Readers learn by these names which members are incomplete.
            let parts = self.shortened.iter().map(|part| part.as_str());
            metadata.insert("shortened".to_owned(), parts.collect());
        }
        if metadata.is_empty() {
            // Null leaves the member out of the ledger line.
            Value::Null
        } else {
            Value::Object(metadata)
        }
    }
}

/// Effect of an accepted event in addition to its ledger entry.
#[derive(Debug, PartialEq)]
pub enum ResultEffect {
    None,
    SetState(StateUpdate),
    /// Announces this artifact of the run.
    BindArtifact(Uuid),
    /// Asks a user.
    Ask(Box<RunQuestion>),
    /// Opens a platform action.
    Act(Box<CheckedAction>),
    /// Ends the run.
    End(Box<RunnerEnding>),
}

/// Ending of a run by its runner.
#[derive(Debug, PartialEq)]
pub struct RunnerEnding {
    pub status: RunStatus,
    pub reason: String,
    /// Task result of a completed run, if reported.
    pub outcome: Option<RunOutcome>,
    /// `{code, message, retryable}`; null for a completed run.
    pub error: Value,
    /// Messages of the run, for transcript and output.
    pub completed_messages: RunMessages,
}

/// Verdict on one event.
#[derive(Debug)]
pub enum Verdict<'r> {
    Accept(AcceptedResult<'r>),
    /// A repetition with equal bytes: counted, not stored.
    Duplicate,
    Reject(Rejection),
    /// Rejected, and the run fails.
    Fail(Rejection, Failure),
}

/// Counts of deviating results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultCounts {
    pub rejected: u64,
    pub duplicates: u64,
    pub gaps: u64,
}

impl ResultCounts {
    /// Returns the counts for the run's `metadata`.
    pub fn to_json(self) -> Value {
        json!({"rejected": self.rejected, "duplicates": self.duplicates, "gaps": self.gaps})
    }
}

impl Verdict<'_> {
    /// Returns the same verdict without borrowed data.
    pub(super) fn into_owned(self) -> Verdict<'static> {
        match self {
            Self::Accept(accepted) => Verdict::Accept(accepted.into_owned()),
            Self::Duplicate => Verdict::Duplicate,
            Self::Reject(rejection) => Verdict::Reject(rejection),
            Self::Fail(rejection, failure) => Verdict::Fail(rejection, failure),
        }
    }

    /// Fails the run with a protocol violation.
    pub(super) fn violation(
        reason: Reason,
        number: Option<u64>,
        raw: &[u8],
        message: &str,
    ) -> Self {
        let failure = Failure::new(FailureCode::RunnerProtocolViolation, message);
        Self::fail(reason, number, raw, failure)
    }

    /// Fails the run with this result.
    pub(super) fn fail(reason: Reason, number: Option<u64>, raw: &[u8], failure: Failure) -> Self {
        let rejection = Rejection::new(reason, number, raw, failure.message.as_str());
        Self::Fail(rejection, failure)
    }
}
