//! Both carriers as one declaration, and recovery of loose outputs.

use action_graph::accept::{AfterRefusal, OutputVerdict, RepairBudget, accept_draft};
use action_graph::action::{
    ActionEnding, ChosenBy, Class, Condition, Effect, ExecutorKind, FailureMode, Test,
};
use action_graph::catalog::{Catalog, CatalogEntry, Cost};
use action_graph::code::Code;
use action_graph::declaration::{
    CARRIER, Declaration, DeclarationForm, Durability, Intent, Payload, ReplyOutcome, Strategy,
};
use action_graph::output::{Finish, ModelOutput, NativeCall};
use action_graph::policy::{POLICY_NAMES, Return, Visibility};
use action_graph::reference::Reference;
use action_graph::rules::PlainText;
use serde_json::{Value, json};

use crate::support::{
    act, block, entries, envelope, fenced, read, read_action, read_call, reads, resolved, world,
};

fn carrier(value: Value) -> ModelOutput {
    ModelOutput::carrier(value.to_string())
}

#[test]
fn act_maps_each_call_to_an_action() {
    let accepted = world().accepted(&act(json!([
        {"id": "find", "type": "tool", "name": "glob", "args": {"pattern": "*.json"}, "title": "Find"},
        {"id": "see", "type": "agent", "name": "auto", "args": {"description": "review"}, "depends": "find", "result": "structured"},
    ])));
    let declaration = accepted.declaration;
    assert_eq!(declaration.intent, Intent::Execute);
    assert_eq!(declaration.note, "I look.");
    let [find, see] = declaration.actions() else {
        panic!("two actions")
    };
    assert_eq!(find.executor.kind, Some(ExecutorKind::Tool));
    assert_eq!(find.executor.target.as_deref(), Some("glob"));
    assert_eq!(
        Value::Object(find.input.clone()),
        json!({"pattern": "*.json"})
    );
    assert_eq!(
        (find.title.as_str(), find.operation.as_str()),
        ("Find", "glob")
    );
    assert_eq!(see.depends_on, std::slice::from_ref(&find.id));
    assert_eq!(
        see.result.as_ref().map(|one| one.return_to_model),
        Some(Return::Structured)
    );
    assert_eq!(find.result, None, "summary by default");
}

#[test]
fn answer_responds_and_done_stops() {
    for (kind, intent) in [("answer", Intent::Respond), ("done", Intent::Stop)] {
        let accepted = world().accepted(&carrier(json!({"kind": kind, "message": "m"})));
        assert_eq!(accepted.declaration.intent, intent);
        assert_eq!(
            accepted.declaration.payload,
            Payload::Message {
                text: "m".to_owned()
            }
        );
    }
    let delegated = carrier(json!({"kind": "done", "outcome": "not_done"}));
    let accepted = world().accepted(&delegated);
    assert_eq!(accepted.declaration.outcome, ReplyOutcome::NotDone);
}

#[test]
fn both_carriers_make_the_same_action() {
    let flat = world().accepted(&act(json!([read_call("a", json!({"title": "a"}))])));
    let full = world().accepted(&block(json!([reads("a")])));
    let (flat, full) = (
        &flat.declaration.actions()[0],
        &full.declaration.actions()[0],
    );
    assert_eq!(flat.resolved, full.resolved);
    assert_eq!((&flat.id, &flat.input), (&full.id, &full.input));
}

#[test]
fn disabled_agents_declare_nothing() {
    let mut world = world();
    let output = block(json!([reads("a")]));
    world.rules.enabled = false;
    assert_eq!(
        world.accept_output(&output),
        OutputVerdict::Content(output.text.clone())
    );
    let draft = Declaration::new(
        Intent::Execute,
        Payload::ActionGraph {
            actions: Vec::new(),
            report: None,
        },
    );
    let refused = accept_draft(draft, world.context()).expect_err("it is disabled");
    assert_eq!(refused[0].code, Code::ProtocolDisabled);
}

#[test]
fn look_alikes_are_plain_answers() {
    let text = "This is how:\n\n```json\n{\"type\": \"agent.protocol\"}\n```\n";
    let accepted = world().accepted(&ModelOutput::text(text));
    assert_eq!(accepted.declaration.intent, Intent::Respond);
    assert_eq!(accepted.declaration.source.origin, DeclarationForm::Plain);
}

