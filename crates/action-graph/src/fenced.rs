//! The full DSL: one fenced JSON block and Markdown sections to a declaration.

use serde_json::{Map, Value};

use crate::code::Code;
use crate::declaration::{
    DecisionChoice, Declaration, DeclarationForm, Durability, Execution, ExpandItem, GraphDecision,
    Intent, Payload, Range, ReportBody, ReportSection, ReportSpec, Strategy,
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
        found.add(
            Code::TooLarge,
            "",
            format!("the output exceeds {max} bytes"),
        );
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
            found.add(
                Code::NotObject,
                "",
                format!("expected an object, found {found_type}"),
            );
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
    if !reader.has("intent") {
        reader.add(Code::MissingIntent, "intent", "`intent` is missing");
    }
    let intent = reader.word("intent", Code::BadIntent, &intents);
    let persist = reader.flag("persist");
    let title = reader.text("title", limits.title_chars).unwrap_or_default();
    let base = reader.text("base", 64).map(GraphId);
    let execution = read_execution(reader);
    let response_policy = read_result(reader, "response_policy");
    let payload = read_payload(reader, intent, limits);
    // Only here: the fields before are checked even without intent or payload.
    let mut declaration = Declaration::new(intent?, payload?);
    declaration.persist = persist;
    declaration.title = title;
    declaration.base = base;
    declaration.execution = execution;
    declaration.response_policy = response_policy;
    Some(declaration)
}

fn read_type(reader: &mut FieldReader<'_>) {
    if !reader.has("type") {
        reader.add(Code::MissingType, "type", "`type` is missing");
    } else if reader.text("type", 64).as_deref() != Some(TYPE) {
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
        reader.add(
            Code::UnsupportedVersion,
            "version",
            "this version is not spoken here",
        );
    }
}

fn read_execution(reader: &mut FieldReader<'_>) -> Execution {
    let Some(object) = reader.object("execution", Code::WrongJsonType) else {
        return Execution::default();
    };
    let at = reader.at("execution");
    let mut inner = FieldReader::new(object, &at, reader.found());
    let modes = [
        ("ephemeral", Durability::Ephemeral),
        ("durable", Durability::Durable),
    ];
    let strategies = [("dag", Strategy::Dag), ("sequential", Strategy::Sequential)];
    let execution = Execution {
        mode: inner
            .word("mode", Code::BadEnum, &modes)
            .unwrap_or_default(),
        strategy: inner
            .word("strategy", Code::BadEnum, &strategies)
            .unwrap_or_default(),
        max_parallel: inner.number("max_parallel", 1, 255),
    };
    // Unknown fields are reported here and not kept: they belong to no action.
    inner.rest();
    execution
}

fn read_payload(
    reader: &mut FieldReader<'_>,
    intent: Option<Intent>,
    limits: &GraphLimits,
) -> Option<Payload> {
    if !reader.has("payload") {
        reader.add(Code::MissingPayload, "payload", "`payload` is missing");
        return None;
    }
    let object = reader.object("payload", Code::WrongJsonType)?;
    let mut inner = FieldReader::new(object, "/payload", reader.found());
    let kinds = PAYLOADS.map(|name| (name, name));
    let kind = if inner.has("type") {
        inner.word("type", Code::BadPayloadType, &kinds)
    // The intent leaves one payload only, so the missing type is harmless.
    } else if intent == Some(Intent::ExpandRef) {
        inner.add(Code::Repaired, "type", "the intent decides");
        Some("expand_ref")
    } else {
        inner.add(
            Code::PayloadTypeMissing,
            "type",
            "`payload.type` is missing",
        );
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
            let report = inner.object("report", Code::WrongJsonType);
            let report =
                report.map(|report| read_report(report, "/payload/report", &mut inner, limits));
            Payload::ActionGraph { actions, report }
        }
        "expand_ref" => Payload::ExpandRef {
            refs: read_expansions(&mut inner, limits),
        },
        "decision" => Payload::Decision(read_decision(&mut inner, limits)?),
        _ => {
            // Only these fields belong to the report; the rest is reported as unknown.
            let fields = ["title", "sections", "footer"];
            let report = fields
                .iter()
                .filter_map(|key| Some(((*key).to_owned(), inner.take(key)?)));
            let report: Map<String, Value> = report.collect();
            Payload::FinalReportSpec(read_report(report, "/payload", &mut inner, limits))
        }
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
    if !reader.has("refs") {
        reader.add(Code::MissingField, "refs", "`refs` is missing");
    }
    let list = reader.list("refs").unwrap_or_default();
    // Reported once; the first references are still checked.
    if list.len() > EXPANSIONS {
        reader.add(
            Code::TooLarge,
            "refs",
            format!("more than {EXPANSIONS} references"),
        );
    }
    let mut items = Vec::new();
    for (index, value) in list.into_iter().take(EXPANSIONS).enumerate() {
        let at = format!("{}/{index}", reader.at("refs"));
        items.extend(read_expansion(value, &at, reader.found(), limits));
    }
    items
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
    if !reader.has("ref") {
        reader.add(Code::MissingField, "ref", "`ref` is missing");
    }
    let reference = read_reference(&mut reader, "ref");
    let reason = reader
        .text("reason", limits.reason_chars)
        .unwrap_or_default();
    let range = reader
        .object("range", Code::WrongJsonType)
        .unwrap_or_default();
    // The pointer is taken before the inner reader borrows the diagnostics.
    let range_at = reader.at("range");
    let mut inner = FieldReader::new(range, &range_at, reader.found());
    let range = Range {
        around_matches: inner.flag("around_matches").unwrap_or_default(),
        context_lines: inner.number("context_lines", 0, 200).unwrap_or_default(),
        pattern: inner.text("match", 500),
        from: inner.number("from", 1, u64::from(u32::MAX)),
        lines: inner.number("lines", 1, 10_000),
    };
    inner.rest();
    reader.rest();
    Some(ExpandItem {
        reference: reference?,
        reason,
        range,
    })
}

