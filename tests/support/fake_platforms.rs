//! Fake servers of all connector platforms on one port. Each answers a text with the text, the platform's
//! name, and whether it recognizes the conversation.

use std::fmt::Write as _;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::serve;

/// Id of the Dify conversation, a UUID as Dify requires.
const DIFY_CONVERSATION: &str = "7b6a1e0c-5d3f-4b7a-9a61-0f1d2c3b4a59";
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The server. Stops on drop.
pub struct FakePlatforms {
    /// `http://127.0.0.1:{port}`.
    pub url: String,
    _tasks: JoinSet<()>,
}

impl FakePlatforms {
    /// Starts the server on a free port.
    pub async fn start() -> Self {
        let router = Router::new().fallback(answer);
        let (url, tasks) = serve(router).await;
        Self { url, _tasks: tasks }
    }
}

async fn answer(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY_BYTES).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = parts.uri.to_string();
    let path = path.as_str();
    if path.ends_with("/chat-messages") {
        dify(&body)
    } else if path.starts_with("/webhook/") {
        n8n(&body)
    } else if path.starts_with("/v3/chat") {
        coze(path, &body)
    } else if path.starts_with("/api/v1/apps/") {
        dashscope(&body)
    } else if path.starts_with("/api/v1/run/") {
        langflow(&body)
    } else if path.ends_with("/chat/completions") {
        openai(&body)
    } else if path == "/api/chat" {
        tbox(&body)
    } else if path == "/api/v1/sessions" {
        axum::Json(json!({"success": true, "data": {"id": "session-1"}})).into_response()
    } else if path.starts_with("/api/v1/agent-chat/") || path.starts_with("/api/v1/knowledge-chat/")
    {
        weknora(path, &body)
    } else if path.ends_with("/threads") {
        axum::Json(json!({"thread_id": "thread-1"})).into_response()
    } else if path.ends_with("/runs/stream") {
        deerflow(path, &body)
    } else {
        (StatusCode::NOT_FOUND, "no such path").into_response()
    }
}

/// The answer to a text, or to the text part of a list. `known` is the conversation id of the request, if any.
fn text(platform: &str, input: &Value, conversation: Option<&str>) -> String {
    let part = |part: &Value| part["text"].as_str().map(str::to_owned);
    let parts = input
        .as_array()
        .and_then(|parts| parts.iter().find_map(part));
    let input = input.as_str().map(str::to_owned).or(parts);
    let input = input.unwrap_or_else(|| panic!("{platform} received no input"));
    let conversation = conversation
        .filter(|id| !id.is_empty())
        .unwrap_or("a new conversation");
    format!("{platform} heard {input} in {conversation}")
}

fn sse(events: &[(Option<&str>, Value)]) -> Response {
    let mut body = String::new();
    for (name, data) in events {
        if let Some(name) = name {
            let _ = writeln!(body, "event: {name}");
        }
        let _ = write!(body, "data: {data}\n\n");
    }
    let head = [("content-type", "text/event-stream")];
    (head, Body::from(body)).into_response()
}

fn dify(body: &Value) -> Response {
    let reply = text("dify", &body["query"], body["conversation_id"].as_str());
    let id = DIFY_CONVERSATION;
    let usage = json!({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}});
    sse(&[
        (
            None,
            json!({"event": "message", "task_id": "t", "conversation_id": id, "answer": reply}),
        ),
        (
            None,
            json!({"event": "message_end", "task_id": "t", "conversation_id": id, "metadata": usage}),
        ),
    ])
}

/// A streaming model for the Local Agent. It recognizes the conversation by an earlier text in the history.
fn openai(body: &Value) -> Response {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let of_user = |message: &&Value| message["role"] == "user";
    let question = messages
        .iter()
        .rfind(of_user)
        .map(|message| &message["content"]);
    let has_history = messages
        .iter()
        .any(|message| message["role"] == "assistant");
    let reply = text(
        "openai",
        question.unwrap_or(&Value::Null),
        has_history.then_some("its history"),
    );
    let chunk = |delta: Value, end: Value| {
        json!({"id": "c", "object": "chat.completion.chunk", "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": end}]})
    };
    sse(&[
        (None, chunk(json!({"content": reply}), Value::Null)),
        (None, chunk(json!({}), json!("stop"))),
    ])
}

