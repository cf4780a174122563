//! Model calls: reads one output and shows its visible parts.

mod scan;

use action_graph::declaration::CARRIER;
use action_graph::output::{Finish, ModelOutput, NativeCall};
use agent_core::host::AgentHost;
use agent_core::model::{CollectedReply, FinishKind, ModelFailure, ModelReply, Silence, is_over};
use futures_util::StreamExt as _;
use protocol::message::LlmTokenUsage;
use protocol::model::LlmRequest;
use runner_kit::host::ModelStream;

use crate::config::ModelOption;
use crate::prompt::TOOL_CHOICE;
use crate::writer::ResultWriter;

use scan::AnswerScan;

/// Maximum bytes of text and arguments of one output. A longer output is truncated.
const MAX_BYTES: usize = 1 << 20;

/// Fallback chain of models. The first model that answers serves the rest of the run.
#[derive(Debug)]
pub(crate) struct ModelChain(agent_core::model::FallbackChain<ModelOption>);

/// Output of one model call.
#[derive(Debug)]
pub(crate) struct OutputReply {
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

impl ModelChain {
    pub(crate) fn new(choices: Vec<ModelOption>) -> Self {
        Self(agent_core::model::FallbackChain::new(choices))
    }

    /// Calls the models in order. Shows the parts named by `stream` during the call.
    pub(crate) async fn ask(
        &mut self,
        host: &impl AgentHost,
        request: &LlmRequest,
        stream: VisibleParts,
        writer: &mut ResultWriter,
    ) -> Result<OutputReply, ModelFailure> {
        let mut attempts = self.0.attempts();
        loop {
            let choice = attempts.next_model()?;
            match ask_one(choice, host, request, stream, writer).await {
                Ok(reply) => {
                    attempts.answered();
                    return Ok(reply);
                }
                Err(failed) => {
                    let id = choice.id.clone();
                    attempts.failed(&id, failed)?;
                }
            }
        }
    }
}

/// Calls one model. After a provider has rejected the pinned tool, all its calls omit the pin.
async fn ask_one(
    choice: &mut ModelOption,
    host: &impl AgentHost,
    request: &LlmRequest,
    stream: VisibleParts,
    writer: &mut ResultWriter,
) -> Result<OutputReply, ModelFailure> {
    if !request.extra_args.contains_key(TOOL_CHOICE) {
        return ask_as(choice, host, request, stream, writer).await;
    }
    if choice.pins {
        let reply = ask_as(choice, host, request, stream, writer).await;
        let Err(ModelFailure::Silent(Silence {
            refused: 1, last, ..
        })) = &reply
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
    host: &impl AgentHost,
    request: &LlmRequest,
    stream: VisibleParts,
    writer: &mut ResultWriter,
) -> Result<OutputReply, ModelFailure> {
    // Streaming helps only if deltas are shown; it is also the fallback without a grant of `invoke`.
    let wants_stream = writer.is_streaming() && stream != VisibleParts::Nothing || !choice.invokes;
    if wants_stream && choice.streams {
        let events = host.stream_model(&choice.id, request).await?;
        return read_stream(events, stream, writer).await;
    }
    let answer = host.invoke_model(&choice.id, request).await?;
    Ok(ModelReply::from(answer).into())
}

/// Reads a stream to its end.
async fn read_stream(
    mut events: ModelStream,
    stream: VisibleParts,
    writer: &mut ResultWriter,
) -> Result<OutputReply, ModelFailure> {
    let mut collected = CollectedReply::default();
    let mut is_truncated = false;
    let mut scan = AnswerScan::default();
    writer.begin();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(failed) if is_over(&failed) => return Err(ModelFailure::Over(failed)),
            Err(failed) if failed.is_gateway_lost() => return Err(ModelFailure::Lost(failed)),
            // Nothing was shown yet, so the next model may answer instead.
            Err(failed) if !collected.has_begun() => return Err(failed.into()),
            Err(failed) => {
                // A truncated output: the parser rejects it, so that no incomplete action runs.
                tracing::warn!(
                    code = failed.code,
                    "the model's stream ended early, treating its output as truncated"
                );
                is_truncated = true;
                break;
            }
        };
        let news = collected.add(event);
        match stream {
            VisibleParts::Text => {
                if news.replaces {
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
        if collected.bytes() > MAX_BYTES {
            is_truncated = true;
            break;
        }
    }
    let mut reply = OutputReply::from(collected.finish());
    if is_truncated {
        reply.output.finish = Finish::Cut;
    }
    Ok(reply)
}

impl From<ModelReply> for OutputReply {
    fn from(reply: ModelReply) -> Self {
        let text = reply.message.plain_text();
        let calls = reply.message.tool_calls.unwrap_or_default();
        let finish = match reply.finish {
            FinishKind::Complete if calls.is_empty() => Finish::Stop,
            FinishKind::Complete => Finish::ToolCalls,
            // A filtered or failed output is incomplete, too.
            FinishKind::CutOff | FinishKind::Filtered | FinishKind::Broken => Finish::Cut,
        };
        let calls = calls.into_iter().map(|call| NativeCall {
            name: call.function.name,
            arguments: call.function.arguments,
        });
        Self {
            output: ModelOutput {
                text,
                calls: calls.collect(),
                finish,
            },
            usage: reply.usage,
        }
    }
}
