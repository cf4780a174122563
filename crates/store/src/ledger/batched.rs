//! Appends events of runs, and ends runs.

use std::collections::{HashMap, HashSet};

use domain::run::Failure;
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::Value;

use super::lines::stored_lines;
use crate::approvals::write_announced_amendments;
use crate::async_runs::{accept_calls, refuse_overtaken};
use crate::conversation::{lock_runs, lock_transcripts, waiting_among};
use crate::error::{StoreError, signed};
use crate::failpoint;
use crate::interactions::{insert_interactions, write_platform_actions};
use crate::model::append::{Append, Appended, RunEnd};
use crate::mutation::BatchWork;
use crate::release::record_judged;
use crate::sql::{Sql, inserted, text, updated};
use crate::steering::with_unpulled_among;
use crate::transcript::{TranscriptRow, write_transcripts};
use crate::webhooks::{note_ends, note_questions};

/// Appends that end no run.
pub(crate) async fn append_all(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<Vec<Appended>, StoreError> {
    if appends.is_empty() {
        return Ok(Vec::new());
    }
    let mut refused = refuse_overtaken(tx, appends).await?;
    let owned = appends.iter();
    let owned = owned.filter(|append| !refused.contains_key(&append.run_id));
    let owned: Vec<_> = owned.copied().collect();
    let moved = advance(tx, &owned).await?;
    let mut new = Vec::with_capacity(owned.len());
    for append in written(&owned, &moved) {
        if !append.is_written(tx).await? {
            new.push(append);
        }
    }
    write_events(tx, &new).await?;
    failpoint::pass("relay.before_commit").await?;
    let outcome = |append: &&Append| {
        let refused = refused.remove(&append.run_id);
        refused.unwrap_or_else(|| outcome(append, &moved, Vec::new()))
    };
    Ok(appends.iter().map(outcome).collect())
}

/// Ends runs of distinct conversations, and starts those that wait for these ends.
pub(crate) async fn end_all(tx: &impl Sql, ends: &[&Append]) -> Result<Vec<Appended>, StoreError> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    // As in ingest: the conversation before its runs.
    let keys = || ends.iter().filter_map(|end| end.conversation());
    let waiting = tx.in_order(
        waiting_among(tx, keys()),
        with_unpulled_among(tx, ends.iter().map(|end| end.run_id)),
    );
    let locking = lock_transcripts(tx, keys().chain(transcript_keys(ends)).collect());
    let (last_sequences, (waiting, left)) = tx.in_order(locking, waiting).await?;
    let is_awaited = |end: &Append| {
        end.conversation().is_some_and(|key| waiting.contains(key))
            || left.contains(&end.run_id.to_string())
    };
    if ends.iter().any(|end| is_awaited(end)) {
        // The promoted runs have any ids, so all runs are locked first, in one order.
        let runs = ends.iter().map(|end| end.run_id.0).collect();
        lock_runs(tx, &runs, keys()).await?;
    }
    let moved = advance(tx, ends).await?;
    let written = written(ends, &moved);
    write_events(tx, &written).await?;
    note_ends(tx, &written).await?;
    let items: Vec<_> = written.iter().flat_map(|end| items_of(end)).collect();
    if !items.is_empty() {
        failpoint::pass("project.transcript").await?;
    }
    write_transcripts(tx, items, last_sequences).await?;
    failpoint::pass("succession.before_next").await?;
    let mut next_runs = HashMap::new();
    for end in written.iter().filter(|end| is_awaited(end)) {
        if let Some(promotion) = end.promotion() {
            next_runs.insert(end.run_id, promotion.promote(tx, end).await?);
        }
    }
    failpoint::pass("terminal.before_commit").await?;
    let outcome = |end: &&Append| {
        let next = next_runs.remove(&end.run_id).unwrap_or_default();
        outcome(end, &moved, next)
    };
    Ok(ends.iter().map(outcome).collect())
}

/// Writes the events of appends, and their effects.
async fn write_events(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    insert_segments(tx, appends).await?;
    insert_interactions(tx, appends).await?;
    note_questions(tx, appends).await?;
    write_platform_actions(tx, appends).await?;
    write_announced_amendments(tx, appends).await?;
    accept_calls(tx, appends).await?;
    record_judged(tx, appends).await?;
    let mut refusals = Vec::new();
    for append in appends {
        refusals.append(&mut append.apply_states(tx).await?);
    }
    insert_rejections(tx, appends).await?;
    let audits = appends.iter().flat_map(|append| &append.audits);
    crate::audit::insert(tx, audits.chain(&refusals)).await?;
    crate::artifacts::bind(tx, appends).await
}

/// Conversations of the messages of these runs.
fn transcript_keys<'a>(ends: &[&'a Append]) -> impl Iterator<Item = &'a str> {
    let ends = ends.iter().filter_map(|end| end.terminal.as_ref());
    let items = ends.flat_map(|end| &end.transcript);
    items.map(|item| item.conversation_key.as_str())
}

/// Transcript items added by the end of a run.
fn items_of(end: &Append) -> impl Iterator<Item = TranscriptRow> {
    let items = end.terminal.iter().flat_map(|end| end.transcript.clone());
    let (run, at) = (end.run_id, end.at);
    items.map(move |item| TranscriptRow { run, item, at })
}

fn outcome(append: &Append, moved: &HashSet<String>, next: Vec<RunId>) -> Appended {
    if moved.contains(&append.run_id.to_string()) {
        Appended::Written { next }
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
async fn advance(tx: &impl Sql, appends: &[&Append]) -> Result<HashSet<String>, StoreError> {
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
async fn insert_segments(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let moved = appends.iter().filter(|append| append.to > append.from);
    let segments = moved.map(|append| {
        [
            text(append.run_id),
            signed(append.from + 1).into(),
            signed(append.to).into(),
            stored_lines(append.run_id, &append.lines).into(),
            append.at.into(),
        ]
    });
    let into = "run_segments (run_id, first_sequence, last_sequence, payload, created_at)";
    inserted(tx, into, segments.collect()).await
}

async fn insert_rejections(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let rows = appends.iter().flat_map(|append| {
        let numbered = append.rejections.iter().zip(append.first_rejection..);
        numbered.map(|(rejection, n)| {
            let number = rejection.runner_sequence.map(|number| number.to_string());
            [
                text(append.run_id),
                signed(n).into(),
                rejection.reason.as_str().into(),
                number.into(),
                signed(rejection.bytes as u64).into(),
                rejection.excerpt.as_str().into(),
                append.at.into(),
                rejection.message.as_str().into(),
            ]
        })
    });
    let into = "run_rejections (run_id, n, reason, runner_sequence, bytes, excerpt, at, message)";
    inserted(tx, into, rows.collect()).await
}
