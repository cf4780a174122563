//! Preparation of a Messages request for the model's provider.

use domain::artifact::SCHEME;
use http::HeaderMap;
use llm_formats::messages::{
    MediaSource, betas, chat_request, check_request, counted_request, has_document, other_texts,
    pass_request, sources,
};
use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use crate::host_call::{HostCall, Spend};
use crate::models::allowed_parameters::check_parameters;
use crate::models::images::Images;
use crate::models::token_bounds::{chat_spend, reserved};
use models::{Model, WireFormat, WireRequest};
use telemetry::tolerance::{Peer, tolerated};
use web::auth::RunCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::state::ApiState;

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

/// A request to a granted model.
pub(super) struct MessagesInvocation<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) model: &'a Model,
    pub(super) id: &'a str,
    pub(super) betas: Vec<&'static str>,
}

/// The provider's request.
pub(super) enum PreparedMessages {
    /// For a provider with this API.
    Own(WireRequest),
    /// A chat completion for other providers.
    Chat(JsonObject),
}

impl MessagesInvocation<'_> {
    /// Builds the provider's request within the budgets, with the memory permits of its images.
    pub(super) async fn prepare(
        &self,
        call: &mut HostCall,
        mut body: JsonObject,
    ) -> ApiResult<(PreparedMessages, Vec<MemoryPermit>)> {
        let Self { model, id, .. } = self;
        check(&body, model)?;
        // The order matters: images are inlined in `body` before its tokens are counted.
        let mut found = sources(&mut body);
        self.check_urls(&found)?;
        let permits = self.with_images(&mut found).await?;
        let prompt_tokens = prompt_tokens(model, &body);
        let (prepared, spend) = if model.provider.supports(WireFormat::Messages) {
            pass_request(&mut body, model.max_output_tokens);
            let (request, spend) = self.spend(prompt_tokens, model.request_body(body));
            (PreparedMessages::Own(request), spend)
        } else {
            let chat = chat_request(&body, id).map_err(refused)?;
            check_parameters(&chat, &model.extra_members).map_err(refused)?;
            let chat = model.completion_body(chat);
            let spend = chat_spend(id, model, prompt_tokens, &chat);
            (PreparedMessages::Chat(chat), spend)
        };
        // After the images: unreadable ones must not reserve a budget.
        call.reserve(spend).await?;
        Ok((prepared, permits))
    }

    /// Builds the request for a provider with this API, and its upper bound. Reasoning counts within
    /// `max_tokens`, unless its budget is larger: then it may span several answers and counts in addition.
    fn spend(&self, prompt_tokens: u64, mut body: JsonObject) -> (WireRequest, Spend) {
        // The token count of a document is unknown, so the complete context window is reserved.
        let window = if has_document(&mut body) {
            self.model.window()
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
        let spend = Spend {
            kind: "model",
            resource: self.id.to_owned(),
            prompt_tokens: prompt_tokens.max(window),
            max_completion_tokens: reserved(
                self.model.reserved_tokens,
                1,
                max_tokens.saturating_add(extra_reasoning),
            ),
            price: self.model.price.clone(),
        };
        let betas = self.betas.clone();
        (WireRequest { body, betas }, spend)
    }

    /// A provider in the operator's network fetches from inside it, so URLs must pass the egress rules.
    fn check_urls(&self, sources: &[MediaSource<'_>]) -> ApiResult<()> {
        for source in sources {
            let Some(url) = source.url().filter(|url| !is_inline(url)) else {
                continue;
            };
            self.model.check_fetch_url(url).map_err(|error| {
                let message = format!(
                    "must be inline data, an artifact, or a URL that may be fetched: {error}"
                );
                ApiError::invalid(format!("{}/url", source.pointer), message)
            })?;
        }
        Ok(())
    }

    /// Inlines artifacts and data URLs.
    async fn with_images(&self, sources: &mut [MediaSource<'_>]) -> ApiResult<Vec<MemoryPermit>> {
        let mut images = Images::default();
        for source in sources {
            let Some(url) = source.url().filter(|url| is_inline(url)) else {
                continue;
            };
            let url = if url.starts_with(SCHEME) {
                let pointer = format!("{}/url", source.pointer);
                images.read(self.caller, self.state, &pointer, url).await?
            } else {
                url.to_owned()
            };
            source.inline(&url);
        }
        Ok(images.permits)
    }
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
