//! Intents to POST, and how they were answered.

use std::collections::HashMap;

use sea_orm::{ConnectionTrait, DatabaseTransaction};

use super::text;
use crate::attempts::{AttemptOutcome, Dispatch, Dispatched};
use crate::database_clock::{lease_end_sql, millis};
use crate::error::StoreError;
use crate::rows::{executed, inserted, returned};

/// Moves created runs into their first attempts, and others into their next.
pub(super) async fn dispatch_all(
    tx: &DatabaseTransaction,
    dispatches: &[&Dispatch],
) -> Result<Vec<Dispatched>, StoreError> {
    let rows = dispatches.iter().map(|dispatch| {
        let begins = dispatch.begins();
        [
            text(dispatch.run.id),
            dispatch.run.lease_epoch.into(),
            dispatch.run.status.as_str().into(),
            i64::from(dispatch.attempt).into(),
            dispatch.owner.as_str().into(),
            millis(dispatch.lease).into(),
            begins.then_some(dispatch.at).into(),
            begins.then_some(dispatch.deadline_at).into(),
        ]
    });
    let lease_end = lease_end_sql(tx.get_database_backend(), "v.column6");
    let update = |values: &str| {
        format!(
            "UPDATE runs SET status = 'running', attempt = v.column4, lease_owner = v.column5, \
             lease_epoch = v.column2 + 1, lease_expires_at = {lease_end}, \
             started_at = COALESCE(v.column7, runs.started_at), \
             deadline_at = COALESCE(v.column8, runs.deadline_at) FROM ({values}) AS v \
             WHERE runs.id = v.column1 AND runs.lease_epoch = v.column2 \
             AND runs.status = v.column3 \
             RETURNING runs.id, runs.cancel_requested_at, runs.status_reason"
        )
    };
    let mut moved = HashMap::new();
    for row in returned(tx, rows.collect(), update).await? {
        let told: (Option<i64>, Option<String>) = (
            row.try_get("", "cancel_requested_at")?,
            row.try_get("", "status_reason")?,
        );
        moved.insert(row.try_get::<String>("", "id")?, told);
    }
    let owned = |dispatch: &&&Dispatch| moved.contains_key(&dispatch.run.id.to_string());
    let intents = dispatches.iter().filter(owned).map(|dispatch| {
        [
            text(dispatch.run.id),
            i64::from(dispatch.attempt).into(),
            dispatch.at.into(),
            dispatch.context.as_str().into(),
        ]
    });
    let into = "run_attempts (run_id, attempt, intent_at, context)";
    inserted(tx, into, intents.collect()).await?;
    let mut outcomes = Vec::with_capacity(dispatches.len());
    for dispatch in dispatches {
        outcomes.push(match moved.remove(&dispatch.run.id.to_string()) {
            None => dispatch.find_own(tx).await?,
            Some(told) => Dispatched::Owned(Box::new(dispatch.taken(told))),
        });
    }
    Ok(outcomes)
}

/// Notes how attempts were answered.
pub(super) async fn note_all(
    tx: &DatabaseTransaction,
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
    let update = |values: &str| {
        format!(
            "UPDATE run_attempts SET outcome = v.column3, http_status = v.column4 \
             FROM ({values}) AS v \
             WHERE run_attempts.run_id = v.column1 AND run_attempts.attempt = v.column2"
        )
    };
    executed(tx, rows.collect(), update).await
}