#[test]
fn sections_resolve_before_execution() {
    let action = read_action(
        "a",
        json!({"prompt_ref": "md:task", "context_refs": ["md:shared.context"]}),
    );
    let behind = "## task\n\nDo it.\n\n## shared.context\n\nFacts.\n\n## user.visible\n\nI look.\n";
    let accepted = world().accepted(&fenced(&envelope(json!([action]), json!({})), behind));
    assert_eq!(accepted.declaration.note, "I look.");
    assert_eq!(
        accepted.constants[&Reference::Section("task".to_owned())],
        "Do it."
    );
    assert_eq!(
        accepted.constants[&Reference::Section("shared.context".to_owned())],
        "Facts."
    );
    let section = &accepted.declaration.source.sections["task"];
    assert_eq!(section.sha256, secrets::digest::sha256_hex("Do it."));
    let source = &accepted.declaration.source;
    assert_eq!(source.raw_sha256.len(), 64);
    assert_eq!(source.accepted_sha256.len(), 64);
}

#[test]
fn the_note_changes_no_action() {
    let value = envelope(json!([reads("a")]), json!({}));
    let with = world().accepted(&fenced(&value, "## user.visible\nI look."));
    let without = world().accepted(&fenced(&value, ""));
    assert_eq!(with.declaration.payload, without.declaration.payload);
}

#[test]
fn data_edges_join_dependencies() {
    let accepted = world().accepted(&act(json!([
        read_call(
            "b",
            json!({"args": {"path": {"$ref": "action:a.output#/path"}}})
        ),
        read("a"),
    ])));
    assert_eq!(accepted.declaration.actions()[0].depends_on, ["a".into()]);
}

#[test]
fn rejects_declarations_as_values() {
    let world = world();
    let reference = json!({"$ref": "runtime://runs/g_done/declaration"});
    let output = act(json!([read_call(
        "a",
        json!({"args": {"path": reference}})
    )]));
    let codes = world.codes(&output);
    assert_eq!(codes[0].0, Code::BadReference, "{codes:?}");
}

#[test]
fn resolved_references_bind_at_acceptance() {
    let accepted = world().accepted(&act(json!([read_call(
        "a",
        json!({"args": {
        "path": {"$ref": "runtime://g_done/actions/found/output#/files/1"},
        "lines": {"$ref": "input:event#/list/2"}}})
    )])));
    let values: Vec<_> = accepted.constants.values().collect();
    assert_eq!(values, [&json!(3), &json!("b")]);
}

#[test]
fn earlier_successes_meet_dependencies() {
    let accepted = world().accepted(&act(json!([read_call("a", json!({"depends": "found"}))])));
    let action = &accepted.declaration.actions()[0];
    assert!(action.depends_on.is_empty());
    assert_eq!(action.met, ["found".into()]);
}

#[test]
fn conditions_loops_and_policies_parse() {
    let value = envelope(
        json!([
            read_action("a", json!({"failure_policy": "ask-model"})),
            read_action(
                "b",
                json!({
                "when": {"action": "a", "is": "failed"},
                "failure_policy": {"mode": "retry", "max_attempts": 3, "backoff_ms": 10, "then": "continue"},
                "for_each": {"items": "input:event#/list", "max": 4, "as": "item", "max_failures": 1},
                "repeat": {"max": 2, "until": {"ref": "own#/done", "equals": true}, "delay_ms": 5},
                "result_policy": {"return_to_model": "adaptive", "priority": ["errors"], "max_tokens": 60, "store_full": false, "if_truncated": "truncate"},
                "effects": ["write"], "resources": {"write": ["x"]}, "timeout_ms": 10, "persist": true})
            ),
        ]),
        json!({"persist": true, "execution": {"mode": "durable", "strategy": "sequential", "max_parallel": 2}, "response_policy": "full"}),
    );
    let accepted = world().accepted(&fenced(&value, ""));
    let declaration = &accepted.declaration;
    assert_eq!(declaration.execution.mode, Durability::Durable);
    assert_eq!(declaration.execution.strategy, Strategy::Sequential);
    let action = &declaration.actions()[1];
    assert_eq!(
        action.when,
        Some(Condition::Ending {
            action: "a".into(),
            is: ActionEnding::Failed
        })
    );
    assert_eq!(
        (action.failure.mode, action.failure.last()),
        (FailureMode::Retry, FailureMode::Continue)
    );
    assert_eq!(
        action
            .for_each
            .as_ref()
            .map(|each| (each.max, each.max_failures)),
        Some((4, 1))
    );
    let until = action.repeat.as_ref().map(|repeat| &repeat.until);
    assert!(matches!(
        until,
        Some(Condition::Value {
            test: Test::Equals(_),
            ..
        })
    ));
    let resolved = action.resolved.as_ref().expect("it is resolved");
    assert_eq!(resolved.settles, ["a".into()]);
    assert!(resolved.effects.contains(&Effect::Write));
}

