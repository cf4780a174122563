//! Settles what became of a tool call with an unknown outcome: by the tool's `reconcile` tool, or by a person.

use domain::interaction::expires_at;
use domain::interaction::unknown_effect::{PersonVerdict, UnknownCall, question};
use domain::normalize::RunQuestion;
use domain::tool_call::{CallEffect, ReconcileAnswer};
use protocol::JsonObject;
use protocol::context::ActorContext;
use protocol::interaction::AwaitedInteraction;
use serde_json::{Value, json};

use crate::ticketed_call::{TicketedCall, UnknownOutcome};
use domain::canonical::canonical_json;
use tools::CallOrigin;
use web::error::{ApiError, ApiResult};

/// Effect of a call whose outcome was unknown.
pub(super) enum SettledEffect {
    /// The call was executed, with this result.
    Done(Value),
    /// The call of this request was not executed. Its caller may repeat it.
    NotDone,
    /// The call was not executed, and a person decided against it.
    Declined,
    /// Repeat the call: it was not executed, or a person wants it again.
    Repeat,
    Unknown,
}

impl TicketedCall<'_> {
    /// Asks the `reconcile` tool, then a person if the agent's policy allows it.
    pub(super) async fn settle(
        &self,
        unknown: &UnknownOutcome,
        parameters: &JsonObject,
    ) -> ApiResult<SettledEffect> {
        match self.reconcile(&unknown.ticket, parameters).await {
            ReconcileAnswer::Done(result) => return Ok(SettledEffect::Done(result)),
            // The caller of a failed call gets its error, and may repeat the call.
            ReconcileAnswer::NotDone => {
                return Ok(match unknown.error {
                    Some(_) => SettledEffect::NotDone,
                    None => SettledEffect::Repeat,
                });
            }
            ReconcileAnswer::Unknown => {}
        }
        let snapshot = &self.caller.grant.snapshot;
        if snapshot.unknown_effect_question().is_err() {
            return Ok(SettledEffect::Unknown);
        }
        self.ask_person(unknown, parameters).await
    }

    async fn reconcile(&self, ticket: &str, parameters: &JsonObject) -> ReconcileAnswer {
        let run = &self.caller.grant.run;
        let origin = CallOrigin {
            endpoint: run.endpoint_id,
            skills: self.skills,
            key: None,
            behalf: self.behalf,
        };
        let reconciling = self
            .state
            .tools
            .reconcile(self.tool, parameters, ticket, origin);
        match reconciling.await {
            Some(Ok(answer)) => ReconcileAnswer::read(&answer),
            Some(Err(error)) => {
                tracing::warn!(
                    run.id = %run.id, tool.name = self.granted.tool_name,
                    error = &error as &dyn std::error::Error,
                    "the outcome of a call of {} stays unknown, its reconcile call failed", self.granted.tool_name
                );
                ReconcileAnswer::Unknown
            }
            None => ReconcileAnswer::Unknown,
        }
    }

    async fn ask_person(
        &self,
        unknown: &UnknownOutcome,
        parameters: &JsonObject,
    ) -> ApiResult<SettledEffect> {
        let request = question(&UnknownCall {
            call_id: &unknown.call_id.to_string(),
            tool: &self.granted.tool_name,
            ticket: &unknown.ticket,
            parameters,
        });
        let now = self.state.runs.clock().now_seconds();
        let question = RunQuestion {
            expires_at: expires_at(&request, now),
            request: canonical_json(&request),
            is_awaited: request.awaits,
            interaction_id: request.interaction_id,
        };
        let waiting = self.state.runs.awaited.ask(&self.caller.grant, question);
        let (action, actor) = match waiting.await? {
            AwaitedInteraction::Submitted {
                action_id, actor, ..
            } => (action_id, actor),
            // This gateway stops: the repeated call finds the question at another one.
            AwaitedInteraction::Open => {
                return Err(ApiError::unavailable(
                    "the gateway is stopping while a person decides about this call; repeat the call",
                ));
            }
            AwaitedInteraction::Expired | AwaitedInteraction::Cancelled => {
                return Ok(SettledEffect::Unknown);
            }
        };
        Ok(match PersonVerdict::of(action.as_deref()) {
            Some(PersonVerdict::Done) => SettledEffect::Done(confirmed_by(&actor)),
            Some(PersonVerdict::NotDone) => SettledEffect::Declined,
            Some(PersonVerdict::Again) => SettledEffect::Repeat,
            None => SettledEffect::Unknown,
        })
    }
}

/// Result of a call that a person has seen to be done: its own result is lost.
fn confirmed_by(actor: &ActorContext) -> Value {
    json!({"outcome": CallEffect::Done.as_str(), "confirmed_by": actor})
}
