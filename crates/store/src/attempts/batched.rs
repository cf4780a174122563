//! Dispatch intents and their outcomes.

use std::collections::HashMap;

use protocol::id::RunId;
use sea_orm::Value;

use crate::database_clock::{lease_end_sql, millis};
use crate::error::StoreError;
use crate::model::dispatch::{AttemptOutcome, Dispatch, DispatchPurpose, Dispatched};
use crate::part_text::StoredText;
use crate::pauses::held;
use crate::shared_parts::{NamedParts, StoredParts};
use crate::sql::{Sql, executed, inserted, returned, text};
use crate::tx_cache::TxCache;

/// Moves runs into their first or next attempt.
pub(crate) async fn dispatch_all(
    tx: &impl Sql,
    dispatches: &[&Dispatch],
    tx_cache: &mut TxCache,
) -> Result<Vec<Dispatched>, StoreError> {
    let rows = dispatches.iter().map(|dispatch| {
        let begins = dispatch.begins();
        [
            text(dispatch.run.id),
            dispatch.run.fencing_token.into(),
            dispatch.run.status.as_str().into(),
            i64::from(dispatch.attempt).into(),
            dispatch.owner.as_str().into(),
            millis(dispatch.lease).into(),
            begins.then_some(dispatch.at).into(),
            begins.then_some(dispatch.deadline_at).into(),
            i64::from(dispatch.purpose == DispatchPurpose::Call).into(),
        ]
    });
    // The epoch rules out another owner, the status a run that ended or was dispatched meanwhile.
    let lease_end = lease_end_sql(tx.backend(), "?6");
    // A cancelled run must end, also in a pause.
    let held = held();
    let update = format!(
        "UPDATE runs SET status = 'running', attempt = ?4, lease_owner = ?5, \
             lease_epoch = ?2 + 1, lease_expires_at = {lease_end}, \
             started_at = COALESCE(?7, runs.started_at), \
             deadline_at = COALESCE(?8, runs.deadline_at) FROM rows \
             WHERE runs.id = ?1 AND runs.lease_epoch = ?2 \
             AND runs.status = ?3 \
             AND (runs.status <> 'created' OR runs.cancel_requested_at IS NOT NULL OR ?9 = 0 OR NOT {held}) \
             RETURNING runs.id, runs.cancel_requested_at, runs.status_reason"
    );
    let moving = returned(tx, rows.collect(), &update);
    let parts = dispatches.iter().map(|dispatch| &dispatch.shared);
    let parts = StoredParts::find(tx, parts, tx_cache);
    let (rows, parts) = tx.in_order(moving, parts).await?;
    let mut moved = HashMap::new();
    for row in rows {
        let cancel_request: (Option<i64>, Option<String>) = (
            row.number_if_any("cancel_requested_at")?,
            row.text_if_any("status_reason")?,
        );
        moved.insert(row.text("id")?, cancel_request);
    }
    // Only for runs that this transaction took: an intent permits the POST.
    let owned = |dispatch: &&&Dispatch| moved.contains_key(&dispatch.run.id.to_string());
    let intents = dispatches
        .iter()
        .filter(owned)
        .map(|dispatch| DispatchIntent {
            run: dispatch.run.id,
            attempt: dispatch.attempt,
            context: dispatch.shared.apart(dispatch.context.get()),
            at: dispatch.at,
        });
    insert_intents(tx, intents, &parts).await?;
    let mut outcomes = Vec::with_capacity(dispatches.len());
    for dispatch in dispatches {
        outcomes.push(match moved.remove(&dispatch.run.id.to_string()) {
            Some((requested_at, reason)) => {
                Dispatched::Owned(Box::new(dispatch.taken(requested_at, reason)))
            }
            // The run has changed since the caller read it.
            None => dispatch.find_own(tx).await?,
        });
    }
    Ok(outcomes)
}

/// The intent row of one dispatch attempt, written before the POST.
pub(crate) struct DispatchIntent {
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    /// The context as sent.
    pub(crate) context: StoredText,
    pub(crate) at: i64,
}

pub(crate) async fn insert_intents(
    tx: &impl Sql,
    intents: impl Iterator<Item = DispatchIntent>,
    parts: &StoredParts,
) -> Result<(), StoreError> {
    let intents: Vec<_> = intents.collect();
    let mut named = NamedParts::default();
    for intent in &intents {
        named.add_pruned(&intent.context, intent.run);
    }
    named
        .write(tx, parts, intents.first().map_or(0, |intent| intent.at))
        .await?;
    let rows = intents.into_iter().map(|intent| -> [Value; 4] {
        [
            text(intent.run),
            i64::from(intent.attempt).into(),
            intent.at.into(),
            intent.context.text.into(),
        ]
    });
    let into = "run_attempts (run_id, attempt, intent_at, context)";
    inserted(tx, into, rows.collect()).await
}

/// Records the outcomes of attempts.
pub(crate) async fn note_all(
    tx: &impl Sql,
    outcomes: &[&AttemptOutcome],
) -> Result<(), StoreError> {
    let rows = outcomes.iter().map(|outcome| {
        [
            text(outcome.run_id),
            i64::from(outcome.attempt).into(),
            outcome.outcome.as_str().into(),
            outcome.http_status.into(),
        ]
    });
    let update = "UPDATE run_attempts SET outcome = ?3, http_status = ?4 FROM rows \
                  WHERE run_attempts.run_id = ?1 AND run_attempts.attempt = ?2";
    executed(tx, rows.collect(), update).await
}