#[test]
fn thirteen_policies_and_unknown_fields_survive() {
    let mut action = reads("a");
    let mut value = envelope(json!([]), json!({"colour": "red"}));
    for name in POLICY_NAMES {
        action[name] = json!({"of": name});
        value[name] = json!({"of": name});
    }
    value["payload"]["actions"] = json!([action]);
    let accepted = world().accepted(&fenced(&value, ""));
    let declaration = &accepted.declaration;
    assert_eq!(declaration.policies.named.len(), 13);
    assert_eq!(declaration.actions()[0].policies.named.len(), 13);
    assert_eq!(declaration.policies.extra["colour"], "red");
    let stored = serde_json::to_string(declaration).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Declaration>(&stored).expect("it is read"),
        *declaration
    );
}

#[test]
fn auto_targets_match_capabilities() {
    let check = |executor: Value, target: &str| {
        let accepted = world().accepted(&block(json!([read_action("a", json!({"executor": executor, "input": {}, "operation": "review_code", "title": "Review code"}))])));
        let resolved = resolved(&accepted);
        assert_eq!(
            (resolved.target.as_str(), resolved.chosen_by),
            (target, ChosenBy::Runtime)
        );
    };
    check(
        json!({"type": "agent", "target": "auto", "capabilities": ["code_review"]}),
        "code-reviewer",
    );
    check(json!({"type": "agent"}), "code-reviewer");
    check(
        json!({"type": "service", "target": "auto", "capabilities": ["invoices"]}),
        "billing",
    );
    check(Value::Null, "code-reviewer");
}

#[test]
fn cheaper_executor_wins_between_equal_ones() {
    let executor = json!({"type": "agent", "target": "auto", "capabilities": ["translate"]});
    let action = read_action("a", json!({"executor": executor, "input": {}}));
    let output = block(json!([action]));
    for (first, second, target) in [
        (Cost::High, Cost::Low, "second"),
        (Cost::Low, Cost::Medium, "first"),
        (Cost::Medium, Cost::Medium, "first"),
    ] {
        let priced = |name, cost| CatalogEntry {
            cost,
            ..CatalogEntry::new(ExecutorKind::Agent, name, "Translates.", json!({}))
                .able(&["translate"])
        };
        let mut world = world();
        let mut entries = entries();
        entries.extend([priced("first", first), priced("second", second)]);
        world.catalog = Catalog::new(entries);
        let accepted = world.accepted(&output);
        let resolved = accepted.declaration.actions()[0].resolved.as_ref();
        assert_eq!(resolved.expect("it is resolved").target, target);
    }
}

#[test]
fn tools_match_by_unique_capabilities_alone() {
    let by = |capabilities: Value| {
        let executor = json!({"type": "tool", "target": "auto", "capabilities": capabilities});
        block(json!([read_action("a", json!({"executor": executor}))]))
    };
    let accepted = world().accepted(&by(json!(["filesystem", "read"])));
    assert_eq!(resolved(&accepted).target, "read");
    assert_eq!(
        world().refused(&by(json!(["filesystem"]))).diagnostics[0].code,
        Code::AutoTool
    );
}

#[test]
fn declared_effects_never_lower_the_class() {
    for effects in [json!(["none"]), json!(["read"]), json!([])] {
        let action = read_action(
            "a",
            json!({"executor": {"type": "tool", "target": "mystery"}, "effects": effects}),
        );
        let accepted = world().accepted(&block(json!([action])));
        let resolved = resolved(&accepted);
        assert_eq!(resolved.class, Class::AtMostOnce);
        assert!(resolved.effects.contains(&Effect::Unknown));
    }
    let stricter = read_action("a", json!({"effects": ["delete"]}));
    let accepted = world().accepted(&block(json!([stricter])));
    assert!(resolved(&accepted).approval);
}

