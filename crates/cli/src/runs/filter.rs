//! Filters of `runs list`, and of acts on many runs.

use std::time::Duration;

use clock::Clock;

use crate::agents::AGENTS;
use crate::gateway::{Gateway, encoded};
use crate::ids::find_id;
use crate::lifetime::parse_lifetime;

/// Arguments that select runs without their ids.
pub(super) const FILTERS: [&str; 8] = [
    "status",
    "agent",
    "conversation",
    "since",
    "text",
    "idempotency_key",
    "error",
    "expect",
];

/// Filters of runs.
#[derive(clap::Args)]
pub struct MatchArguments {
    /// Only runs with this status, such as running or failed. May be repeated.
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,
    /// Only runs of this agent: its name, its id, or a part of the id.
    #[arg(long)]
    agent: Option<String>,
    /// Only runs of this conversation.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Only runs created within this time: a number with s, m, h, d or w.
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    since: Option<Duration>,
    /// Only runs whose id, event id or idempotency key begins with this text.
    #[arg(long)]
    text: Option<String>,
    /// Only the run of the event with this idempotency key, and its retries.
    #[arg(long)]
    idempotency_key: Option<String>,
    /// Only runs that ended with this error code.
    #[arg(long, value_name = "CODE")]
    error: Option<String>,
}

impl MatchArguments {
    /// True with any filter.
    pub(super) fn is_given(&self) -> bool {
        let texts = [
            &self.agent,
            &self.conversation,
            &self.text,
            &self.idempotency_key,
            &self.error,
        ];
        !self.status.is_empty() || self.since.is_some() || texts.iter().any(|text| text.is_some())
    }

    /// Parameters of the request.
    pub(super) async fn query(self, gateway: &Gateway) -> anyhow::Result<Vec<String>> {
        let since = self.since.map(|since| {
            let since = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            let from = Clock::system().now_seconds().saturating_sub(since);
            from.max(0).to_string()
        });
        let agent = match self.agent {
            // The API filters by id only.
            Some(agent) => Some(find_id(gateway, &AGENTS, &agent).await?),
            None => None,
        };
        let statuses = Some(self.status.join(",")).filter(|statuses| !statuses.is_empty());
        let parameters = [
            ("created_after", since),
            ("text", self.text),
            ("idempotency_key", self.idempotency_key),
            ("error_code", self.error),
            ("statuses", statuses),
            ("agent_id", agent),
            ("conversation_id", self.conversation),
        ];
        let given = parameters
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| format!("{name}={}", encoded(&value))));
        Ok(given.collect())
    }
}
