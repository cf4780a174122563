//! Reports: headings and results, rendered without a further model call.

use serde_json::Value;

use crate::declaration::{ReportBody, ReportSpec};
use crate::graph::Graph;
use crate::json::pretty;
use crate::policy::Visibility;
use crate::reference::Reference;

/// A part that a report needs and that does not exist, or that its reader may not see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the report lacks `{reference}` under `{heading}`: ask the model")]
pub struct MissingPart {
    /// Heading of its section.
    pub heading: String,
    /// The part.
    pub reference: String,
}

/// The report as Markdown. Results that only the runtime may read count as missing.
pub fn render_report(graph: &Graph, spec: &ReportSpec) -> Result<String, MissingPart> {
    let mut parts = Vec::new();
    if !spec.title.is_empty() {
        parts.push(format!("# {}", spec.title));
    }
    for section in &spec.sections {
        let body = match &section.body {
            ReportBody::Text(text) => Some(text.clone()),
            ReportBody::Ref(reference) => text_of(graph, reference),
        };
        match body {
            Some(body) if section.heading.is_empty() => parts.push(body),
            Some(body) => parts.push(format!("## {}\n\n{body}", section.heading)),
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

fn text_of(graph: &Graph, reference: &Reference) -> Option<String> {
    if graph.readers_of(reference, None) == Visibility::RuntimeOnly {
        return None;
    }
    match graph.value_of(reference, None)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(format!("```json\n{}\n```", pretty(&other))),
    }
}
