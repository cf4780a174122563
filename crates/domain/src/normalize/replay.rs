//! Replays results that another instance of the validator has accepted or rejected for the same run.

use std::borrow::Cow;

use protocol::admin::DeltaMode;
use protocol::result::ResultType;
use serde_json::value::RawValue;

use super::payload::{CheckedPayload, check};
use super::reading::ResultEnvelope;
use super::sequences::{AcceptedSequences, digest_of};
use super::text::one_line;
use super::{ResultEffect, ResultLimits, ResultValidator, Verdict};
use crate::json_repair::SurrogateJoiner;

const UNBOUNDED: ResultLimits = ResultLimits {
    event_bytes: usize::MAX,
    run_bytes: usize::MAX,
    run_events: u64::MAX,
    state_value_bytes: usize::MAX,
};

/// Verdict on a result that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierVerdict {
    Accepted,
    Rejected,
}

/// An accepted result in the form of the ledger.
#[derive(Clone, Copy, Debug)]
pub struct StoredResult<'r> {
    /// Number of the runner.
    pub number: u64,
    pub kind: &'r str,
    pub data: &'r RawValue,
    pub usage: Option<&'r RawValue>,
    /// The gateway has repaired or shortened it, so a repetition is not compared.
    pub is_changed: bool,
}

/// Restores the state of a validator from the earlier results of its run.
pub struct ResultReplay<'v, 'a>(pub &'v mut ResultValidator<'a>);

impl ResultReplay<'_, '_> {
    /// Replays one result to restore the state of the run. An accepted result counts regardless of time, limits and
    /// artifacts. A rejected result is counted without a strike. Returns the usage of the result.
    pub fn sent(self, number: u64, raw: &[u8], verdict: EarlierVerdict) -> Option<String> {
        let validator = self.0;
        if verdict == EarlierVerdict::Rejected {
            validator.events += 1;
            validator.bytes = validator.bytes.saturating_add(raw.len());
            // The number stays taken, so that a repetition is a duplicate as before.
            validator.taken.accept(Some(number), raw, || 0);
            validator.tally.rejected += 1;
            return None;
        }
        unbounded(validator, |validator| validator.validate_event(raw, None))
    }

    /// Replays a result from the ledger, whose bytes as sent are not stored. The halves of a character that was split
    /// across two deltas are not restored. Returns the usage of the result.
    pub fn stored(self, result: StoredResult<'_>) -> Option<String> {
        let validator = self.0;
        let StoredResult {
            number, kind, data, ..
        } = result;
        validator.events += 1;
        let usage_bytes = result.usage.map_or(0, |usage| usage.get().len());
        let bytes = data.get().len() + usage_bytes;
        validator.bytes = validator.bytes.saturating_add(bytes);
        let is_snapshot = validator.messages.delta_mode() == DeltaMode::Snapshot
            && kind == ResultType::MessageDelta.as_str();
        let content =
            (!result.is_changed && !is_snapshot).then(|| content_digest(kind, Some(data)));
        let gap = validator.taken.restore(number, content);
        let envelope = ResultEnvelope {
            run_id: Cow::Borrowed(""),
            kind: Cow::Borrowed(kind),
            data: Some(data),
            usage: result.usage,
            sequence: None,
        };
        let raw = data.get().as_bytes();
        unbounded(validator, |validator| {
            validator.validate_payload(envelope, Some(number), gap, raw, None)
        })
    }

    /// Replays a result that a later start has superseded: only its question stays.
    pub fn superseded(self, kind: &str, data: &RawValue) {
        let validator = self.0;
        let Some(kind @ ResultType::ActionRequested) = ResultType::parse(kind) else {
            return;
        };
        let checked = check(kind, data.get(), validator.snapshot, usize::MAX, None);
        if let Ok(CheckedPayload::RunQuestion(question)) = checked {
            let ids = &mut validator.earlier_question_ids;
            ids.insert(question.interaction_id);
        }
    }

    /// Replays a new start of the run: the runner numbers its results from 1 again.
    pub fn restarted(self) {
        let validator = self.0;
        validator.taken = AcceptedSequences::default();
        validator.halves = SurrogateJoiner::default();
        validator.rejected_message = None;
        let ids = std::mem::take(&mut validator.question_ids);
        validator.earlier_question_ids.extend(ids);
    }

    /// Replays a rejected result. Its number stays taken, so that a repetition is a duplicate as before.
    pub fn rejected(self, number: Option<u64>) {
        let validator = self.0;
        validator.events += 1;
        validator.tally.rejected += 1;
        if let Some(number) = number {
            validator.taken.restore(number, None);
        }
    }
}

/// Returns the text of the message that is incomplete so far.
pub fn open_text<'v>(validator: &'v ResultValidator<'_>) -> &'v str {
    validator.messages.open_text()
}

/// Validates a result that was accepted before. Returns its usage.
fn unbounded<'a, 'r>(
    validator: &mut ResultValidator<'a>,
    validate: impl FnOnce(&mut ResultValidator<'a>) -> Verdict<'r>,
) -> Option<String> {
    let limits = std::mem::replace(&mut validator.limits, UNBOUNDED);
    // The first validation checked the limits and uploads; both may have changed since.
    let artifacts = validator.artifacts.take();
    let (strikes, is_numbered) = (
        validator.strikes,
        std::mem::take(&mut validator.is_numbered),
    );
    let verdict = validate(validator);
    (validator.limits, validator.artifacts) = (limits, artifacts);
    (validator.strikes, validator.is_numbered) = (strikes, is_numbered);
    validator.count(&verdict);
    match verdict {
        Verdict::Accept(accepted) => {
            // The run is still live, so this result has not ended it.
            validator.ended &= !matches!(accepted.effect, ResultEffect::End(_));
            accepted.usage.map(|usage| usage.get().to_owned())
        }
        Verdict::Duplicate | Verdict::Reject(_) | Verdict::Fail(..) => None,
    }
}

/// Returns the digest of the parts of a result that the ledger has.
pub(super) fn content_digest(kind: &str, data: Option<&RawValue>) -> u64 {
    match data {
        Some(data) => digest_of((kind, one_line(data).get())),
        None => digest_of((kind, "{}")),
    }
}
