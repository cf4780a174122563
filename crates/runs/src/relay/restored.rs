//! Restores the relay of a run from its ledger, after its connection to the runner was lost.
//!
//! The ledger has type, data and usage of each accepted result, and its number. These restore the text, the messages,
//! the usage and the counts of the validator. Not restored: the bytes of rejected results, strikes, and one half of a
//! character that was split across two deltas.
//!
//! A `run.restarted` of the gateway begins a new start: results between its `after` and itself are superseded, and the
//! numbers of the runner begin at 1 again.

use domain::normalize::{ResultCounts, ResultReplay, ResultValidator, StoredResult, open_text};
use domain::run::{Failure, FailureCode, Run};
use protocol::admin::RestartPoint;
use protocol::result::{RUN_RESTARTED, ResultType, RunRestartedPayload};
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
/// Maximum bytes of an incomplete message in the event of a new start.
const OPEN_TEXT_BYTES: usize = 256 * 1024;

/// A new start of a run in its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Sequence of the event that begins it.
    pub(crate) sequence: u64,
    /// Results between this sequence and the event are superseded.
    pub(crate) after: u64,
}

/// Outcome of a replayed line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReplayedLine {
    Added,
    /// The first line of a start that supersedes earlier lines: the replay begins again, with this start.
    Restart(Restart),
    Unreadable,
}

/// Results of a run that are in its ledger.
#[derive(Debug, Default)]
pub(crate) struct StoredResults {
    /// Number of the last one since the newest start; 0 for none.
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
    /// Results of the newest start after this number are not replayed.
    limit: u64,
    /// New starts of the run, in order.
    restarts: Vec<Restart>,
}

/// Parts of a ledger line that restore a result.
#[derive(Deserialize)]
pub(crate) struct StoredLine<'a> {
    pub(crate) sequence: u64,
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

