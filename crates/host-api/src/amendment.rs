//! Calls of tools that the run was not granted. Its snapshot stays frozen; amendments that persons allow cover single
//! calls (`docs/approvals.md`).

use std::sync::Arc;

use domain::approval::{NeededAmendment, definition_text};
use domain::authorization::amendable_tool;
use protocol::JsonObject;
use protocol::id::ApprovalId;
use protocol::resources::{ToolOperation, ToolResource};
use protocol::tool::KeyScope;
use store::{AuditEntry, CallToApprove, sha256_hex};

use crate::call_approval::approval_required;
use crate::ticketed_call::request_sha256;
use crate::tools::{CallKey, ToolCalling};
use runs::awaited::CallDecision;
use tools::AvailableTool;
use web::error::{ApiError, ApiResult};

/// Rule of a call in the audit log. Its `approval_id` names the amendment.
pub(super) const AMENDED: &str = "an amendment of the run's grant allows it";

/// A tool that the snapshot does not grant, and the amendments that cover a call of it.
pub(super) struct AmendedTool {
    /// The current definition: that of the amendments.
    pub(super) resource: ToolResource,
    pub(super) approvals: Vec<ApprovalId>,
}

/// A tool of the catalog that a person may add to the grant.
struct AmendableTool {
    tool: Arc<AvailableTool>,
    amends: NeededAmendment,
}

impl ToolCalling<'_> {
    /// The tool, if only an amendment can allow its calls. Fails if none covers this one.
    pub(super) async fn amended_tool(
        &self,
        parameters: &JsonObject,
        key: Option<CallKey<'_>>,
    ) -> ApiResult<Option<AmendedTool>> {
        let Some(AmendableTool { tool, amends }) = self.amendable() else {
            return Ok(None);
        };
        let (run, attempt) = (&self.caller.grant.run, self.caller.grant.attempt);
        let request_sha256 = request_sha256(self.name, parameters);
        let call = CallToApprove {
            tool: self.name,
            parameters,
            request_sha256: &request_sha256,
            definition_sha256: Some(&amends.definition_sha256),
        };
        let now = self.state.runs.clock().now_ms();
        let found = self.state.runs.store().interactions();
        let approvals = found.find_covering_approvals(run, call, now).await?;
        if approvals.is_empty() {
            let key = key.filter(|key| key.scope == KeyScope::Run);
            let key = key.map(|key| key.key);
            // A call that is repeated under its ticket gets the outcome of the first one, whose amendment is used.
            if !found
                .has_ticket(run.id, &request_sha256, key, attempt)
                .await?
            {
                // Before the question: a person must not decide about a call that the tool rejects.
                let fits = tool.check(parameters).await;
                fits.map_err(|faults| ApiError::faults(&faults))?;
                return Err(approval_required());
            }
        }
        let resource = tool.resource.clone();
        Ok(Some(AmendedTool {
            resource,
            approvals,
        }))
    }

    /// The amendment that a call of the tool needs. `None`: the snapshot decides.
    pub(super) fn needed_amendment(&self) -> Option<NeededAmendment> {
        self.amendable().map(|amendable| amendable.amends)
    }

    fn amendable(&self) -> Option<AmendableTool> {
        let snapshot = &self.caller.grant.snapshot;
        if snapshot.tool(self.name, ToolOperation::Call).is_ok() {
            return None;
        }
        let rule = amendable_tool(snapshot, self.name)?.to_owned();
        // A tool that has left the catalog is denied like any other.
        let tool = self.state.tools.find(self.name)?;
        let definition_sha256 = sha256_hex(definition_text(&tool.resource).as_bytes());
        Some(AmendableTool {
            tool,
            amends: NeededAmendment {
                definition_sha256,
                rule,
            },
        })
    }

    /// Audit row of a call that becomes a question.
    pub(super) fn denial(&self, amends: &NeededAmendment) -> AuditEntry {
        AuditEntry {
            allowed: false,
            rule: amends.rule.clone().into(),
            ..self
                .caller
                .audit_entry(self.state, self.audited_call(), None, 0)
        }
    }

    /// Audits a call that no person has allowed. Polls for an open question add no rows.
    pub(super) async fn record_denial(
        &self,
        amends: &NeededAmendment,
        decision: &CallDecision,
    ) -> ApiResult<()> {
        let is_refused = match decision {
            CallDecision::Allowed | CallDecision::Open { .. } | CallDecision::Cancelled => false,
            CallDecision::Denied { .. }
            | CallDecision::Expired
            | CallDecision::TooLong
            | CallDecision::Full => true,
        };
        if is_refused {
            let refusal = Some(amends.rule.as_str());
            let record = self.caller.record(self.state, self.audited_call(), refusal);
            record.await?;
        }
        Ok(())
    }
}
