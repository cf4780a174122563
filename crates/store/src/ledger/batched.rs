//! Appends events of runs, and ends runs.

use std::collections::HashSet;

use domain::run::Failure;
use protocol::run::RunStatus;
use sea_orm::Value;

use crate::conversation::{lock_all, lock_runs, waiting_among};
use crate::error::{StoreError, signed};
use crate::failpoint;
use crate::model::append::{Append, Appended, RunEnd};
use crate::mutation::Mutation;
use crate::sql::{Sql, inserted, text, updated};
use crate::steering::with_unpulled_among;
use crate::transcript::{TranscriptRow, write_transcripts};

/// Appends that end no run and have no other effects.
pub(crate) async fn append_all(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<Vec<Appended>, StoreError> {
    let moved = advance(tx, appends).await?;
    insert_segments(tx, &written(appends, &moved)).await?;
    if !appends.is_empty() {
        failpoint::pass("relay.before_commit").await?;
    }
    Ok(appends
        .iter()
        .map(|append| outcome(append, &moved))
        .collect())
}

/// Ends runs without a successor. `None`: another run waits for this end, so apply it singly.
pub(crate) async fn end_all(
    tx: &impl Sql,
    ends: &[&Append],
) -> Result<Vec<Option<Appended>>, StoreError> {
    let mut conversations = HashSet::new();
    let mut apart = Vec::new();
    for end in ends {
        if end
            .conversation()
            .is_none_or(|key| conversations.insert(key))
        {
            apart.push(*end);
        }
    }
    // As in ingest: the conversation before its runs.
    let keys = || apart.iter().filter_map(|end| end.conversation());
    lock_all(tx, keys()).await?;
    let waiting = waiting_among(tx, keys()).await?;
    let left = with_unpulled_among(tx, apart.iter().map(|end| end.run_id)).await?;
    let is_plain = |end: &&&Append| {
        let awaited = end.conversation().is_some_and(|key| waiting.contains(key));
        !awaited && !left.contains(&end.run_id.to_string())
    };
    let plain: Vec<_> = apart.iter().filter(is_plain).copied().collect();
    if plain.len() < ends.len() {
        // Single items come later, in any id order, and may promote other runs.
        let runs = ends.iter().map(|end| end.run_id.0).collect();
        lock_runs(tx, &runs, keys()).await?;
    }
    if plain.is_empty() {
        return Ok(ends.iter().map(|_| None).collect());
    }
    let moved = end(tx, &plain).await?;
    let is_done = |end: &Append| plain.iter().any(|plain| std::ptr::eq(*plain, end));
    let done = ends
        .iter()
        .map(|end| is_done(end).then(|| outcome(end, &moved)));
    Ok(done.collect())
}

/// Ends runs without promoting a successor. Returns the runs still owned by the caller.
async fn end(tx: &impl Sql, ends: &[&Append]) -> Result<HashSet<String>, StoreError> {
    let moved = advance(tx, ends).await?;
    let written = written(ends, &moved);
    insert_segments(tx, &written).await?;
    let items: Vec<_> = written.iter().flat_map(|end| items_of(end)).collect();
    if !items.is_empty() {
        failpoint::pass("project.transcript").await?;
    }
    write_transcripts(tx, items).await?;
    failpoint::pass("succession.before_next").await?;
    failpoint::pass("terminal.before_commit").await?;
    Ok(moved)
}

/// Transcript items added by the end of a run.
pub(crate) fn items_of(end: &Append) -> impl Iterator<Item = TranscriptRow> {
    let items = end.terminal.iter().flat_map(|end| end.transcript.clone());
    let (run, at) = (end.run_id, end.at);
    items.map(move |item| TranscriptRow { run, item, at })
}

fn outcome(append: &Append, moved: &HashSet<String>) -> Appended {
    if moved.contains(&append.run_id.to_string()) {
        Appended::Written { next: Vec::new() }
    } else {
        Appended::Lost
    }
}

fn written<'a>(appends: &[&'a Append], moved: &HashSet<String>) -> Vec<&'a Append> {
    let is_written = |append: &&Append| moved.contains(&append.run_id.to_string());
    appends.iter().copied().filter(is_written).collect()
}

/// Compare-and-set of epoch, sequence and status, for each run. Returns the updated runs. Either all of
/// `appends` end their runs, or none.
pub(crate) async fn advance(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<HashSet<String>, StoreError> {
    let own = |append: &Append| {
        [
            text(append.run_id),
            append.epoch.into(),
            signed(append.from).into(),
            signed(append.to).into(),
            RunStatus::Running.as_str().into(),
        ]
    };
    let ends: Vec<_> = appends
        .iter()
        .filter_map(|append| Some((append, append.terminal.as_ref()?)))
        .map(|(append, terminal)| ended(own(append), terminal, append.at))
        .collect();
    let moved = if ends.is_empty() {
        let rows = appends.iter().map(|append| own(append)).collect();
        updated(tx, rows, &update_sql(""), "runs.id").await?
    } else {
        updated(tx, ends, &update_sql(ENDING), "runs.id").await?
    };
    Ok(moved.into_iter().collect())
}

/// The status is a parameter: a constant makes a scan of an empty table look cheap to `PostgreSQL`.
fn update_sql(also: &str) -> String {
    format!(
        "UPDATE runs SET last_sequence = ?4{also} FROM rows \
         WHERE runs.id = ?1 AND runs.lease_epoch = ?2 \
         AND runs.last_sequence = ?3 AND runs.status = ?5"
    )
}

/// A run with an accepted cancel ends as `cancelled`, regardless of later results of its runner. The reason of
/// the cancel stays.
const ENDING: &str = ", \
    status = CASE WHEN runs.cancel_requested_at IS NULL THEN ?6 ELSE 'cancelled' END, \
    status_reason = CASE WHEN ?6 = 'cancelled' THEN COALESCE(runs.status_reason, ?7) \
        WHEN runs.cancel_requested_at IS NULL THEN ?7 \
        ELSE COALESCE(runs.status_reason, 'cancelled') END, \
    output = ?8, \
    error = CASE WHEN ?6 = 'cancelled' OR runs.cancel_requested_at IS NULL THEN ?9 ELSE ?13 END, \
    usage = ?10, metadata = ?11, lease_expires_at = NULL, finished_at = ?12";

fn ended(own: [Value; 5], terminal: &RunEnd, at: i64) -> [Value; 13] {
    let [id, epoch, from, to, live] = own;
    [
        id,
        epoch,
        from,
        to,
        live,
        terminal.status.as_str().into(),
        terminal.reason.as_str().into(),
        terminal.output.clone().into(),
        terminal.error.clone().into(),
        terminal.usage.clone().into(),
        terminal.metadata.as_str().into(),
        at.into(),
        Failure::cancelled().error().to_string().into(),
    ]
}

/// Writes the events of appends into the ledger.
pub(crate) async fn insert_segments(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let moved = appends.iter().filter(|append| append.to > append.from);
    let segments = moved.map(|append| {
        [
            text(append.run_id),
            signed(append.from + 1).into(),
            signed(append.to).into(),
            append.lines.as_str().into(),
            append.at.into(),
        ]
    });
    let into = "run_segments (run_id, first_sequence, last_sequence, payload, created_at)";
    inserted(tx, into, segments.collect()).await
}
