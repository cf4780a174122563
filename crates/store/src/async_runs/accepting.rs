//! Append calls that the owner of a run accepts with the events of their results: one commit instead of two.

use std::collections::HashMap;

use protocol::id::RunId;

use super::AppendResults;
use crate::conversation::lock_runs;
use crate::database_clock::{lease_end_sql, millis};
use crate::error::{StoreError, parsed, signed};
use crate::model::append::{AcceptedCall, Append, Appended};
use crate::sql::{Sql, executed, inserted, returned, text};

impl AppendResults {
    /// The call as the owner of its run accepts it. `None`: it has no results.
    pub fn accepted(&self) -> Option<AcceptedCall> {
        let raws: Vec<_> = self.results.iter().map(|(_, raw)| raw.as_str()).collect();
        Some(AcceptedCall {
            attempt: self.attempt,
            lease: self.lease,
            first: self.results.first()?.0,
            last: self.results.last()?.0,
            bytes: raws.iter().map(|raw| raw.len() as u64).sum(),
            payload: format!("[{}]", raws.join(",")),
            digests: self.digests.concat(),
        })
    }
}

/// Appends that cannot accept their calls, with their outcomes. Locks the runs of all others.
pub(crate) async fn refuse_overtaken(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<HashMap<RunId, Appended>, StoreError> {
    let first_calls = appends.iter();
    let accepting =
        first_calls.filter_map(|append| Some((append.run_id, append.accepted.first()?)));
    let mut missing: HashMap<_, _> = accepting.collect();
    // As calls through other replicas: the row of the run before that of its appends.
    let runs = missing.keys().map(|run| run.0).collect();
    lock_runs(tx, &runs, std::iter::empty()).await?;
    let keys = missing
        .iter()
        .map(|(run, call)| [text(*run), i64::from(call.attempt).into()]);
    let find = "SELECT d.run_id, d.accepted_through, d.judged_through FROM rows, run_deferrals d \
                WHERE d.run_id = ?1 AND d.attempt = ?2";
    let mut refused = HashMap::new();
    for row in returned(tx, keys.collect(), find).await? {
        let id = row.text("run_id")?;
        let Some((run, call)) = missing.remove_entry(&parsed("run_deferrals.run_id", &id, &id)?)
        else {
            continue;
        };
        if row.number("judged_through")? >= signed(call.first) {
            // An earlier try of this append was committed, and its owner confirms it.
            refused.insert(run, Appended::Lost);
        } else if row.number("accepted_through")? != signed(call.first - 1) {
            refused.insert(run, Appended::Overtaken);
        }
    }
    refused.extend(missing.into_keys().map(|run| (run, Appended::Lost)));
    Ok(refused)
}

/// Stores the accepted calls of appends, and renews the heartbeat leases of their runners.
pub(crate) async fn accept_calls(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let calls = || {
        let appends = appends.iter();
        appends.flat_map(|append| {
            append
                .accepted
                .iter()
                .map(move |call| (append.run_id, call))
        })
    };
    let rows = calls().map(|(run, call)| {
        [
            text(run),
            signed(call.first).into(),
            signed(call.last).into(),
            call.payload.as_str().into(),
            call.digests.as_str().into(),
        ]
    });
    let into = "run_appends (run_id, first_sequence, last_sequence, payload, digests)";
    inserted(tx, into, rows.collect()).await?;
    let rows = appends.iter().filter_map(|append| {
        let last = append.accepted.last()?;
        let bytes = append.accepted.iter().map(|call| call.bytes).sum();
        Some([
            text(append.run_id),
            signed(last.last).into(),
            signed(bytes).into(),
            millis(last.lease).into(),
        ])
    });
    let lease_end = lease_end_sql(tx.backend(), "?4");
    let update = format!(
        "UPDATE run_deferrals SET accepted_through = ?2, bytes = run_deferrals.bytes + ?3, \
         lease_expires_at = {lease_end} FROM rows WHERE run_id = ?1"
    );
    executed(tx, rows.collect(), &update).await
}
