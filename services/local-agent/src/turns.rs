//! Agent loop: call the model, execute tool calls, take steering input, repeat.

use agent_core::RunFailure;
use agent_core::model::{FinishKind, ModelFailure, ModelReply};
use agent_core::usage::UsageLog;
use protocol::context::AgentRunContext;
use protocol::message::{Message, ToolCall};
use protocol::model::LlmRequest;

use crate::assemble::assemble;
use crate::config::Config;
use crate::context::budget::RequestBudget;
use crate::context::{pictures, reference_data};
use crate::failure::{no_input, of_host, of_model};
use crate::host::LocalAgentHost;
use crate::message_writer::MessageWriter;
use crate::model::{ModelFallbacks, without_thinking};
use crate::side_effects::SideEffects;
use crate::tools::{Toolbox, with_valid_arguments};
use crate::window::MessageWindow;

const STOPPED: &str = "Tool call iteration limit reached. I stopped before calling more tools.";

/// Parts that one run works with.
#[derive(Debug)]
pub(crate) struct TurnParts<'a, H> {
    pub(crate) context: &'a AgentRunContext,
    pub(crate) host: &'a H,
    pub(crate) config: &'a Config,
    pub(crate) usage: &'a UsageLog,
    pub(crate) side_effects: &'a SideEffects,
}

/// Answers the event and returns the finish reason of the last answer.
pub(crate) async fn converse<H: LocalAgentHost>(
    work: &TurnParts<'_, H>,
    mut message_writer: MessageWriter,
) -> Result<FinishKind, RunFailure> {
    let mut models = ModelFallbacks::new(work.config.models.clone());
    let budget = RequestBudget::new(&work.config.context, &work.context.runtime.metadata);
    // Tools and history are read at the same time: both need one or more calls to the gateway.
    let (tools, assembled) = tokio::try_join!(
        Toolbox::open(work.host, &work.context.resources, work.config),
        assemble(work.host, work.context, work.config, budget),
    )
    .map_err(of_host)?;
    let opened = MessageWindow::open(work, assembled, &tools.tools, models.first()).await;
    let mut window = opened.map_err(of_host)?;
    // Steering input may have arrived for a run whose event has no input.
    if window.is_empty() && !take_steering(work, &mut window).await? {
        return Err(no_input());
    }

    let mut batches = 0;
    loop {
        message_writer.begin_turn();
        let answer = ask(work, &mut models, &mut window, &tools, &mut message_writer).await?;
        // Counted before the loop can fail, so that a failed run still reports what it cost.
        work.usage.add(answer.usage.as_ref());
        let calls = answer.message.tool_calls.clone().unwrap_or_default();
        message_writer.end_turn(&calls).await;
        // The user saw the answer as it came; the history gets the form that providers accept.
        let message = with_valid_arguments(without_thinking(&answer.message));
        window.answered(message, answer.usage.as_ref());
        // Input that arrived while the model answered is answered in this run, not in the next.
        if calls.is_empty() {
            if !take_steering(work, &mut window).await? {
                message_writer.complete(&answer.message).await;
                return Ok(answer.finish);
            }
            continue;
        }
        // The user has seen the text of this answer; its calls are not executed.
        if batches == work.config.max_tool_iterations {
            stop(&calls, &mut message_writer).await;
            return Ok(FinishKind::Complete);
        }
        batches += 1;
        let batch = match answer.finish {
            FinishKind::Complete => {
                let batch = tools.run(work, &message_writer, batches, &calls).await;
                batch.map_err(of_host)?
            }
            // Truncated arguments may parse and mean something else.
            cut => tools.refuse(&message_writer, &calls, cut).await,
        };
        window.push(batch.messages);
        // The tool has answered the user; another turn would repeat it.
        if batch.terminates {
            message_writer.complete(&answer.message).await;
            return Ok(FinishKind::Complete);
        }
        take_steering(work, &mut window).await?;
    }
}

/// Sends the request within the window. Retries once smaller after an overflow, and once without pictures and
/// files after a rejection: a file that no model accepts would otherwise fail every run of the conversation.
async fn ask<H: LocalAgentHost>(
    work: &TurnParts<'_, H>,
    models: &mut ModelFallbacks,
    window: &mut MessageWindow<'_, H>,
    tools: &Toolbox,
    message_writer: &mut MessageWriter,
) -> Result<ModelReply, RunFailure> {
    // Before the request: an overflow costs a call to the provider.
    window.fit(models.first()).await.map_err(of_host)?;
    let request = |window: &MessageWindow<'_, H>| LlmRequest {
        messages: window.messages(),
        tools: tools.tools.clone(),
        remove_think: work.config.remove_think,
        ..LlmRequest::default()
    };
    // Each remedy applies once, so the loop ends.
    loop {
        let failed = match models
            .ask(work.host, &request(window), message_writer)
            .await
        {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        match &failed {
            ModelFailure::Overflow(_)
                if window.shrink(models.first()).await.map_err(of_host)? =>
            {
                tracing::info!(
                    "request exceeded the model's context window, retrying with a smaller one"
                );
            }
            ModelFailure::Silent(silence)
                if silence.is_refusal() && window.leave_out_attachments() =>
            {
                tracing::warn!(
                    "model rejected the request, retrying without pictures and files: {}",
                    silence.last
                );
            }
            _ => return Err(of_model(failed)),
        }
    }
}

/// Appends steering input; false when there is none.
async fn take_steering<H: LocalAgentHost>(
    work: &TurnParts<'_, H>,
    window: &mut MessageWindow<'_, H>,
) -> Result<bool, RunFailure> {
    if !work.context.context.available_apis.steering_pull {
        return Ok(false);
    }
    let items = match work.host.pull_steering().await {
        Ok(items) => items,
        // Only cancel and deadline end the run: steering input is optional.
        Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => {
            return Err(of_host(failed));
        }
        Err(failed) => {
            tracing::warn!("cannot pull steering messages, continuing without: {failed}");
            return Ok(false);
        }
    };
    let users: Vec<Message> = items
        .iter()
        .map(|item| reference_data::user_message(&item.input))
        .map(|message| pictures::of_now(message, work.context))
        .collect();
    let came = !users.is_empty();
    window.push(users);
    Ok(came)
}

/// Handles a batch beyond the limit.
async fn stop(calls: &[ToolCall], message_writer: &mut MessageWriter) {
    tracing::warn!(
        calls = calls.len(),
        "tool iteration limit reached, ending the run without the pending calls"
    );
    // A turn of its own: the notice follows the model's text as a new paragraph.
    message_writer.begin_turn();
    message_writer.append(STOPPED).await;
    message_writer.end_turn(&[]).await;
    message_writer
        .complete(&Message::text("assistant", STOPPED))
        .await;
}
