//! Asking a model: the configured ones in their order until one has begun to answer.

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

/// The models of a run. The first model that answers serves the rest of the run.
#[derive(Debug)]
pub(crate) struct ModelChain {
    choices: Vec<ModelOption>,
}

/// One output of a model.
#[derive(Debug)]
pub(crate) struct ModelReply {
    pub(crate) output: ModelOutput,
    pub(crate) usage: Option<LlmTokenUsage>,
}

/// Parts of a growing output that the user sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisibleParts {
    /// Nothing before its end.
    Nothing,
    /// Its text.
    Text,
    /// The message of an answer by the carrier.
    Answer,
}

/// Why no model has answered.
#[derive(Debug)]
pub(crate) enum ModelCallFailure {
    /// The request is larger than the model's window.
    Overflow(HostError),
    /// The run itself is over: cancelled, or past its deadline.
    Over(HostError),
    /// No model answered.
    Silent {
        /// The last error.
        last: String,
        /// Models that were asked.
        models: usize,
        /// Whether one of them may answer later.
        retryable: bool,
        /// Whether the last one refused the request as it is.
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

    /// Asks, and shows what `stream` names while it comes.
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
                Ok(asked) => {
                    let chosen = self.choices.swap_remove(position);
                    self.choices = vec![chosen];
                    return Ok(asked);
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

/// Asks one model. A provider that refuses the pinned tool is asked without the pin from then on.
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
        let asked = ask_as(choice, host, request, stream, writer).await;
        let Err(ModelCallFailure::Silent {
            refused: true,
            last,
            ..
        }) = &asked
        else {
            return asked;
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
    let wants_stream = writer.is_streaming() && stream != VisibleParts::Nothing || !choice.invokes;
    if wants_stream && choice.streams {
        let events = host.stream_model(&choice.id, request).await;
        return listen(events.map_err(of_host)?, stream, writer).await;
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

/// Reads a stream to its end. A stream that breaks off after its first piece is a cut-off output: nothing of it runs.
async fn listen(
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
            Err(failed) if !collected.has_begun() => return Err(of_host(failed)),
            Err(failed) => {
                tracing::warn!(code = failed.code, "the model's stream broke off");
                collected.break_off();
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
