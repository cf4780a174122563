//! Model calls: the configured models in fallback order until one starts to answer.

mod answer;
mod ending;
mod thinking;

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use protocol::message::{LlmTokenUsage, Message};
use protocol::model::LlmRequest;
use runner_kit::HostError;
use runner_kit::host::ModelStream;
use serde_json::Value;

use crate::config::ModelChoice;
use crate::context::overflow::is_context_overflow;
use crate::host::AgentHost;
use crate::message_writer::MessageWriter;

pub(crate) use ending::FinishKind;
pub(crate) use thinking::without_thinking;

use answer::Collected;

/// Buffered text is flushed after the model is silent for this long.
const PAUSE: Duration = Duration::from_millis(150);

/// Models of a run. The first that answers serves the rest of the run.
#[derive(Debug)]
pub(crate) struct ModelFallbacks {
    choices: Vec<ModelChoice>,
}

/// One model answer.
#[derive(Debug)]
pub(crate) struct ModelAnswer {
    pub(crate) message: Message,
    pub(crate) usage: Option<LlmTokenUsage>,
    pub(crate) ending: FinishKind,
}

/// Cause of a failed model call.
#[derive(Debug)]
pub(crate) enum ModelFailure {
    /// Request exceeds the model's window; no text was sent yet.
    Overflow(HostError),
    /// Call ended with its run: cancelled or past its deadline.
    Over(HostError),
    /// Stream broke off after text was sent.
    Broken(HostError),
    /// No model answered.
    Silent(Silence),
}

/// Summary of models that did not answer.
#[derive(Debug)]
pub(crate) struct Silence {
    /// Error text of the last model called.
    pub(crate) last: String,
    pub(crate) models: usize,
    /// Models that reject this request permanently.
    pub(crate) refused: usize,
    /// True when one of them may answer later.
    pub(crate) is_passing: bool,
}

impl Silence {
    fn of_one(last: impl Into<String>, is_passing: bool) -> Self {
        Self {
            last: last.into(),
            models: 1,
            refused: 0,
            is_passing,
        }
    }

    /// Adds this failure to those of earlier models.
    fn after(self, others: Option<&Self>) -> Self {
        let Some(others) = others else { return self };
        Self {
            models: self.models + others.models,
            refused: self.refused + others.refused,
            is_passing: self.is_passing || others.is_passing,
            last: self.last,
        }
    }

    /// True when every model rejected the request itself.
    pub(crate) fn is_refusal(&self) -> bool {
        self.refused == self.models
    }
}

impl From<&HostError> for Silence {
    fn from(failed: &HostError) -> Self {
        let reason = failed.details.get("reason").and_then(Value::as_str);
        // A truncated or malformed answer may succeed at the next attempt, although the call itself is not retryable.
        let is_passing = failed.retryable || reason == Some("upstream_malformed");
        Self {
            refused: usize::from(failed.code == "invalid_argument"),
            ..Self::of_one(failed.to_string(), is_passing)
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.models {
            1 => write!(formatter, "The model failed: {}", self.last),
            _ => write!(formatter, "All models failed. The last: {}", self.last),
        }
    }
}

impl ModelFallbacks {
    pub(crate) fn new(choices: Vec<ModelChoice>) -> Self {
        Self { choices }
    }

    /// Primary model; its tokenizer counts.
    pub(crate) fn first(&self) -> &str {
        self.choices.first().map_or("", |choice| choice.id.as_str())
    }

