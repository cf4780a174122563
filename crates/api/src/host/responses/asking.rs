//! Preparation of a Responses request for the model's provider.

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
use crate::ApiState;
use crate::auth::RunCaller;
use crate::error::{ApiError, ApiResult};
use crate::host::models::most::{asked_texts, check_most, said_bytes};
use crate::host::openai::{Prompt, prepare};
use crate::host_call::HostCall;
use crate::room::Taken;
use crate::state::ApiState;
use models::{Form, Model};

/// A request to a granted model.
pub(super) struct Asking<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) model: &'a Model,
    pub(super) id: &'a str,
}

/// The provider's request. The original request is dropped to save memory.
struct Prepared {
    body: JsonObject,
    answering: Answering,
    /// Memory permits of its images.
    images: Vec<Taken>,
}

/// Conversion of the provider's answer.
enum Answering {
    /// From a chat completion.
    Written(Box<EventWriter>),
    /// From a response.
    Passed(Passing),
}

impl Asking<'_> {
    /// Creates a whole response.
    pub(super) async fn whole(&self, call: &mut HostCall, request: JsonObject) -> ApiResult<Value> {
        let Prepared {
            body,
            answering,
            images: _images,
        } = self.prepare(call, request).await?;
        let provider = &self.model.provider;
        let response = match answering {
            Answering::Passed(_) => {
                let answered = call.within(provider.ask(Form::Responses, body)).await?;
                let mut response = Value::Object(answered);
                call.count(response.get("usage").and_then(domain::chat::usage));
                call.say(domain::chat::responses::said_bytes(&response));
                rewrite_response(&mut response, self.id);
                response
            }
            Answering::Written(writer) => {
                let completion = call.within(provider.complete(body)).await?;
                call.count(domain::chat::usage_of(&completion));
                call.say(said_bytes(&completion, "message"));
                writer.whole(&completion).map_err(|_| too_large())?
            }
        };
        call.add_bytes(response.to_string().len());
        Ok(response)
    }

    /// Creates a streaming response.
    pub(super) async fn stream(
        &self,
        call: &mut HostCall,
        request: JsonObject,
    ) -> ApiResult<Answer> {
        let Prepared {
            body,
            answering,
            images: _images,
        } = self.prepare(call, request).await?;
        let provider = &self.model.provider;
        Ok(match answering {
            Answering::Passed(passing) => {
                let events = provider.ask_for_events(Form::Responses, body);
                Answer::Passed {
                    events: call.within(events).await?,
                    passing,
                }
            }
            Answering::Written(writer) => Answer::Written {
                chunks: call.within(provider.stream(body)).await?,
                writer,
            },
        })
    }

    /// Builds the provider's body within the budgets.
    async fn prepare(&self, call: &mut HostCall, request: JsonObject) -> ApiResult<Prepared> {
        let Self {
            caller,
            state,
            model,
            id,
        } = self;
        let opened = &model.extra_members;
        let target = if model.provider.speaks(Form::Responses) {
            Target::Responses
        } else {
            Target::Chat
        };
        let mut asked = read_request(&request, id, target, opened)
            .map_err(|fault| ApiError::faults(&[fault]))?;
        let body = std::mem::take(&mut asked.chat);
        check_most(&body).map_err(|fault| ApiError::faults(&[asked.fault(fault)]))?;
        let prompt = Prompt {
            body,
            beside: &asked.beside,
        };
        let prepared = prepare(caller, state, call, (id, model), prompt).await;
        let (chat, images) = prepared.map_err(|failed| failed.moved(|at| asked.pointer(at)))?;
        let head = self.head();
        let (body, answering) = match target {
            Target::Responses => {
                let body = passed_body(request, &asked, &chat, opened);
                (body, Answering::Passed(Passing::new(head)))
            }
            Target::Chat => {
                let writer = EventWriter::new(head, &request, &asked);
                (chat, Answering::Written(Box::new(writer)))
            }
        };
        Ok(Prepared {
            body,
            answering,
            images,
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

/// Counts the tokens of a request like the native API.
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