#[test]
fn one_durable_action_makes_the_graph_durable() {
    for (persist, mode) in [
        (Value::Null, Durability::Ephemeral),
        (json!(true), Durability::Durable),
    ] {
        let actions = json!([reads("a"), read_action("b", json!({"persist": persist}))]);
        let accepted = world().accepted(&block(actions));
        assert_eq!(accepted.declaration.execution.mode, mode);
    }
}

#[test]
fn visibility_takes_the_strictest_word() {
    let action = read_action("a", json!({"data_visibility": "user"}));
    let private = read_action(
        "b",
        json!({"executor": {"type": "tool", "target": "salaries"}, "input": {}, "data_visibility": "model"}),
    );
    let accepted = world().accepted(&block(json!([action, private])));
    let seen: Vec<_> = accepted
        .declaration
        .actions()
        .iter()
        .map(|action| action.resolved.as_ref().expect("resolved").visibility)
        .collect();
    assert_eq!(seen, [Visibility::User, Visibility::RuntimeOnly]);
}

#[test]
fn first_repetition_is_answered_from_results() {
    let mut world = world();
    let output = act(json!([read("a")]));
    let first = world.accepted(&output);
    assert_eq!(first.repeats, None);
    let graph = action_graph::ids::GraphId("g_done".to_owned());
    world
        .known
        .repeats
        .insert(first.declaration.source.semantic_sha256, (graph.clone(), 1));
    let renamed = act(json!([read_call(
        "other",
        json!({"title": "Another title"})
    )]));
    assert_eq!(world.accepted(&renamed).repeats, Some(graph));
}

