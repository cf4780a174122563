//! The full DSL: one fenced JSON block and Markdown sections to a declaration.

use serde_json::Value;

use crate::code::Code;
use crate::declaration::{
    Declaration, DeclarationForm, Execution, ExpandItem, GraphDecision, Intent, Payload, Range,
    ReportBody, ReportSection, ReportSpec,
};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::fence::MarkedBlock;
use crate::ids::{ActionId, GraphId};
use crate::json::{self, type_name};
use crate::limits::GraphLimits;
use crate::read_action::{read_actions, read_reference, read_result};
use crate::reader::FieldReader;
use crate::sections::{self, USER_VISIBLE};

/// The type of the envelope.
pub(crate) const TYPE: &str = "agent.protocol";
const PAYLOADS: [&str; 4] = [
    "action_graph",
    "expand_ref",
    "decision",
    "final_report_spec",
];
/// Requests of one `expand_ref`.
const EXPANSIONS: usize = 16;
/// Sections of a report.
const REPORT_SECTIONS: usize = 32;

/// Reads a block with its sections. `None` when no declaration can be made of it.
pub(crate) fn read(
    block: MarkedBlock<'_>,
    limits: &GraphLimits,
    found: &mut Diagnostics,
) -> Option<Declaration> {
    // Sections count, too: the complete output is bounded before it is parsed.
    let size = block.before.len() + block.body.len() + block.after.len();
    if size > limits.output_bytes {
        let max = limits.output_bytes;
        let message = format!("the output exceeds {max} bytes");
        found.add(Code::TooLarge, "", message);
        return None;
    }
    let sections = sections::read(block, limits, found);
    let parsed = json::parse(block.body, limits.json_depth).map_err(|fault| {
        found.add(fault.code, fault.pointer, fault.message);
    });
    let Ok(Value::Object(object)) = parsed else {
        // Syntax faults were reported by the parser.
        if let Ok(other) = parsed {
            let found_type = type_name(&other);
            let message = format!("expected an object, found {found_type}");
            found.add(Code::NotObject, "", message);
        }
        return None;
    };
    let mut reader = FieldReader::new(object, "", found);
    let mut declaration = read_envelope(&mut reader, limits)?;
    declaration.policies = reader.policies();
    declaration.policies.extra = reader.rest();
    let note = sections.by_id.get(USER_VISIBLE);
    declaration.note = note.map(|note| note.text.clone()).unwrap_or_default();
    declaration.message.clone_from(&sections.intro);
    declaration.source.intro = sections.intro;
    declaration.source.sections = sections.by_id;
    declaration.source.origin = DeclarationForm::Fenced;
    Some(declaration)
}

fn read_envelope(reader: &mut FieldReader<'_>, limits: &GraphLimits) -> Option<Declaration> {
    read_type(reader);
    read_version(reader);
    let intents = Intent::FULL.map(|intent| (intent.as_str(), intent));
    reader.require("intent", Code::MissingIntent);
    let intent = reader.word_of("intent", Code::BadIntent, &intents);
    let persist = reader.flag("persist");
    let title = reader.text("title", limits.title_chars).unwrap_or_default();
    let base = reader.text("base", 64).map(GraphId);
    // Unknown fields of it are reported and not kept: they belong to no action.
    let execution = reader.nested("execution", |inner| Execution {
        mode: inner.word("mode", Code::BadEnum).unwrap_or_default(),
        strategy: inner.word("strategy", Code::BadEnum).unwrap_or_default(),
        max_parallel: inner.number("max_parallel", 1, 255),
    });
    let response_policy = read_result(reader, "response_policy");
    let payload = read_payload(reader, intent, limits);
    // Only here: the fields before are checked even without intent or payload.
    let mut declaration = Declaration::new(intent?, payload?);
    declaration.persist = persist;
    declaration.title = title;
    declaration.base = base;
    declaration.execution = execution.unwrap_or_default();
    declaration.response_policy = response_policy;
    Some(declaration)
}

fn read_type(reader: &mut FieldReader<'_>) {
    if reader.require("type", Code::MissingType) && reader.text("type", 64).as_deref() != Some(TYPE)
    {
        reader.add(Code::WrongType, "type", format!("`type` is not `{TYPE}`"));
    }
}

/// The major version: `"1"`, `1` or `"1.x"`.
fn read_version(reader: &mut FieldReader<'_>) {
    let Some(version) = reader.take("version") else {
        return reader.add(Code::MissingVersion, "version", "`version` is missing");
    };
    let is_ours = match &version {
        // Models write the version as text or number; minor versions are compatible.
        Value::String(text) => text.trim().split('.').next() == Some("1"),
        other => other.as_u64() == Some(1),
    };
    if !is_ours {
        let message = "this version is not spoken here";
        reader.add(Code::UnsupportedVersion, "version", message);
    }
}

