//! One request for a response: asked of its provider in the provider's form.

use domain::chat::responses::{
    Asked, EventWriter, Head, Passing, Target, passed_body, read_request, rewrite_response,
};
use protocol::JsonObject;
use protocol::message::Message;
use protocol::model::LlmTool;
use serde_json::{Value, json};
use uuid::Uuid;

use super::frames::{Answer, too_large};
use super::refused;
use crate::api::ApiState;
use crate::api::auth::RunCaller;
use crate::api::error::ApiResult;
use crate::api::host::models::most::{asked_texts, said_bytes};
use crate::api::host::openai::{Prompt, prepare};
use crate::api::host_call::HostCall;
use crate::api::room::Taken;
use crate::outbound::model::{Form, Model};

/// A request to a granted model.
pub(super) struct Asking<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) model: &'a Model,
    pub(super) id: &'a str,
    pub(super) request: &'a JsonObject,
}

/// What its provider is asked.
struct Prepared {
    asked: Asked,
    /// Of the form that the provider speaks.
    body: JsonObject,
    _images: Vec<Taken>,
}

impl Asking<'_> {
    /// The whole response.
    pub(super) async fn whole(&self, call: &mut HostCall) -> ApiResult<Value> {
        let Prepared { asked, body, .. } = &mut self.prepare(call).await?;
        let body = std::mem::take(body);
        let provider = &self.model.provider;
        let response = match self.target() {
            Target::Responses => {
                let answered = call.within(provider.ask(Form::Responses, body)).await?;
                let mut response = Value::Object(answered);
                call.count(response.get("usage").and_then(domain::chat::usage));
                call.say(domain::chat::responses::said_bytes(&response));
                rewrite_response(&mut response, self.id);
                response
            }
            Target::Chat => {
                let completion = call.within(provider.complete(body)).await?;
                call.count(domain::chat::usage_of(&completion));
                call.say(said_bytes(&completion, "message"));
                let writer = EventWriter::new(self.head(), self.request, asked);
                writer.whole(&completion).map_err(|_| too_large())?
            }
        };
        call.add_bytes(response.to_string().len());
        Ok(response)
    }

    /// The answer as it comes.
    pub(super) async fn stream(&self, call: &mut HostCall) -> ApiResult<Answer> {
        let Prepared { asked, body, .. } = &mut self.prepare(call).await?;
        let body = std::mem::take(body);
        let provider = &self.model.provider;
        Ok(match self.target() {
            Target::Responses => {
                let events = provider.ask_for_events(Form::Responses, body);
                Answer::Passed {
                    events: call.within(events).await?,
                    passing: Passing::new(self.head()),
                }
            }
            Target::Chat => Answer::Written {
                chunks: call.within(provider.stream(body)).await?,
                writer: EventWriter::new(self.head(), self.request, asked),
            },
        })
    }

    fn target(&self) -> Target {
        if self.model.provider.speaks(Form::Responses) {
            Target::Responses
        } else {
            Target::Chat
        }
    }

    /// The body as its provider gets it, within the budgets, and the room that its images take.
    async fn prepare(&self, call: &mut HostCall) -> ApiResult<Prepared> {
        let Self {
            caller,
            state,
            model,
            id,
            request,
        } = self;
        let opened = &model.extra_members;
        let asked = read_request(request, id, self.target(), opened).map_err(refused)?;
        let prompt = Prompt {
            body: asked.chat.clone(),
            beside: &asked.beside,
        };
        let prepared = prepare(caller, state, call, (id, model), prompt).await;
        let (chat, images) = prepared.map_err(|failed| failed.moved(|at| asked.pointer(at)))?;
        let body = match self.target() {
            Target::Responses => passed_body(request, &asked, &chat, opened),
            Target::Chat => chat,
        };
        Ok(Prepared {
            asked,
            body,
            _images: images,
        })
    }

    fn head(&self) -> Head {
        Head {
            key: Uuid::new_v4().simple().to_string(),
            created_at: self.state.runs.clock().now_seconds(),
            model: self.id.to_owned(),
        }
    }
}

/// The tokens of a request, counted as those of the protocol's own.
pub(super) fn input_tokens(model: &Model, asked: &Asked) -> u64 {
    let items = |name: &str| {
        let items = asked.chat.get(name).and_then(Value::as_array);
        items.into_iter().flatten()
    };
    let messages: Vec<_> = items("messages").map(message).collect();
    let tools: Vec<_> = items("tools").filter_map(tool).collect();
    let mut others = asked.chat.clone();
    for counted in ["messages", "tools"] {
        others.remove(counted);
    }
    let others = asked_texts(&others);
    let count = model.count;
    count.of_request(&messages, &tools) + count.of_texts(others.iter().chain(&asked.beside))
}

fn message(chat: &Value) -> Message {
    let mut chat = chat.clone();
    for part in chat["content"].as_array_mut().into_iter().flatten() {
        if part["type"] == "file" {
            let file = part["file"].take();
            *part = json!({"type": "file_base64", "file_base64": file["file_data"], "file_name": file["filename"]});
        }
    }
    let text = chat.to_string();
    serde_json::from_value(chat).unwrap_or_else(|_| Message::text("user", text))
}

fn tool(chat: &Value) -> Option<LlmTool> {
    let function = &chat["function"];
    let description = function["description"].as_str().unwrap_or_default();
    let parameters = function["parameters"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let tool =
        json!({"name": function["name"], "description": description, "parameters": parameters});
    serde_json::from_value(tool).ok()
}
