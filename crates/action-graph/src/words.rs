//! The runtime's own words: bound arguments of `runtime.*` actions as typed requests.

use serde_json::{Map, Value};

use crate::code::Code;
use crate::declaration::{ExpandItem, GraphDecision};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::fenced::{read_decision, read_expansion};
use crate::limits::GraphLimits;
use crate::node::{ActionOutput, SummarySource};
use crate::reader::FieldReader;
use crate::result::summary::{mechanical, text_of};

/// The decision of `runtime.decide`.
pub fn decision(
    arguments: &Map<String, Value>,
    limits: &GraphLimits,
) -> Result<GraphDecision, Vec<Diagnostic>> {
    let mut found = Diagnostics::default();
    let mut reader = FieldReader::new(arguments.clone(), "", &mut found);
    let decision = read_decision(&mut reader, limits);
    match decision {
        Some(decision) if !found.has_errors() => Ok(decision),
        _ => Err(found.finish(limits.diagnostics)),
    }
}

/// The requests of `runtime.expand`.
pub fn expansions(
    arguments: &Map<String, Value>,
    limits: &GraphLimits,
) -> Result<Vec<ExpandItem>, Vec<Diagnostic>> {
    let mut found = Diagnostics::default();
    let list = arguments.get("refs").and_then(Value::as_array);
    if list.is_none_or(Vec::is_empty) {
        found.add(Code::MissingField, "/refs", "`refs` is missing");
    }
    let list = list.into_iter().flatten().cloned().enumerate();
    let items = list.filter_map(|(index, one)| {
        read_expansion(one, &format!("/refs/{index}"), &mut found, limits)
    });
    let items: Vec<_> = items.collect();
    if found.has_errors() {
        return Err(found.finish(limits.diagnostics));
    }
    Ok(items)
}

/// The output of `runtime.merge`: texts as sections of one text, anything else as a list.
pub fn merge(values: &[Value]) -> ActionOutput {
    let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
    match texts {
        Some(texts) => {
            let text = texts.join("\n\n");
            let bytes = text.len();
            let mut output = ActionOutput::json(Value::String(text));
            output.bytes = bytes;
            output
        }
        None => ActionOutput::json(Value::Array(values.to_vec())),
    }
}

/// The output of `runtime.summarize` without a model: a mechanical summary of each value.
pub fn summarize(values: &[Value]) -> ActionOutput {
    let one = |value: &Value| mechanical(&ActionOutput::json(value.clone()));
    let parts: Vec<_> = values.iter().map(one).collect();
    let mut output = ActionOutput::json(Value::String(parts.join("\n\n")));
    let text = text_of(&output);
    output.summary = Some((text, SummarySource::Mechanical));
    output
}
