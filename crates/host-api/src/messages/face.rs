//! Builds the upstream request of a Messages request: its own format for a provider with this API, a chat completion
//! for any other.

use domain::artifact::SCHEME;
use http::HeaderMap;
use llm_formats::messages::{
    MediaSource, MessageRelay, betas, chat_request, check_request, counted_request, has_document,
    other_texts, pass_request, sources,
};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::hook::{HookFormat, HookValue};
use serde_json::Value;

use super::answer::{RelayedMessage, WrittenMessage};
use super::check_message;
use crate::host_call::{CompletionTokens, Spend};
use crate::models::allowed_parameters::check_parameters;
use crate::models::hooked::check_replaced_body;
use crate::models::images::Images;
use crate::models::pipeline::{CallTarget, ModelFace, PreparedCall};
use crate::models::token_bounds::chat_spend;
use models::{Model, ProviderRequest, WireFormat, WireRequest};
use telemetry::tolerance::{Peer, tolerated};
use web::auth::RunCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;

/// Supported version of the API.
const VERSION: &str = "2023-06-01";

/// Known betas of a request. Unknown betas and versions are ignored and counted.
pub(super) fn betas_of(headers: &HeaderMap, caller: &RunCaller) -> Vec<&'static str> {
    let run = caller.grant.run.id;
    let version = headers.get("anthropic-version");
    if version.is_some_and(|version| version != VERSION) {
        tolerated(Peer::Runner, "unknown_anthropic_version", run);
    }
    let lines = headers.get_all("anthropic-beta").iter();
    let lines: Vec<_> = lines.filter_map(|line| line.to_str().ok()).collect();
    let (supported, unknown) = betas(&lines.join(","));
    if unknown > 0 {
        tolerated(Peer::Runner, "unknown_anthropic_beta", run);
    }
    supported
}

/// A request in Anthropic's format, of which the handler has checked the members that need no model.
#[derive(Clone)]
pub(super) struct MessagesFace {
    pub(super) body: JsonObject,
    pub(super) betas: Vec<&'static str>,
}

impl ModelFace for MessagesFace {
    const FORMAT: HookFormat = HookFormat::Messages;

    fn document(&self) -> HookValue<'_> {
        HookValue::Object(&self.body)
    }

    fn check_document(&self, replaced: &Value) -> Result<(), String> {
        check_replaced_body(&self.body, replaced, check_message)
    }

    fn set_document(&mut self, replaced: Value) {
        if let Value::Object(body) = replaced {
            self.body = body;
        }
    }

    async fn prepare(self, target: &CallTarget<'_>) -> ApiResult<PreparedCall> {
        let Self { mut body, betas } = self;
        let CallTarget { model, id, .. } = *target;
        check(&body, model)?;
        // The order matters: images are inlined in `body` before its tokens are counted.
        let mut found = sources(&mut body);
        check_urls(model, &found)?;
        let images = with_images(target, &mut found).await?;
        let prompt_tokens = prompt_tokens(model, &body);
        if model.provider.supports(WireFormat::Messages) {
            pass_request(&mut body, model.max_output_tokens);
            let mut body = model.request_body(body);
            let spend = spend(target, prompt_tokens, &mut body);
            let wire_request = WireRequest {
                betas,
                ..body.into()
            };
            return Ok(PreparedCall {
                spend,
                request: ProviderRequest::Wire(WireFormat::Messages, wire_request),
                images,
                answer: Box::new(RelayedMessage(MessageRelay::new(id))),
            });
        }
        let chat = chat_request(&body, id).map_err(refused)?;
        check_parameters(&chat, &model.extra_members).map_err(refused)?;
        let chat = model.completion_body(chat);
        Ok(PreparedCall {
            spend: chat_spend(id, model, prompt_tokens, &chat),
            request: chat.into(),
            images,
            answer: Box::new(WrittenMessage::new(id, &body)),
        })
    }
}

/// Upper bound of a request to a provider with this API. Reasoning counts within `max_tokens`, unless its budget is
/// larger: then it may span several answers and counts in addition.
fn spend(target: &CallTarget<'_>, prompt_tokens: u64, body: &mut JsonObject) -> Spend {
    let CallTarget { model, id, .. } = *target;
    // The token count of a document is unknown, so the complete context window is reserved.
    let window = if has_document(body) {
        model.window()
    } else {
        0
    };
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
    let max_tokens = number(body.get("max_tokens"));
    let thinking = body.get("thinking");
    let reasoning_budget = number(thinking.and_then(|thinking| thinking.get("budget_tokens")));
    let extra_reasoning = if reasoning_budget < max_tokens {
        0
    } else {
        reasoning_budget
    };
    let bound = max_tokens.saturating_add(extra_reasoning);
    let completion = CompletionTokens::of(model.reserved_tokens, 1, bound);
    Spend::of_model(id, model, prompt_tokens.max(window), completion)
}

/// A provider in the operator's network fetches from inside it, so URLs must pass the egress rules.
fn check_urls(model: &Model, sources: &[MediaSource<'_>]) -> ApiResult<()> {
    for source in sources {
        let Some(url) = source.url().filter(|url| !is_inline(url)) else {
            continue;
        };
        model.check_fetch_url(url).map_err(|error| {
            let message =
                format!("must be inline data, an artifact, or a URL that may be fetched: {error}");
            ApiError::invalid(format!("{}/url", source.pointer), message)
        })?;
    }
    Ok(())
}

/// Inlines artifacts and data URLs.
async fn with_images(
    target: &CallTarget<'_>,
    sources: &mut [MediaSource<'_>],
) -> ApiResult<Vec<MemoryPermit>> {
    let mut images = Images::default();
    for source in sources {
        let Some(url) = source.url().filter(|url| is_inline(url)) else {
            continue;
        };
        let url = if url.starts_with(SCHEME) {
            let pointer = format!("{}/url", source.pointer);
            images
                .read(target.caller, target.state, &pointer, url)
                .await?
        } else {
            url.to_owned()
        };
        source.inline(&url);
    }
    Ok(images.permits)
}

fn is_inline(url: &str) -> bool {
    url.starts_with(SCHEME) || url.starts_with("data:")
}

/// Checks the request against the field allow-list of the model.
pub(super) fn check(body: &JsonObject, model: &Model) -> ApiResult<()> {
    check_request(body, &model.extra_members).map_err(refused)
}

/// Counts the tokens of a request like `count-tokens`.
pub(super) fn prompt_tokens(model: &Model, body: &JsonObject) -> u64 {
    let (messages, tools) = counted_request(body);
    let extra_texts = other_texts(body);
    let tokens = model.count.of_request(&messages, &tools);
    tokens.saturating_add(model.count.of_texts(extra_texts.iter()))
}

fn refused(fault: Fault) -> ApiError {
    ApiError::faults(&[fault])
}
