//! Answers of the scripted host.

use agent_core::host::{AgentHost, HostResult};
use futures_util::stream::{self, StreamExt as _};
use protocol::JsonObject;
use protocol::child_run::ChildRun;
use protocol::history::TranscriptItem;
use protocol::host_api::SteeringInputItem;
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::message::{LlmTokenUsage, Message, MessageContent};
use protocol::model::{
    CountTokens, LlmInvokeResult, LlmRequest, LlmStreamEvent, Rerank, RerankResult,
};
use protocol::run::Page;
use protocol::tool::ToolDescription;
use runner_kit::host::{HistoryPageQuery, ModelStream, PageDirection};
use serde_json::{Value, json};

use super::{AnswerStep, ScriptedTool, TestHost, error};
use crate::context::estimate;
use crate::host::LocalAgentHost;

impl AgentHost for TestHost {
    async fn prompt(&self) -> HostResult<Option<Vec<Message>>> {
        self.note("prompt".to_owned());
        match self.script().prompt.clone() {
            None => Ok(None),
            Some(Ok(prompt)) => Ok(Some(prompt)),
            Some(Err(failed)) => Err(error(&failed)),
        }
    }

    async fn history(&self, query: &HistoryPageQuery) -> HostResult<Page<TranscriptItem>> {
        let forward = query.direction == Some(PageDirection::Forward);
        self.note(format!(
            "history {:?} {:?}",
            query.after_cursor, query.before_cursor
        ));
        let script = self.script();
        if script.history_fails {
            return Err(error(&("runtime_error", "no history".to_owned())));
        }
        let bound = |cursor: &Option<String>, none: i64| {
            cursor
                .as_ref()
                .map_or(none, |cursor| cursor.parse().unwrap())
        };
        let (after, before) = (
            bound(&query.after_cursor, 0),
            bound(&query.before_cursor, i64::MAX),
        );
        let mut items: Vec<_> = script
            .history
            .iter()
            .filter(|item| item.seq > after && item.seq < before)
            .cloned()
            .collect();
        if !forward {
            items.reverse();
        }
        let has_more = items.len() > query.limit.unwrap() as usize;
        items.truncate(query.limit.unwrap() as usize);
        let bytes = items.iter().filter_map(|item| item.content.as_ref());
        let bytes: usize = bytes.map(String::len).sum();
        if script.max_history_bytes.is_some_and(|limit| bytes > limit) {
            let failed = "callback.invalid_answer/answer_too_large";
            return Err(error(&(failed, "larger than 9 bytes".to_owned())));
        }
        let next = items.last().and_then(|item| item.cursor.clone());
        let page = json!({"items": items, "next_cursor": next, "prev_cursor": null, "has_more": has_more, "total_count": null});
        Ok(serde_json::from_value(page).unwrap())
    }

    async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> HostResult<Vec<RetrievalResultEntry>> {
        self.note(format!("retrieve {kb_id} {:?}", query.top_k));
        match self.script().passages.get(kb_id) {
            None => Ok(Vec::new()),
            Some(Err(failed)) => Err(error(failed)),
            Some(Ok(passages)) => {
                let entries = passages.iter().map(|content| {
                    let entry = json!({"id": "p", "content": content, "metadata": {"secret": "row 7"}, "distance": 0.1});
                    serde_json::from_value(entry).unwrap()
                });
                Ok(entries.collect())
            }
        }
    }

    async fn invoke_model(&self, model: &str, request: &LlmRequest) -> HostResult<LlmInvokeResult> {
        self.note(format!("invoke_model {model}"));
        let mut text = String::new();
        let mut message = Message::text("assistant", "");
        let mut usage: Option<LlmTokenUsage> = None;
        for step in self.next_answer(model, request) {
            match step {
                AnswerStep::Chunk(chunk) => {
                    text.push_str(chunk["content"].as_str().unwrap_or_default());
                    if let Some(calls) = chunk.get("tool_calls") {
                        let calls: Vec<_> = serde_json::from_value(calls.clone()).unwrap();
                        message.tool_calls.get_or_insert_default().extend(calls);
                    }
                    if let Some(fields) = chunk["provider_specific_fields"].as_object() {
                        message.provider_specific_fields = Some(fields.clone());
                    }
                }
                AnswerStep::Usage(value) => usage = serde_json::from_value(value).unwrap(),
                AnswerStep::Fail(failed) => return Err(error(&failed)),
                AnswerStep::Pause(time) => tokio::time::sleep(time).await,
                AnswerStep::Hang => std::future::pending().await,
            }
        }
        message.content = Some(MessageContent::Text(text));
        Ok(LlmInvokeResult { message, usage })
    }

