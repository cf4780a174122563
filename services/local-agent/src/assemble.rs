//! First model request of a run: prompt, memory, retrieved passages and input.

mod history;
mod retrieval;

use protocol::context::{AgentInput, AgentRunContext};
use protocol::message::Message;
use runner_kit::HostError;

use crate::clock;
use crate::config::Config;
use crate::context::budget::RequestBudget;
use crate::context::checkpoint::{self, Checkpoint};
use crate::context::{pictures, reference_data};
use crate::host::AgentHost;

pub(crate) use history::Remembered;

/// Parts of the first request, in order.
#[derive(Debug)]
pub(crate) struct AssembledRequest {
    /// Prompt and index of skills.
    pub(crate) prompt: Vec<Message>,
    /// Summary that an earlier run stored.
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) history: Vec<Remembered>,
    /// Passages from the knowledge bases.
    pub(crate) retrieved: Option<Message>,
    pub(crate) current: Message,
}

/// Fetches all parts from the gateway.
pub(crate) async fn assemble(
    host: &impl AgentHost,
    context: &AgentRunContext,
    config: &Config,
    budget: &RequestBudget,
) -> Result<AssembledRequest, HostError> {
    let current = reference_data::user_message(&context.input);
    let current = pictures::of_now(current, context);
    let query = words(&context.input);
    let retrieving = retrieval::retrieve(host, config, query.trim());
    let remembering = async {
        let checkpoint = checkpoint(host, context).await?;
        let history = history::read(host, context, config, budget, checkpoint.as_ref()).await?;
        Ok::<_, HostError>((checkpoint, history))
    };
    let (retrieved, remembered, prompt) =
        tokio::try_join!(retrieving, remembering, prompt(host, context, config))?;
    let (checkpoint, history) = remembered;
    Ok(AssembledRequest {
        prompt,
        checkpoint,
        history,
        retrieved: reference_data::retrieved_message(&retrieved),
        current,
    })
}

/// Text of the user's input.
fn words(input: &AgentInput) -> String {
    if let Some(text) = input.text.as_ref().filter(|text| !text.trim().is_empty()) {
        return text.clone();
    }
    let texts = input
        .contents
        .iter()
        .filter_map(|part| part.text.as_deref());
    texts.collect::<Vec<_>>().join("\n")
}

/// Prompt of the entry, else of the configuration, followed by the skills that the run may activate.
async fn prompt(
    host: &impl AgentHost,
    context: &AgentRunContext,
    config: &Config,
) -> Result<Vec<Message>, HostError> {
    let mut prompt = Vec::new();
    if context.context.available_apis.prompt_get {
        match host.prompt().await {
            Ok(brought) => prompt = brought.unwrap_or_default(),
            Err(failed) => {
                tracing::warn!("the prompt of the entry cannot be read: {}", over(failed)?);
            }
        }
    }
    if prompt.is_empty() {
        prompt.clone_from(&config.prompt);
    }
    if config.date_grounding {
        let today = format!("Today is {} (UTC).", clock::day(clock::now()));
        prompt.push(Message::text("system", today));
    }
    prompt.extend(reference_data::skills_message(&context.resources.skills));
    Ok(prompt)
}

async fn checkpoint(
    host: &impl AgentHost,
    context: &AgentRunContext,
) -> Result<Option<Checkpoint>, HostError> {
    let Some(conversation) = &context.context.conversation_id else {
        return Ok(None);
    };
    if !context.context.available_apis.state {
        return Ok(None);
    }
    match host.state_get(checkpoint::KEY).await {
        Ok(value) => Ok(value.and_then(|value| Checkpoint::parse(&value, conversation))),
        Err(failed) => {
            tracing::warn!(
                "the summary of the conversation cannot be read: {}",
                over(failed)?
            );
            Ok(None)
        }
    }
}

/// Returns a failure that the run survives; passes on failures that end the run.
fn over(failed: HostError) -> Result<HostError, HostError> {
    if failed.is_cancelled() || failed.is_deadline_exceeded() {
        Err(failed)
    } else {
        Ok(failed)
    }
}
