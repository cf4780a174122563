//! Conversation of a run, kept within the model's context window.

use protocol::message::{LlmTokenUsage, Message};
use protocol::model::{CountTokens, LlmRequest, LlmTool};
use protocol::resources::ModelOperation;
use runner_kit::HostError;
use serde_json::Value;

use crate::assemble::AssembledRequest;
use crate::context::budget::RequestBudget;
use crate::context::checkpoint::{self, Checkpoint};
use crate::context::compact::{Anchor, Compacted, Counter, Summarizer, compact};
use crate::context::conversation::RequestMessages;
use crate::context::estimate;
use crate::context::learned_limit::{self, LearnedLimit};
use crate::context::summary::request::SummaryRequest;
use crate::context::{pictures, wire};
use crate::host::LocalAgentHost;
use crate::turns::TurnParts;
use clock::Clock;

/// Compaction passes after a refusal. An estimate may be below the real count and need a second pass.
const SHRINKS: usize = 2;

/// Messages for the model and their known size.
#[derive(Debug)]
pub(crate) struct MessageWindow<'a, H> {
    work: &'a TurnParts<'a, H>,
    budget: RequestBudget,
    conversation: RequestMessages,
    /// Cursor of the page after each history message.
    cursors: Vec<Option<String>>,
    anchor: Option<Anchor>,
    /// Tokens of the last request, as far as known.
    sent: u64,
    /// This turn was already retried smaller.
    has_shrunk: bool,
}

impl<'a, H: LocalAgentHost> MessageWindow<'a, H> {
    /// Takes the assembled parts and compacts them when needed.
    pub(crate) async fn open(
        work: &'a TurnParts<'a, H>,
        assembled: AssembledRequest,
        tools: &[LlmTool],
        model: &str,
    ) -> Result<Self, HostError> {
        // Kept parallel: a stored summary needs the cursor of the last message that it covers.
        let (history, cursors): (Vec<_>, Vec<_>) = assembled
            .history
            .into_iter()
            .map(|remembered| (remembered.message, remembered.cursor))
            .unzip();
        let summary = assembled.checkpoint.as_ref();
        let conversation = RequestMessages {
            prompt: assembled.prompt,
            summaries: summary
                .and_then(Checkpoint::summary_message)
                .into_iter()
                .collect(),
            history,
            retrieved: assembled.retrieved,
            current: vec![assembled.current],
        };
        // Tools are sent with each request but are no messages, so the first anchor is their estimate.
        let beside = serde_json::to_string(tools).unwrap_or_default();
        let anchor = (!tools.is_empty()).then(|| Anchor {
            messages: 0,
            tokens: estimate::text(&beside),
        });
        let mut window = Self {
            work,
            budget: assembled.budget,
            conversation,
            cursors,
            anchor,
            sent: 0,
            has_shrunk: false,
        };
        window.pass(model).await?;
        Ok(window)
    }

    /// True when there is no message for a model.
    pub(crate) fn is_empty(&self) -> bool {
        self.conversation.iter().next().is_none()
    }

    /// Messages of the next request.
    pub(crate) fn messages(&self) -> Vec<Message> {
        wire::messages(&self.conversation)
    }