/// A decision's fields.
pub(crate) fn read_decision(
    reader: &mut FieldReader<'_>,
    limits: &GraphLimits,
) -> Option<GraphDecision> {
    for key in ["graph", "choice"] {
        if !reader.has(key) {
            reader.add(Code::MissingField, key, format!("`{key}` is missing"));
        }
    }
    let choices = DecisionChoice::ALL.map(|choice| (choice.as_str(), choice));
    let graph = reader.text("graph", 64);
    let action = reader.text("action", 80).map(|id| ActionId(id.clone()));
    let choice = reader.word("choice", Code::BadEnum, &choices);
    let reason = reader
        .text("reason", limits.reason_chars)
        .unwrap_or_default();
    let input = reader.object("input", Code::ArgsNotObject);
    Some(GraphDecision {
        graph: GraphId(graph?),
        action,
        choice: choice?,
        reason,
        input,
    })
}

fn read_report(
    object: Map<String, Value>,
    at: &str,
    outer: &mut FieldReader<'_>,
    limits: &GraphLimits,
) -> ReportSpec {
    let mut reader = FieldReader::new(object, at, outer.found());
    let title = reader.text("title", limits.title_chars).unwrap_or_default();
    let footer = reader
        .text("footer", limits.description_chars)
        .unwrap_or_default();
    if !reader.has("sections") {
        reader.add(Code::MissingField, "sections", "`sections` is missing");
    }
    let list = reader.list("sections").unwrap_or_default();
    if list.len() > REPORT_SECTIONS {
        reader.add(
            Code::TooLarge,
            "sections",
            format!("more than {REPORT_SECTIONS} sections"),
        );
    }
    let mut sections = Vec::new();
    for (index, value) in list.into_iter().take(REPORT_SECTIONS).enumerate() {
        let at = format!("{at}/sections/{index}");
        let Value::Object(object) = value else {
            reader
                .found()
                .add(Code::WrongJsonType, at, "a section must be an object");
            continue;
        };
        let mut inner = FieldReader::new(object, &at, reader.found());
        let heading = inner
            .text("heading", limits.title_chars)
            .unwrap_or_default();
        let optional = inner.flag("optional").unwrap_or_default();
        let text = inner.text("text", limits.section_bytes);
        let reference = read_reference(&mut inner, "ref");
        // A section without a body is dropped after the report.
        if text.is_none() && reference.is_none() {
            inner.add(Code::MissingField, "ref", "a section needs `ref` or `text`");
        }
        inner.rest();
        let body = reference
            .map(ReportBody::Ref)
            .or(text.map(ReportBody::Text));
        sections.extend(body.map(|body| ReportSection {
            heading,
            body,
            optional,
        }));
    }
    reader.rest();
    ReportSpec {
        title,
        sections,
        footer,
    }
}
