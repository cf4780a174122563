//! Words of the runtime that depend only on their bound arguments: merge and summarize.

use action_graph::code::Code;
use action_graph::node::{ActionOutput, Sent, SummarySource};
use action_graph::reference::Reference;
use action_graph::schedule::{ActionFailure, ActionOutcome, Execute};
use action_graph::words;
use serde_json::Value;

use crate::execute::ExecutorEnv;
use crate::execute::tool::summary_by;
use crate::host::GraphAgentHost;

/// Values of `refs`. Fails for a text that is an unbound reference; the message explains the binding.
fn values(execute: &Execute) -> Result<Vec<Value>, ActionFailure> {
    let values = execute.input.get("refs").and_then(Value::as_array);
    let values = values.cloned().unwrap_or_default();
    let is_reference = |value: &&Value| {
        let text = value.as_str();
        text.is_some_and(|text| text.parse::<Reference>().is_ok())
    };
    match values.iter().find(is_reference) {
        Some(text) => {
            let message = format!("{text} is not bound: write {{\"$ref\": {text}}} instead");
            Err(ActionFailure::new(
                Code::InputUnresolved,
                &message,
                Sent::No,
            ))
        }
        None => Ok(values),
    }
}

/// `runtime.merge`: texts become sections of one text, other values a list.
pub(crate) fn merge(execute: &Execute) -> ActionOutcome {
    match values(execute) {
        Ok(values) => ActionOutcome::done(words::merge(&values)),
        Err(failure) => ActionOutcome::Err(failure),
    }
}

/// `runtime.summarize`: by the configured summarizer model, otherwise mechanically. A model failure is no failure.
pub(crate) async fn summarize(
    env: &ExecutorEnv<impl GraphAgentHost>,
    execute: &Execute,
) -> ActionOutcome {
    let values = match values(execute) {
        Ok(values) => values,
        Err(failure) => return ActionOutcome::Err(failure),
    };
    let Some(model) = &env.config.summarizer else {
        return ActionOutcome::done(words::summarize(&values));
    };
    let merged = words::merge(&values).value;
    let text = merged
        .as_str()
        .map_or_else(|| merged.to_string(), str::to_owned);
    let style = execute.input.get("style").and_then(Value::as_str);
    let text = style.map_or(text.clone(), |style| format!("Style: {style}\n\n{text}"));
    match summary_by(env, model, &text).await {
        Ok(summary) if !summary.trim().is_empty() => {
            let mut output = ActionOutput::json(Value::String(summary.clone()));
            output.summary = Some((summary, SummarySource::Summarizer));
            ActionOutcome::done(output)
        }
        Ok(_) => ActionOutcome::done(words::summarize(&values)),
        Err(error) => {
            tracing::warn!(model.id = model, "summarized mechanically: {error}");
            ActionOutcome::done(words::summarize(&values))
        }
    }
}