    async fn stream_model(&self, model: &str, request: &LlmRequest) -> HostResult<ModelStream> {
        self.note(format!("stream_model {model}"));
        let steps = self.next_answer(model, request);
        if let Some(AnswerStep::Fail(failed)) = steps.first() {
            return Err(error(failed));
        }
        let events = stream::iter(steps).filter_map(|step| async move {
            let event = match step {
                AnswerStep::Chunk(chunk) => json!({"chunk": chunk}),
                AnswerStep::Usage(usage) => json!({"usage": usage}),
                AnswerStep::Fail(failed) => return Some(Err(error(&failed))),
                AnswerStep::Pause(time) => {
                    tokio::time::sleep(time).await;
                    return None;
                }
                AnswerStep::Hang => std::future::pending().await,
            };
            Some(Ok(serde_json::from_value::<LlmStreamEvent>(event).unwrap()))
        });
        Ok(events.boxed())
    }

    async fn tool(&self, name: &str) -> HostResult<ToolDescription> {
        self.note(format!("tool {name}"));
        if !self.script().tools.contains_key(name) {
            return Err(error(&("not_found", format!("no {name}"))));
        }
        let parameters = json!({"type": "object", "title": "asked"});
        Ok(serde_json::from_value(
            json!({"name": name, "description": "asked", "parameters": parameters}),
        )
        .unwrap())
    }

    async fn pull_steering(&self) -> HostResult<Vec<SteeringInputItem>> {
        self.note("pull_steering".to_owned());
        let mut script = self.script();
        if script.steering_fails {
            return Err(error(&("unauthorized", "not granted".to_owned())));
        }
        Ok(script.steering.pop_front().unwrap_or_default())
    }
}

impl LocalAgentHost for TestHost {
    async fn state_get(&self, key: &str) -> HostResult<Option<Value>> {
        self.note(format!("state_get {key}"));
        Ok(self.script().state.get(key).cloned())
    }

    async fn state_put(&self, key: &str, value: Value) -> HostResult<()> {
        self.note(format!("state_put {key}"));
        self.script().state.insert(key.to_owned(), value);
        Ok(())
    }

    async fn rerank(&self, model: &str, request: &Rerank) -> HostResult<Vec<RerankResult>> {
        self.note(format!("rerank {model} {}", request.documents.len()));
        match self.script().ranking.clone() {
            Some(Ok(order)) => {
                let ranked = order.into_iter().map(|index| RerankResult {
                    index,
                    relevance_score: 1.0,
                });
                Ok(ranked.collect())
            }
            Some(Err(failed)) => Err(error(&failed)),
            None => Ok(Vec::new()),
        }
    }

    async fn count_tokens(&self, model: &str, request: &CountTokens) -> HostResult<u64> {
        self.note(format!(
            "count_tokens {model} tools={}",
            request.tools.len()
        ));
        match self.script().count.clone() {
            None => Ok(estimate::messages(&request.messages)),
            Some(Ok(count)) => Ok(count),
            Some(Err(failed)) => Err(error(&failed)),
        }
    }

    async fn call_tool(&self, name: &str, parameters: JsonObject, key: &str) -> HostResult<Value> {
        self.note(format!("call_tool {name} {key} {}", json!(parameters)));
        self.script().tool_calls += 1;
        self.1.notify_waiters();
        let tool = self.script().tools.get(name).cloned();
        match tool {
            None => Err(error(&("runtime_error", format!("{name} is broken")))),
            Some(ScriptedTool::Says(answer)) => Ok(answer),
            Some(ScriptedTool::Fails(failed)) => Err(error(&failed)),
            Some(ScriptedTool::Hangs) => std::future::pending().await,
            Some(ScriptedTool::After(others, answer)) => loop {
                let began = self.1.notified();
                if self.script().tool_calls > others {
                    return Ok(answer);
                }
                began.await;
            },
        }
    }

    async fn ask_agent(&self, agent: &str, prompt: &str, key: &str) -> HostResult<ChildRun> {
        self.note(format!("ask_agent {agent} {prompt} {key}"));
        let answer = self.script().agents.get(agent).cloned();
        match answer {
            Some(Ok(child)) => Ok(serde_json::from_value(child).unwrap()),
            Some(Err(failed)) => Err(error(&failed)),
            None => Err(error(&("unauthorized", "not granted".to_owned()))),
        }
    }
}