    /// Calls the models and forwards streamed text.
    pub(crate) async fn ask(
        &mut self,
        host: &impl AgentHost,
        request: &LlmRequest,
        message_writer: &mut MessageWriter,
    ) -> Result<ModelAnswer, ModelFailure> {
        let mut silent: Option<Silence> = None;
        for (index, choice) in self.choices.iter().enumerate() {
            let failed = match ask_one(choice, host, request, message_writer).await {
                Ok(answer) => {
                    // Drops the failed models, so that later turns do not wait for them again.
                    let chosen = self.choices.swap_remove(index);
                    self.choices = vec![chosen];
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            match failed {
                ModelFailure::Silent(failed) => {
                    let last = &failed.last;
                    // No text was sent yet, so the next model can answer unnoticed.
                    tracing::warn!(model.id = choice.id, "model {} failed: {last}", choice.id);
                    silent = Some(failed.after(silent.as_ref()));
                }
                // Text was sent, or the run is over: another model cannot repair that.
                last => return Err(last),
            }
        }
        let silent = silent.unwrap_or_else(|| Silence::of_one("no model was granted", false));
        Err(ModelFailure::Silent(silent))
    }
}

async fn ask_one(
    choice: &ModelChoice,
    host: &impl AgentHost,
    request: &LlmRequest,
    message_writer: &mut MessageWriter,
) -> Result<ModelAnswer, ModelFailure> {
    // A client without streaming shows one message at the end; increments are useless to it.
    if message_writer.is_streaming() && choice.streams {
        let stream = host.stream_model(&choice.id, request).await;
        return listen(stream.map_err(before_first)?, message_writer).await;
    }
    if !choice.invokes {
        let last = format!("{} can only stream", choice.id);
        return Err(ModelFailure::Silent(Silence::of_one(last, false)));
    }
    let response = host.invoke_model(&choice.id, request).await;
    let response = response.map_err(before_first)?;
    // An empty answer counts as a failure, so that the next model gets its chance.
    if is_empty(&response.message) {
        return Err(empty());
    }
    message_writer.append(&response.message.plain_text()).await;
    Ok(ModelAnswer {
        ending: FinishKind::default().or(response.message.provider_specific_fields.as_ref()),
        message: answer::with_ids(response.message),
        usage: response.usage,
    })
}

/// Reads a stream to its end and forwards its text.
async fn listen(
    mut stream: ModelStream,
    message_writer: &mut MessageWriter,
) -> Result<ModelAnswer, ModelFailure> {
    let mut collected = Collected::default();
    // `StreamExt::next` is cancel safe: no event is lost if the pause ends first.
    loop {
        let next = if let Ok(next) = tokio::time::timeout(PAUSE, stream.next()).await {
            next
        } else {
            message_writer.flush().await;
            stream.next().await
        };
        let Some(event) = next else { break };
        match event {
            Ok(event) => {
                let chunk_text = collected.add(event);
                if chunk_text.starts_over {
                    message_writer.start_turn_over();
                }
                // A blank start is not shown: the model may still fail, and the next one starts anew.
                if collected.has_begun() {
                    message_writer.append(&chunk_text.text).await;
                }
            }
            // Nothing was shown yet: the failure may go to the next model.
            Err(failed) if !collected.has_begun() => return Err(before_first(failed)),
            Err(failed) if is_over(&failed) => return Err(ModelFailure::Over(failed)),
            // A second model would repeat text that the user has already read.
            Err(failed) => return Err(ModelFailure::Broken(failed)),
        }
    }
    if !collected.has_begun() {
        return Err(empty());
    }
    Ok(collected.finish())
}

/// Maps a failure before the first text.
fn before_first(failed: HostError) -> ModelFailure {
    if is_over(&failed) {
        ModelFailure::Over(failed)
    } else if is_overflow(&failed) {
        ModelFailure::Overflow(failed)
    } else {
        ModelFailure::Silent(Silence::from(&failed))
    }
}

fn empty() -> ModelFailure {
    ModelFailure::Silent(Silence::of_one("the model's answer is empty", true))
}

fn is_empty(message: &Message) -> bool {
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    calls.is_empty() && message.plain_text().trim().is_empty()
}

fn is_over(failed: &HostError) -> bool {
    failed.is_cancelled() || failed.is_deadline_exceeded()
}

/// The gateway reports overflow by a reason; messages of unknown upstreams are matched by their words.
fn is_overflow(failed: &HostError) -> bool {
    let reason = failed.details.get("reason");
    reason.and_then(|reason| reason.as_str()) == Some("context_length_exceeded")
        || is_context_overflow(&failed.message)
}
