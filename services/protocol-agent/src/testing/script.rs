//! A host whose models and tools answer from a script, on a gateway in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use agent_core::host::AgentHost;
use futures_util::stream::{self, StreamExt as _};
use protocol::JsonObject;
use protocol::child_run::{ChildRun, ChildRunRequest};
use protocol::history::TranscriptItem;
use protocol::host_api::SteeringInputItem;
use protocol::id::RunId;
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::message::Message;
use protocol::model::{LlmInvokeResult, LlmRequest, LlmStreamEvent};
use protocol::run::{AgentRun, Page};
use protocol::tool::{KeyScope, ToolDescription};
use runner_kit::host::{CallOptions, HistoryPageQuery, ModelStream};
use runner_kit::testing::run_record;
use serde_json::{Value, json};
use tokio::sync::Notify;
use uuid::Uuid;

use super::memory::{InMemory, Memory, error};
use super::outputs::chunks;
use crate::host::GraphAgentHost;
use crate::manifest::RUNNER_ID;
use crate::records::HostResult;

/// Scripted response of a model.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedOutput {
    /// This output, in small pieces if the call streams.
    Says(Box<Message>),
    /// Fails with this code; `code/reason` gives it a reason.
    Fails(&'static str),
    /// Never responds.
    Hangs,
}

/// Scripted response of a tool.
#[derive(Clone, Debug)]
pub(crate) enum ToolReply {
    Says(Value),
    /// Returns the arguments.
    Echoes,
    Fails(&'static str),
    /// Acts, and never responds.
    Hangs,
    /// Responds once this many calls have begun.
    Together(usize, Value),
}

/// Model that computes its output from the texts of the request.
pub(crate) type Mind = Arc<dyn Fn(&str) -> Message + Send + Sync>;

#[derive(Default)]
pub(crate) struct GraphScript {
    pub(crate) models: VecDeque<ScriptedOutput>,
    /// Answers once `models` is empty.
    pub(crate) mind: Option<Mind>,
    /// Responses of a tool in order; the last one repeats.
    pub(crate) tools: HashMap<String, VecDeque<ToolReply>>,
    pub(crate) requests: Vec<LlmRequest>,
    /// Each call of a tool: name and parameters.
    pub(crate) calls: Vec<(String, Value)>,
    /// Scopes of keys, as calls named them.
    pub(crate) scopes: Vec<KeyScope>,
    /// Questions that approved the calls.
    pub(crate) approvals: Vec<Option<String>>,
    pub(crate) history: Vec<TranscriptItem>,
    /// Each pull takes one.
    pub(crate) steering: VecDeque<Vec<SteeringInputItem>>,
    pub(crate) passages: Vec<String>,
    pub(crate) artifacts: HashMap<String, Vec<u8>>,
    /// Requests of child runs with their ids. `children`: states of the next ones.
    pub(crate) spawned: Vec<(ChildRunRequest, RunId)>,
    pub(crate) children: VecDeque<Value>,
    running: HashMap<RunId, Value>,
    pub(crate) cancelled_children: Vec<RunId>,
    /// The gateway has cancelled the run.
    pub(crate) is_cancelled: bool,
    pub(crate) parent: Option<RunId>,
}

/// The scripted host. Clones are the same host.
#[derive(Clone, Debug)]
pub(crate) struct GraphTestHost {
    pub(crate) memory: Memory,
    script: Arc<Mutex<GraphScript>>,
    /// Notified at each call of a tool, and each start of a child run.
    pub(crate) called: Arc<Notify>,
}

impl InMemory for GraphTestHost {
    fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl GraphTestHost {
    pub(crate) fn new() -> Self {
        Self {
            memory: Memory::new(super::RUN),
            script: Arc::default(),
            called: Arc::default(),
        }
    }

    /// The same host, as this run sees it.
    pub(crate) fn begin(&self, run: &str) -> Self {
        Self {
            memory: self.memory.begin(run),
            ..self.clone()
        }
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, GraphScript> {
        self.script.lock().unwrap()
    }

    /// The next outputs of the model.
    pub(crate) fn says(&self, outputs: impl IntoIterator<Item = Message>) -> &Self {
        let outputs = outputs
            .into_iter()
            .map(|output| ScriptedOutput::Says(Box::new(output)));
        self.script().models.extend(outputs);
        self
    }

    pub(crate) fn tool(&self, name: &str, answers: impl IntoIterator<Item = ToolReply>) -> &Self {
        let answers = answers.into_iter().collect();
        self.script().tools.insert(name.to_owned(), answers);
        self
    }

    /// Names and parameters of all calls of tools.
    pub(crate) fn calls(&self) -> Vec<(String, Value)> {
        self.script().calls.clone()
    }

    /// Questions that approved the calls.
    pub(crate) fn approvals(&self) -> Vec<Option<String>> {
        self.script().approvals.clone()
    }

    /// The texts of all messages of the model's request at this place.
    pub(crate) fn request(&self, position: usize) -> String {
        let script = self.script();
        let messages = &script.requests[position].messages;
        let texts: Vec<_> = messages.iter().map(Message::plain_text).collect();
        texts.join("\n")
    }

    /// Fails unless the model's request at this place contains the part.
    #[track_caller]
    pub(crate) fn sees(&self, position: usize, part: &str) {
        super::has_parts(&self.request(position), &[part]);
    }

    /// Requests of the model so far.
    pub(crate) fn model_calls(&self) -> usize {
        self.script().requests.len()
    }

    fn next(&self, request: &LlmRequest) -> HostResult<Option<Message>> {
        let mut script = self.script();
        script.requests.push(request.clone());
        match script.models.pop_front() {
            Some(ScriptedOutput::Says(output)) => Ok(Some(naming(*output, request))),
            Some(ScriptedOutput::Fails(code)) => Err(coded(code)),
            Some(ScriptedOutput::Hangs) => Ok(None),
            None => {
                let texts: Vec<_> = request.messages.iter().map(Message::plain_text).collect();
                let mind = script.mind.clone();
                let mind = mind.ok_or_else(|| coded("runtime_error"))?;
                Ok(Some(mind(&texts.join("\n"))))
            }
        }
    }
}

/// The output with the id of the newest graph in place of `GRAPH`.
fn naming(output: Message, request: &LlmRequest) -> Message {
    let texts: Vec<_> = request.messages.iter().map(Message::plain_text).collect();
    let texts = texts.join("\n");
    let newest = texts
        .rsplit("run_id: `")
        .next()
        .and_then(|rest| rest.split('`').next());
    let json = serde_json::to_string(&output).unwrap();
    let json = json.replace("GRAPH", newest.unwrap_or_default());
    serde_json::from_str(&json).unwrap_or(output)
}

impl std::fmt::Debug for GraphScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}

/// An error by code, or by code and reason.
fn coded(code: &str) -> runner_kit::HostError {
    let Some((code, reason)) = code.split_once('/') else {
        return error(code);
    };
    let error = json!({"code": code, "message": "scripted error", "retryable": false, "details": {"reason": reason}});
    serde_json::from_value::<protocol::error::AgentApiError>(error)
        .unwrap()
        .into()
}

impl AgentHost for GraphTestHost {
    async fn prompt(&self) -> HostResult<Option<Vec<Message>>> {
        Ok(None)
    }