#[test]
fn recovery_passes_the_same_gates() {
    let calls = |name: &str, arguments: &str| ModelOutput::call(name, arguments);
    let accepted = world().accepted(&calls("read", r#"{"path":"a"}"#));
    let action = &accepted.declaration.actions()[0];
    assert_eq!(
        accepted.declaration.source.origin,
        DeclarationForm::RecoveredTool
    );
    assert_eq!(action.id.as_str(), "recovered_1");
    for (name, arguments) in [
        ("admin", "{}"),
        ("delete_all", "{}"),
        ("write_file", r#"{"path":"a","text":"b"}"#),
        ("mystery", "{}"),
        ("read", "{}"),
        ("read", "path a"),
        ("nothing", "{}"),
        ("code-reviewer", r#"{"prompt":"p"}"#),
    ] {
        let refused = world().refused(&calls(name, arguments));
        let codes: Vec<_> = refused.diagnostics.iter().map(|one| one.code).collect();
        assert!(codes.contains(&Code::RecoveryRefused), "{name}: {codes:?}");
    }
}

#[test]
fn plain_text_may_need_a_repair() {
    let mut world = world();
    world.rules.plain_text = PlainText::Repair;
    let refused = world.refused(&ModelOutput::text("It works."));
    assert_eq!(refused.diagnostics[0].code, Code::NoDeclaration);
    assert_eq!(refused.plain.as_deref(), Some("It works."));
    let mut budget = RepairBudget::default();
    assert_eq!(budget.refuse(&refused), AfterRefusal::Repair);
    assert_eq!(budget.refuse(&refused), AfterRefusal::Repair);
    assert_eq!(
        budget.refuse(&refused),
        AfterRefusal::Answer("It works.".to_owned())
    );
}

#[test]
fn repairs_end_per_turn_and_per_run() {
    let refused = world().refused(&ModelOutput::text(""));
    let mut budget = RepairBudget::default();
    let mut approvals = 0;
    for _ in 0..5 {
        while budget.refuse(&refused) == AfterRefusal::Repair {
            approvals += 1;
        }
        budget.next_turn();
    }
    assert_eq!(approvals, 6);
    assert_eq!(budget.refuse(&refused), AfterRefusal::Fail);
}

#[test]
fn failed_arguments_bring_their_schema() {
    let refused = world().refused(&act(json!([read_call("a", json!({"args": {"path": 1}}))])));
    assert_eq!(refused.schemas.len(), 1);
    assert_eq!(refused.schemas[0].0, "read");
    assert!(refused.raw.contains("\"path\":1"));
}

#[test]
fn half_outputs_execute_nothing() {
    let call = NativeCall {
        name: CARRIER.to_owned(),
        arguments: r#"{"kind":"act","calls":[{"id":"a","ty"#.to_owned(),
    };
    for finish in [Finish::Cut, Finish::ToolCalls] {
        let output = ModelOutput {
            text: String::new(),
            calls: vec![call.clone()],
            finish,
        };
        let code = world().refused(&output).diagnostics[0].code;
        assert!(matches!(code, Code::IncompleteOutput | Code::BadJson));
    }
}

#[test]
fn expansions_and_decisions_parse() {
    let expand = json!({"type": "agent.protocol", "version": "1", "intent": "expand_ref", "payload": {"refs": [
        {"ref": "runtime://g_done/actions/found/output", "reason": "evidence", "range": {"around_matches": true, "context_lines": 20}}]}});
    let accepted = world().accepted(&fenced(&expand, ""));
    let Payload::ExpandRef { refs } = accepted.declaration.payload else {
        panic!("an expansion")
    };
    assert_eq!(
        (refs[0].range.around_matches, refs[0].range.context_lines),
        (true, 20)
    );
    let decide = json!({"type": "agent.protocol", "version": "1", "intent": "decide", "payload": {"type": "decision", "graph": "g_open", "action": "pending", "choice": "retry"}});
    assert!(matches!(
        world().accepted(&fenced(&decide, "")).declaration.payload,
        Payload::Decision(_)
    ));
}

#[test]
fn every_intent_and_payload_parses() {
    let action = read_action(
        "a",
        json!({
        "prompt_ref": "md:task", "context_refs": ["input:user.goal"], "failure_policy": {"mode": "retry", "max_attempts": 2, "backoff_ms": 9, "then": "abort"},
        "for_each": {"items": "input:event#/list", "max": 4, "max_failures": 1}, "persist": true, "timeout_ms": 9, "effects": ["write", "read"],
        "repeat": {"max": 2, "until": {"ref": "own#/done", "in": [1, "x"], "negate": true}, "delay_ms": 5}, "resources": {"read": ["x"], "write": ["y"]},
        "result_policy": {"return_to_model": "adaptive", "priority": ["errors"], "max_tokens": 60, "if_truncated": "refuse"}, "idempotency": {"x": 1}}),
    );
    let other = read_action(
        "b",
        json!({"when": {"ref": "action:a.output#/0", "less": 3.5}, "input": {"path": {"$ref": "action:a.summary", "default": "x"}}, "depends_on": ["a"]}),
    );
    let report = json!({"title": "T", "sections": [{"heading": "H", "ref": "action:a.summary", "optional": true}, {"heading": "I", "text": "t"}], "footer": "F"});
    let graph = json!({"type": "action_graph", "actions": [action, other], "report": report});
    let of = |intent: &str, payload: Value| {
        json!({"type": "agent.protocol", "version": "1", "intent": intent, "title": "T", "payload": payload,
        "execution": {"mode": "durable", "strategy": "sequential", "max_parallel": 2}, "response_policy": {"return_to_model": "excerpt"}, "base": "g_open", "persist": true})
    };
    let expand = json!({"type": "expand_ref", "refs": [{"ref": "runtime://g_done/actions/found/output", "reason": "r", "range": {"context_lines": 3, "match": "m", "from": 2, "lines": 4}}]});
    let decision = json!({"type": "decision", "graph": "g_open", "action": "pending", "choice": "retry", "reason": "r", "input": {"path": "x"}});
    let mut final_report = report.clone();
    final_report["type"] = json!("final_report_spec");
    final_report["sections"] = json!([{"heading": "I", "text": "t"}]);
    let behind = "## task\n\nDo it.\n\n## user.visible\n\nI look.\n";
    for (intent, payload) in [
        (Intent::Execute, graph.clone()),
        (Intent::Plan, graph),
        (Intent::ExpandRef, expand),
        (Intent::Decide, decision),
        (Intent::Execute, final_report),
    ] {
        let output = fenced(&of(intent.as_str(), payload.clone()), behind);
        let declaration = world().accepted(&output).declaration;
        assert_eq!(
            (declaration.intent, declaration.title.as_str()),
            (intent, "T")
        );
        assert!(declaration.persist == Some(true) && declaration.response_policy.is_some());
        let stored = serde_json::to_value(&declaration).expect("JSON");
        assert_eq!(stored["payload"]["type"], payload["type"]);
        assert_eq!(
            serde_json::from_value::<Declaration>(stored).expect("it is read"),
            declaration
        );
    }
}
