//! Questions of a run to users, actions on its platform, and wakes of its agent.

use protocol::platform_action::ActionApproval;

use super::{AuthorizationSnapshot, Decision, NotGranted};

/// Operation of the decision that a person may add calls of a tool to the grant.
pub(super) const AMEND: &str = "amend";

/// A platform action that the snapshot does not grant, with the rule that denied it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this run was not granted the platform action {action}: {rule}")]
pub struct ActionNotGranted {
    pub action: String,
    pub rule: String,
}

impl AuthorizationSnapshot {
    /// Checks that a question is stored and can be answered.
    pub fn interaction_request(&self) -> Result<(), NotGranted> {
        self.granted("interactions:request")
    }

    /// Checks that a person is asked about a tool call with an unknown outcome.
    pub fn unknown_effect_question(&self) -> Result<(), NotGranted> {
        self.granted("interactions:unknown_effect")
    }
}

/// Returns true if calls of a tool need an approval or an amendment.
pub fn needs_approval(snapshot: &AuthorizationSnapshot, tool: &str) -> bool {
    let mut tools = snapshot.resources.tools.iter();
    tools.any(|one| one.tool_name == tool && one.approval.is_some())
        || amendable_tool(snapshot, tool).is_some()
}

/// Returns the rule that denies the calls of a tool, if a person may amend the grant by it.
pub fn amendable_tool<'a>(snapshot: &'a AuthorizationSnapshot, tool: &str) -> Option<&'a str> {
    let decided = |operation: &str| {
        let is_it =
            |one: &&Decision| one.kind == "tool" && one.id == tool && one.operation == operation;
        snapshot.decisions.iter().find(is_it)
    };
    decided(AMEND).filter(|decision| decision.granted)?;
    // A call that the snapshot grants needs no amendment.
    let denied = decided("call").filter(|decision| !decision.granted)?;
    Some(&denied.rule)
}

/// Returns true if a person may amend the grant.
pub fn has_amendable_tools(snapshot: &AuthorizationSnapshot) -> bool {
    let may_amend = |one: &Decision| one.kind == "tool" && one.operation == AMEND && one.granted;
    snapshot.decisions.iter().any(may_amend)
}

/// Returns the approval of a granted platform action.
pub fn granted_action(
    snapshot: &AuthorizationSnapshot,
    action: &str,
) -> Result<ActionApproval, ActionNotGranted> {
    let decided = |operation: &str| {
        let is_it = |one: &&Decision| {
            one.kind == "platform_api" && one.id == action && one.operation == operation
        };
        snapshot.decisions.iter().find(is_it)
    };
    match decided("request") {
        Some(decision) if decision.granted => Ok(match decided("ask") {
            Some(_) => ActionApproval::Ask,
            None => ActionApproval::Auto,
        }),
        denied => Err(ActionNotGranted {
            action: action.to_owned(),
            rule: denied.map_or_else(
                || {
                    "permissions.platform_api and delivery_policy.platform_actions do not name it"
                        .to_owned()
                },
                |decision| decision.rule.to_string(),
            ),
        }),
    }
}

/// Returns true if a platform action is granted.
pub fn has_granted_actions(snapshot: &AuthorizationSnapshot) -> bool {
    snapshot.operations.contains("platform_api:request")
}

/// Checks that the run may wake its agent later.
pub fn granted_wake(snapshot: &AuthorizationSnapshot) -> Result<(), NotGranted> {
    snapshot.granted("schedules:wake")
}
