//! Summary of an ended run, read from the store.

use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use protocol::raw::RawJson;
use protocol::run::RunStatus;
use serde_json::Value;
use store::Store;

/// Maximum number of characters of the event's text.
const MAX_TEXT: usize = 60;

/// Summary of an ended run.
#[derive(Debug, PartialEq)]
pub(crate) struct RunLine {
    pub(crate) ended_at_ms: i64,
    pub(crate) agent: String,
    pub(crate) status: RunStatus,
    pub(crate) reason: Option<String>,
    pub(crate) duration_ms: i64,
    /// `None`: no call of the run was counted.
    pub(crate) tokens: Option<u64>,
    /// The run that started it as a child run.
    pub(crate) parent: Option<RunId>,
    /// `None`: the event has no text.
    pub(crate) text: Option<String>,
    /// Error code and message of a failed run.
    pub(crate) failure: Option<(String, String)>,
    /// Name of the runner's endpoint.
    pub(crate) endpoint: String,
    pub(crate) run_id: RunId,
}

/// Reads the summary of a run. `None`: the run cannot be read.
pub(super) async fn read(store: &Store, workspace: &WorkspaceId, id: RunId) -> Option<RunLine> {
    let run = store.runs().find_run(workspace, id).await.ok()??;
    let agent = store.agents().find_agent(workspace, run.agent_id).await;
    let event = store.events().find_event(workspace, &run.event_id).await;
    let endpoint = store.endpoints().find_endpoint_name(run.endpoint_id).await;
    let event: Option<Value> = event
        .ok()
        .flatten()
        .and_then(|event| serde_json::from_str(&event.envelope).ok());
    let text = event.as_ref().and_then(|event| {
        // A child run has the parent's instruction as its text.
        let summary = run
            .parent_run_id
            .and_then(|_| event["data"]["summary"].as_str());
        summary.or_else(|| event["input"]["text"].as_str())
    });
    Some(RunLine {
        agent: match agent.ok().flatten() {
            Some(agent) => agent.spec.name,
            None => run.agent_id.to_string(),
        },
        endpoint: match endpoint.ok().flatten() {
            Some((_, name)) => name,
            None => run.endpoint_id.to_string(),
        },
        text: text.and_then(preview),
        ..of_run(&run)
    })
}

fn of_run(run: &Run) -> RunLine {
    let ended_at_ms = run.finished_at.unwrap_or(run.created_at);
    let usage = run.usage.as_ref().map(RawJson::value);
    let error = run.error.as_ref().map(RawJson::value);
    let text = |error: &Value, key: &str| error[key].as_str().unwrap_or_default().to_owned();
    RunLine {
        ended_at_ms,
        agent: String::new(),
        status: run.status,
        reason: run.status_reason.clone(),
        duration_ms: (ended_at_ms - run.created_at).max(0),
        tokens: usage.and_then(|usage| tokens(&usage)),
        parent: run.parent_run_id,
        text: None,
        failure: error.map(|error| (text(&error, "code"), text(&error, "message"))),
        endpoint: String::new(),
        run_id: run.id,
    }
}

fn tokens(usage: &Value) -> Option<u64> {
    let count = |key: &str| usage[key].as_u64();
    // Some providers report only the two parts.
    let sum = || Some(count("prompt_tokens")? + count("completion_tokens")?);
    count("total_tokens")
        .or_else(sum)
        .filter(|tokens| *tokens > 0)
}

/// The text on one line, cut.
fn preview(text: &str) -> Option<String> {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return None;
    }
    if let Some((end, _)) = words.char_indices().nth(MAX_TEXT) {
        words.truncate(end);
        words.push('…');
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn previews_are_one_short_line() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(preview(text).as_deref(), expected, "{text:?}");
        };
        check(" \n", None);
        check("two\n lines", Some("two lines"));
        let cut = format!("{}…", "é".repeat(60));
        check(&"é".repeat(61), Some(&cut));
    }

    #[test]
    fn counts_all_tokens_of_a_run() {
        let check = |usage: Value, expected| assert_eq!(tokens(&usage), expected, "{usage}");
        check(json!({"total_tokens": 5, "prompt_tokens": 1}), Some(5));
        check(json!({"prompt_tokens": 3, "completion_tokens": 4}), Some(7));
        check(json!({"prompt_tokens": 3}), None);
        check(json!({"total_tokens": 0}), None);
    }
}
