//! Tools that are called on behalf of the actor of a run (`docs/on-behalf-of.md`).

use domain::actor_token::ActorToken;
use protocol::tool::KeyScope;

use crate::host_call::HostCall;
use crate::tools::{CallKey, ToolCalling};
use tools::AvailableTool;
use web::error::{ApiError, ApiResult};

impl ToolCalling<'_> {
    /// The token of the actor for whom the tool is called. `None`: the tool requires none. (Its `reconcile` tool may do
    /// so.)
    pub(super) async fn actor_token(
        &self,
        host_call: &HostCall,
        tool: &AvailableTool,
        key: Option<CallKey<'_>>,
    ) -> ApiResult<Option<ActorToken>> {
        if !self.state.tools.calls_on_behalf(tool) {
            return Ok(None);
        }
        // A later run may be of another actor, who must not get this one's result.
        if key.is_some_and(|key| key.scope == KeyScope::Conversation) {
            return Err(ApiError::invalid_argument(
                "a tool that is called on behalf of the actor takes `Idempotency-Key-Scope: run` only",
            ));
        }
        let token = self
            .state
            .runs
            .grants
            .actor_token(&self.caller.grant)
            .await?;
        match &token {
            Some(token) => host_call.note_actor(token.actor()),
            None => tool.check_without_actor()?,
        }
        Ok(token)
    }
}
