//! Every code that judges a declaration, by a declaration that earns it.

use std::collections::BTreeSet;

use action_graph::accept::OutputVerdict;
use action_graph::code::{Code, ValidationStage};
use action_graph::diagnostic::Diagnostic;
use action_graph::ids::GraphId;
use action_graph::output::{Finish, ModelOutput, NativeCall};
use action_graph::rules::{CarrierMode, Conflicts};
use serde_json::{Value, json};

use crate::support::{
    TestInputs, act, block, envelope, fenced, read, read_action, read_call, reads, world,
};

/// A code, its place, and the output that earns it after the world was changed.
type CodeRow = (Code, &'static str, ModelOutput, fn(&mut TestInputs));

fn plain(_: &mut TestInputs) {}

fn carrier(value: Value) -> ModelOutput {
    ModelOutput::carrier(value.to_string())
}

fn one(more: Value) -> ModelOutput {
    block(json!([read_action("a", more)]))
}

fn call(more: Value) -> ModelOutput {
    act(json!([read_call("a", more)]))
}

fn with_path(value: Value) -> ModelOutput {
    call(json!({"args": {"path": value}}))
}

fn bound(reference: &str) -> ModelOutput {
    with_path(json!({"$ref": reference}))
}

fn tool(name: &str, args: Value) -> ModelOutput {
    act(json!([{"id": "a", "type": "tool", "name": name, "args": args}]))
}

fn agent(name: &str) -> ModelOutput {
    act(json!([{"id": "a", "type": "agent", "name": name, "args": {"prompt": "p"}}]))
}

fn direct(name: &str, arguments: &str) -> ModelOutput {
    ModelOutput::call(name, arguments)
}

fn changed(change: impl FnOnce(&mut Value)) -> ModelOutput {
    let mut value = envelope(json!([reads("a")]), json!({}));
    change(&mut value);
    fenced(&value, "")
}

fn without(field: &str) -> ModelOutput {
    changed(|value| {
        value.as_object_mut().expect("an object").remove(field);
    })
}

fn chain(length: usize) -> ModelOutput {
    let step = |n: usize| {
        let before: Vec<_> = (n > 0).then(|| format!("s{}", n - 1)).into_iter().collect();
        read_action(&format!("s{n}"), json!({"depends_on": before}))
    };
    block((0..length).map(step).collect::<Vec<_>>().into())
}

#[rustfmt::skip]
fn parse_rows() -> Vec<CodeRow> {
    let two = NativeCall {
        name: "AgentProtocolOutput".to_owned(),
        arguments: r#"{"kind":"done"}"#.to_owned(),
    };
    let several = ModelOutput {
        calls: vec![two.clone(), two.clone()],
        ..ModelOutput::text("")
    };
    let other = NativeCall {
        name: "read".to_owned(),
        ..two.clone()
    };
    let mixed = ModelOutput {
        calls: vec![two, other],
        ..ModelOutput::text("")
    };
    let cut = ModelOutput {
        finish: Finish::Cut,
        ..carrier(json!({"kind": "done"}))
    };
    let block = "```json agent-protocol\n{}\n```\n";
    let valid = envelope(json!([reads("a")]), json!({}));
    let deep = format!(
        "{{\"kind\":\"act\",\"calls\":{}{}}}",
        "[".repeat(20),
        "]".repeat(20)
    );
    vec![
        (Code::NoDeclaration, "", ModelOutput::text(" "), plain),
        (Code::SeveralDeclarations, "", ModelOutput::text(&block.repeat(2)), plain),
        (Code::SeveralCarrierCalls, "", several, plain),
        (Code::MixedCarriers, "", mixed, plain),
        (Code::IncompleteOutput, "", cut, plain),
        (Code::BadJson, "", ModelOutput::carrier("{'kind': 'done'}"), plain),
        (Code::DuplicateKey, "/kind", ModelOutput::carrier(r#"{"kind":"act","kind":"done"}"#), plain),
        (Code::TooDeep, "/calls/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0", ModelOutput::carrier(deep), plain),
        (Code::TooLarge, "", ModelOutput::carrier("x".repeat(300 << 10)), plain),
        (Code::NotObject, "", ModelOutput::carrier("[]"), plain),
        (Code::SectionDuplicate, "", fenced(&valid, "## a\nx\n## a\ny"), plain),
        (Code::SectionInvalidId, "", fenced(&valid, "## a!\nx"), plain),
        (Code::SectionTooLarge, "", fenced(&valid, &format!("## a\n{}", "x".repeat(70_000))), plain),
        (Code::UnclosedFence, "", ModelOutput::text("```json agent-protocol\n{}"), plain),
        (Code::Unwrapped, "", carrier(json!({"input": {"kind": "done"}})), plain),
        (Code::Unstringified, "/calls", carrier(json!({"kind": "act", "calls": json!([read("a")]).to_string()})), plain),
        (Code::Repaired, "/kind", carrier(json!({"kind": "Done "})), plain),
    ]
}

#[rustfmt::skip]
fn envelope_rows() -> Vec<CodeRow> {
    vec![
        (Code::MissingType, "/type", without("type"), plain),
        (Code::WrongType, "/type", changed(|value| value["type"] = json!("workflow")), plain),
        (Code::MissingVersion, "/version", without("version"), plain),
        (Code::UnsupportedVersion, "/version", changed(|value| value["version"] = json!("2")), plain),
        (Code::MissingIntent, "/intent", without("intent"), plain),
        (Code::BadIntent, "/intent", changed(|value| value["intent"] = json!("do")), plain),
        (Code::MissingPayload, "/payload", without("payload"), plain),
        (Code::PayloadTypeMissing, "/payload/type", changed(|value| value["payload"] = json!({})), plain),
        (Code::BadPayloadType, "/payload/type", changed(|value| value["payload"]["type"] = json!("workflow")), plain),
        (Code::PayloadMismatch, "/payload/type", changed(|value| value["intent"] = json!("decide")), plain),
        (Code::UnknownBase, "/base", changed(|value| value["intent"] = json!("revise")), plain),
        (Code::UnknownField, "/colour", changed(|value| value["colour"] = json!(1)), plain),
    ]
}

#[rustfmt::skip]
fn shape_rows() -> Vec<CodeRow> {
    let many: Vec<_> = (0..33)
        .map(|n| read_call(&format!("a{n}"), json!({})))
        .collect();
    vec![
        (Code::MissingField, "/kind", carrier(json!({})), plain),
        (Code::WrongJsonType, "/message", carrier(json!({"kind": "done", "message": 1})), plain),
        (Code::BadEnum, "/kind", carrier(json!({"kind": "perform"})), plain),
        (Code::BadId, "/calls/0/id", call(json!({"id": "a.b"})), plain),
        (Code::DuplicateId, "/calls/1/id", act(json!([read("a"), read("a")])), plain),
        (Code::MissingCalls, "/calls", carrier(json!({"kind": "act"})), plain),
        (Code::EmptyCalls, "/calls", act(json!([""])), plain),
        (Code::SingularCall, "/call", carrier(json!({"kind": "act", "call": {}})), plain),
        (Code::UnexpectedCalls, "/calls", carrier(json!({"kind": "done", "calls": [read("a")]})), plain),
        (Code::MessageMissing, "/message", carrier(json!({"kind": "answer"})), plain),
        (Code::TextTooLong, "/calls/0/title", call(json!({"title": "x".repeat(121)})), plain),
        (Code::TooManyActions, "/calls", act(many.into()), plain),
        (Code::FeatureDisabled, "/payload/actions/0/repeat", one(json!({"repeat": {"max": 2, "until": {"ref": "own", "exists": true}}})), |world| { world.rules.features.repeat = false; }),
        (Code::UnsupportedPolicy, "/budget_policy", changed(|value| value["budget_policy"] = json!({})), plain),
    ]
}

#[rustfmt::skip]
fn graph_rows() -> Vec<CodeRow> {
    let each = |each: Value| one(json!({"for_each": each}));
    vec![
        (Code::UnknownDependency, "/calls/0/depends", call(json!({"depends": "b"})), plain),
        (Code::SelfDependency, "/calls/0/depends", call(json!({"depends": "a"})), plain),
        (Code::DependencyCycle, "/calls/0/depends", act(json!([read_call("a", json!({"depends": "b"})), read_call("b", json!({"depends": "a"}))])), plain),
        (Code::DependencyUnsatisfied, "/calls/0/depends", call(json!({"depends": "broke"})), plain),
        (Code::EdgeAdded, "/calls/0/args/path", act(json!([read_call("a", json!({"args": {"path": {"$ref": "action:b.output"}}})), read("b")])), plain),
        (Code::LoopUnbounded, "/payload/actions/0/for_each/max", each(json!({"items": "input:event#/list"})), plain),
        (Code::FanOutTooLarge, "/payload/actions/0/for_each/max", each(json!({"items": "input:event#/list", "max": 10_000})), plain),
        (Code::NeverRuns, "/payload/actions/1/when", block(json!([reads("b"), read_action("a", json!({"depends_on": ["b"], "when": {"action": "b", "is": "failed"}}))])), plain),
        (Code::DepthOver16, "/payload/actions/16", chain(17), plain),
        (Code::TooDeep, "/payload/actions/32", chain(33), plain),
    ]
}

#[rustfmt::skip]
fn reference_rows() -> Vec<CodeRow> {
    let expand = |reference: &str| {
        changed(|value| {
            value["intent"] = json!("expand_ref");
            value["payload"] = json!({"refs": [{"ref": reference}]});
        })
    };
    let valid = envelope(json!([reads("a")]), json!({}));
    vec![
        (Code::BadReference, "/calls/0/args/path", bound("action:b"), plain),
        (Code::BadReference, "/calls/0/args/path", bound("item"), plain),
        (Code::BadReference, "/payload/refs/0/ref", expand("md:x"), plain),
        (Code::UnknownSection, "/payload/actions/0/prompt_ref", one(json!({"prompt_ref": "md:task"})), plain),
        (Code::UnknownActionRef, "/calls/0/args/path", bound("action:b.output"), plain),
        (Code::RefNotUpstream, "/calls/0/args/path", bound("action:pending.output"), plain),
        (Code::RefForbidden, "/calls/0/args/path", bound("runtime://g_other/actions/a/output"), plain),
        (Code::RefForbidden, "/calls/0/args/path", bound("runtime://g_done/actions/salaries/output"), plain),
        (Code::RefExpired, "/calls/0/args/path", bound("runtime://g_gone/actions/a/output"), plain),
        (Code::RefTooLarge, "/calls/0/args/path", bound("runtime://g_done/actions/long/output"), plain),
        (Code::PointerMissing, "/calls/0/args/path", bound("input:event#/nothing"), plain),
        (Code::PointerType, "/calls/0/args/path", bound("runtime://g_done/actions/long/output#/a"), plain),
        (Code::SectionUnused, "", fenced(&valid, "## task\nx"), plain),
        (Code::NumericSection, "", fenced(&valid, "## 1\nx"), plain),
        (Code::StringInterpolation, "/calls/0/args/path", with_path(json!("x {{action:b.output}}")), plain),
    ]
}

#[rustfmt::skip]
fn executor_rows() -> Vec<CodeRow> {
    let human =
        |args: Value| act(json!([{"id": "a", "type": "tool", "name": "human.ask", "args": args}]));
    let form = json!({"kind": "form", "title": "t", "fields": [{"name": "API-key"}]});
    let choice = json!({"kind": "confirmation", "title": "t"});
    vec![
        (Code::ExecutorTypeAuto, "/calls/0/type", call(json!({"type": "auto"})), plain),
        (Code::ExecutorTypeMissing, "/payload/actions/0/executor/type", one(json!({"executor": {"target": "read"}})), plain),
        (Code::UnknownTool, "/calls/0/name", call(json!({"name": "raed"})), plain),
        (Code::UnknownAgent, "/calls/0/name", agent("nobody"), plain),
        (Code::AutoTool, "/calls/0/name", call(json!({"name": "auto"})), plain),
        (Code::NoMatch, "/payload/actions/0/executor/target", one(json!({"executor": {"type": "agent", "target": "auto", "capabilities": ["flying"]}})), plain),
        (Code::Unavailable, "/calls/0/name", tool("offline", json!({})), plain),
        (Code::NotGranted, "/calls/0/name", tool("admin", json!({})), plain),
        (Code::AgentNotDelegable, "/calls/0/name", agent("statue"), plain),
        (Code::DepthExceeded, "/calls/0/name", agent("code-reviewer"), |world| world.known.depth = 3),
        (Code::InteractionUnavailable, "/calls/0/name", human(choice.clone()), |world| world.known.can_ask = false),
        (Code::SecretInForm, "/calls/0/args/fields/0", human(form), plain),
        (Code::WaitTooLong, "/calls/0/name", tool("runtime.wait", json!({"ms": 60_000})), |world| world.known.can_persist = false),
        (Code::PersistUnavailable, "/calls/0/name", human(choice), |world| world.known.can_persist = false),
        (Code::UnknownWord, "/calls/0/name", tool("runtime.fly", json!({})), plain),
        (Code::TargetOverridden, "/calls/0/name", tool("glob", json!({"pattern": "*"})), |world| { world .catalog .overrides .insert("tool:glob".to_owned(), "glob".to_owned()); }),
    ]
}

#[rustfmt::skip]
fn argument_and_effect_rows() -> Vec<CodeRow> {
    let writes = |id: &str| read_action(id, json!({"resources": {"write": ["r"]}}));
    vec![
        (Code::ArgsSchema, "/calls/0/args/path", with_path(json!(1)), plain),
        (Code::ArgsNotObject, "/calls/0/args", call(json!({"args": "read the file a"})), plain),
        (Code::ArgsTooLarge, "/calls/0/args", with_path(json!("x".repeat(70_000))), plain),
        (Code::EffectsUnknown, "/calls/0", direct("mystery", "{}"), plain),
        (Code::EffectsForbidden, "/calls/0", tool("delete_all", json!({})), |world| { world .rules .forbid .insert(action_graph::action::Effect::Delete); }),
        (Code::ApprovalRequired, "/calls/0", tool("delete_all", json!({})), plain),
        (Code::WriteConflict, "/payload/actions/1/resources/write", block(json!([writes("a"), writes("b")])), |world| { world.rules.conflicts = Conflicts::Refuse; }),
    ]
}

#[rustfmt::skip]
fn policy_and_recovery_rows() -> Vec<CodeRow> {
    let noted = |message: &str| {
        carrier(json!({"kind": "act", "message": message, "calls": [read("a")]}))
    };
    vec![
        (Code::BudgetExhausted, "", call(json!({})), |world| { world.known.budget_gone = true; }),
        (Code::RepeatDeclaration, "/calls", call(json!({})), |world| { let first = world.accepted(&call(json!({}))); let hash = first.declaration.source.semantic_sha256; world .known .repeats .insert(hash, (GraphId("g_done".to_owned()), 2)); }),
        (Code::TurnLimit, "", call(json!({})), |world| { world.known.declarations = 24; }),
        (Code::GraphLimit, "", call(json!({})), |world| { world.rules.limits.open_graphs = 1; }),
        (Code::PersistUpgraded, "/persist", agent("code-reviewer"), plain),
        (Code::NoteMissing, "/message", carrier(json!({"kind": "act", "calls": [{"id": "a", "type": "agent", "name": "code-reviewer"}]})), plain),
        (Code::NoteRepeatsDsl, "/message", noted("I send {\"kind\": 1}"), plain),
        (Code::TitleMissing, "/title", without("title"), plain),
        (Code::RecoveredDirectTool, "", direct("read", r#"{"path":"a"}"#), plain),
        (Code::RecoveredDelegation, "", direct("task", r#"{"agent":"code-reviewer","prompt":"p"}"#), |world| { world.rules.recovery.delegation = true; }),
        (Code::RecoveredText, "", ModelOutput::text(r#"<invoke name="read">{"path":"a"}</invoke>"#), |world| { world.rules.recovery.text = true; }),
        (Code::RecoveredText, "", one(json!({})), |world| { world.rules.carrier = CarrierMode::Flat; }),
        (Code::PlainAnswer, "", ModelOutput::text("It works now."), plain),
        (Code::RecoveryRefused, "", direct("delete_all", "{}"), plain),
    ]
}

fn rows() -> Vec<CodeRow> {
    let mut rows = parse_rows();
    rows.extend(envelope_rows());
    rows.extend(shape_rows());
    rows.extend(graph_rows());
    rows.extend(reference_rows());
    rows.extend(executor_rows());
    rows.extend(argument_and_effect_rows());
    rows.extend(policy_and_recovery_rows());
    rows
}

#[test]
fn reports_each_code_at_its_pointer() {
    for (code, position, output, change) in rows() {
        let mut world = world();
        world.rules.limits.notice_diagnostics = 20;
        change(&mut world);
        let codes = world.codes(&output);
        assert!(
            codes.contains(&(code, position.to_owned())),
            "{code} at `{position}` is not among {codes:?}"
        );
    }
}

#[test]
fn lint_names_lacking_and_meant_fields() {
    let check = |more: Value, expected: &[&str]| {
        let mut action = json!({"type": "action", "id": "a", "title": "a", "description": "Read.", "reason": "Needed.",
            "operation": "read", "executor": {"type": "tool", "target": "read"}, "input": {"path": "a"}});
        for (key, value) in more.as_object().expect("fields") {
            action[key] = value.clone();
        }
        let mut world = world();
        world.rules.carrier = CarrierMode::Fenced;
        world.rules.limits.notice_diagnostics = 20;
        let verdict = world.accept_output(&block(json!([action])));
        let found = match verdict {
            OutputVerdict::Accepted(accepted) => accepted.diagnostics,
            OutputVerdict::Repair(repair) => repair.diagnostics,
            OutputVerdict::Content(text) => panic!("{text}"),
        };
        let line = |one: &Diagnostic| {
            let level = if one.is_error() { "error" } else { "note" };
            format!("{level} {}: {}", one.pointer, one.line())
        };
        let found: Vec<_> = found.iter().map(line).collect();
        assert_eq!(found, expected);
    };
    check(json!({}), &[]);
    check(
        json!({"title": null, "reason": " "}),
        &[
            "note /payload/actions/0: `title`, `reason` of an action help its readers. Fix: add `title`, `reason`",
        ],
    );
    check(
        json!({"when": {"ref": "input:event#/list", "exists": true, "op": "eq"}}),
        &[
            "note /payload/actions/0/when/op: `op` is no field. Fix: leave the field out: it has no effect",
        ],
    );
    check(
        json!({"when": {"ref": "input:event#/list", "op": "eq", "than": 1}}),
        &[
            "error /payload/actions/0/when/equals: a condition on a value needs `exists`, `equals`, `in`, `less` or `more`. Fix: add the field",
            "note /payload/actions/0/when/op: `op` is no field. Fix: write `equals`",
            "note /payload/actions/0/when/than: `than` is no field. Fix: leave the field out: it has no effect",
        ],
    );
    check(
        json!({"dependsOn": []}),
        &["note /payload/actions/0/dependsOn: `dependsOn` is no field. Fix: write `depends_on`"],
    );
    check(
        json!({"failure_policy": {"mode": "retry", "retries": 3}}),
        &[
            "error /payload/actions/0/failure_policy/retries: `retries` is no field. Fix: write `max_attempts`",
        ],
    );
    check(
        json!({"failure_policy": {"max_attempts": 3}}),
        &["error /payload/actions/0/failure_policy/mode: `mode` is missing. Fix: add the field"],
    );
}

#[test]
fn every_code_of_declarations_has_a_row() {
    let shown: BTreeSet<_> = rows().into_iter().map(|row| row.0).collect();
    // Only drafts that the runtime makes itself can be refused for a disabled protocol.
    let elsewhere = [Code::ProtocolDisabled];
    let missing = Code::ALL.iter().filter(|code| {
        code.stage() != ValidationStage::RunTime
            && !shown.contains(code)
            && !elsewhere.contains(code)
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Code>::new());
}

#[test]
fn codes_keep_their_names() {
    for code in Code::ALL {
        assert_eq!(json!(code), code.as_str());
        assert_eq!(
            serde_json::from_value::<Code>(json!(code)).ok(),
            Some(*code)
        );
        assert!(!code.fix().is_empty());
    }
}
