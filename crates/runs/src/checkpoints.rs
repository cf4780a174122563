//! Checkpoints of live runs, and the results that they include.

use std::sync::Arc;
use std::time::Duration;

use protocol::id::RunId;
use store::{CheckpointWritten, LedgerRow, PutCheckpoint, StoreError};
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::relay::StoredLine;

/// Time in which a result that was sent before the call must be in the ledger.
const TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Events of one look, of at most these bytes. A runner stores its checkpoint after its newest results.
const NEWEST: usize = 256;
const NEWEST_BYTES: usize = 1024 * 1024;

/// Result of [`Checkpoints::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointOutcome {
    Written(CheckpointWritten),
    /// The ledger does not have the result yet.
    Pending,
    /// More events than those of one look follow the result.
    TooOld,
}

/// Position of a result in the newest events of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultPosition {
    /// Sequence of the last event up to the result; 0 for none.
    After(u64),
    Pending,
    TooOld,
}

/// Stores checkpoints.
pub struct Checkpoints {
    pub(super) deps: Arc<RunDeps>,
}

impl Checkpoints {
    /// Stores a checkpoint that includes the results up to `number`, in the runner's numbering; `None`: those in the
    /// ledger. Waits until the ledger has them.
    pub async fn put(
        &self,
        mut put: PutCheckpoint,
        number: Option<u64>,
    ) -> Result<CheckpointOutcome, StoreError> {
        if let Some(number) = number {
            match self.await_stored(put.run_id, number).await? {
                ResultPosition::After(after) => put.after = Some(after),
                ResultPosition::Pending => return Ok(CheckpointOutcome::Pending),
                ResultPosition::TooOld => return Ok(CheckpointOutcome::TooOld),
            }
        }
        let written = self.deps.store.write(put).await?;
        Ok(CheckpointOutcome::Written(written))
    }

    async fn await_stored(&self, run: RunId, number: u64) -> Result<ResultPosition, StoreError> {
        let deadline = Instant::now() + TIMEOUT;
        let mut pause = FIRST_PAUSE;
        loop {
            let position = self.position_of(run, number).await?;
            if position != ResultPosition::Pending || Instant::now() >= deadline {
                return Ok(position);
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn position_of(&self, run: RunId, number: u64) -> Result<ResultPosition, StoreError> {
        let store = &self.deps.store;
        // Read first: a result that is rejected after this read is found by the next one.
        let rejected = store.leases().rejected_results(run).await?;
        let is_rejected = rejected.numbers.iter().any(|rejected| *rejected >= number);
        let lines = store
            .runs()
            .read_lines_back(run, u64::MAX, 0, NEWEST, NEWEST_BYTES)
            .await?;
        let position = position_among(&lines, number, is_rejected);
        position.ok_or_else(|| StoreError::Corrupt {
            column: "run_segments.payload",
            row: run.to_string(),
        })
    }
}

/// Position of the result `number` among the newest lines of a ledger, newest first. `is_rejected`: this result or a
/// later one was rejected. `None`: a line cannot be read.
fn position_among(lines: &[LedgerRow], number: u64, is_rejected: bool) -> Option<ResultPosition> {
    // Results are validated in order, so a later one proves that this one was validated.
    let mut is_validated = is_rejected;
    let found = |after, is_validated| {
        if is_validated {
            ResultPosition::After(after)
        } else {
            ResultPosition::Pending
        }
    };
    for row in lines {
        let line: StoredLine<'_> = serde_json::from_str(&row.text).ok()?;
        if line.is_restart() {
            // Numbers before it belong to an earlier start.
            return Some(found(line.sequence, is_validated));
        }
        match line.number() {
            None => {}
            Some(later) if later > number => is_validated = true,
            Some(this) => return Some(found(line.sequence, is_validated || this == number)),
        }
    }
    let has_more = lines.last().is_some_and(|oldest| oldest.sequence > 1);
    Some(if has_more {
        ResultPosition::TooOld
    } else {
        found(0, is_validated)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(sequence: u64, kind: &str, more: &Value) -> LedgerRow {
        let mut line = json!({"sequence": sequence, "type": kind, "data": {}, "source": "runner"});
        let members = line.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        let text = line.to_string();
        LedgerRow { sequence, text }
    }

    fn result(sequence: u64, number: u64) -> LedgerRow {
        row(
            sequence,
            "message.delta",
            &json!({"metadata": {"runner_sequence": number}}),
        )
    }

    #[test]
    fn finds_last_event_of_a_result() {
        let note = row(2, "processor.log", &json!({"source": "host"}));
        // The result 3 was rejected.
        let lines = [result(4, 4), result(3, 2), note, result(1, 1)];
        let at = |number| position_among(&lines, number, false).unwrap();
        assert_eq!(at(4), ResultPosition::After(4));
        assert_eq!(at(3), ResultPosition::After(3));
        assert_eq!(at(2), ResultPosition::After(3));
        assert_eq!(at(1), ResultPosition::After(1));
        assert_eq!(at(5), ResultPosition::Pending);
        let rejected = position_among(&lines, 5, true).unwrap();
        assert_eq!(rejected, ResultPosition::After(4));
        assert_eq!(position_among(&[], 1, false), Some(ResultPosition::Pending));
        let older = position_among(&lines[..1], 3, false);
        assert_eq!(older, Some(ResultPosition::TooOld));
    }

    #[test]
    fn results_of_earlier_starts_do_not_count() {
        let restart = row(3, "run.restarted", &json!({"source": "host"}));
        let lines = [result(4, 1), restart, result(2, 2), result(1, 1)];
        let at = |lines, number| position_among(lines, number, false).unwrap();
        assert_eq!(at(&lines, 1), ResultPosition::After(4));
        assert_eq!(at(&lines, 2), ResultPosition::Pending);
        assert_eq!(at(&lines[1..], 1), ResultPosition::Pending);
        let rejected = position_among(&lines[1..], 1, true).unwrap();
        assert_eq!(rejected, ResultPosition::After(3));
    }
}
