//! OpenAI's API with agents as models: chat completions, responses and the list of models.

mod chat;
mod chat_writer;
mod models;
mod parts;
mod responses;

use axum::middleware::map_response;
use protocol::JsonObject;
use protocol::id::RunId;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::body::RequestMembers;
use protocol::admin::Fault;
use web::error::ApiError;
use web::error::openai::in_openai_form;
use web::state::ApiState;

/// Routes of this API. Errors have OpenAI's fields.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(chat::complete_agent_chat))
        .routes(routes!(responses::create_agent_response))
        .routes(routes!(responses::get_agent_response))
        .routes(routes!(responses::cancel_agent_response))
        .routes(routes!(models::list_agent_models))
        .routes(routes!(models::get_agent_model))
        .layer(map_response(in_openai_form))
}

/// The user of a request, in the older or the newer member.
fn actor_of(request: &RequestMembers) -> Result<Option<String>, Fault> {
    let actor = match request.text("safety_identifier")? {
        None => request.text("user")?,
        actor => actor,
    };
    Ok(actor.map(str::to_owned))
}

/// Members of the request that the answer repeats.
fn echoed_data(
    request: &RequestMembers,
    model: &str,
    instructions: &str,
) -> Result<JsonObject, Fault> {
    let mut data = JsonObject::new();
    data.insert("model".to_owned(), json!(model));
    if !instructions.is_empty() {
        data.insert("instructions".to_owned(), json!(instructions));
    }
    if let Some(metadata) = request.object("metadata")? {
        data.insert("metadata".to_owned(), Value::Object(metadata.clone()));
    }
    Ok(data)
}

/// Failure of a run as an error of its request. A retry would start another run, so it is not retryable.
fn run_error(run: RunId, code: &str, message: &str) -> ApiError {
    use http::StatusCode;
    let status = match code {
        // As for calls of a cancelled run in the host API.
        "cancelled" => StatusCode::CONFLICT,
        "timeout" => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    ApiError::new(status, "runtime_error", format!("{code}: {message}"))
        .with("reason", json!("run_failed"))
        .with("code", json!(code))
        .with("run_id", json!(run))
}

/// Refuses formats of the answer that an agent does not promise.
fn check_text_format(format: Option<&Value>, pointer: &str) -> Result<(), Fault> {
    let kind = format.filter(|format| !format.is_null());
    match kind.map(|format| &format["type"]) {
        // A schema that is ignored would look like one that is kept.
        Some(kind) if *kind != "text" => {
            let message = "must have the type text: the agent decides about the form of its answer";
            Err(Fault::new(pointer, message))
        }
        _ => Ok(()),
    }
}

fn refused(fault: Fault) -> ApiError {
    ApiError::faults(&[fault])
}
