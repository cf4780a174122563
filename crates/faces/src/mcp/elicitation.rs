//! Questions as forms of the client: the elicitation of a call that needs input (2026-07-28).
//!
//! Versions with a handshake send their forms on an open stream, and get the answer by another request, which any
//! replica may receive. So their clients get questions as results.

use protocol::JsonObject;
use protocol::interaction::{InteractionFieldType, InteractionRequest};
use rmcp::RoleServer;
use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
    InputRequest, InputRequiredResult, InputResponses,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use super::AgentMcp;
use super::ask::is_stateless;
use crate::agent_runs::{cancel_question, find_question_of_agent};
use crate::answer::value_schema;
use crate::questions::OpenQuestion;
use client_api::client::interactions::{ContinuedRun, answer_with_key};
use web::error::{ApiError, ApiResult};

/// Name of the form among the input requests of a call.
const ANSWER: &str = "answer";
/// Property of the chosen action.
const ACTION: &str = "action_id";

/// True if the client shows forms.
pub(super) fn takes_forms(context: &RequestContext<RoleServer>) -> bool {
    let elicitation = context
        .client_capabilities()
        .and_then(|client| client.elicitation);
    // Without modes, a client shows forms.
    is_stateless(context) && elicitation.is_some_and(|one| one.form.is_some() || one.url.is_none())
}

/// The form of a question. `None`: no form of this protocol has its fields.
pub(super) fn input_required(question: &OpenQuestion, text: &str) -> Option<InputRequiredResult> {
    let request: InteractionRequest = serde_json::from_str(&question.arguments).ok()?;
    let message = match text {
        "" => request.fallback_text.clone(),
        text => format!("{text}\n\n{}", request.fallback_text),
    };
    let form = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message,
        requested_schema: form_of(&request)?,
    };
    let form = InputRequest::Elicitation(ElicitRequest::new(form));
    let requests = [(ANSWER.to_owned(), form)].into();
    // The state is a name only: the key must reach the question when it answers.
    Some(InputRequiredResult::new(
        Some(requests),
        Some(question.id.clone()),
    ))
}

fn form_of(request: &InteractionRequest) -> Option<ElicitationSchema> {
    let mut properties = JsonObject::new();
    let mut required = Vec::new();
    for field in &request.fields {
        if field.kind == InteractionFieldType::File || field.id == ACTION {
            return None;
        }
        properties.insert(field.id.clone(), value_schema(field));
        // One of several actions may be to leave the form, which needs no values.
        if field.required && request.actions.len() <= 1 {
            required.push(field.id.as_str());
        }
    }
    // With one action, the answer chooses it.
    if request.actions.len() > 1 {
        let actions: Vec<_> = request.actions.iter().map(|one| one.id.as_str()).collect();
        let action = json!({"type": "string", "title": request.title, "enum": actions});
        properties.insert(ACTION.to_owned(), action);
        required.push(ACTION);
    }
    let schema = json!({"type": "object", "properties": properties, "required": required});
    serde_json::from_value(schema).ok()
}

/// Submits the form of a question. A form that the user declines or closes cancels the run that waits for it.
pub(super) async fn submit_response(
    call: &AgentMcp,
    question: &str,
    mut responses: InputResponses,
) -> ApiResult<ContinuedRun> {
    let (state, caller) = (&call.state, &call.caller);
    let record = find_question_of_agent(state, caller, call.agent_id(), question).await?;
    let record = record.ok_or_else(|| {
        ApiError::invalid("/requestState", "names no question of this agent and key")
    })?;
    let response = responses.remove(ANSWER).unwrap_or_default();
    let response = serde_json::from_value::<ElicitResult>(response).map_err(|_| {
        let pointer = format!("/inputResponses/{ANSWER}");
        ApiError::invalid(pointer, "must be the result of the elicitation")
    })?;
    if response.action != ElicitationAction::Accept {
        return cancel_question(state, caller, &record).await;
    }
    let mut values = match response.content {
        Some(Value::Object(values)) => values,
        _ => JsonObject::new(),
    };
    let action = values.remove(ACTION);
    let action = action.and_then(|action| action.as_str().map(str::to_owned));
    answer_with_key(state, caller, &record.id, action, values).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(fields: &Value, actions: &Value) -> OpenQuestion {
        let request = json!({"interaction_id": "q", "title": "Room", "fallback_text": "Which room?",
            "fields": fields, "actions": actions, "await": true});
        OpenQuestion {
            id: "i-1".to_owned(),
            arguments: request.to_string(),
            is_awaited: true,
        }
    }

    #[test]
    fn forms_have_fields_and_the_choice_of_actions() {
        let fields = json!([
            {"id": "room", "label": "Room", "type": "select", "required": true,
                "options": [{"value": "a", "label": "A"}]},
            {"id": "days", "label": "Days", "type": "multiselect",
                "options": [{"value": "mon", "label": "Monday"}]},
            {"id": "guests", "label": "Guests", "type": "number"},
            {"id": "quiet", "label": "Quiet", "type": "boolean"},
            {"id": "note", "label": "Note", "type": "textarea"},
        ]);
        let actions = json!([{"id": "book", "label": "Book"}, {"id": "leave", "label": "Leave"}]);
        let required = input_required(&question(&fields, &actions), "Two rooms.").unwrap();
        let required = serde_json::to_value(required).unwrap();
        assert_eq!(required["requestState"], "i-1");
        let form = &required["inputRequests"]["answer"]["params"];
        assert_eq!(form["message"], "Two rooms.\n\nWhich room?");
        let schema = &form["requestedSchema"];
        assert_eq!(schema["required"], json!(["action_id"]));
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), 6);
        assert_eq!(properties["action_id"]["enum"], json!(["book", "leave"]));
        assert_eq!(properties["days"]["items"]["enum"], json!(["mon"]));
    }

    #[test]
    fn no_form_has_files_or_a_field_of_actions() {
        for field in [
            json!({"id": "scan", "label": "Scan", "type": "file"}),
            json!({"id": "action_id", "label": "Action", "type": "text"}),
        ] {
            let question = question(&json!([field]), &json!([]));
            assert!(input_required(&question, "").is_none(), "{field}");
        }
    }
}
