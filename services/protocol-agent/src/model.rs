//! Model calls: the configured models are tried in order until one begins to answer.

mod collect;
mod scan;

use std::fmt;

use action_graph::declaration::CARRIER;
use action_graph::output::ModelOutput;
use futures_util::StreamExt as _;
use protocol::message::LlmTokenUsage;
use protocol::model::LlmRequest;
use runner_kit::HostError;
use runner_kit::host::ModelStream;
use serde_json::Value;

use crate::config::ModelOption;
use crate::host::GraphAgentHost;
use crate::prompt::TOOL_CHOICE;
use crate::writer::ResultWriter;

use collect::CollectedOutput;
use scan::AnswerScan;

/// Fallback chain of models. The first model that answers serves the rest of the run.
#[derive(Debug)]
pub(crate) struct ModelChain {
    choices: Vec<ModelOption>,
}

/// Output of one model call.
#[derive(Debug)]
pub(crate) struct ModelReply {
    pub(crate) output: ModelOutput,
    pub(crate) usage: Option<LlmTokenUsage>,
}

/// Parts of a streamed output that are shown to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisibleParts {
    /// Nothing before the end of the output.
    Nothing,
    /// The text outside of calls.
    Text,
    /// The message of an answer in the carrier's arguments.
    Answer,
}

/// Failure of a model call.
#[derive(Debug)]
pub(crate) enum ModelCallFailure {
    /// The request exceeds the model's context window.
    Overflow(HostError),
    /// The run has ended: cancelled, or past its deadline.
    Over(HostError),
    /// All models of the chain failed.
    Silent {
        /// Error of the last model.
        last: String,
        /// Number of models called.
        models: usize,
        /// True if a model may answer a retry.
        retryable: bool,
        /// True if the last model rejected the form of the request.
        refused: bool,
    },
}

impl fmt::Display for ModelCallFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow(error) => {
                write!(
                    formatter,
                    "The model's context window is too small: {}",
                    error.message
                )
            }
            Self::Over(error) => write!(formatter, "{error}"),
            Self::Silent {
                last,
                models: 0 | 1,
                ..
            } => write!(formatter, "The model failed: {last}"),
            Self::Silent { last, .. } => write!(formatter, "All models failed. The last: {last}"),
        }
    }
}

impl ModelChain {
    pub(crate) fn new(choices: Vec<ModelOption>) -> Self {
        Self { choices }
    }

    /// Calls the models in order. Shows the parts named by `stream` during the call.
    pub(crate) async fn ask(
        &mut self,
        host: &impl GraphAgentHost,
        request: &LlmRequest,
        stream: VisibleParts,
        writer: &mut ResultWriter,
    ) -> Result<ModelReply, ModelCallFailure> {
        let mut silent = ModelCallFailure::Silent {
            last: "no model was granted".to_owned(),
            models: 0,
            retryable: false,
            refused: false,
        };
        for (position, choice) in self.choices.iter_mut().enumerate() {
            let failed = match ask_one(choice, host, request, stream, writer).await {
                Ok(reply) => {
                    // Keep only this model: later calls must not wait for the failed ones again.
                    let chosen = self.choices.swap_remove(position);
                    self.choices = vec![chosen];
                    return Ok(reply);
                }
                Err(failed) => failed,
            };
            let (
                ModelCallFailure::Silent {
                    last,
                    retryable,
                    refused,
                    ..
                },
                ModelCallFailure::Silent {
                    models,
                    retryable: before,
                    ..
                },
            ) = (&failed, &silent)
            else {
                // Overflow and the end of the run concern all models.
                return Err(failed);
            };
            tracing::warn!(model.id = choice.id, "model {} failed: {last}", choice.id);
            silent = ModelCallFailure::Silent {
                last: last.clone(),
                models: models + 1,
                retryable: *retryable || *before,
                refused: *refused,
            };
        }
        Err(silent)
    }
}

