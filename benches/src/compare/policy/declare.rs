//! Declarations: through the carrier, or as a fenced block of the full DSL.

use serde_json::{Map, Value, json};

use super::{PolicyOutput, View};
use crate::compare::arms::{Arm, OutputForm};
use crate::compare::tasks::{Arg, ITEMS, StepKind, Task, TaskStep};

/// The action that expands a result.
const MORE: &str = "more";
/// The marker of the alert in the log.
const ALERT: &str = "ALERT";

/// The next declaration; `None` if there is nothing left to try.
pub(super) fn act(view: &View<'_>, task: Task, open: &[&TaskStep]) -> Option<PolicyOutput> {
    if let Some(step) = open.iter().find(|step| view.lacks_expected_token(step)) {
        let is_expanded = view.seen.text.contains(&format!("### Result for {MORE}\n"));
        let reference = view.seen.reference_of(&step.id).filter(|_| !is_expanded)?;
        return (view.arm.form() == OutputForm::Carrier).then(|| expand(&reference));
    }
    let chosen = chosen(view, open);
    if chosen.is_empty() {
        return None;
    }
    Some(match view.arm.form() {
        OutputForm::Fenced => PolicyOutput::Text(fenced(view, task, &chosen, open.len())),
        OutputForm::Native | OutputForm::Carrier => {
            PolicyOutput::Carrier(carrier(view, task, &chosen))
        }
    })
}

/// Selects the steps of the next graph: those that can run now and, if the arm binds, those that need only their
/// results.
fn chosen<'a>(view: &View<'_>, open: &[&'a TaskStep]) -> Vec<&'a TaskStep> {
    let mut chosen: Vec<&TaskStep> = Vec::new();
    for step in open {
        let is_full = view.arm.form() == OutputForm::Fenced;
        let is_ready = !view.ready(step).is_empty();
        let can_wait = match step.kind {
            StepKind::Each(_) | StepKind::Instead(_) => is_full,
            StepKind::Merge | StepKind::Tool | StepKind::Agent => view.arm.binds(),
        };
        let is_bound = step
            .args
            .iter()
            .all(|(_, arg)| !matches!(arg, Arg::Judged(_)) || view.value(arg).is_some());
        let sources_run = step.sources().all(|of| {
            chosen.iter().any(|step| step.id == of)
                || view.step(of).is_some_and(|step| view.has_result(step))
        });
        if is_ready && step.kind != StepKind::Merge || can_wait && is_bound && sources_run {
            chosen.push(step);
        }
    }
    chosen
}

/// Arguments, with bindings for unknown values.
fn input(view: &View<'_>, step: &TaskStep) -> Map<String, Value> {
    let value = |arg: &Arg| match (view.value(arg), arg) {
        (Some(value), _) => value,
        (None, Arg::Field(of, field)) => json!({"$ref": format!("action:{of}.output#/{field}")}),
        (None, _) => json!({"$ref": "item"}),
    };
    if step.kind == StepKind::Merge {
        let refs = ["one", "two"].map(|of| json!({"$ref": format!("action:{of}.output")}));
        return Map::from_iter([("refs".to_owned(), json!(refs))]);
    }
    let args = step.args.iter();
    args.map(|(name, arg)| ((*name).to_owned(), value(arg)))
        .collect()
}

fn kind_of(step: &TaskStep) -> &'static str {
    if step.kind == StepKind::Agent {
        "agent"
    } else {
        "tool"
    }
}

fn carrier(view: &View<'_>, task: Task, chosen: &[&TaskStep]) -> Value {
    let mut calls = Vec::new();
    for step in chosen {
        let call = |id: &str, args: Value| {
            json!({
                "id": id, "title": step.id, "type": kind_of(step), "name": step.target,
                "args": args, "depends": [],
            })
        };
        if let StepKind::Each(_) = step.kind {
            for (item, args) in view.ready(step).into_iter().enumerate() {
                calls.push(call(
                    &format!("{}{}", step.id, item + 1),
                    Value::Object(args),
                ));
            }
        } else {
            calls.push(call(&step.id, Value::Object(input(view, step))));
        }
    }
    json!({"kind": "act", "message": purpose(task), "calls": calls})
}

fn expand(reference: &str) -> PolicyOutput {
    let refs = json!([{
        "ref": reference, "reason": "find the alert", "range": {"match": ALERT, "context_lines": 1},
    }]);
    let call = json!({
        "id": MORE, "title": "find the alert", "type": "tool", "name": "runtime.expand",
        "args": {"refs": refs},
    });
    PolicyOutput::Carrier(
        json!({"kind": "act", "message": "I look for the alert.", "calls": [call]}),
    )
}

/// A block of the full DSL. It has a report if it holds all steps and the arm uses reports.
fn fenced(view: &View<'_>, task: Task, chosen: &[&TaskStep], open: usize) -> String {
    let actions: Vec<_> = chosen.iter().map(|step| action(view, task, step)).collect();
    let mut payload = json!({"type": "action_graph", "actions": actions});
    // A report of the log would repeat the log.
    if view.arm == Arm::Report && chosen.len() == open && task != Task::Large {
        let answers = chosen.iter().filter(|step| step.answers);
        let sections = answers
            .map(|step| json!({"heading": step.id, "ref": format!("action:{}.output", step.id)}));
        let mut sections: Vec<_> = sections.collect();
        if task == Task::Alternative {
            sections = ["first", "second"]
                .map(|id| json!({"ref": format!("action:{id}.output"), "optional": true}))
                .into();
        }
        payload["report"] = json!({"title": purpose(task), "sections": sections});
    }
    let block = json!({
        "type": "agent.protocol", "version": "1", "intent": "execute",
        "title": purpose(task), "payload": payload,
    });
    format!(
        "```json agent-protocol\n{block}\n```\n\n## user.visible\n\n{}\n",
        purpose(task)
    )
}

fn action(view: &View<'_>, task: Task, step: &TaskStep) -> Value {
    let executor = match step.target.strip_prefix("runtime.") {
        Some(word) => json!({"type": "runtime", "target": word}),
        None => json!({"type": kind_of(step), "target": step.target}),
    };
    let mut action = json!({
        "type": "action", "id": step.id, "title": step.id, "executor": executor,
        "input": input(view, step),
    });
    match step.kind {
        StepKind::Each(of) => {
            let items = format!("action:{of}.output#/items");
            action["for_each"] = json!({"items": items, "max": ITEMS});
        }
        StepKind::Instead(of) => action["when"] = json!({"action": of, "is": "failed"}),
        _ => {}
    }
    if view.alternative(step).is_some() {
        action["failure_policy"] = json!("continue");
    }
    if task == Task::Large {
        action["result_policy"] =
            json!({"return_to_model": "excerpt", "priority": [ALERT], "max_tokens": 300});
    }
    action
}

fn purpose(task: Task) -> String {
    format!("Work on: {}.", task.title())
}
