//! Scripted host that records its calls.

mod answers;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use protocol::JsonObject;
use protocol::context::AgentRunContext;
use protocol::error::AgentApiError;
use protocol::history::TranscriptItem;
use protocol::host_api::SteeringInputItem;
use protocol::message::Message;
use protocol::model::LlmRequest;
use protocol::result::AgentRunResult;
use runner_kit::host::HostError;
use runner_kit::{CancellationToken, testing};
use serde_json::{Value, json};

use crate::agent::run_on;
use crate::manifest::RUNNER_ID;

/// One step of a model's scripted answer.
#[derive(Clone, Debug)]
pub(crate) enum AnswerStep {
    /// Chunk of the protocol.
    Chunk(Value),
    Usage(Value),
    Fail(Failing),
    /// Silence of this length.
    Pause(Duration),
    /// Endless silence.
    Hang,
}

/// Error code and message; `code/reason` sets a reason, too.
pub(crate) type Failing = (&'static str, String);

/// Scripted answer of a tool.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedTool {
    Says(Value),
    Fails(Failing),
    /// Answers after this many other calls have begun.
    After(usize, Value),
    Hangs,
}

#[derive(Debug, Default)]
pub(crate) struct AgentScript {
    /// Answers of each model, one entry per call.
    pub(crate) models: HashMap<String, VecDeque<Vec<AnswerStep>>>,
    pub(crate) tools: HashMap<String, ScriptedTool>,
    /// Child run result of each agent.
    pub(crate) agents: HashMap<String, Result<Value, Failing>>,
    /// `Err`: counting fails.
    pub(crate) count: Option<Result<u64, Failing>>,
    pub(crate) passages: HashMap<String, Result<Vec<Value>, Failing>>,
    pub(crate) ranking: Option<Result<Vec<usize>, Failing>>,
    pub(crate) history: Vec<TranscriptItem>,
    pub(crate) history_fails: bool,
    /// A page with more bytes of text fails.
    pub(crate) max_history_bytes: Option<usize>,
    pub(crate) prompt: Option<Result<Vec<Message>, Failing>>,
    pub(crate) state: HashMap<String, Value>,
    /// Each pull takes one entry.
    pub(crate) steering: VecDeque<Vec<SteeringInputItem>>,
    pub(crate) steering_fails: bool,
    /// Recorded calls in order: name and argument.
    pub(crate) calls: Vec<String>,
    pub(crate) requests: Vec<LlmRequest>,
    pub(crate) tool_calls: usize,
}

/// Scripted host. Clones share the script.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestHost(Arc<Mutex<AgentScript>>, Arc<tokio::sync::Notify>);

impl TestHost {
    pub(crate) fn script(&self) -> MutexGuard<'_, AgentScript> {
        self.0.lock().unwrap()
    }

    /// Adds an answer of a model.
    pub(crate) fn model(&self, id: &str, steps: Vec<AnswerStep>) -> &Self {
        let mut script = self.script();
        script
            .models
            .entry(id.to_owned())
            .or_default()
            .push_back(steps);
        drop(script);
        self
    }

    pub(crate) fn tool_says(&self, name: &str, answer: Value) -> &Self {
        self.script()
            .tools
            .insert(name.to_owned(), ScriptedTool::Says(answer));
        self
    }

    /// Number of live clones, the test's own included.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Recorded calls with this name.
    pub(crate) fn calls(&self, name: &str) -> Vec<String> {
        let script = self.script();
        let calls = script
            .calls
            .iter()
            .filter(|call| call.split(' ').next() == Some(name));
        calls.cloned().collect()
    }

    /// Messages of the model request at this index among all requests.
    pub(crate) fn request(&self, index: usize) -> Vec<Message> {
        self.script().requests[index].messages.clone()
    }

    fn note(&self, call: String) {
        self.script().calls.push(call);
    }

    fn next_answer(&self, model: &str, request: &LlmRequest) -> Vec<AnswerStep> {
        let mut script = self.script();
        script.requests.push(request.clone());
        let who = if is_summary(request) {
            SUMMARISER
        } else {
            model
        };
        let steps = script.models.get_mut(who).and_then(VecDeque::pop_front);
        steps.unwrap_or_else(|| {
            vec![fail(
                "runtime_error",
                &format!("{model} has no more to say"),
            )]
        })
    }
}

/// Text of any model that summarises.
pub(crate) const SUMMARISER: &str = "summariser";

/// True when a request asks for a summary.
pub(crate) fn is_summary(request: &LlmRequest) -> bool {
    request
        .messages
        .first()
        .is_some_and(|first| first.plain_text().starts_with("You condense"))
}

/// Text chunk.
pub(crate) fn text(text: &str) -> AnswerStep {
    AnswerStep::Chunk(json!({"role": "assistant", "content": text}))
}

/// Chunk that ends an answer.
pub(crate) fn end() -> AnswerStep {
    AnswerStep::Chunk(json!({"role": "assistant", "is_final": true}))
}

