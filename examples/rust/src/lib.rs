//! The echo runner: it repeats the input text and counts its runs for each conversation.

use std::sync::Arc;

use protocol::context::AgentRunContext;
use protocol::id::RunnerId;
use protocol::manifest::{AgentRunnerManifest, Capabilities, I18n, Permissions};
use protocol::resources::{HistoryOperation, StateScope};
use runner_kit::{ResultSender, ResultStream, RunError, RunHandle, Runner, results, stream};
use serde_json::Value;

const ID: &str = "plugin:runnel/echo/default";
const COUNT: &str = "echo.count";
const NOTHING: &str = "(nothing to echo)";

/// The runner `plugin:runnel/echo/default`.
pub fn echo() -> Arc<dyn Runner> {
    Arc::new(Echo)
}

struct Echo;

impl Runner for Echo {
    fn manifest(&self) -> AgentRunnerManifest {
        let id: RunnerId = ID.parse().expect("the id has three parts");
        let texts = |en: &str, zh: &str| {
            I18n::from([
                ("en_US".to_owned(), en.to_owned()),
                ("zh_Hans".to_owned(), zh.to_owned()),
            ])
        };
        AgentRunnerManifest {
            description: Some(texts("Repeats the input text.", "重复收到的话。")),
            capabilities: Capabilities {
                streaming: true,
                interrupt: true,
                resumable: true,
                ..Default::default()
            },
            permissions: Permissions {
                history: vec![HistoryOperation::Page],
                state: vec![StateScope::Conversation],
                ..Permissions::default()
            },
            ..AgentRunnerManifest::new(id, texts("Echo", "回声"))
        }
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        stream(|out| answer(run, out))
    }
}

async fn answer(run: RunHandle, out: ResultSender) -> Result<(), RunError> {
    let record = run.until_cancelled(run.host.run()).await??;
    if record.cancel_requested_at.is_some() {
        return Err(RunError::cancelled());
    }
    let text = run.context.input.text.as_deref().unwrap_or_default();
    let text = if text.trim().is_empty() {
        NOTHING
    } else {
        text
    };
    for word in words(text) {
        run.check_cancelled()?;
        out.send(results::delta(word)).await;
    }
    if let Some(count) = next_count(&run.context) {
        out.send(results::state_updated(
            StateScope::Conversation,
            COUNT,
            count,
        ))
        .await;
    }
    out.send(results::completed(text)).await;
    out.send(results::run_completed()).await;
    Ok(())
}

/// Number of echoes in this conversation, including this one. `None` without a conversation, or without state
/// to store the count.
fn next_count(context: &AgentRunContext) -> Option<i64> {
    context.conversation.as_ref()?.conversation_id.as_ref()?;
    context.context.available_apis.state.then_some(())?;
    let count = context
        .state
        .conversation
        .get(COUNT)
        .and_then(Value::as_i64);
    Some(count.unwrap_or(0).saturating_add(1))
}

/// Words, each with the white space after it: concatenated they are the text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let word = rest.trim_start();
        if word.is_empty() {
            return None;
        }
        let end = word.find(char::is_whitespace).unwrap_or(word.len());
        let others = word[end..].trim_start();
        let (first, others) = rest.split_at(rest.len() - others.len());
        rest = others;
        Some(first)
    })
}

#[cfg(test)]
mod tests;
