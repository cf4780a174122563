//! Agent loop: call the model, execute tool calls, take steering input, repeat.

use protocol::context::AgentRunContext;
use protocol::message::{Message, ToolCall};
use protocol::model::LlmRequest;

use crate::acts::Acts;
use crate::agent::{Failure, LLM_ERROR};
use crate::assemble::assemble;
use crate::config::Config;
use crate::context::{pictures, reference_data};
use crate::host::AgentHost;
use crate::model::{Answer, Ending, ModelFailure, Models, without_thinking};
use crate::speaker::Speaker;
use crate::tools::{Toolbox, with_sound_arguments};
use crate::usage::UsageLog;
use crate::window::Window;

const STOPPED: &str = "Tool call iteration limit reached. I stopped before calling more tools.";

/// Parts that one run works with.
#[derive(Debug)]
pub(crate) struct Work<'a, H> {
    pub(crate) context: &'a AgentRunContext,
    pub(crate) host: &'a H,
    pub(crate) config: &'a Config,
    pub(crate) usage: &'a UsageLog,
    pub(crate) acts: &'a Acts,
}

/// Answers the event and returns the finish reason of the last answer.
pub(crate) async fn converse<H: AgentHost>(
    work: &Work<'_, H>,
    mut speaker: Speaker,
) -> Result<Ending, Failure> {
    let mut models = Models::new(work.config.models.clone());
    let mut window = Window::new(work);
    let (tools, assembled) = tokio::try_join!(
        Toolbox::open(work.host, &work.context.resources, work.config),
        assemble(work.host, work.context, work.config, window.budget()),
    )?;
    window
        .begin(assembled, &tools.tools, models.first())
        .await?;
    if window.is_empty() && !take_steering(work, &mut window).await? {
        return Err(Failure::no_input());
    }

    let mut batches = 0;
    loop {
        speaker.begin_turn();
        let answer = ask(work, &mut models, &mut window, &tools, &mut speaker).await?;
        work.usage.add(answer.usage.clone());
        let calls = answer.message.tool_calls.clone().unwrap_or_default();
        speaker.end_turn(&calls).await;
        let said = with_sound_arguments(without_thinking(&answer.message));
        window.answered(said, answer.usage.as_ref());
        if calls.is_empty() {
            if !take_steering(work, &mut window).await? {
                speaker.complete(&answer.message).await;
                return Ok(answer.ending);
            }
            continue;
        }
        if batches == work.config.max_tool_iterations {
            stop(&calls, &mut speaker).await;
            return Ok(Ending::Whole);
        }
        batches += 1;
        let batch = match answer.ending {
            Ending::Whole => tools.run(work, &speaker, batches, &calls).await?,
            // Truncated arguments may parse and mean something else.
            cut => tools.refuse(&speaker, &calls, cut).await,
        };
        window.push(batch.messages);
        if batch.terminates {
            speaker.complete(&answer.message).await;
            return Ok(Ending::Whole);
        }
        take_steering(work, &mut window).await?;
    }
}

/// Sends the request within the window. Retries once smaller after an overflow, and once without pictures and
/// files after a rejection: a file that no model accepts would otherwise fail every run of the conversation.
async fn ask<H: AgentHost>(
    work: &Work<'_, H>,
    models: &mut Models,
    window: &mut Window<'_, H>,
    tools: &Toolbox,
    speaker: &mut Speaker,
) -> Result<Answer, Failure> {
    window.fit(models.first()).await?;
    let request = |window: &Window<'_, H>| LlmRequest {
        messages: window.messages(),
        tools: tools.tools.clone(),
        remove_think: work.config.remove_think,
        ..LlmRequest::default()
    };
    // Each remedy applies once.
    loop {
        let failed = match models.ask(work.host, &request(window), speaker).await {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        match &failed {
            ModelFailure::Overflow(_) if window.shrink(models.first()).await? => {
                tracing::info!("the context was too large for the model: asking again with less");
            }
            ModelFailure::Silent(silence)
                if silence.is_refusal() && window.leave_out_attachments() =>
            {
                tracing::warn!("asking again without pictures and files: {}", silence.last);
            }
            _ => return Err(failed.into()),
        }
    }
}

/// Appends steering input; false when there is none.
async fn take_steering<H: AgentHost>(
    work: &Work<'_, H>,
    window: &mut Window<'_, H>,
) -> Result<bool, Failure> {
    if !work.context.context.available_apis.steering_pull {
        return Ok(false);
    }
    let items = match work.host.pull_steering().await {
        Ok(items) => items,
        Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => {
            return Err(failed.into());
        }
        Err(failed) => {
            tracing::warn!("what came meanwhile cannot be read: {failed}");
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
async fn stop(calls: &[ToolCall], speaker: &mut Speaker) {
    tracing::warn!(
        calls = calls.len(),
        "the run has reached its limit of tool iterations"
    );
    speaker.begin_turn();
    speaker.say(STOPPED).await;
    speaker.end_turn(&[]).await;
    speaker.complete(&Message::text("assistant", STOPPED)).await;
}

impl From<ModelFailure> for Failure {
    fn from(failed: ModelFailure) -> Self {
        let (message, retryable) = match failed {
            ModelFailure::Over(failed) => return failed.into(),
            ModelFailure::Broken(failed) => {
                (format!("The model broke off: {}", failed.message), false)
            }
            ModelFailure::Overflow(failed) => (
                format!(
                    "The model's context window is too small: {}",
                    failed.message
                ),
                false,
            ),
            ModelFailure::Silent(silence) => (silence.to_string(), silence.is_passing),
        };
        Self {
            code: LLM_ERROR,
            message,
            retryable,
        }
    }
}
