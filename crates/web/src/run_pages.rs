//! Pages of runs and run events, for clients and runners.

use axum::Json;
use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use protocol::run::{AgentRun, Page, RunStatus};
use serde::Serialize;
use serde_json::value::RawValue;
use store::{PAGE_BYTES, ReadBudget, RunFilter, RunPosition, RunWindow, RunsFound, StoreError};
use uuid::Uuid;

use crate::error::cursor::{cursor_expired, cursor_past_end};
use crate::error::{ApiError, ApiResult};
use crate::query::{names_of, page_limit};
use crate::response_memory::ResponseMemory;
use crate::state::ApiState;
use crate::view::Direction;
use keys::cursor::{CursorKind, InvalidCursor};

/// Cursor, direction and size of a page of runs.
pub struct RunsRange {
    pub before: Option<String>,
    pub after: Option<String>,
    pub direction: Direction,
    pub limit: Option<u64>,
}

/// Reads a page of runs. `list` identifies workspace, route and filters for the cursor.
pub async fn list_part(
    state: &ApiState,
    workspace: &WorkspaceId,
    list: &str,
    filter: &RunFilter,
    part: &RunsRange,
    memory: &ResponseMemory,
) -> ApiResult<(Vec<Run>, Page<AgentRun>)> {
    let limit = page_limit(part.limit)?;
    let decoded = |cursor: &Option<String>| {
        let decoded = |cursor: &String| position(state, list, cursor);
        cursor.as_ref().map(decoded).transpose()
    };
    let window = RunWindow {
        before: decoded(&part.before)?,
        after: decoded(&part.after)?,
        forward: part.direction == Direction::Forward,
        limit,
        bytes: PAGE_BYTES,
        budget: ReadBudget::of(memory),
    };
    let store = state.runs.store();
    let RunsFound { runs, next } = store.runs().list_runs(workspace, filter, &window).await?;
    let cursor = |at: RunPosition| {
        let mut position = at.created_at.to_be_bytes().to_vec();
        position.extend_from_slice(at.run_id.0.as_bytes());
        state
            .runs
            .cursors()
            .encode(CursorKind::Runs, list, &position)
    };
    let first = runs.first().map(|run| RunPosition {
        created_at: run.created_at,
        run_id: run.id,
    });
    let page = Page {
        items: Vec::new(),
        has_more: next.is_some(),
        next_cursor: next.map(cursor),
        prev_cursor: first.map(cursor),
        total_count: None,
    };
    Ok((runs, page))
}

fn position(state: &ApiState, list: &str, cursor: &str) -> Result<RunPosition, InvalidCursor> {
    let bytes = state
        .runs
        .cursors()
        .decode(CursorKind::Runs, list, cursor)?;
    let (created_at, id) = bytes.split_first_chunk::<8>().ok_or(InvalidCursor)?;
    Ok(RunPosition {
        created_at: i64::from_be_bytes(*created_at),
        run_id: RunId(Uuid::from_slice(id).map_err(|_| InvalidCursor)?),
    })
}

/// Parses comma-separated statuses.
pub fn statuses(text: Option<&str>) -> ApiResult<Vec<RunStatus>> {
    let read = |name: &String| {
        RunStatus::parse(name).ok_or_else(|| {
            let all = RunStatus::ALL.map(RunStatus::as_str).join(", ");
            let message = format!("`statuses` has {name:?}; a status is one of {all}");
            ApiError::invalid_argument(message)
        })
    };
    names_of("statuses", text)?.iter().map(read).collect()
}

/// Bounds of a page of events: between two sequences, both excluded.
pub struct RunEventsRange {
    pub before: Option<u64>,
    pub after: u64,
    pub direction: Direction,
    pub limit: Option<u64>,
}

/// A page of ledger events with their exact stored bytes.
#[derive(Serialize)]
pub struct RawPage {
    items: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
    pub prev_cursor: Option<String>,
    has_more: bool,
}

/// Fails if retention has deleted events after this sequence.
fn check_retained(run: &Run, after: u64) -> ApiResult<()> {
    if run.pruned_at.is_some() && after < run.last_sequence {
        return Err(cursor_expired(run.id, run.last_sequence));
    }
    Ok(())
}

/// The rest of a run's event stream.
pub enum StreamRest {
    /// Events after this sequence.
    After(u64),
    /// No events: the client has seen the terminal event.
    Over,
}

/// Finds the rest of the stream for a client that has seen event `after`.
pub fn stream_rest(run: &Run, after: u64) -> ApiResult<StreamRest> {
    if after > run.last_sequence {
        return Err(cursor_past_end(run.last_sequence));
    }
    if run.status.is_terminal() && after == run.last_sequence {
        return Ok(StreamRest::Over);
    }
    check_retained(run, after)?;
    Ok(StreamRest::After(after))
}

/// Reads a page of run events. Cursors are sequences.
pub async fn page_run_events(
    state: &ApiState,
    run: &Run,
    part: &RunEventsRange,
    memory: &ResponseMemory,
) -> ApiResult<Json<RawPage>> {
    let limit = usize::try_from(page_limit(part.limit)?).unwrap_or(usize::MAX);
    if part.after > run.last_sequence {
        return Err(cursor_past_end(run.last_sequence));
    }
    check_retained(run, part.after)?;
    let store = state.runs.store();
    let before = part.before.unwrap_or(u64::MAX);
    // The memory is taken for the lines that the query will read, before it reads them.
    store
        .runs()
        .take_lines(
            run.id,
            part.after,
            before,
            PAGE_BYTES,
            ReadBudget::of(memory),
        )
        .await?;
    let lines = match part.direction {
        Direction::Forward => {
            let mut lines = store
                .runs()
                .read_lines(run.id, part.after, limit, PAGE_BYTES)
                .await?;
            lines.retain(|line| line.sequence < before);
            lines
        }
        Direction::Backward => {
            store
                .runs()
                .read_lines_back(run.id, before, part.after, limit, PAGE_BYTES)
                .await?
        }
    };
    // Retention deleted the events after the run was read.
    if lines.is_empty() && part.before.is_none() && part.after < run.last_sequence {
        return Err(cursor_expired(run.id, run.last_sequence));
    }
    // Sequences have no gaps, so the last sequence on the page determines `has_more`.
    let has_more = lines.last().is_some_and(|last| match part.direction {
        Direction::Forward => last.sequence < run.last_sequence.min(before.saturating_sub(1)),
        Direction::Backward => last.sequence > part.after + 1,
    });
    let next = lines.last().filter(|_| has_more);
    let (next, prev) = (next, lines.first());
    let (next_cursor, prev_cursor) = (
        next.map(|line| line.sequence.to_string()),
        prev.map(|line| line.sequence.to_string()),
    );
    let items = lines
        .into_iter()
        .map(|line| RawValue::from_string(line.text))
        .collect::<Result<_, _>>();
    let items = items.map_err(|_| StoreError::Corrupt {
        column: "run_segments.payload",
        row: run.id.to_string(),
    })?;
    Ok(Json(RawPage {
        items,
        next_cursor,
        prev_cursor,
        has_more,
    }))
}
