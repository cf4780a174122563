//! Permissions of tool calls over MCP. The relay requests them: harnesses do not know the effects of granted tools.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Json, Response};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use protocol::resources::{AgentResources, ToolEffect};
use runner_kit::{ResultSender, results};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::permission::{ActionKind, Permission, PermissionDecider, PermissionDecision};

/// Tools of the gateway that change at most the run's own record.
const READING: [&str; 6] = [
    "list_assets",
    "get_current_event",
    "history_page",
    "retrieve_knowledge",
    "wait_for_interaction",
    "activate",
];
/// Maximum bytes of the response to a call that waited for a permission.
const ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// JSON-RPC's code of an internal error.
const INTERNAL_ERROR: i64 = -32603;
/// Maximum calls that wait for a permission at a time. Further ones are refused.
const MAX_WAITING: usize = 32;
/// Interval of progress events for a waiting call; silence would trigger timeouts in the harness.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Permission gate for the tool calls of one run. Clones share the permits.
#[derive(Clone)]
pub(crate) struct ToolGate(Arc<GateOfRun>);

struct GateOfRun {
    permissions: PermissionDecider,
    /// Tools with the declared effect `read`, and [`READING`].
    reading: BTreeSet<String>,
    /// Granted tools. The gateway records their calls by idempotency key.
    granted: BTreeSet<String>,
    /// Tools whose calls wait for an approval at the gateway: a second question would be redundant.
    asking: BTreeSet<String>,
    waiting: Arc<Semaphore>,
    out: ResultSender,
}

/// A tool call that needs a permission.
pub(crate) struct GatedCall {
    tool: String,
    permission: Permission,
    id: Value,
    progress_token: Value,
}

/// Repetition of a message whose connection broke after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// The message has no effect.
    Free,
    /// A call of a granted tool: with an idempotency key the gateway makes it once.
    ByKey,
    /// A call of a tool of the gateway.
    Never,
}

impl ToolGate {
    pub(crate) fn new(
        permissions: PermissionDecider,
        resources: &AgentResources,
        out: ResultSender,
    ) -> Self {
        let tools = resources.tools.iter();
        let reading = tools.filter(|tool| tool.effect == Some(ToolEffect::Read));
        let reading = reading.map(|tool| tool.tool_name.clone());
        let granted = resources.tools.iter().map(|tool| tool.tool_name.clone());
        let asking = resources
            .tools
            .iter()
            .filter(|tool| tool.approval.is_some());
        let asking = asking.map(|tool| tool.tool_name.clone());
        Self(Arc::new(GateOfRun {
            asking: asking.collect(),
            permissions,
            reading: reading.chain(READING.map(str::to_owned)).collect(),
            granted: granted.collect(),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            out,
        }))
    }

    /// Repetition of a message whose connection broke.
    pub(crate) fn repetition(&self, message: &Value) -> Repetition {
        if message["method"] != "tools/call" {
            return Repetition::Free;
        }
        let name = message["params"]["name"].as_str().unwrap_or_default();
        match self.0.granted.contains(name) {
            true if self.0.reading.contains(name) => Repetition::Free,
            true => Repetition::ByKey,
            false => Repetition::Never,
        }
    }

    /// Call in a message that needs a permission; `None` for other messages and for reading tools.
    pub(crate) fn gated(&self, message: &Value) -> Option<GatedCall> {
        if message["method"] != "tools/call" {
            return None;
        }
        let params = &message["params"];
        let tool = params["name"].as_str().unwrap_or_default();
        // Tools without a declared effect need a permission.
        if self.0.reading.contains(tool) {
            return None;
        }
        let arguments = &params["arguments"];
        Some(GatedCall {
            permission: Permission {
                kind: ActionKind::Other,
                title: format!("call the tool {tool}"),
                detail: serde_json::to_string_pretty(arguments).unwrap_or_default(),
                paths: Vec::new(),
            },
            tool: tool.to_owned(),
            id: message["id"].clone(),
            progress_token: params["_meta"]["progressToken"].clone(),
        })
    }

    /// Response to a gated call: immediate if no person decides, otherwise an event stream while the call waits.
    /// `forward` performs the call.
    pub(crate) async fn answer(
        self,
        call: GatedCall,
        forward: BoxFuture<'static, Response>,
    ) -> Response {
        let (id, token) = (call.id.clone(), call.progress_token.clone());
        let mut deciding = self.decide(call).boxed();
        // One poll decides without a person; plain JSON then keeps the gateway's status and headers.
        match (&mut deciding).now_or_never() {
            Some(Ok(())) => forward.await,
            Some(Err(refused)) => Json(refused).into_response(),
            None => {
                let answer = async move {
                    match deciding.await {
                        Ok(()) => message_of(forward.await, &id).await,
                        Err(refused) => refused,
                    }
                };
                events_until(answer.boxed(), token)
            }
        }
    }

