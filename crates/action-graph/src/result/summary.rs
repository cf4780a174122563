//! Summaries: the tool's own, the executor's, or mechanical ones.

use serde_json::Value;

use crate::node::{Output, SummarySource};

/// The best summary of an output without a model, and its source.
pub fn summary_of(output: &Output) -> (String, SummarySource) {
    if let Some((text, source)) = &output.summary {
        return (text.clone(), *source);
    }
    let text = match &output.value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    (text, SummarySource::Mechanical)
}
