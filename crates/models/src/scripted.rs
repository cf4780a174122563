//! A scripted model for demos, tests and conformance. It behaves like other providers, including delays and
//! failures.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, StatusCode};
use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Chunks, Provider, ProviderEmbeddings, ProviderRequest, TextVector};
use egress::upstream::UpstreamError;
use llm_formats::chat::Assembler;
use llm_formats::object;

mod request_view;
mod similarity;

use request_view::RequestView;

/// Chunk size in characters, unless the script sets chunks.
const CHUNK: usize = 12;
const MAX_TURNS: usize = 1000;

/// Script of a model. The first turn that matches answers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    turns: Vec<ScriptedTurn>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScriptedTurn {
    /// Matches if the newest user message contains these words, ignoring case.
    when: Option<String>,
    /// Matches if the previous user message contains these words, ignoring case.
    before: Option<String>,
    /// `true`: matches only directly after a tool result. `false`: only otherwise.
    after_tool: Option<bool>,
    /// Matches only if this tool is offered.
    offered: Option<String>,
    /// `true`: matches only with a retrieved passage. `false`: only without.
    retrieved: Option<bool>,
    /// `true`: matches only with earlier user messages. `false`: only without.
    remembers: Option<bool>,
    /// Maximum number of matches in the lifetime of the process.
    times: Option<u32>,
    /// Template of the answer. Missing values are empty.
    /// - `{input}`: the newest user message; `{first}` and `{before}`: the first and the last of those before
    ///   it.
    /// - `{tool}`: the newest tool result.
    /// - `{passage}`: the first passage in the newest user or system message that begins with JSON with
    ///   `data.chunks[0].content`.
    answer: String,
    /// The answer in streamed pieces.
    chunks: Vec<String>,
    thinking: Option<String>,
    tool_calls: Vec<ScriptedCall>,
    delay_ms: u64,
    chunk_ms: u64,
    /// Fails with this HTTP status.
    status: Option<u16>,
    retry_after: Option<u64>,
    message: Option<String>,
    /// The connection breaks after this number of chunks.
    break_after: Option<usize>,
    #[serde(skip)]
    used: AtomicU32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCall {
    name: String,
    #[serde(default)]
    arguments: JsonObject,
}

/// An invalid script.
#[derive(Debug, thiserror::Error)]
#[error("the script is not valid at {pointer}: {message}")]
pub struct ScriptFault {
    pointer: String,
    message: String,
}

impl Script {
    /// Parses a script. `None`: echoes the input.
    pub fn read(value: Option<Value>) -> Result<Self, ScriptFault> {
        let value = value.unwrap_or_else(|| json!({"turns": [{"answer": "You said: {input}"}]}));
        let script: Self =
            serde_path_to_error::deserialize(value).map_err(|error| ScriptFault {
                pointer: error.path().to_string(),
                message: error.inner().to_string(),
            })?;
        let fault = |pointer: String, message: &str| ScriptFault {
            pointer,
            message: message.to_owned(),
        };
        if script.turns.is_empty() || script.turns.len() > MAX_TURNS {
            return Err(fault("turns".to_owned(), "must have 1 to 1000 turns"));
        }
        for (n, turn) in script.turns.iter().enumerate() {
            let status = turn.status.map(|status| (400..600).contains(&status));
            if status == Some(false) {
                return Err(fault(format!("turns[{n}].status"), "must be 400 to 599"));
            }
        }
        Ok(script)
    }
}

impl ScriptedTurn {
    fn fits(&self, request_view: &RequestView<'_>) -> bool {
        let says = |words: &Option<String>, text: &str| {
            let words = words.as_ref().map(|words| words.to_lowercase());
            words.is_none_or(|words| text.to_lowercase().contains(&words))
        };
        says(&self.when, &request_view.input)
            && says(&self.before, &request_view.before)
            && self
                .after_tool
                .is_none_or(|after| after == request_view.is_after_tool)
            && self
                .offered
                .as_ref()
                .is_none_or(|tool| request_view.offered.contains(&tool.as_str()))
            && self
                .retrieved
                .is_none_or(|retrieved| retrieved != request_view.passage.is_empty())
            && self
                .remembers
                .is_none_or(|remembers| remembers != request_view.before.is_empty())
    }

