//! Host calls, and what came of them.

use super::text;
use crate::audit::{AuditEntry, AuditOutcome};
use crate::error::{StoreError, signed};
use crate::sql::{Sql, executed, inserted};

/// Records calls.
pub(super) async fn record_all(tx: &impl Sql, entries: &[&AuditEntry]) -> Result<(), StoreError> {
    let rows = entries.iter().map(|entry| {
        [
            entry.id.to_string().into(),
            entry.workspace.to_string().into(),
            text(entry.run_id),
            entry.action.into(),
            entry.resource.as_str().into(),
            entry.operation.into(),
            if entry.allowed { "allow" } else { "deny" }.into(),
            entry.rule.as_ref().into(),
            signed(entry.bytes).into(),
            entry.at.into(),
        ]
    });
    let into = "audit_entries (id, workspace_id, run_id, action, resource, operation, decision, rule, bytes, at)";
    inserted(tx, into, rows.collect()).await
}

/// Notes how calls ended that are recorded.
pub(super) async fn end_all(tx: &impl Sql, outcomes: &[&AuditOutcome]) -> Result<(), StoreError> {
    let rows = outcomes.iter().map(|end| {
        [
            end.id.to_string().into(),
            signed(end.bytes).into(),
            end.outcome.into(),
            end.duration_ms.into(),
            text(end.run_id),
        ]
    });
    let update = "UPDATE audit_entries SET bytes = ?2, outcome = ?3, duration_ms = ?4 \
                  FROM rows WHERE audit_entries.run_id = ?5 AND audit_entries.id = ?1";
    executed(tx, rows.collect(), update).await
}
