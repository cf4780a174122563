//! Reports: headings and results, rendered without a further model call.

use serde_json::Value;

use crate::declaration::{ReportBody, ReportSpec};
use crate::graph::Graph;
use crate::json::pretty;
use crate::policy::Visibility;
use crate::reference::Reference;

/// Bytes of all results of a report; sections may repeat a result.
const RESULTS: usize = 1 << 20;

/// A part that a report needs and that does not exist, or that its reader may not see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the report lacks `{reference}` under `{heading}`: ask the model")]
pub struct MissingPart {
    pub heading: String,
    pub reference: String,
}

/// The report as Markdown. Results that only the runtime may read count as missing.
pub fn render_report(graph: &Graph, spec: &ReportSpec) -> Result<String, MissingPart> {
    let mut parts = Vec::new();
    if !spec.title.is_empty() {
        parts.push(format!("# {}", spec.title));
    }
    let mut left = RESULTS;
    for section in &spec.sections {
        let body = match &section.body {
            ReportBody::Text(text) => Some(text.clone()),
            // A private result counts as missing, so the model has to answer instead.
            ReportBody::Ref(reference) => {
                text_of(graph, reference).map(|text| shortened(text, reference, &mut left))
            }
        };
        match body {
            Some(body) if section.heading.is_empty() => parts.push(body),
            Some(body) => parts.push(format!("## {}\n\n{body}", section.heading)),
            // An optional section without a value is left out without a trace.
            None if section.optional => {}
            None => {
                let reference = match &section.body {
                    ReportBody::Ref(reference) => reference.to_string(),
                    ReportBody::Text(_) => String::new(),
                };
                let heading = section.heading.clone();
                return Err(MissingPart { heading, reference });
            }
        }
    }
    if !spec.footer.is_empty() {
        parts.push(spec.footer.clone());
    }
    Ok(parts.join("\n\n"))
}

/// The text as far as it fits into `left` bytes.
fn shortened(mut text: String, reference: &Reference, left: &mut usize) -> String {
    if text.len() > *left {
        // The budget is used up: later sections only name their results.
        text.truncate(text.floor_char_boundary(*left));
        *left = 0;
        return format!("{text}\n\n(shortened: {reference})");
    }
    *left -= text.len();
    text
}

fn text_of(graph: &Graph, reference: &Reference) -> Option<String> {
    if graph.readers_of(reference, None) == Visibility::RuntimeOnly {
        return None;
    }
    match graph.value_of(reference, None)? {
        // Null is no content, even if the action succeeded.
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(format!("```json\n{}\n```", pretty(&other))),
    }
}