/// Calls one model. After a provider has rejected the pinned tool, all its calls omit the pin.
async fn ask_one(
    choice: &mut ModelOption,
    host: &impl GraphAgentHost,
    request: &LlmRequest,
    stream: VisibleParts,
    writer: &mut ResultWriter,
) -> Result<ModelReply, ModelCallFailure> {
    if !request.extra_args.contains_key(TOOL_CHOICE) {
        return ask_as(choice, host, request, stream, writer).await;
    }
    if choice.pins {
        let reply = ask_as(choice, host, request, stream, writer).await;
        let Err(ModelCallFailure::Silent {
            refused: true,
            last,
            ..
        }) = &reply
        else {
            return reply;
        };
        tracing::info!(
            model.id = choice.id,
            "model {} refused the request, asking without a pinned tool: {last}",
            choice.id
        );
        choice.pins = false;
    }
    let mut open = request.clone();
    open.extra_args.remove(TOOL_CHOICE);
    ask_as(choice, host, &open, stream, writer).await
}

async fn ask_as(
    choice: &ModelOption,
    host: &impl GraphAgentHost,
    request: &LlmRequest,
    stream: VisibleParts,
    writer: &mut ResultWriter,
) -> Result<ModelReply, ModelCallFailure> {
    // Streaming helps only if deltas are shown; it is also the fallback without a grant of `invoke`.
    let wants_stream = writer.is_streaming() && stream != VisibleParts::Nothing || !choice.invokes;
    if wants_stream && choice.streams {
        let events = host.stream_model(&choice.id, request).await;
        return read_stream(events.map_err(of_host)?, stream, writer).await;
    }
    let answer = host
        .invoke_model(&choice.id, request)
        .await
        .map_err(of_host)?;
    Ok(ModelReply {
        output: collect::of_message(answer.message),
        usage: answer.usage,
    })
}

/// Reads a stream to its end.
async fn read_stream(
    mut events: ModelStream,
    stream: VisibleParts,
    writer: &mut ResultWriter,
) -> Result<ModelReply, ModelCallFailure> {
    let mut collected = CollectedOutput::default();
    let mut scan = AnswerScan::default();
    writer.begin();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(failed) if is_over(&failed) => return Err(ModelCallFailure::Over(failed)),
            // Nothing was shown yet, so the next model may answer instead.
            Err(failed) if !collected.has_begun() => return Err(of_host(failed)),
            Err(failed) => {
                // A truncated output: the parser rejects it, so that no incomplete action runs.
                tracing::warn!(
                    code = failed.code,
                    "the model's stream ended early, treating its output as truncated"
                );
                collected.mark_truncated();
                break;
            }
        };
        let news = collected.add(event);
        match stream {
            VisibleParts::Text => {
                if news.replaced {
                    writer.begin();
                }
                writer.append(&news.text).await;
            }
            VisibleParts::Answer if collected.first_name() == Some(CARRIER) => {
                let text = scan.push(&news.arguments);
                if !text.is_empty() {
                    writer.append(&text).await;
                }
            }
            VisibleParts::Answer | VisibleParts::Nothing => {}
        }
        if collected.is_full() {
            break;
        }
    }
    let (output, usage) = collected.finish();
    Ok(ModelReply { output, usage })
}

fn of_host(failed: HostError) -> ModelCallFailure {
    let reason = failed.details.get("reason").and_then(Value::as_str);
    if is_over(&failed) {
        return ModelCallFailure::Over(failed);
    }
    if reason == Some("context_length_exceeded") {
        return ModelCallFailure::Overflow(failed);
    }
    ModelCallFailure::Silent {
        last: failed.to_string(),
        models: 1,
        retryable: failed.retryable || reason == Some("upstream_malformed"),
        refused: failed.code == "invalid_argument",
    }
}

fn is_over(failed: &HostError) -> bool {
    failed.is_cancelled() || failed.is_deadline_exceeded()
}
