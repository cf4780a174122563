//! Model calls: reads one answer and forwards its text.

mod thinking;

use std::time::Duration;

use agent_core::model::{
    CollectedReply, FallbackChain, ModelFailure, ModelReply, Silence, is_over, with_ids,
};
use futures_util::StreamExt as _;
use protocol::message::Message;
use protocol::model::LlmRequest;
use runner_kit::HostError;
use runner_kit::host::ModelStream;

use crate::config::ModelChoice;
use crate::context::overflow::is_context_overflow;
use crate::host::LocalAgentHost;
use crate::message_writer::MessageWriter;

pub(crate) use thinking::without_thinking;

/// Buffered text is flushed after the model is silent for this long.
const PAUSE: Duration = Duration::from_millis(150);

/// Models of a run. The first that answers serves the rest of the run.
#[derive(Debug)]
pub(crate) struct ModelFallbacks(FallbackChain<ModelChoice>);

impl ModelFallbacks {
    pub(crate) fn new(choices: Vec<ModelChoice>) -> Self {
        Self(FallbackChain::new(choices))
    }

    /// Primary model; its tokenizer counts.
    pub(crate) fn first(&self) -> &str {
        self.0.first().map_or("", |choice| choice.id.as_str())
    }

    /// Calls the models and forwards streamed text.
    pub(crate) async fn ask(
        &mut self,
        host: &impl LocalAgentHost,
        request: &LlmRequest,
        message_writer: &mut MessageWriter,
    ) -> Result<ModelReply, ModelFailure> {
        let mut attempts = self.0.attempts();
        loop {
            let choice = attempts.next_model()?.clone();
            match ask_one(&choice, host, request, message_writer).await {
                Ok(answer) => {
                    attempts.answered();
                    return Ok(answer);
                }
                Err(failed) => {
                    if matches!(failed, ModelFailure::Lost(_)) {
                        // The model answers again from its start.
                        message_writer.start_turn_over();
                    }
                    // No text is shown, so the next model can answer unnoticed.
                    attempts.failed(&choice.id, failed)?;
                }
            }
        }
    }
}

async fn ask_one(
    choice: &ModelChoice,
    host: &impl LocalAgentHost,
    request: &LlmRequest,
    message_writer: &mut MessageWriter,
) -> Result<ModelReply, ModelFailure> {
    // A client without streaming shows one message at the end; increments are useless to it.
    if message_writer.is_streaming() && choice.streams {
        let stream = host.stream_model(&choice.id, request).await;
        return listen(stream.map_err(before_first)?, message_writer).await;
    }
    if !choice.invokes {
        let last = format!("{} can only stream", choice.id);
        return Err(ModelFailure::Silent(Silence::of_one(last)));
    }
    let response = host.invoke_model(&choice.id, request).await;
    let response = response.map_err(before_first)?;
    // An empty answer counts as a failure, so that the next model gets its chance.
    if is_empty(&response.message) {
        return Err(empty());
    }
    message_writer.append(&response.message.plain_text()).await;
    let reply = ModelReply::from(response);
    Ok(ModelReply {
        message: with_ids(reply.message),
        ..reply
    })
}

/// Reads a stream to its end and forwards its text.
async fn listen(
    mut stream: ModelStream,
    message_writer: &mut MessageWriter,
) -> Result<ModelReply, ModelFailure> {
    let mut collected = CollectedReply::default();
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
                let had_begun = collected.has_begun();
                let new = collected.add(event);
                if new.replaces {
                    message_writer.start_turn_over();
                }
                // A blank start is withheld: the model may still fail, and the next one starts anew.
                if collected.has_begun() {
                    let text = if had_begun {
                        &new.text
                    } else {
                        collected.text()
                    };
                    message_writer.append(text).await;
                }
            }
            // Nothing was shown yet: the failure may go to the next model.
            Err(failed) if !collected.has_begun() => return Err(before_first(failed)),
            Err(failed) if is_over(&failed) => return Err(ModelFailure::Over(failed)),
            Err(failed) if failed.is_gateway_lost() => return Err(ModelFailure::Lost(failed)),
            // A second model would repeat text that the user has already read.
            Err(failed) => return Err(ModelFailure::Broken(failed)),
        }
    }
    if !collected.has_begun() {
        return Err(empty());
    }
    let reply = collected.finish();
    Ok(ModelReply {
        message: with_ids(reply.message),
        ..reply
    })
}

/// Maps a failure before the first text. Unknown upstreams report an overflow by their words only.
fn before_first(failed: HostError) -> ModelFailure {
    if !is_over(&failed) && is_context_overflow(&failed.message) {
        return ModelFailure::Overflow(failed);
    }
    failed.into()
}

fn empty() -> ModelFailure {
    ModelFailure::Silent(Silence {
        is_passing: true,
        ..Silence::of_one("the model's answer is empty")
    })
}

fn is_empty(message: &Message) -> bool {
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    calls.is_empty() && message.plain_text().trim().is_empty()
}
