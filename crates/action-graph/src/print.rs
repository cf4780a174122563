//! Prints a declaration in the full DSL; reading it again gives the same declaration.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::action::{Action, Condition, Effect, FailurePolicy, Test};
use crate::declaration::{
    Declaration, Durability, ExpandItem, Payload, ReportBody, ReportSpec, Strategy,
};
use crate::json::pretty;
use crate::policy::{IfTruncated, Policies, ResultPolicy};

/// The block and its sections. Answers and ends have no block: their message is printed.
pub fn print(declaration: &Declaration) -> String {
    if let Payload::Message { text } = &declaration.payload {
        return text.clone();
    }
    let mut text = String::new();
    if !declaration.source.intro.is_empty() {
        let _ = writeln!(text, "{}\n", declaration.source.intro);
    }
    let _ = writeln!(
        text,
        "```json agent-protocol\n{}\n```",
        pretty(&envelope(declaration))
    );
    for (id, section) in &declaration.source.sections {
        let _ = write!(text, "\n## {id}\n\n{}\n", section.text);
    }
    text
}

/// The JSON of the block.
pub fn envelope(declaration: &Declaration) -> Value {
    let mut object = Object::default();
    object.set("type", "agent.protocol");
    object.set("version", "1");
    // The version is fixed: declarations of other versions are not accepted.
    object.set("intent", declaration.intent.as_str());
    object.some("persist", declaration.persist);
    object.text("title", &declaration.title);
    object.some(
        "base",
        declaration.base.as_ref().map(|base| base.0.as_str()),
    );
    let execution = &declaration.execution;
    let mut inner = Object::default();
    // Defaults are left out: reading again restores them.
    inner.some(
        "mode",
        (execution.mode == Durability::Durable).then_some("durable"),
    );
    inner.some(
        "strategy",
        (execution.strategy == Strategy::Sequential).then_some("sequential"),
    );
    inner.some("max_parallel", execution.max_parallel);
    object.filled("execution", inner.0);
    object.some(
        "response_policy",
        declaration.response_policy.as_ref().map(result_policy),
    );
    object.set("payload", payload(&declaration.payload));
    object.policies(&declaration.policies);
    Value::Object(object.0)
}

/// A JSON object without absent fields.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    fn text(&mut self, key: &str, text: &str) {
        self.some(key, (!text.is_empty()).then_some(text));
    }

    fn filled(&mut self, key: &str, object: Map<String, Value>) {
        self.some(key, (!object.is_empty()).then_some(object));
    }

    fn list<T: ToString>(&mut self, key: &str, list: &[T]) {
        let texts: Vec<_> = list.iter().map(ToString::to_string).collect();
        self.some(key, (!texts.is_empty()).then_some(texts));
    }

    fn policies(&mut self, policies: &Policies) {
        // Unknown fields are printed, too: reading again must give the same declaration.
        let all = policies.named.iter().chain(&policies.extra);
        self.0
            .extend(all.map(|(key, value)| (key.clone(), value.clone())));
    }
}

fn payload(payload: &Payload) -> Value {
    match payload {
        Payload::ActionGraph {
            actions,
            report: spec,
        } => {
            let actions: Vec<_> = actions.iter().map(action).collect();
            let mut object = Object::default();
            object.set("type", "action_graph");
            object.set("actions", actions);
            object.some(
                "report",
                spec.as_ref().map(|spec| Value::Object(report(spec).0)),
            );
            Value::Object(object.0)
        }
        Payload::ExpandRef { refs } => {
            json!({"type": "expand_ref", "refs": refs.iter().map(expansion).collect::<Vec<_>>()})
        }
        Payload::Decision(decision) => {
            let mut object = Object::default();
            object.set("type", "decision");
            object.set("graph", decision.graph.0.as_str());
            object.some("action", decision.action.as_ref().map(|id| id.0.as_str()));
            object.set("choice", decision.choice.as_str());
            object.text("reason", &decision.reason);
            object.some("input", decision.input.clone());
            Value::Object(object.0)
        }
        Payload::FinalReportSpec(spec) => {
            let mut object = report(spec);
            object.set("type", "final_report_spec");
            Value::Object(object.0)
        }
        Payload::Message { text } => json!({"type": "message", "text": text}),
    }
}

