//! A fake provider with OpenAI's chat API that plays scripted answers in order. It answers requests for a
//! summary with an empty text.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{serve, within};

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum AnswerPiece {
    Text(String),
    /// A tool call, which ends the answer.
    Call(String, Value),
    /// An error with this status and message instead of an answer.
    Failure(u16, &'static str),
    /// Sends nothing more while the client stays connected.
    Silence,
}

impl AnswerPiece {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub fn call(name: &str, arguments: &Value) -> Self {
        Self::Call(name.to_owned(), arguments.clone())
    }
}

/// A recorded chat request.
#[derive(Clone, Debug)]
pub struct ChatRequest(Value);

impl ChatRequest {
    fn messages(&self) -> &[Value] {
        self.0["messages"].as_array().unwrap()
    }

    pub fn is_summary(&self) -> bool {
        self.all().starts_with("You condense")
    }

    /// The text of the system message at this index.
    pub fn system(&self, index: usize) -> String {
        let mut systems = self
            .messages()
            .iter()
            .filter(|message| message["role"] == "system");
        systems.nth(index).map(text_of).unwrap_or_default()
    }

    /// The text of the last message.
    pub fn last(&self) -> String {
        self.messages().last().map(text_of).unwrap_or_default()
    }

    pub fn all(&self) -> String {
        let texts: Vec<_> = self.messages().iter().map(text_of).collect();
        texts.join("\n")
    }

    /// URLs of all pictures, in order.
    pub fn pictures(&self) -> Vec<&str> {
        let contents = self.messages().iter().map(|message| &message["content"]);
        let parts = contents.filter_map(Value::as_array).flatten();
        parts
            .filter_map(|part| part["image_url"]["url"].as_str())
            .collect()
    }

    pub fn words(&self) -> usize {
        self.all().split_whitespace().count()
    }

    pub fn tools(&self) -> Vec<String> {
        let tools = self.0["tools"].as_array().into_iter().flatten();
        tools
            .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

#[derive(Clone, Default)]
struct ProviderState {
    script: Arc<Mutex<VecDeque<AnswerPiece>>>,
    requests: Arc<Mutex<Vec<ChatRequest>>>,
    left: watch::Sender<bool>,
}

/// Stops the server on drop.
pub struct ScriptedProvider {
    pub url: String,
    shared: ProviderState,
    _server: JoinSet<()>,
}

impl ScriptedProvider {
    pub async fn start() -> Self {
        let shared = ProviderState::default();
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let (url, server) = serve(router).await;
        Self {
            url,
            shared,
            _server: server,
        }
    }

    /// Queues pieces of answers. A tool call ends an answer; the pieces after it form the next answer.
    pub fn says(&self, pieces: impl IntoIterator<Item = AnswerPiece>) {
        self.shared.script.lock().unwrap().extend(pieces);
    }

    pub fn requests(&self) -> Vec<ChatRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Waits until a client has disconnected from a silent answer.
    pub async fn left(&self) {
        let mut left = self.shared.left.subscribe();
        within(
            "the gateway to leave the model",
            left.wait_for(|left| *left),
        )
        .await
        .unwrap();
    }
}

async fn answer(State(shared): State<ProviderState>, body: Bytes) -> Response {
    let request = ChatRequest(serde_json::from_slice(&body).unwrap());
    let is_summary = request.is_summary();
    let streams = request.0["stream"] == true;
    shared.requests.lock().unwrap().push(request);
    if is_summary {
        let message = json!({"role": "assistant", "content": "(none)"});
        let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
        return Json(json!({"id": "s", "choices": choices})).into_response();
    }
    assert!(streams, "the agent streams its answers");
    let mut pieces = Vec::new();
    loop {
        let next = shared.script.lock().unwrap().pop_front();
        let Some(next) = next else { break };
        let ends = matches!(next, AnswerPiece::Call(..) | AnswerPiece::Failure(..));
        pieces.push(next);
        if ends {
            break;
        }
    }
    if let [AnswerPiece::Failure(status, message)] = pieces[..] {
        let error = json!({"error": {"message": message}});
        return (StatusCode::from_u16(status).unwrap(), Json(error)).into_response();
    }
    spoken(&pieces, &shared)
}

fn spoken(pieces: &[AnswerPiece], shared: &ProviderState) -> Response {
    let chunk = |delta: &Value, finish: Option<&str>| {
        let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
        format!("data: {}\n\n", json!({"id": "t", "choices": choices}))
    };
    let mut frames = Vec::new();
    let mut finish = "stop";
    let mut is_silent = false;
    for piece in pieces {
        match piece {
            AnswerPiece::Text(text) => frames.push(chunk(&json!({"content": text}), None)),
            AnswerPiece::Call(name, arguments) => {
                let function = json!({"name": name, "arguments": arguments.to_string()});
                let call =
                    json!({"index": 0, "id": "call_1", "type": "function", "function": function});
                frames.push(chunk(&json!({"tool_calls": [call]}), None));
                finish = "tool_calls";
            }
            AnswerPiece::Silence => is_silent = true,
            AnswerPiece::Failure(..) => unreachable!("a failure is an answer of its own"),
        }
    }
    if !is_silent {
        frames.push(chunk(&json!({}), Some(finish)));
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
        frames.push(format!(
            "data: {}\n\ndata: [DONE]\n\n",
            json!({"id": "t", "choices": [], "usage": usage})
        ));
    }
    let leaving = is_silent.then(|| DisconnectNotice(shared.left.clone()));
    let hold = stream::once(async move {
        let _leaving = leaving;
        if is_silent {
            std::future::pending::<()>().await;
        }
        String::new()
    });
    let body = stream::iter(frames).chain(hold).map(Ok::<_, Infallible>);
    let headers = [("content-type", "text/event-stream")];
    (headers, Body::from_stream(body)).into_response()
}

struct DisconnectNotice(watch::Sender<bool>);

impl Drop for DisconnectNotice {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