    async fn history(&self, _query: &HistoryPageQuery) -> HostResult<Page<TranscriptItem>> {
        let items = self.script().history.clone();
        let page = json!({"items": items, "next_cursor": null, "prev_cursor": null, "has_more": false, "total_count": null});
        Ok(serde_json::from_value(page).unwrap())
    }

    async fn pull_steering(&self) -> HostResult<Vec<SteeringInputItem>> {
        Ok(self.script().steering.pop_front().unwrap_or_default())
    }

    async fn invoke_model(
        &self,
        _model: &str,
        request: &LlmRequest,
    ) -> HostResult<LlmInvokeResult> {
        match self.next(request)? {
            Some(message) => Ok(LlmInvokeResult {
                message,
                usage: usage(),
            }),
            None => std::future::pending().await,
        }
    }

    async fn stream_model(&self, _model: &str, request: &LlmRequest) -> HostResult<ModelStream> {
        let Some(message) = self.next(request)? else {
            return std::future::pending().await;
        };
        let chunks = chunks(message)
            .into_iter()
            .map(|chunk| json!({"chunk": chunk}));
        let last = json!({"usage": usage()});
        let events = chunks
            .chain([last])
            .map(|event| Ok(serde_json::from_value::<LlmStreamEvent>(event).unwrap()));
        Ok(stream::iter(events.collect::<Vec<_>>()).boxed())
    }

    async fn tool(&self, name: &str) -> HostResult<ToolDescription> {
        let tool = json!({"name": name, "description": "asked", "parameters": {"type": "object"}});
        Ok(serde_json::from_value(tool).unwrap())
    }

    async fn retrieve(
        &self,
        kb_id: &str,
        _query: &RetrievalQuery,
    ) -> HostResult<Vec<RetrievalResultEntry>> {
        let passages = self.script().passages.clone();
        let entries = passages.iter().map(|text| {
            let entry = json!({"id": kb_id, "content": [{"type": "text", "text": text}], "metadata": {}, "distance": 0.1});
            serde_json::from_value(entry).unwrap()
        });
        Ok(entries.collect())
    }
}

impl GraphAgentHost for GraphTestHost {
    async fn run(&self) -> HostResult<AgentRun> {
        let mut record = run_record();
        let script = self.script();
        if script.is_cancelled {
            record["cancel_requested_at"] = json!(1);
        }
        record["parent_run_id"] = json!(script.parent);
        Ok(serde_json::from_value(record).unwrap())
    }