fn expansion(item: &ExpandItem) -> Value {
    let mut range = Object::default();
    range.some("around_matches", item.range.around_matches.then_some(true));
    range.some(
        "context_lines",
        (item.range.context_lines > 0).then_some(item.range.context_lines),
    );
    range.some("match", item.range.pattern.clone());
    range.some("from", item.range.from);
    range.some("lines", item.range.lines);
    let mut object = Object::default();
    object.set("ref", item.reference.to_string());
    object.text("reason", &item.reason);
    object.filled("range", range.0);
    Value::Object(object.0)
}

fn report(spec: &ReportSpec) -> Object {
    let sections = spec.sections.iter().map(|section| {
        let mut object = Object::default();
        object.text("heading", &section.heading);
        match &section.body {
            ReportBody::Text(text) => object.set("text", text.as_str()),
            ReportBody::Ref(reference) => object.set("ref", reference.to_string()),
        }
        object.some("optional", section.optional.then_some(true));
        Value::Object(object.0)
    });
    let sections: Vec<_> = sections.collect();
    let mut object = Object::default();
    object.text("title", &spec.title);
    object.set("sections", sections);
    object.text("footer", &spec.footer);
    object
}

fn action(action: &Action) -> Value {
    let mut object = Object::default();
    object.set("type", "action");
    object.set("id", action.id.as_str());
    object.text("title", &action.title);
    object.text("description", &action.description);
    object.text("reason", &action.reason);
    object.text("operation", &action.operation);
    // Without a class there is nothing to print: the runtime chooses.
    if let Some(kind) = action.executor.kind {
        let mut executor = Object::default();
        executor.set("type", kind.as_str());
        executor.set(
            "target",
            action.executor.target.as_deref().unwrap_or("auto"),
        );
        executor.list("capabilities", &action.executor.capabilities);
        object.set("executor", executor.0);
    }
    object.filled("input", action.input.clone());
    object.list("depends_on", &action.depends_on);
    object.list("context_refs", &action.context_refs);
    object.some(
        "prompt_ref",
        action.prompt_ref.as_ref().map(ToString::to_string),
    );
    object.some("result_policy", action.result.as_ref().map(result_policy));
    if action.failure != FailurePolicy::default() {
        object.set("failure_policy", json!(action.failure));
    }
    object.some("persist", action.persist);
    object.some("when", action.when.as_ref().map(condition_json));
    object.some("for_each", action.for_each.as_ref().map(|each| {
        json!({"items": each.items.to_string(), "max": each.max, "max_failures": each.max_failures,
            "from": each.from, "rest": each.rest})
    }));
    object.some("repeat", action.repeat.as_ref().map(|repeat| {
        json!({"max": repeat.max, "until": condition_json(&repeat.until), "delay_ms": repeat.delay_ms})
    }));
    let effects: Vec<_> = action.effects.iter().copied().map(Effect::as_str).collect();
    object.list("effects", &effects);
    let mut resources = Object::default();
    resources.list("read", &action.resources.read);
    resources.list("write", &action.resources.write);
    object.filled("resources", resources.0);
    object.some("timeout_ms", action.timeout_ms);
    object.policies(&action.policies);
    Value::Object(object.0)
}

fn result_policy(policy: &ResultPolicy) -> Value {
    let mut object = Object::default();
    object.set("return_to_model", policy.return_to_model.as_str());
    object.list("priority", &policy.priority);
    object.some("max_tokens", policy.max_tokens);
    object.some("store_full", (!policy.store_full).then_some(false));
    object.some(
        "if_truncated",
        match policy.if_truncated {
            IfTruncated::ProvideRefAndSummary => None,
            IfTruncated::Truncate => Some("truncate"),
            IfTruncated::Refuse => Some("refuse"),
        },
    );
    Value::Object(object.0)
}

pub(crate) fn condition_json(condition: &Condition) -> Value {
    match condition {
        Condition::Ending { action, is } => json!({"action": action, "is": is}),
        Condition::Value {
            reference,
            test,
            negate,
        } => {
            let mut object = Object::default();
            object.set("ref", reference.to_string());
            match test {
                Test::Exists => object.set("exists", true),
                Test::Equals(value) => object.set("equals", value.clone()),
                Test::In(values) => object.set("in", values.clone()),
                Test::Less(number) => object.set("less", *number),
                Test::More(number) => object.set("more", *number),
            }
            object.some("negate", negate.then_some(true));
            Value::Object(object.0)
        }
    }
}