impl StoredLine<'_> {
    /// Number of a result, in the runner's numbering. `None`: the gateway has written the event.
    pub(crate) fn number(&self) -> Option<u64> {
        let number = self.metadata.runner_sequence.unwrap_or(self.sequence);
        (self.source == "runner").then_some(number)
    }

    /// True for the first event of a new start.
    pub(crate) fn is_restart(&self) -> bool {
        self.kind == RUN_RESTARTED && self.source != "runner"
    }
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
            restarts: Vec::new(),
        };
        for _ in 0..unnumbered {
            ResultReplay(&mut restored.validator).rejected(None);
        }
        restored
    }

    /// The same for a ledger with these new starts.
    pub(crate) fn with_restarts(mut self, restarts: Vec<Restart>) -> Self {
        self.restarts = restarts;
        self
    }

    /// Number of new starts of the run.
    pub(crate) fn restarts(&self) -> u32 {
        u32::try_from(self.restarts.len()).unwrap_or(u32::MAX)
    }

    /// Replays a line of the ledger.
    pub(crate) fn add(&mut self, line: &str) -> ReplayedLine {
        let Ok(line) = serde_json::from_str::<StoredLine<'_>>(line) else {
            return ReplayedLine::Unreadable;
        };
        if line.is_restart() {
            return self.begin_start(&line);
        }
        let Some(number) = line.number() else {
            return ReplayedLine::Added;
        };
        let is_superseded = |restart: &Restart| {
            (restart.after < line.sequence) && (line.sequence < restart.sequence)
        };
        let has_announced = line.kind == ResultType::ArtifactCreated.as_str();
        if self.restarts.iter().any(is_superseded) {
            // Questions and artifacts stay.
            ResultReplay(&mut self.validator).superseded(&line.kind, line.data);
            self.stored.has_announced |= has_announced;
            return ReplayedLine::Added;
        }
        let newest_start = self.restarts.last().map_or(0, |restart| restart.sequence);
        if line.sequence > newest_start {
            if number > self.limit {
                return ReplayedLine::Added;
            }
            self.add_rejected_before(number);
        }
        let usage = ResultReplay(&mut self.validator).stored(StoredResult {
            number,
            kind: &line.kind,
            data: line.data,
            usage: line.usage,
            is_changed: line.metadata.repaired || !line.metadata.shortened.is_empty(),
        });
        self.stored.usage = usage.or(self.stored.usage.take());
        self.stored.has_announced |= has_announced;
        self.stored.through = self.stored.through.max(number);
        ReplayedLine::Added
    }

    fn begin_start(&mut self, line: &StoredLine<'_>) -> ReplayedLine {
        let Ok(payload) = serde_json::from_str::<RunRestartedPayload>(line.data.get()) else {
            return ReplayedLine::Unreadable;
        };
        let restart = Restart {
            sequence: line.sequence,
            after: payload.after,
        };
        if !self.restarts.contains(&restart) {
            return ReplayedLine::Restart(restart);
        }
        self.renumber();
        ReplayedLine::Added
    }

    /// The runner of a new start numbers its results from 1.
    fn renumber(&mut self) {
        ResultReplay(&mut self.validator).restarted();
        self.stored.through = 0;
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

    /// The event of the newest start, after a failure with this code, for clients and the next owner. `lost`: the run
    /// before it. Clients that do not know the event get the text that stays by a delta.
    pub(crate) fn restarted(
        &self,
        lost: &RestoredRun<'_>,
        run: &Run,
        code: FailureCode,
        from: RestartPoint,
        now: i64,
    ) -> EventBuffer {
        let after = self.restarts.last().map_or(0, |restart| restart.after);
        let restart = RunRestartedPayload {
            attempt: run.attempt + 1,
            code: code.as_str().to_owned(),
            from,
            after,
        };
        let mut buffer = self.stored.continued(EventBuffer::new(run));
        buffer.restart(&restart, now);
        let text = open_text(&self.validator);
        if text != open_text(&lost.validator) && text.len() <= OPEN_TEXT_BYTES {
            buffer.replace_text(text, now);
        }
        buffer
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
        self.restore_before(prepared, run, through, None).await
    }

    /// Restores a run for a new start after the event `after`.
    pub(crate) async fn restore_for_start<'a>(
        &self,
        prepared: &'a PreparedDispatch,
        run: &Run,
        after: u64,
    ) -> Result<RestoredRun<'a>, StoreError> {
        let next = Restart {
            sequence: run.last_sequence + 1,
            after,
        };
        let restoring = self.restore_before(prepared, run, u64::MAX, Some(next));
        let mut restored = restoring.await?;
        restored.renumber();
        Ok(restored)
    }

    async fn restore_before<'a>(
        &self,
        prepared: &'a PreparedDispatch,
        run: &Run,
        through: u64,
        next: Option<Restart>,
    ) -> Result<RestoredRun<'a>, StoreError> {
        let store = &self.deps.store;
        let rejected = || store.leases().rejected_results(run.id);
        let rejected = self
            .deps
            .ledger
            .retry_within_lease(run.id, rejected)
            .await?;
        let mut restarts = Vec::new();
        loop {
            let validator = self.empty(prepared).validator;
            let earlier = restarts.iter().copied().chain(next).collect();
            let mut restored =
                RestoredRun::new(validator, rejected.clone(), through).with_restarts(earlier);
            let Some(restart) = self.replay(run, &mut restored).await? else {
                restored.finish();
                return Ok(restored);
            };
            restarts.push(restart);
        }
    }

    /// Replays the ledger of a run, up to a start that `restored` does not know.
    async fn replay(
        &self,
        run: &Run,
        restored: &mut RestoredRun<'_>,
    ) -> Result<Option<Restart>, StoreError> {
        let store = &self.deps.store;
        let mut read_through = 0;
        while read_through < run.last_sequence {
            let page = || {
                store
                    .runs()
                    .read_lines(run.id, read_through, PAGE, PAGE_BYTES)
            };
            let lines = self.deps.ledger.retry_within_lease(run.id, page).await?;
            for line in &lines {
                match restored.add(&line.text) {
                    ReplayedLine::Added => {}
                    ReplayedLine::Restart(restart) => return Ok(Some(restart)),
                    ReplayedLine::Unreadable => return Err(unreadable(run)),
                }
            }
            read_through = lines.last().ok_or_else(|| unreadable(run))?.sequence;
        }
        Ok(None)
    }
}

fn unreadable(run: &Run) -> StoreError {
    StoreError::Corrupt {
        column: "run_segments.payload",
        row: run.id.to_string(),
    }
}