    /// Consumes one match. False if none is left.
    fn take(&self) -> bool {
        // Concurrent calls must not exceed `times`, so count in one atomic step.
        let Some(times) = self.times else { return true };
        let more = |used: u32| (used < times).then_some(used + 1);
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    fn pieces(&self, request_view: &RequestView<'_>) -> Vec<String> {
        if !self.chunks.is_empty() {
            return self
                .chunks
                .iter()
                .map(|chunk| request_view.fill(chunk))
                .collect();
        }
        let letters: Vec<char> = request_view.fill(&self.answer).chars().collect();
        letters
            .chunks(CHUNK)
            .map(|piece| piece.iter().collect())
            .collect()
    }

    fn failure(&self) -> Option<UpstreamError> {
        let status = StatusCode::from_u16(self.status?).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut headers = HeaderMap::new();
        if let Some(seconds) = self.retry_after {
            headers.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        let message = self
            .message
            .as_deref()
            .unwrap_or("the script declares this failure");
        Some(UpstreamError::of_status(status, &headers, message))
    }
}

/// The provider for scripted models.
pub struct Scripted {
    script: Script,
}

/// One answer, before it is sent.
struct ScriptedAnswer {
    id: String,
    model: Value,
    pieces: Vec<String>,
    thinking: Option<String>,
    calls: Vec<Value>,
    usage: Value,
    delay: Duration,
    pause: Duration,
    break_after: Option<usize>,
}

impl Scripted {
    pub fn new(script: Script) -> Self {
        Self { script }
    }

    async fn speech(&self, body: &JsonObject) -> Result<ScriptedAnswer, UpstreamError> {
        let request_view = RequestView::of(body);
        let mut turns = self.script.turns.iter();
        let turn = turns
            // Match before `take`, so that only a matching request consumes a turn.
            .find(|turn| turn.fits(&request_view) && turn.take())
            .ok_or_else(|| {
                UpstreamError::Unsupported("no turn of the script fits this request".to_owned())
            })?;
        let delay = Duration::from_millis(turn.delay_ms);
        // A failing provider is slow as well.
        if let Some(failure) = turn.failure() {
            tokio::time::sleep(delay).await;
            return Err(failure);
        }
        let pieces = turn.pieces(&request_view);
        let calls = turn.tool_calls.iter().map(|call| {
            let arguments = Value::Object(call.arguments.clone()).to_string();
            json!({"id": format!("call_{}", Uuid::new_v4().simple()), "type": "function",
                "function": {"name": call.name, "arguments": request_view.fill(&arguments)}})
        });
        let prompt_tokens = similarity::words(
            &Value::Array(
                body.get("messages")
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default(),
            )
            .to_string(),
        )
        .count();
        let completion_tokens = pieces.concat().split_whitespace().count().max(1);
        Ok(ScriptedAnswer {
            id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
            model: body.get("model").cloned().unwrap_or_default(),
            calls: calls.collect(),
            thinking: turn.thinking.clone(),
            usage: json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens}),
            delay,
            pause: Duration::from_millis(turn.chunk_ms),
            break_after: turn.break_after,
            pieces,
        })
    }
}

impl ScriptedAnswer {
    fn finish_reason(&self) -> &'static str {
        if self.calls.is_empty() {
            "stop"
        } else {
            "tool_calls"
        }
    }

    fn chunks(&self) -> Vec<JsonObject> {
        let chunk = |delta: Value, reason: Option<&str>| {
            object(
                json!({"id": self.id, "object": "chat.completion.chunk", "model": self.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}),
            )
        };
        let mut chunks = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
        let thinking = self
            .thinking
            .iter()
            .map(|text| json!({"reasoning_content": text}));
        let pieces = self.pieces.iter().map(|text| json!({"content": text}));
        chunks.extend(thinking.chain(pieces).map(|delta| chunk(delta, None)));
        for (n, call) in self.calls.iter().enumerate() {
            // Streamed calls carry an index, complete ones do not.
            let mut call = call.clone();
            call["index"] = json!(n);
            chunks.push(chunk(json!({"tool_calls": [call]}), None));
        }
        let mut last = chunk(json!({}), Some(self.finish_reason()));
        last.insert("usage".to_owned(), self.usage.clone());
        chunks.push(last);
        chunks
    }
}

#[async_trait]
impl Provider for Scripted {
    async fn complete(&self, request: ProviderRequest) -> Result<JsonObject, UpstreamError> {
        let body = request.completion()?;
        let speech = self.speech(&body).await?;
        tokio::time::sleep(speech.delay).await;
        if speech.break_after.is_some() {
            return Err(broken());
        }
        let mut assembler = Assembler::default();
        speech
            .chunks()
            .into_iter()
            .for_each(|chunk| assembler.add(chunk));
        Ok(assembler.finish())
    }

    async fn stream(&self, request: ProviderRequest) -> Result<Chunks, UpstreamError> {
        let body = request.completion()?;
        let speech = self.speech(&body).await?;
        let mut items: Vec<_> = speech.chunks().into_iter().map(Ok).collect();
        if let Some(after) = speech.break_after {
            items.truncate(after);
            items.push(Err(broken()));
        }
        let (delay, pause) = (speech.delay, speech.pause);
        let paced = stream::iter(items)
            .enumerate()
            .then(move |(n, item)| async move {
                let wait = if n == 0 { delay } else { pause };
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                item
            });
        Ok(paced.boxed())
    }

    async fn embed(&self, body: JsonObject) -> Result<ProviderEmbeddings, UpstreamError> {
        let texts: Vec<&str> = match body.get("input") {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let count: usize = texts
            .iter()
            .map(|text| similarity::words(text).count())
            .sum();
        let count = i64::try_from(count).ok();
        let vectors = texts.iter().map(|text| TextVector {
            index: None,
            embedding: similarity::vector(text),
        });
        Ok(ProviderEmbeddings {
            vectors: vectors.collect(),
            usage: Some(LlmTokenUsage {
                prompt_tokens: count,
                total_tokens: count,
                ..LlmTokenUsage::default()
            }),
        })
    }

    async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        let query = body
            .get("query")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let documents = body
            .get("documents")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let mut results: Vec<(usize, f64)> = documents
            .enumerate()
            .map(|(n, document)| {
                (
                    n,
                    similarity::of(query, document.as_str().unwrap_or_default()),
                )
            })
            .collect();
        results.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let top = body
            .get("top_n")
            .and_then(Value::as_u64)
            .unwrap_or(u64::MAX);
        results.truncate(usize::try_from(top).unwrap_or(usize::MAX));
        let results: Vec<_> = results
            .iter()
            .map(|(index, score)| json!({"index": index, "relevance_score": score}))
            .collect();
        Ok(object(
            json!({"model": body.get("model"), "results": results}),
        ))
    }
}

fn broken() -> UpstreamError {
    UpstreamError::Malformed("the script breaks it off here".to_owned())
}