    /// Decides a call; may wait for a person. `Err`: the response to a refused call.
    async fn decide(self, call: GatedCall) -> Result<(), Value> {
        let GatedCall {
            tool,
            permission,
            id,
            ..
        } = call;
        let permissions = &self.0.permissions;
        if self.0.asking.contains(&tool) && !permissions.refuses(&permission) {
            return Ok(());
        }
        let decision = match Arc::clone(&self.0.waiting).try_acquire_owned() {
            Ok(_permit) => self.0.permissions.clone().decide(permission).await,
            Err(_) => PermissionDecision::TooMany,
        };
        if decision.is_allowed() {
            return Ok(());
        }
        let reason = decision.reason().unwrap_or("the run ends");
        let text = format!("the tool {tool} was not called: {reason}");
        self.0.out.send(results::log(text.as_str())).await;
        // A tool error, not a protocol error: the model sees the reason and can choose another way.
        let content = json!([{"type": "text", "text": text}]);
        let result = json!({"content": content, "isError": true});
        Err(json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }
}

impl GatedCall {
    /// Progress event of a waiting call.
    fn progress(id: &Value, number: u64) -> Bytes {
        // MCP allows progress notifications only with the caller's token; a comment also resets idle timers.
        if id.is_null() {
            return Bytes::from_static(b": waiting\n\n");
        }
        let params =
            json!({"progressToken": id, "progress": number, "message": "waiting for a permission"});
        event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
    }
}

/// Response to a tool call whose connection broke after it was sent.
pub(super) fn outcome_unknown(message: &Value) -> Value {
    let text = "the connection to the gateway broke during the call: it may have happened, check before you repeat it";
    let content = json!([{"type": "text", "text": text}]);
    let result = json!({"content": content, "isError": true});
    json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
}

/// JSON-RPC message as a server-sent event.
fn event(message: &Value) -> Bytes {
    format!("event: message\ndata: {message}\n\n").into()
}

/// Event stream of a waiting call until its response.
fn events_until(answer: BoxFuture<'static, Value>, progress_token: Value) -> Response {
    let begin = (Some(answer), progress_token, 1);
    let events = stream::unfold(begin, |(waiting, token, number)| async move {
        let mut answer = waiting?;
        tokio::select! {
            message = &mut answer => Some((event(&message), (None, token, number))),
            () = tokio::time::sleep(KEEP_ALIVE) => {
                let notice = GatedCall::progress(&token, number);
                Some((notice, (Some(answer), token, number + 1)))
            }
        }
    });
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// JSON-RPC message of the gateway's response, or a JSON-RPC error.
async fn message_of(answer: Response, id: &Value) -> Value {
    let status = answer.status();
    let bytes = axum::body::to_bytes(answer.into_body(), ANSWER_BYTES).await;
    let read = bytes
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    read.filter(|message| status.is_success() && message.is_object()).unwrap_or_else(|| {
        let error = json!({"code": INTERNAL_ERROR, "message": format!("the gateway answered {status}")});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PermissionMode;
    use crate::turn::testing::{results_of, stage};

    fn resources() -> AgentResources {
        let tools = json!([
            {"tool_name": "look", "effect": "read"}, {"tool_name": "post", "effect": "write"},
            {"tool_name": "erase", "effect": "irreversible"}, {"tool_name": "unknown"},
            {"tool_name": "asking", "effect": "write", "approval": "ask"},
        ]);
        serde_json::from_value(json!({"tools": tools})).unwrap()
    }

    fn call(tool: &str) -> Value {
        let params = json!({"name": tool, "arguments": {"text": "hi"}});
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    }

    /// Names of tools, each with true if the mode allows its call without a person.
    async fn called(mode: PermissionMode) -> Vec<(&'static str, bool)> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        results_of(move |out| async move {
            let permissions = stage(&out, mode).permissions;
            let gate = ToolGate::new(permissions, &resources(), out);
            let mut called = Vec::new();
            for tool in [
                "look",
                "post",
                "erase",
                "unknown",
                "activate",
                "child_run",
                "asking",
            ] {
                let answer = match gate.gated(&call(tool)) {
                    None => Ok(()),
                    Some(gated) => gate.clone().decide(gated).await,
                };
                if let Err(refused) = &answer {
                    assert_eq!(refused["id"], 7);
                    assert_eq!(refused["result"]["isError"], true);
                }
                called.push((tool, answer.is_ok()));
            }
            sender.send(called).unwrap();
        })
        .await;
        receiver.await.unwrap()
    }

    #[tokio::test]
    async fn modes_gate_tools_by_effect() {
        use PermissionMode::{AcceptEdits, Ask, Full, ReadOnly};
        for mode in [Ask, ReadOnly, AcceptEdits, Full] {
            for (tool, is_called) in called(mode).await {
                let reads = matches!(tool, "look" | "activate");
                // The gateway asks about its call, unless the mode refuses it.
                let asks = tool == "asking" && mode != ReadOnly;
                assert_eq!(
                    is_called,
                    reads || asks || mode == Full,
                    "{tool} in {mode:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn only_calls_need_permission() {
        results_of(|out| async move {
            let permissions = stage(&out, PermissionMode::ReadOnly).permissions;
            let gate = ToolGate::new(permissions, &resources(), out);
            assert!(gate.gated(&json!({"method": "tools/list"})).is_none());
            let gated = gate.gated(&call("post")).expect("it needs one");
            assert!(gated.permission.title.contains("post"));
            assert!(gated.permission.detail.contains("\"hi\""));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_calls_show_life_until_their_answer() {
        for (token, notice) in [
            (Value::Null, ": waiting"),
            (json!("t"), "notifications/progress"),
        ] {
            let answer = async {
                tokio::time::sleep(KEEP_ALIVE * 2).await;
                json!({"id": 7, "result": {}})
            };
            let response = events_until(answer.boxed(), token);
            assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
            let body = axum::body::to_bytes(response.into_body(), 10_000)
                .await
                .unwrap();
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(text.contains(notice), "{text}");
            assert!(
                text.ends_with("data: {\"id\":7,\"result\":{}}\n\n"),
                "{text}"
            );
        }
    }
}