    async fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        options: CallOptions<'_>,
    ) -> HostResult<Value> {
        let key = options.key;
        let tool = {
            let mut script = self.script();
            script.calls.push((name.to_owned(), json!(parameters)));
            script.scopes.push(options.scope);
            let approved_by = options.approved_by.map(str::to_owned);
            script.approvals.push(approved_by);
            let answers = script.tools.get_mut(name);
            let answers = answers.filter(|answers| !answers.is_empty());
            answers.map(|answers| {
                if answers.len() > 1 {
                    answers.pop_front()
                } else {
                    answers.front().cloned()
                }
            })
        };
        self.called.notify_waiters();
        let tool = tool.flatten().unwrap_or(ToolReply::Says(json!("ok")));
        let answer = match tool {
            ToolReply::Says(answer) => answer,
            ToolReply::Echoes => json!(parameters),
            ToolReply::Fails(code) => {
                return Err(coded(code));
            }
            ToolReply::Hangs => {
                self.memory.call_tool(name, key, Value::Null).await?;
                std::future::pending().await
            }
            ToolReply::Together(count, answer) => loop {
                let called = self.called.notified();
                if self.script().calls.len() >= count {
                    break answer;
                }
                called.await;
            },
        };

        self.memory.call_tool(name, key, answer).await
    }

    async fn read_artifact(&self, id: &str, first: u64, last: u64) -> HostResult<Vec<u8>> {
        let script = self.script();
        let bytes = script.artifacts.get(id).ok_or_else(|| error("not_found"))?;
        let last = usize::try_from(last).unwrap().min(bytes.len() - 1);
        Ok(bytes[usize::try_from(first).unwrap()..=last].to_vec())
    }

    async fn spawn_child(&self, request: &ChildRunRequest) -> HostResult<ChildRun> {
        let mut script = self.script();
        let mut existing = script.spawned.iter();
        let existing = existing.find(|(one, _)| one.idempotency_key == request.idempotency_key);
        let id = if let Some((_, id)) = existing {
            *id
        } else {
            let id = RunId(Uuid::new_v4());
            let fate = script
                .children
                .pop_front()
                .unwrap_or_else(|| json!({"status": "running"}));
            script.spawned.push((request.clone(), id));
            script.running.insert(id, fate);
            id
        };
        drop(script);
        self.called.notify_waiters();
        Ok(child(id, &json!({"status": "running"})))
    }

    async fn child_run(&self, id: RunId, wait_seconds: u64) -> HostResult<Option<ChildRun>> {
        let fate = self.script().running.get(&id).cloned();
        let Some(fate) = fate else { return Ok(None) };
        let child = child(id, &fate);
        if !child.status.is_terminal() && wait_seconds > 0 {
            tokio::time::sleep(std::time::Duration::from_secs(wait_seconds)).await;
        }
        Ok(Some(child))
    }

    async fn cancel_child(&self, id: RunId, _reason: &str) -> HostResult<()> {
        self.script().cancelled_children.push(id);
        Ok(())
    }
}

impl GraphTestHost {
    /// Ends a child run that was started before.
    pub(crate) fn end_child(&self, id: RunId, fate: Value) {
        self.script().running.insert(id, fate);
    }
}

/// A child run with this status, outcome, text and error.
fn child(id: RunId, fate: &Value) -> ChildRun {
    let output = fate
        .get("text")
        .map(|text| json!({"role": "assistant", "content": text}));
    serde_json::from_value(json!({
        "run_id": id, "parent_run_id": super::RUN, "agent_id": Uuid::nil(), "status": fate["status"],
        "status_reason": null, "created_at": 0, "finished_at": null, "deadline_at": 0, "finish_reason": null,
        "outcome": fate.get("outcome"), "output": output, "error": fate.get("error"), "usage": null,
    }))
    .unwrap()
}

fn usage() -> Option<protocol::message::LlmTokenUsage> {
    serde_json::from_value(
        json!({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}),
    )
    .unwrap()
}

/// Steering input with this text.
pub(crate) fn steering(text: &str) -> SteeringInputItem {
    serde_json::from_value(json!({
        "claimed_run_id": "r", "runner_id": RUNNER_ID, "claimed_at": 0,
        "event": {"event_id": "e-s", "event_type": "message.received", "source": "api"},
        "input": {"text": text},
    }))
    .unwrap()
}
