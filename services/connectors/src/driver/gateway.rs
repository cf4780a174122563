//! A gateway as the host of a run.

use protocol::context::AgentRunContext;
use protocol::history::TranscriptItem;
use protocol::interaction::{AwaitedInteraction, InteractionRequest};
use protocol::result::AgentRunResult;
use runner_kit::host::{Blob, HistoryPageQuery};
use runner_kit::{Host, HostError, ResultSender};

use crate::driver::host::{NewFile, RunHost};
use crate::machine::HistoryMessage;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::results;

/// Maximum messages of one page of the history.
const PAGE: u32 = 100;

/// The gateway that sent a run.
pub struct GatewayHost {
    pub host: Host,
    pub out: ResultSender,
    /// Permission to read the history.
    pub has_history: bool,
    /// The current event, which is excluded from the history.
    pub event_id: String,
}

impl GatewayHost {
    pub fn of(context: &AgentRunContext, host: Host, out: ResultSender) -> Self {
        Self {
            host,
            out,
            has_history: context.context.available_apis.history_page,
            event_id: context.event.event_id.clone(),
        }
    }

    fn message(&self, item: TranscriptItem) -> Option<HistoryMessage> {
        let is_included =
            item.event_id != self.event_id && matches!(item.role.as_str(), "user" | "assistant");
        let text = item
            .content
            .filter(|text| is_included && !text.is_empty())?;
        let role = item.role;
        Some(HistoryMessage { role, text })
    }
}

impl RunHost for GatewayHost {
    async fn tell(&mut self, result: AgentRunResult) {
        self.out.send(result).await;
    }

    async fn history(&mut self, messages: u32) -> Vec<HistoryMessage> {
        if !self.has_history || messages == 0 {
            return Vec::new();
        }
        let query = HistoryPageQuery {
            // Two more than needed, because the current event's messages may be among them.
            limit: Some((messages + 2).min(PAGE)),
            ..HistoryPageQuery::default()
        };
        match self.host.history().page(&query).await {
            Ok(page) => {
                // The page lists the newest first.
                let items = page.items.into_iter();
                let found = items.filter_map(|item| self.message(item));
                let max_messages = usize::try_from(messages).unwrap_or(usize::MAX);
                let mut found: Vec<_> = found.take(max_messages).collect();
                found.reverse();
                found
            }
            Err(error) => {
                // A run without history can still answer, so warn and continue.
                let text = format!("the conversation's history cannot be read: {}", error.code);
                self.tell(results::log("warning", &text)).await;
                Vec::new()
            }
        }
    }

    async fn answer(&mut self, question: &InteractionRequest) -> Mapped<AwaitedInteraction> {
        let id = question.interaction_id.as_str();
        self.host
            .interactions()
            .wait(id)
            .await
            .or_else(|error| unanswered(&error))
    }

    async fn save(&mut self, file: NewFile) -> Result<String, String> {
        let blob = Blob {
            content_type: file.mime_type,
            bytes: file.bytes,
        };
        let created = self.host.artifacts().create(&file.name, blob).await;
        let created = created.map_err(|error| error.to_string())?;
        Ok(created.artifact_id)
    }
}

fn unanswered(error: &HostError) -> Mapped<AwaitedInteraction> {
    if error.is_cancelled() {
        // A cancelled wait is an answer for the machine, which then stops the platform.
        return Ok(AwaitedInteraction::Cancelled);
    }
    let kind = if error.is_deadline_exceeded() {
        FailureKind::Timeout
    } else {
        FailureKind::ApiError
    };
    let message = format!(
        "cannot ask the platform's question: {} ({})",
        error.message, error.code
    );
    Err(ConnectorFailure::new(kind, message))
}