fn n8n(body: &Value) -> Response {
    // n8n issues no conversation id; the caller's session id identifies the conversation.
    let reply = text("n8n", &body["chatInput"], Some("its session"));
    let parts = [
        json!({"type": "begin"}),
        json!({"type": "item", "content": reply}),
        json!({"type": "end"}),
    ];
    let body: String = parts.iter().map(Value::to_string).collect();
    ([("content-type", "application/json")], body).into_response()
}

fn coze(path: &str, body: &Value) -> Response {
    let conversation = path.split_once("conversation_id=").map(|(_, id)| id);
    let reply = text(
        "coze",
        &body["additional_messages"][0]["content"],
        conversation,
    );
    let id = "coze-1";
    sse(&[
        (
            Some("conversation.message.delta"),
            json!({"role": "assistant", "type": "answer", "content": reply, "conversation_id": id}),
        ),
        (
            Some("conversation.message.completed"),
            json!({"role": "assistant", "type": "answer", "content": reply, "conversation_id": id}),
        ),
        (
            Some("conversation.chat.completed"),
            json!({"id": "c", "conversation_id": id, "status": "completed", "usage": {"token_count": 7, "input_count": 3, "output_count": 4}}),
        ),
        (Some("done"), json!("[DONE]")),
    ])
}

/// A workflow whose nodes send messages.
fn dashscope(body: &Value) -> Response {
    let input = &body["input"];
    let reply = text("dashscope", &input["prompt"], input["session_id"].as_str());
    let node = |reply: &str, end: &str| {
        let message = json!({"message": {"role": "assistant", "content": reply}});
        json!({"output": {"session_id": "dash-1", "finish_reason": end, "workflow_message": message}, "request_id": "r"})
    };
    sse(&[
        (Some("result"), node(&reply, "null")),
        (Some("result"), node("", "stop")),
    ])
}

fn langflow(body: &Value) -> Response {
    let reply = text(
        "langflow",
        &body["input_value"],
        body["session_id"].as_str().map(|_| "its session"),
    );
    let message = json!({"outputs": [{"outputs": [{"outputs": {"message": {"message": reply}},
        "results": {"message": {"text": reply}}}]}], "session_id": body["session_id"]});
    let lines = [
        json!({"event": "token", "data": {"chunk": reply}}),
        json!({"event": "end", "data": {"result": message}}),
    ];
    let body = format!("{}\n\n{}\n\n", lines[0], lines[1]);
    ([("content-type", "text/event-stream")], body).into_response()
}

fn tbox(body: &Value) -> Response {
    let reply = text("tbox", &body["query"], body["conversationId"].as_str());
    let payload = json!({"conversationId": "tbox-1", "messageId": "m", "text": reply}).to_string();
    sse(&[
        (
            Some("message"),
            json!({"type": "chunk", "lane": "default", "payload": payload}),
        ),
        (
            Some("message"),
            json!({"type": "end", "lane": "default", "payload": "{}"}),
        ),
    ])
}

fn weknora(path: &str, body: &Value) -> Response {
    let session = path.rsplit('/').next();
    let reply = text("weknora", &body["query"], session);
    sse(&[
        (
            Some("message"),
            json!({"response_type": "answer", "content": reply, "done": false, "id": "a"}),
        ),
        (
            Some("message"),
            json!({"response_type": "answer", "content": "", "done": true, "id": "a"}),
        ),
    ])
}

fn deerflow(path: &str, body: &Value) -> Response {
    let thread = path.split('/').rev().nth(2);
    let reply = text("deerflow", &body["input"]["messages"][0]["content"], thread);
    let messages = json!({"messages": [
        {"type": "human", "id": "h", "content": body["input"]["messages"][0]["content"]},
        {"type": "ai", "id": "a", "content": reply}]});
    sse(&[
        (Some("metadata"), json!({"run_id": "run-1"})),
        (Some("values"), messages),
        (Some("end"), json!(null)),
    ])
}