    /// Appends the model's answer to the last request.
    pub(crate) fn answered(&mut self, message: Message, usage: Option<&LlmTokenUsage>) {
        // Counted before the push: the provider's total covers the request and this answer.
        let messages = self.conversation.iter().count() + 1;
        self.conversation.current.push(message);
        let tokens = usage.and_then(|usage| usage.total_tokens);
        let tokens = tokens.and_then(|tokens| u64::try_from(tokens).ok());
        // A total of 0 is an unknown one.
        if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
            self.anchor = Some(Anchor { messages, tokens });
        }
    }

    /// Appends messages after the last one.
    pub(crate) fn push(&mut self, messages: Vec<Message>) {
        self.conversation.current.extend(messages);
    }

    /// Replaces pictures and files by descriptions; false when there are none.
    pub(crate) fn leave_out_attachments(&mut self) -> bool {
        let mut found = false;
        for message in self.conversation.iter_mut() {
            found |= pictures::describe_all(message);
        }
        found
    }

    /// Compacts before the next request when needed.
    pub(crate) async fn fit(&mut self, model: &str) -> Result<(), HostError> {
        self.has_shrunk = false;
        self.pass(model).await
    }

    /// Compacts below the refused size, and stores the new limit for later runs; false when that was done before,
    /// or nothing can be left out.
    pub(crate) async fn shrink(&mut self, model: &str) -> Result<bool, HostError> {
        // Once per turn: a second overflow shows that estimates do not help.
        if std::mem::replace(&mut self.has_shrunk, true) {
            return Ok(false);
        }
        // Compared by estimates, so that a pass without effect is recognised without a host call.
        let before = self.conversation.estimate();
        for _ in 0..SHRINKS {
            self.budget = self.budget.for_retry_below(self.sent);
            self.pass(model).await?;
            if self.conversation.estimate() < before {
                // Learned only after the request shrank: later runs start with this limit.
                let limit = LearnedLimit {
                    model_id: model.to_owned(),
                    tokens: self.budget.input,
                    created_at: Clock::system().now_seconds(),
                };
                self.store(learned_limit::KEY, limit.to_value()).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compacts within the budget. A summary made here is stored for later passes and runs.
    async fn pass(&mut self, model: &str) -> Result<(), HostError> {
        let host_model = WindowModel {
            work: self.work,
            // An error ends the run, so the taken conversation need not be restored.
            model,
        };
        let conversation = std::mem::take(&mut self.conversation);
        let mut compacted = compact(
            conversation,
            &self.budget,
            self.anchor,
            &host_model,
            &host_model,
        )
        .await?;
        self.conversation = std::mem::take(&mut compacted.conversation);
        self.anchor = compacted.anchor;
        self.sent = compacted.tokens_after;
        if compacted.compacted {
            let (before, after) = (compacted.tokens_before, compacted.tokens_after);
            tracing::info!(
                before,
                after,
                "the context was compacted from {before} to {after} tokens"
            );
        }
        // Before the cursors are renumbered, because the summary's cursor has an old index.
        self.store_summary(&compacted).await?;
        let remaining = compacted.remaining_history.into_iter();
        self.cursors = remaining
            .map(|index| self.cursors.get_mut(index).and_then(Option::take))
            .collect();
        Ok(())
    }

    async fn store_summary(&self, compacted: &Compacted) -> Result<(), HostError> {
        // Without a cursor the next run could not tell where the summary ends.
        let last = compacted.omitted_history.checked_sub(1);
        let covered = last.and_then(|last| self.cursors.get(last)?.clone());
        let (Some(summary), Some(covers_until), Some(conversation_id)) = (
            compacted.summary.clone(),
            covered,
            self.work.context.context.conversation_id.clone(),
        ) else {
            return Ok(());
        };
        let checkpoint = Checkpoint {
            summary,
            covers_until,
            tokens_before: compacted.tokens_before,
            created_at: Clock::system().now_seconds(),
            conversation_id,
        };
        self.store(checkpoint::KEY, checkpoint.to_value()).await
    }

    /// Writes a value of the conversation's state. Later runs repeat the work after a failed write.
    async fn store(&self, key: &str, value: Value) -> Result<(), HostError> {
        let access = &self.work.context.context;
        if access.conversation_id.is_none() || !access.available_apis.state {
            return Ok(());
        }
        match self.work.host.state_put(key, value).await {
            // The run is over. Other failures only cost a repeated summary later.
            Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => Err(failed),
            Err(failed) => {
                tracing::warn!("cannot store state {key} of the conversation: {failed}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Model that counts and summarises.
struct WindowModel<'a, H> {
    work: &'a TurnParts<'a, H>,
    model: &'a str,
}

impl<H: LocalAgentHost> Counter for WindowModel<'_, H> {
    type Error = HostError;

    async fn count(&self, messages: &[Message]) -> Result<u64, HostError> {
        let request = CountTokens {
            messages: messages.to_vec(),
            ..CountTokens::default()
        };
        // Saves a host call.
        if request.messages.is_empty() {
            return Ok(0);
        }
        self.work.host.count_tokens(self.model, &request).await
    }
}

impl<H: LocalAgentHost> Summarizer for WindowModel<'_, H> {
    async fn summarize(&self, request: SummaryRequest) -> Option<String> {
        // Only with a grant to invoke: the call would be denied, and the local summary is as good.
        let models = &self.work.context.resources.models;
        let model = models.iter().find(|model| model.model_id == self.model)?;
        if !model.operations.contains(&ModelOperation::Invoke) {
            return None;
        }
        let request = LlmRequest {
            messages: request.messages,
            remove_think: self.work.config.remove_think,
            ..LlmRequest::default()
        };
        match self.work.host.invoke_model(self.model, &request).await {
            Ok(response) => Some(response.message.plain_text()),
            Err(failed) => {
                tracing::warn!("model summary failed, summarizing locally: {failed}");
                None
            }
        }
    }
}