fn read_payload(
    reader: &mut FieldReader<'_>,
    intent: Option<Intent>,
    limits: &GraphLimits,
) -> Option<Payload> {
    if !reader.require("payload", Code::MissingPayload) {
        return None;
    }
    let object = reader.object("payload", Code::WrongJsonType)?;
    let mut inner = FieldReader::new(object, "/payload", reader.found());
    let kinds = PAYLOADS.map(|name| (name, name));
    let kind = if inner.has("type") {
        inner.word_of("type", Code::BadPayloadType, &kinds)
    // The intent leaves one payload only, so the missing type is harmless.
    } else if intent == Some(Intent::ExpandRef) {
        inner.add(Code::Repaired, "type", "the intent decides");
        Some("expand_ref")
    } else {
        let message = "`payload.type` is missing";
        inner.add(Code::PayloadTypeMissing, "type", message);
        None
    }?;
    if let Some(intent) = intent
        && !fits(intent, kind)
    {
        // The payload is still read: its own faults belong in the same notice.
        let message = format!("intent `{}` takes no `{kind}`", intent.as_str());
        let diagnostic = Diagnostic::new(Code::PayloadMismatch, "/payload/type", message);
        let allowed = PAYLOADS.into_iter().filter(|kind| fits(intent, kind));
        inner.found().push(diagnostic.allow(allowed));
    }
    let payload = match kind {
        "action_graph" => {
            let actions = read_actions(&mut inner, limits);
            let report = inner.nested("report", |inner| read_report(inner, limits));
            Payload::ActionGraph { actions, report }
        }
        "expand_ref" => Payload::ExpandRef {
            refs: read_expansions(&mut inner, limits),
        },
        "decision" => Payload::Decision(read_decision(&mut inner, limits)?),
        _ => Payload::FinalReportSpec(read_report(&mut inner, limits)),
    };
    inner.rest();
    Some(payload)
}

fn fits(intent: Intent, payload: &str) -> bool {
    match intent {
        Intent::Execute => matches!(payload, "action_graph" | "final_report_spec"),
        Intent::Plan | Intent::Revise => payload == "action_graph",
        Intent::ExpandRef => payload == "expand_ref",
        Intent::Cancel | Intent::Decide => payload == "decision",
        Intent::Respond | Intent::Stop => false,
    }
}

fn read_expansions(reader: &mut FieldReader<'_>, limits: &GraphLimits) -> Vec<ExpandItem> {
    let list = reader.entries("refs", EXPANSIONS, Code::TooLarge, "references");
    list.into_iter()
        .filter_map(|(at, value)| read_expansion(value, &at, reader.found(), limits))
        .collect()
}

/// One request to expand a reference: `{ref, reason, range}`.
pub(crate) fn read_expansion(
    value: Value,
    at: &str,
    found: &mut Diagnostics,
    limits: &GraphLimits,
) -> Option<ExpandItem> {
    let Value::Object(object) = value else {
        found.add(Code::WrongJsonType, at, "an entry must be an object");
        return None;
    };
    let mut reader = FieldReader::new(object, at, found);
    reader.require("ref", Code::MissingField);
    let reference = read_reference(&mut reader, "ref");
    let reason = reader.text("reason", limits.reason_chars);
    let range = reader.nested("range", |inner| Range {
        around_matches: inner.flag("around_matches").unwrap_or_default(),
        context_lines: inner.number("context_lines", 0, 200).unwrap_or_default(),
        pattern: inner.text("match", 500),
        from: inner.number("from", 1, u64::from(u32::MAX)),
        lines: inner.number("lines", 1, 10_000),
    });
    reader.rest();
    Some(ExpandItem {
        reference: reference?,
        reason: reason.unwrap_or_default(),
        range: range.unwrap_or_default(),
    })
}

/// A decision's fields.
pub(crate) fn read_decision(
    reader: &mut FieldReader<'_>,
    limits: &GraphLimits,
) -> Option<GraphDecision> {
    for key in ["graph", "choice"] {
        reader.require(key, Code::MissingField);
    }
    let graph = reader.text("graph", 64);
    let action = reader.text("action", 80).map(ActionId);
    let choice = reader.word("choice", Code::BadEnum);
    let reason = reader.text("reason", limits.reason_chars);
    let input = reader.object("input", Code::ArgsNotObject);
    Some(GraphDecision {
        graph: GraphId(graph?),
        action,
        choice: choice?,
        reason: reason.unwrap_or_default(),
        input,
    })
}

fn read_report(reader: &mut FieldReader<'_>, limits: &GraphLimits) -> ReportSpec {
    let title = reader.text("title", limits.title_chars);
    let footer = reader.text("footer", limits.description_chars);
    let list = reader.entries("sections", REPORT_SECTIONS, Code::TooLarge, "sections");
    let mut sections = Vec::new();
    for (at, value) in list {
        let Value::Object(object) = value else {
            let found = reader.found();
            found.add(Code::WrongJsonType, at, "a section must be an object");
            continue;
        };
        let mut inner = FieldReader::new(object, &at, reader.found());
        let heading = inner.text("heading", limits.title_chars);
        let optional = inner.flag("optional").unwrap_or_default();
        let text = inner.text("text", limits.section_bytes);
        let reference = read_reference(&mut inner, "ref");
        // A section without a body is dropped after the report.
        if text.is_none() && reference.is_none() {
            inner.add(Code::MissingField, "ref", "a section needs `ref` or `text`");
        }
        inner.rest();
        let body = reference.map(ReportBody::Ref);
        let body = body.or(text.map(ReportBody::Text));
        sections.extend(body.map(|body| ReportSection {
            heading: heading.unwrap_or_default(),
            body,
            optional,
        }));
    }
    ReportSpec {
        title: title.unwrap_or_default(),
        sections,
        footer: footer.unwrap_or_default(),
    }
}
