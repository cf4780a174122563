//! Outcomes of audited host calls.

use crate::error::{StoreError, signed};
use crate::model::audit::AuditOutcome;
use crate::sql::{Sql, executed, text};

/// Records the outcomes of audited calls.
pub(crate) async fn end_all(tx: &impl Sql, outcomes: &[&AuditOutcome]) -> Result<(), StoreError> {
    let rows = outcomes.iter().map(|end| {
        [
            end.id.to_string().into(),
            signed(end.bytes).into(),
            end.outcome.into(),
            end.duration_ms.into(),
            text(end.run_id),
            end.effect
                .as_ref()
                .map(|effect| effect.ticket.clone())
                .into(),
            end.effect
                .as_ref()
                .map(|effect| effect.effect.as_str())
                .into(),
            end.approval.map(|approval| approval.to_string()).into(),
            end.on_behalf_of.clone().into(),
        ]
    });
    let update = "UPDATE audit_entries SET bytes = ?2, outcome = ?3, duration_ms = ?4, ticket = ?6, effect = ?7, \
                  approval_id = ?8, on_behalf_of = ?9 FROM rows WHERE audit_entries.run_id = ?5 AND audit_entries.id = ?1";
    executed(tx, rows.collect(), update).await
}
