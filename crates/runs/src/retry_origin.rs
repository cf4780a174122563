//! Results of an ended run after which its retry begins, from the ledger.

use domain::run::Run;
use protocol::result::{RUN_RESTARTED, ResultType};
use protocol::retry_origin::RetryOrigin;
use protocol::run::AgentRunEvent;
use store::{LedgerRow, Store, StoreError};

/// Limits of the results, without deltas. The bytes are those of one scope of state in a context.
const MAX_RESULTS: usize = 1000;
const MAX_BYTES: usize = 256 * 1024;
/// Maximum runs of which each is a retry from a result of the one before.
const MAX_RUNS: usize = 16;
/// Maximum events and bytes of one read.
const READ_EVENTS: usize = 500;
const READ_BYTES: usize = 1024 * 1024;

/// Cause for which a run cannot be retried from a result. The text follows the name of the field.
#[derive(Debug, thiserror::Error)]
pub enum RetryPointError {
    #[error(
        "names no complete result of the runner before the end of the run; take a sequence of its events, except a \
         message.delta"
    )]
    NoResult,
    #[error("names a result that the retention has deleted; retry the run without `from`")]
    Deleted,
    #[error(
        "has more than {MAX_RESULTS} results or {MAX_BYTES} bytes up to it; name an earlier result, or retry the \
         run without `from`"
    )]
    TooLarge,
    #[error(
        "continues {MAX_RUNS} retries from a result, which is the maximum; retry the run without `from`"
    )]
    TooManyRuns,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The results of `run` up to the one with the sequence `after`. If `run` is itself such a retry, the results of the
/// earlier runs come first.
pub(crate) async fn read_origin(
    store: &Store,
    run: &Run,
    after: u64,
) -> Result<RetryOrigin, RetryPointError> {
    let mut left = ResultBound::default();
    let mut parts = vec![read_results(store, run, after, &mut left).await?];
    let mut point = run.retry_of.zip(run.retry_from);
    while let Some((id, after)) = point {
        if parts.len() == MAX_RUNS {
            return Err(RetryPointError::TooManyRuns);
        }
        let earlier = store.runs().find_run(&run.workspace, id).await?;
        let earlier = earlier.ok_or(RetryPointError::Deleted)?;
        parts.push(read_results(store, &earlier, after, &mut left).await?);
        point = earlier.retry_of.zip(earlier.retry_from);
    }
    Ok(RetryOrigin {
        run_id: run.id,
        after,
        results: parts.into_iter().rev().flatten().collect(),
    })
}

/// Results and bytes that still fit.
struct ResultBound {
    results: usize,
    bytes: usize,
}

impl Default for ResultBound {
    fn default() -> Self {
        Self {
            results: MAX_RESULTS,
            bytes: MAX_BYTES,
        }
    }
}

impl ResultBound {
    fn take(&mut self, bytes: usize) -> Result<(), RetryPointError> {
        let left = (self.results.checked_sub(1), self.bytes.checked_sub(bytes));
        let (Some(results), Some(bytes)) = left else {
            return Err(RetryPointError::TooLarge);
        };
        *self = Self { results, bytes };
        Ok(())
    }
}

/// The results of one run, in order. The last one has the sequence `after`.
async fn read_results(
    store: &Store,
    run: &Run,
    after: u64,
    left: &mut ResultBound,
) -> Result<Vec<AgentRunEvent>, RetryPointError> {
    if run.pruned_at.is_some() {
        return Err(RetryPointError::Deleted);
    }
    let mut results: Vec<ReadResult> = Vec::new();
    let mut position = 0;
    // The last event of an ended run is its end.
    while position < after && after < run.last_sequence {
        let lines = store
            .runs()
            .read_lines(run.id, position, READ_EVENTS, READ_BYTES)
            .await?;
        let last = lines.last().ok_or(RetryPointError::Deleted)?;
        position = last.sequence;
        for line in lines.iter().filter(|line| line.sequence <= after) {
            let event = event_of(run, line)?;
            match supersedes_after(&event) {
                // Results of a lost start count no more.
                Some(stays) => results.retain(|result| result.event.sequence <= stays),
                None if is_complete_result(&event) => results.push(ReadResult {
                    bytes: line.text.len(),
                    event,
                }),
                None => {}
            }
            // One page more than the limits, because a later event may supersede results.
            if results.len() > 2 * MAX_RESULTS {
                return Err(RetryPointError::TooLarge);
            }
        }
    }
    if results
        .last()
        .is_none_or(|last| last.event.sequence != after)
    {
        return Err(RetryPointError::NoResult);
    }
    for result in &results {
        left.take(result.bytes)?;
    }
    Ok(results.into_iter().map(|result| result.event).collect())
}

/// A result, and the size of its line.
struct ReadResult {
    event: AgentRunEvent,
    bytes: usize,
}

fn event_of(run: &Run, line: &LedgerRow) -> Result<AgentRunEvent, StoreError> {
    serde_json::from_str(&line.text).map_err(|_| StoreError::Corrupt {
        column: "run_segments.payload",
        row: run.id.to_string(),
    })
}

/// False for a piece of a message and for an event of the gateway.
fn is_complete_result(event: &AgentRunEvent) -> bool {
    event.source == "runner" && event.kind != ResultType::MessageDelta.as_str()
}

/// Sequence of the last result that stays, for the event of a new start.
fn supersedes_after(event: &AgentRunEvent) -> Option<u64> {
    let is_restart = event.kind == RUN_RESTARTED && event.source != "runner";
    is_restart.then(|| event.data["after"].as_u64().unwrap_or(0))
}
