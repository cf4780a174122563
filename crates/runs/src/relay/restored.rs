//! Restores the relay of a run from its ledger, after its connection to the runner was lost.
//!
//! The ledger has type, data and usage of each accepted result, and its number. These restore the text, the messages,
//! the usage and the counts of the validator. Not restored: the bytes of rejected results, strikes, and one half of a
//! character that was split across two deltas.

use domain::normalize::{ResultCounts, ResultReplay, ResultValidator, StoredResult};
use domain::run::{Failure, Run};
use protocol::result::ResultType;
use serde::Deserialize;
use serde_json::value::RawValue;
use store::{RejectedResults, StoreError};

use super::Relayer;
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use crate::inputs::PreparedDispatch;

/// Events and bytes of one page of the ledger.
const PAGE: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;

/// Results of a run that are in its ledger.
#[derive(Debug, Default)]
pub(crate) struct StoredResults {
    /// Number of the last one; 0 for none.
    pub(crate) through: u64,
    /// Number of the last stored rejection.
    rejections: u64,
    usage: Option<String>,
    has_announced: bool,
}

impl StoredResults {
    /// The buffer of the results after these.
    pub(super) fn continued(&self, buffer: EventBuffer) -> EventBuffer {
        let mut buffer = buffer.after_rejections(self.rejections);
        buffer.note_usage(self.usage.clone());
        if self.has_announced {
            buffer.note_announced();
        }
        buffer
    }
}

/// A validator that has the results of the ledger.
pub(crate) struct RestoredRun<'a> {
    pub(crate) validator: ResultValidator<'a>,
    pub(crate) stored: StoredResults,
    /// Numbers of rejected results that are not replayed yet, the largest first.
    rejected: Vec<u64>,
    /// Results after this number are not replayed.
    limit: u64,
}

/// Parts of a ledger line that restore a result.
#[derive(Deserialize)]
struct StoredLine<'a> {
    sequence: u64,
    #[serde(borrow, rename = "type")]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    source: std::borrow::Cow<'a, str>,
    #[serde(default)]
    metadata: StoredMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredMetadata {
    runner_sequence: Option<u64>,
    repaired: bool,
    shortened: Vec<String>,
}

impl<'a> RestoredRun<'a> {
    /// A validator for the results up to `limit`, in the runner's numbering.
    pub(crate) fn new(
        validator: ResultValidator<'a>,
        rejected: RejectedResults,
        limit: u64,
    ) -> Self {
        let unnumbered = rejected.count.saturating_sub(rejected.numbers.len() as u64);
        let mut numbers: Vec<u64> = rejected.numbers.into_iter().collect();
        numbers.retain(|number| *number <= limit);
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        let mut restored = Self {
            validator,
            stored: StoredResults {
                rejections: rejected.count,
                ..StoredResults::default()
            },
            rejected: numbers,
            limit,
        };
        for _ in 0..unnumbered {
            ResultReplay(&mut restored.validator).rejected(None);
        }
        restored
    }

    /// Replays a line of the ledger. False: the line cannot be read.
    pub(crate) fn add(&mut self, line: &str) -> bool {
        let Ok(line) = serde_json::from_str::<StoredLine<'_>>(line) else {
            return false;
        };
        if line.source != "runner" {
            return true;
        }
        let number = line.metadata.runner_sequence.unwrap_or(line.sequence);
        if number > self.limit {
            return true;
        }
        self.add_rejected_before(number);
        let usage = ResultReplay(&mut self.validator).stored(StoredResult {
            number,
            kind: &line.kind,
            data: line.data,
            usage: line.usage,
            is_changed: line.metadata.repaired || !line.metadata.shortened.is_empty(),
        });
        self.stored.usage = usage.or(self.stored.usage.take());
        self.stored.has_announced |= line.kind == ResultType::ArtifactCreated.as_str();
        self.stored.through = self.stored.through.max(number);
        true
    }

    /// Replays the rejected results after the last line.
    pub(crate) fn finish(&mut self) {
        self.add_rejected_before(u64::MAX);
    }

    fn add_rejected_before(&mut self, number: u64) {
        while let Some(rejected) = self.rejected.pop_if(|rejected| *rejected < number) {
            ResultReplay(&mut self.validator).rejected(Some(rejected));
            self.stored.through = self.stored.through.max(rejected);
        }
    }

    /// The end of the run by the gateway, without further results.
    pub(crate) fn ended(
        self,
        run: &Run,
        failure: Failure,
    ) -> (EventBuffer, ResultCounts, EndCause) {
        let ending = EndCause::Gateway {
            failure,
            messages: self.validator.completed_messages(),
        };
        let buffer = self.stored.continued(EventBuffer::new(run));
        (buffer, self.validator.tally(), ending)
    }
}

impl Relayer {
    /// A run without results.
    pub(crate) fn empty<'a>(&self, prepared: &'a PreparedDispatch) -> RestoredRun<'a> {
        let validator = ResultValidator::new(
            &prepared.snapshot,
            self.deps.limits.results,
            prepared.delta_mode,
            prepared.expected_output,
        );
        RestoredRun::new(validator, RejectedResults::default(), 0)
    }

    /// Restores a run from its ledger: the results up to `through`, in the runner's numbering.
    pub(crate) async fn restore<'a>(
        &self,
        prepared: &'a PreparedDispatch,
        run: &Run,
        through: u64,
    ) -> Result<RestoredRun<'a>, StoreError> {
        let store = &self.deps.store;
        let rejected = || store.leases().rejected_results(run.id);
        let rejected = self
            .deps
            .ledger
            .retry_within_lease(run.id, rejected)
            .await?;
        let validator = self.empty(prepared).validator;
        let mut restored = RestoredRun::new(validator, rejected, through);
        let mut read_through = 0;
        while read_through < run.last_sequence {
            let page = || {
                store
                    .runs()
                    .read_lines(run.id, read_through, PAGE, PAGE_BYTES)
            };
            let lines = self.deps.ledger.retry_within_lease(run.id, page).await?;
            for line in &lines {
                if !restored.add(&line.text) {
                    return Err(unreadable(run));
                }
            }
            read_through = lines.last().ok_or_else(|| unreadable(run))?.sequence;
        }
        restored.finish();
        Ok(restored)
    }
}

fn unreadable(run: &Run) -> StoreError {
    StoreError::Corrupt {
        column: "run_segments.payload",
        row: run.id.to_string(),
    }
}
