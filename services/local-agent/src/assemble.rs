//! First model request of a run: prompt, memory, retrieved passages and input.

mod history;
mod retrieval;

use protocol::context::{AgentInput, AgentRunContext};
use protocol::message::Message;
use runner_kit::HostError;
use serde_json::Value;

use crate::config::Config;
use crate::context::budget::RequestBudget;
use crate::context::checkpoint::{self, Checkpoint};
use crate::context::learned_limit::{self, LearnedLimit};
use crate::context::{pictures, reference_data};
use crate::dates;
use crate::host::LocalAgentHost;
use clock::Clock;

pub(crate) use history::Remembered;

/// Parts of the first request, in order.
#[derive(Debug)]
pub(crate) struct AssembledRequest {
    /// Prompt and index of skills.
    pub(crate) prompt: Vec<Message>,
    /// Summary that an earlier run stored.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Budget within the limit that an earlier run learned.
    pub(crate) budget: RequestBudget,
    pub(crate) history: Vec<Remembered>,
    /// Passages from the knowledge bases.
    pub(crate) retrieved: Option<Message>,
    pub(crate) current: Message,
}

/// Fetches all parts from the gateway.
pub(crate) async fn assemble(
    host: &impl LocalAgentHost,
    context: &AgentRunContext,
    config: &Config,
    budget: RequestBudget,
) -> Result<AssembledRequest, HostError> {
    let current = reference_data::user_message(&context.input);
    // Before any request: one artifact reference that the run may not read fails the complete model call.
    let current = pictures::of_now(current, context);
    let query = words(&context.input);
    let retrieving = retrieval::retrieve(host, config, query.trim());
    // Before the history: the checkpoint has the start of the history, the learned limit how much of it fits.
    let remembering = async {
        let (checkpoint, limit) = tokio::try_join!(
            state_of_conversation(host, context, checkpoint::KEY),
            state_of_conversation(host, context, learned_limit::KEY),
        )?;
        let conversation = context.context.conversation_id.as_deref();
        let checkpoint = checkpoint
            .zip(conversation)
            .and_then(|(value, conversation)| Checkpoint::parse(&value, conversation));
        // Of the primary model only: another model may have a larger window.
        let limit = limit.zip(config.models.first()).and_then(|(value, model)| {
            LearnedLimit::tokens_of(value, &model.id, Clock::system().now_seconds())
        });
        let budget = limit.map_or(budget, |limit| budget.limited_to(limit));
        let history = history::read(host, context, config, &budget, checkpoint.as_ref()).await?;
        Ok::<_, HostError>((checkpoint, budget, history))
    };
    // The three share no data, so the first request waits for the slowest of them only.
    let (retrieved, remembered, prompt) =
        tokio::try_join!(retrieving, remembering, prompt(host, context, config))?;
    let (checkpoint, budget, history) = remembered;
    Ok(AssembledRequest {
        prompt,
        checkpoint,
        budget,
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
    host: &impl LocalAgentHost,
    context: &AgentRunContext,
    config: &Config,
) -> Result<Vec<Message>, HostError> {
    let mut prompt = Vec::new();
    if context.context.available_apis.prompt_get {
        match host.prompt().await {
            Ok(brought) => prompt = brought.unwrap_or_default(),
            Err(failed) => {
                tracing::warn!(
                    "cannot read the entry's prompt, using the configured prompt: {}",
                    survivable(failed)?
                );
            }
        }
    }
    // An entry may answer with an empty list; the operator's prompt must not be lost by that.
    if prompt.is_empty() {
        prompt.clone_from(&config.prompt);
    }
    if config.date_grounding {
        let today = format!(
            "Today is {} (UTC).",
            dates::day(Clock::system().now_seconds())
        );
        prompt.push(Message::text("system", today));
    }
    prompt.extend(reference_data::skills_message(&context.resources.skills));
    Ok(prompt)
}

/// Value of the conversation's state; `None` without access, and after a failed read.
async fn state_of_conversation(
    host: &impl LocalAgentHost,
    context: &AgentRunContext,
    key: &str,
) -> Result<Option<Value>, HostError> {
    // Without permission the gateway would reject the read; the check saves that call.
    let access = &context.context;
    if access.conversation_id.is_none() || !access.available_apis.state {
        return Ok(None);
    }
    match host.state_get(key).await {
        Ok(value) => Ok(value),
        Err(failed) => {
            tracing::warn!(
                "cannot read state {key} of the conversation, continuing without: {}",
                survivable(failed)?
            );
            Ok(None)
        }
    }
}

/// Returns a failure that the run survives; passes on failures that end the run.
fn survivable(failed: HostError) -> Result<HostError, HostError> {
    if failed.is_cancelled() || failed.is_deadline_exceeded() {
        Err(failed)
    } else {
        Ok(failed)
    }
}
