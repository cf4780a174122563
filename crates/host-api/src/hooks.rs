//! Values of a run that hooks check, and the audit of refused ones.

use domain::authorization::amendable_tool;
use protocol::JsonObject;
use protocol::hook::{HookMoment, HookValue};
use protocol::resources::ToolOperation;
use serde_json::{Value, json};

use runs::grant::Grant;
use runs::hooks::{HookRefused, HookSubject};
use store::StoreError;
use web::auth::{AuditedCall, RunCaller, audit_entry};
use web::error::ApiResult;
use web::state::ApiState;

/// Start of a stored result that a hook refused. Results of tools are JSON, so none begins like this.
const WITHHELD: &str = "withheld ";

/// A value of a run that hooks check.
#[derive(Clone, Copy)]
pub(crate) struct HookedCall<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) state: &'a ApiState,
    /// The call, for the audit log.
    pub(crate) call: AuditedCall<'a>,
}

impl HookedCall<'_> {
    /// True if a hook is called at this moment.
    pub(crate) fn applies(&self, moment: HookMoment) -> bool {
        let agent = self.grant.run.agent_id;
        self.state.runs.hooks.applies(moment, Some(agent))
    }

    /// Passes a value through the hooks, see `Hooks::pass`. A refusal has an audit entry.
    pub(crate) async fn pass(
        &self,
        subject: &HookSubject<'_>,
        value: HookValue<'_>,
        check: impl Fn(&Value) -> Result<(), String>,
    ) -> Result<Result<Option<Value>, HookRefused>, StoreError> {
        let passed = self.state.runs.hooks.pass(subject, value, check).await;
        if let Err(refused) = &passed {
            self.audit(refused).await?;
        }
        Ok(passed)
    }

    /// Applies the failure of the hooks to a value that none can get. A refusal has an audit entry.
    pub(crate) async fn fail(
        &self,
        subject: &HookSubject<'_>,
        failure: &str,
    ) -> Result<Result<(), HookRefused>, StoreError> {
        let failed = self.state.runs.hooks.fail(subject, failure);
        if let Err(refused) = &failed {
            self.audit(refused).await?;
        }
        Ok(failed)
    }

    async fn audit(&self, refused: &HookRefused) -> Result<(), StoreError> {
        let rule = refused.rule();
        let entry = audit_entry(self.grant, self.state, self.call, Some(&rule), 0);
        self.state.runs.store().audit_log().audit(entry).await
    }
}

/// The arguments of a granted call after its hooks. People approve these, and the tool gets these.
pub(super) async fn checked_parameters(
    caller: &RunCaller,
    state: &ApiState,
    tool: &str,
    parameters: JsonObject,
) -> ApiResult<JsonObject> {
    let grant = &caller.grant;
    let hooked = HookedCall {
        grant,
        state,
        call: call_of(tool),
    };
    // A call that neither the grant nor an amendment can allow is refused later, and its arguments reach no hook.
    let snapshot = &grant.snapshot;
    let is_possible = snapshot.tool(tool, ToolOperation::Call).is_ok()
        || amendable_tool(snapshot, tool).is_some();
    if !is_possible || !hooked.applies(HookMoment::ToolCall) {
        return Ok(parameters);
    }
    caller.access.check_local(state).await?;
    let subject = HookSubject::of_run(HookMoment::ToolCall, grant, tool);
    let value = HookValue::Object(&parameters);
    let replaced = hooked.pass(&subject, value, check_object).await??;
    match replaced {
        Some(Value::Object(replaced)) => Ok(replaced),
        // `check_object` has refused other replacements.
        _ => Ok(parameters),
    }
}

/// The result of a tool after its hooks. They get it before it is cut or stored.
pub(super) async fn checked_result(
    caller: &RunCaller,
    state: &ApiState,
    tool: &str,
    result: Value,
) -> Result<Result<Value, HookRefused>, StoreError> {
    let hooked = HookedCall {
        grant: &caller.grant,
        state,
        call: call_of(tool),
    };
    if !hooked.applies(HookMoment::ToolResult) {
        return Ok(Ok(result));
    }
    let subject = HookSubject::of_run(HookMoment::ToolResult, &caller.grant, tool);
    let value = HookValue::Json(&result);
    let passed = hooked.pass(&subject, value, |_| Ok(())).await?;
    Ok(passed.map(|replaced| replaced.unwrap_or(result)))
}

fn call_of(tool: &str) -> AuditedCall<'_> {
    AuditedCall {
        action: "call_tool",
        resource: tool,
        operation: "call",
    }
}

/// Refuses a replacement that is no object.
pub(crate) fn check_object(value: &Value) -> Result<(), String> {
    let message = "the replacement is no object";
    let is_object = value.is_object();
    is_object.then_some(()).ok_or_else(|| message.to_owned())
}

/// Text that a ticket stores in place of a refused result: the tool was called, and is not called again.
pub(super) fn withheld(refused: &HookRefused) -> String {
    format!("{WITHHELD}{}", json!(refused))
}

/// The refusal that a ticket stores. `None`: it stores a result.
pub(super) fn withheld_by(stored: &str) -> Option<HookRefused> {
    serde_json::from_str(stored.strip_prefix(WITHHELD)?).ok()
}

#[cfg(test)]
mod tests {
    use runs::hooks::HookCause;

    use super::*;

    #[test]
    fn results_of_tools_are_no_refusals() {
        let refused = HookRefused {
            hook: "guard".to_owned(),
            moment: HookMoment::ToolResult,
            cause: HookCause::Denied("\"pii\"".to_owned()),
        };
        let stored = withheld(&refused);
        assert_eq!(withheld_by(&stored), Some(refused));
        for result in [json!(stored), json!({"withheld": {}}), json!("withheld {}")] {
            assert_eq!(withheld_by(&result.to_string()), None);
        }
    }
}
