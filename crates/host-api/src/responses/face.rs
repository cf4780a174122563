//! Builds the upstream request of a Responses request: its own format for a provider with this API, a chat completion
//! for any other.

use llm_formats::chat::responses::{
    ProviderApi, ResponseEventWriter, ResponseHead, ResponsesPassthrough, ResponsesRequest,
    passthrough_body, read_request,
};
use protocol::JsonObject;
use protocol::hook::{HookFormat, HookValue};
use serde_json::Value;
use uuid::Uuid;

use super::answer::{PassedResponse, WrittenResponse};
use super::turn::Turn;
use crate::models::chat_tokens::chat_tokens;
use crate::models::hooked::check_replaced_body;
use crate::models::pipeline::{CallTarget, FaceAnswer, ModelFace, PreparedCall};
use crate::models::token_bounds::check_token_limits;
use crate::openai::PreparedChat;
use models::{Model, ProviderRequest, WireFormat};
use telemetry::tolerance::{Peer, tolerated};
use web::error::{ApiError, ApiResult};
use web::response_store::ResponseOwner;

/// A request of the Responses API, as the client sent it.
#[derive(Clone)]
pub(super) struct ResponsesFace(pub(super) JsonObject);

impl ModelFace for ResponsesFace {
    const FORMAT: HookFormat = HookFormat::Responses;

    fn document(&self) -> HookValue<'_> {
        HookValue::Object(&self.0)
    }

    fn check_document(&self, replaced: &Value) -> Result<(), String> {
        check_replaced_body(&self.0, replaced, |_| Ok(()))
    }

    fn set_document(&mut self, replaced: Value) {
        if let Value::Object(body) = replaced {
            self.0 = body;
        }
    }

    async fn prepare(self, target: &CallTarget<'_>) -> ApiResult<PreparedCall> {
        let Self(mut request) = self;
        let mut turn = Turn::of(target.caller, target.state, &mut request)?;
        let prepared = prepare_turn(target, request, &mut turn).await;
        // Pointers refer to the resolved request until here, which the client does not know.
        prepared.map_err(|failed| failed.moved(|at| turn.pointer(at)))
    }
}

async fn prepare_turn(
    target: &CallTarget<'_>,
    request: JsonObject,
    turn: &mut Turn,
) -> ApiResult<PreparedCall> {
    let CallTarget { model, id, .. } = *target;
    let opened = &model.extra_members;
    let api = if model.provider.supports(WireFormat::Responses) {
        ProviderApi::Responses
    } else {
        ProviderApi::Chat
    };
    let mut responses_request =
        read_request(&request, id, api, opened).map_err(|fault| ApiError::faults(&[fault]))?;
    report_left_out(target, turn.owner, &responses_request);
    // Moved, not cloned: a body has megabytes.
    let body = std::mem::take(&mut responses_request.chat);
    check_token_limits(&body)
        .map_err(|fault| ApiError::faults(&[responses_request.fault(fault)]))?;
    let chat = PreparedChat::of(target, body, &responses_request.beside).await;
    let chat = chat.map_err(|failed| failed.moved(|at| responses_request.pointer(at)))?;
    let head = ResponseHead {
        key: Uuid::new_v4().simple().to_string(),
        created_at: target.state.runs.clock().now_seconds(),
        model: id.to_owned(),
        previous: turn.previous.clone(),
    };
    let stored = turn.stored.take();
    let (request, answer): (_, Box<dyn FaceAnswer>) = match api {
        ProviderApi::Responses => {
            let body = passthrough_body(request, &responses_request, &chat.body, opened);
            let passing = ResponsesPassthrough::new(head);
            (
                ProviderRequest::Wire(WireFormat::Responses, body.into()),
                Box::new(PassedResponse { passing, stored }),
            )
        }
        ProviderApi::Chat => {
            let writer = ResponseEventWriter::new(head, &request, &responses_request);
            (
                chat.body.into(),
                Box::new(WrittenResponse { writer, stored }),
            )
        }
    };
    Ok(PreparedCall {
        request,
        spend: chat.spend,
        images: chat.images,
        answer,
    })
}

/// Logs each type of item that is left out, once for the run.
fn report_left_out(
    target: &CallTarget<'_>,
    owner: ResponseOwner,
    responses_request: &ResponsesRequest,
) {
    let run = target.caller.grant.run.id;
    for kind in &responses_request.left_out {
        if target.state.response_store().reports(owner, kind) {
            tolerated(Peer::Runner, "unknown_response_item", run);
            tracing::warn!(
                run.id = %run,
                item.kind = kind,
                "model {} of run {run} does not read items of type {kind}, leaving them out",
                target.id
            );
        }
    }
}

/// Counts the tokens of a request like the native API.
pub(super) fn input_tokens(model: &Model, responses_request: &ResponsesRequest) -> u64 {
    chat_tokens(model, &responses_request.chat, &responses_request.beside)
}