/// Complete tool call.
pub(crate) fn call(id: &str, name: &str, arguments: &Value) -> AnswerStep {
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
    AnswerStep::Chunk(json!({"role": "assistant", "tool_calls": [call]}))
}

/// Usage of a call: prompt, completion and their sum.
pub(crate) fn usage(prompt: i64, completion: i64) -> AnswerStep {
    AnswerStep::Usage(
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}),
    )
}

pub(crate) fn fail(code: &'static str, message: &str) -> AnswerStep {
    AnswerStep::Fail((code, message.to_owned()))
}

pub(crate) fn error(failed: &Failing) -> HostError {
    let (code, reason) = failed.0.split_once('/').unwrap_or((failed.0, ""));
    let is_passing = ["rate_limited", "runtime_error"].contains(&code);
    let is_passing = is_passing || code.starts_with("callback.") || reason == "upstream_timeout";
    let reason = (!reason.is_empty()).then(|| ("reason".to_owned(), json!(reason)));
    AgentApiError {
        code: code.to_owned(),
        message: failed.1.clone(),
        retryable: is_passing,
        details: JsonObject::from_iter(reason),
    }
    .into()
}

/// Context with all resources granted: primary model `m`, fallback `n`, tools `look` and `send`.
pub(crate) fn context(input: &str, config: &Value) -> AgentRunContext {
    let access = testing::offline_access();
    let request = testing::run_request(RUNNER_ID, input, &access).unwrap();
    let mut context = request.context;
    let models = ["invoke", "stream", "count_tokens", "rerank"];
    context.resources = serde_json::from_value(json!({
        "models": [{"model_id": "m", "operations": models}, {"model_id": "n", "operations": models}],
        "tools": [tool("look"), tool("send")],
        "knowledge_bases": [{"kb_id": "docs", "operations": ["retrieve"]}, {"kb_id": "faq", "operations": ["retrieve"]}],
    }))
    .unwrap();
    context.context = serde_json::from_value(json!({
        "conversation_id": "c-7",
        "available_apis": {"history_page": true, "state": true, "steering_pull": true, "prompt_get": true, "run_get": true},
    }))
    .unwrap();
    let mut all = json!({"model": {"primary": "m", "fallbacks": ["n"]}});
    let all = all.as_object_mut().unwrap();
    all.extend(config.as_object().unwrap().clone());
    context.config = all.clone();
    context
}

fn tool(name: &str) -> Value {
    json!({"tool_name": name, "description": name, "operations": ["detail", "call"],
        "parameters": {"type": "object"}})
}

/// Results of a run of this context.
pub(crate) async fn run(host: &TestHost, context: AgentRunContext) -> Vec<AgentRunResult> {
    run_until(host, context, CancellationToken::new()).await
}

pub(crate) async fn run_until(
    host: &TestHost,
    context: AgentRunContext,
    cancel: CancellationToken,
) -> Vec<AgentRunResult> {
    let results = run_on(context, host.clone(), cancel);
    results.map(Result::unwrap).collect().await
}

/// Types of results; consecutive deltas count once.
pub(crate) fn kinds(results: &[AgentRunResult]) -> Vec<&str> {
    let mut kinds: Vec<_> = results.iter().map(|result| result.kind.as_str()).collect();
    kinds.dedup_by(|a, b| a == b && *a == "message.delta");
    kinds
}

/// Text of `message.completed`.
pub(crate) fn answer(results: &[AgentRunResult]) -> String {
    let message = results
        .iter()
        .rfind(|result| result.kind == "message.completed");
    let message = message.expect("a message was completed");
    let message: Message = serde_json::from_value(message.data["message"].clone()).unwrap();
    message.plain_text()
}

/// Last result, and the code of a failure.
pub(crate) fn ending(results: &[AgentRunResult]) -> (&str, Option<&str>) {
    let last = results.last().expect("a run has a terminal");
    (&last.kind, last.data.get("code").and_then(Value::as_str))
}

/// History item from a turn before the current event.
pub(crate) fn item(seq: i64, role: &str, content: &str) -> TranscriptItem {
    serde_json::from_value(json!({
        "transcript_id": format!("t-{seq}"), "event_id": format!("e-{seq}"), "conversation_id": "c-7",
        "bot_id": null, "workspace_id": null, "thread_id": null, "role": role, "item_type": "message",
        "content": content, "content_json": null, "attachment_refs": [], "seq": seq,
        "cursor": seq.to_string(), "created_at": 0, "metadata": {},
    }))
    .unwrap()
}

/// Steering input of the user.
pub(crate) fn steering(text: &str) -> SteeringInputItem {
    serde_json::from_value(json!({
        "claimed_run_id": "r", "runner_id": RUNNER_ID, "claimed_at": 0,
        "event": {"event_id": "e-s", "event_type": "message.received", "source": "api"},
        "input": {"text": text},
    }))
    .unwrap()
}
