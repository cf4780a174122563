//! Accepted answers, for readers of an interaction.

use domain::redaction::redact_answer;
use protocol::JsonObject;
use protocol::context::ActorContext;
use protocol::event::EventEnvelope;
use protocol::id::ApiKeyId;
use protocol::interaction::{AwaitedInteraction, InteractionField};
use protocol::principal::{Principal, PrincipalKind};
use serde::{Deserialize, Serialize};
use store::{AnsweredInteraction, TakenAs};

/// The accepted answer to an interaction.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct InteractionAnswer {
    /// Id of the chosen action. Absent if the answer names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    action_id: Option<String>,
    /// Values by field id. Texts of fields whose id or label has secret, token, key, password, credential or
    /// authorization are `***`.
    #[schema(value_type = Object)]
    values: JsonObject,
    /// The credential of the answer: an API key, or the link.
    pub(super) by: Principal,
}

/// Part of an answer event's `data`.
#[derive(Deserialize)]
struct AnswerData {
    answered_by: ActorContext,
}

impl InteractionAnswer {
    /// Reads a stored answer to a question with these fields. `None`: it is not readable.
    pub(super) fn read(
        answered: &AnsweredInteraction,
        fields: &[InteractionField],
    ) -> Option<Self> {
        let mut answer = match answered.taken {
            TakenAs::Event { .. } => of_event(&answered.stored)?,
            TakenAs::AnswerDelivery => of_delivery(&answered.stored)?,
        };
        redact_answer(&mut answer.values, fields);
        Some(answer)
    }
}

fn of_event(envelope: &str) -> Option<InteractionAnswer> {
    let event: EventEnvelope = serde_json::from_str(envelope).ok()?;
    let data: AnswerData = serde_json::from_value(event.data.into()).ok()?;
    let submission = event.input?.interaction?;
    Some(InteractionAnswer {
        action_id: submission.action_id,
        values: submission.values,
        by: principal(data.answered_by)?,
    })
}

fn of_delivery(answer: &str) -> Option<InteractionAnswer> {
    match serde_json::from_str(answer).ok()? {
        AwaitedInteraction::Submitted {
            action_id,
            values,
            actor,
        } => Some(InteractionAnswer {
            action_id,
            values,
            by: principal(actor)?,
        }),
        AwaitedInteraction::Open | AwaitedInteraction::Expired | AwaitedInteraction::Cancelled => {
            None
        }
    }
}

/// The principal of a stored credential.
pub(in crate::client) fn principal(actor: ActorContext) -> Option<Principal> {
    match actor.actor_id {
        Some(id) => Some(id.parse::<ApiKeyId>().ok()?.into()),
        None => Some(PrincipalKind::Link.into()),
    }
}
