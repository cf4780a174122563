//! Scripts, runs and lines of `runnel graph`.

use action_graph::schedule::Why;
use serde_json::{Value, json};

use super::read::model_output;
use super::script::ScriptFile;
use super::*;

const CHAIN: &str = r#"{"kind": "act", "message": "I look.", "calls": [
    {"id": "find", "type": "tool", "name": "search", "args": {"q": "x"}},
    {"id": "read", "type": "tool", "name": "read", "args": {"path": {"$ref": "action:find.output#/q"}}}]}"#;

fn script(value: Value) -> anyhow::Result<ReplayScript> {
    ReplayScript::new(serde_json::from_value::<ScriptFile>(value)?)
}

fn played(text: &str, script: &ReplayScript) -> (ExecutedGraph, Vec<String>) {
    let model = model_output(text);
    let rules = AgentRules {
        enabled: true,
        carrier: model.carrier,
        ..AgentRules::default()
    };
    let facts = facts_of(script);
    let context = Context {
        catalog: script.catalog(),
        known: &facts,
        rules: &rules,
    };
    let OutputVerdict::Accepted(accepted) = accept(&model.output, context) else {
        panic!("refused: {text}");
    };
    let mut lines = Vec::new();
    let graph = graph_of(*accepted, &rules, &facts);
    let played = execute(graph, script, &mut |one| {
        lines.push(show::transition_line(one));
    });
    (played, lines)
}

fn open(text: &str) -> ReplayScript {
    ReplayScript::open(&model_output(text))
}

fn output_of(played: &ExecutedGraph, id: &str) -> Value {
    let node = played.graph.node(&id.into()).expect("a node");
    node.output
        .as_ref()
        .map(|one| one.value.clone())
        .unwrap_or_default()
}

#[test]
fn open_scripts_return_bound_arguments() {
    let (played, lines) = played(CHAIN, &open(CHAIN));
    assert_eq!(played.why, Some(Why::Finished));
    assert_eq!(output_of(&played, "read"), json!({"path": "x"}));
    assert_eq!(
        lines,
        [
            "▸      1 ms  find  pending -> running",
            "✓      2 ms  find  running -> completed",
            "▸      2 ms  read  pending -> running",
            "✓      3 ms  read  running -> completed"
        ]
    );
}

#[test]
fn open_scripts_match_auto_targets() {
    let text = "```json agent-protocol\n{\"type\": \"agent.protocol\", \"version\": \"1\", \"intent\": \"execute\", \"title\": \"T\", \"payload\": \
        {\"type\": \"action_graph\", \"actions\": [{\"type\": \"action\", \"id\": \"a\", \"title\": \"A\", \"description\": \"D.\", \"reason\": \"R.\", \
        \"operation\": \"review\", \"executor\": {\"type\": \"agent\", \"target\": \"auto\", \"capabilities\": [\"code_review\"]}, \"input\": {\"prompt\": \"p\"}}]}}\n```\n";
    let (played, _) = played(text, &open(text));
    assert_eq!(played.why, Some(Why::Finished));
    assert_eq!(output_of(&played, "a"), json!({"prompt": "p"}));
}

#[test]
fn scripted_failures_retry_and_then_succeed() {
    let text = "```json agent-protocol\n{\"type\": \"agent.protocol\", \"version\": \"1\", \"intent\": \"execute\", \"title\": \"T\", \"payload\": \
        {\"type\": \"action_graph\", \"actions\": [{\"type\": \"action\", \"id\": \"a\", \"title\": \"A\", \"description\": \"D.\", \"reason\": \"R.\", \
        \"operation\": \"read\", \"executor\": {\"type\": \"tool\", \"target\": \"read\"}, \"failure_policy\": {\"mode\": \"retry\", \"max_attempts\": 3, \"backoff_ms\": 500}}]}}\n```\n";
    let answers =
        json!([{"error": "busy", "code": "rate_limited", "retryable": true}, {"output": "fine"}]);
    let script =
        script(json!({"tools": [{"name": "read", "effects": ["read"], "answers": answers}]}));
    let (played, lines) = played(text, &script.unwrap());
    assert_eq!(output_of(&played, "a"), json!("fine"));
    assert!(
        lines[1].ends_with("running -> waiting for retry (rate_limited)"),
        "{lines:?}"
    );
    assert!(played.now >= 500, "the clock moved by the backoff");
}

#[test]
fn approvals_wait_unless_scripted() {
    let text = r#"{"kind": "act", "message": "I send it.", "calls": [{"id": "mail", "type": "tool", "name": "send", "args": {}}]}"#;
    let send = |approve: Option<bool>| {
        let mut tool = json!({"name": "send", "effects": ["send"]});
        if let Some(approve) = approve {
            tool["approve"] = json!(approve);
        }
        played(text, &script(json!({"tools": [tool]})).unwrap()).0
    };
    for (approve, why, status, is_good) in [
        (None, Why::PermissionNeeded, "waiting", true),
        (Some(true), Why::Finished, "completed", true),
        (Some(false), Why::Finished, "failed", false),
    ] {
        let played = send(approve);
        let found = (played.why, played.graph.status().as_str(), played.is_good());
        assert_eq!(found, (Some(why), status, is_good), "{approve:?}");
    }
}

#[test]
fn questions_wait_unless_scripted() {
    let text = r#"{"kind": "act", "message": "I ask.", "calls": [{"id": "q", "type": "tool", "name": "human.ask", "args": {"kind": "confirmation", "title": "Continue?"}}]}"#;
    let (waiting, _) = played(text, &open(text));
    assert_eq!(waiting.why, Some(Why::UserNeeded));
    let human =
        json!({"name": "ask", "type": "human", "answers": [{"output": {"confirmed": true}}]});
    let (answered, _) = played(text, &script(json!({"tools": [human]})).unwrap());
    assert_eq!(output_of(&answered, "q"), json!({"confirmed": true}));
}

#[test]
fn built_in_functions_run_without_a_script() {
    let text = r#"{"kind": "act", "message": "I wait.", "calls": [
        {"id": "a", "type": "tool", "name": "runtime.wait", "args": {"ms": 700}},
        {"id": "b", "type": "tool", "name": "runtime.merge", "args": {"refs": ["x", "y"]}, "depends": ["a"]},
        {"id": "c", "type": "tool", "name": "runtime.checkpoint", "args": {}}]}"#;
    let (played, _) = played(text, &open(text));
    assert_eq!(output_of(&played, "b"), json!("x\n\ny"));
    assert!(played.now >= 700);
    assert_eq!(played.why, Some(Why::Finished));
}

#[test]
fn bound_arguments_are_checked_before_a_call() {
    let schema = json!({"type": "object", "properties": {"path": {"type": "integer"}}});
    let tools = json!([{"name": "search", "effects": ["read"]}, {"name": "read", "effects": ["read"], "schema": schema}]);
    let (played, _) = played(CHAIN, &script(json!({"tools": tools})).unwrap());
    let node = played.graph.node(&"read".into()).expect("a node");
    let error = node.error.as_ref().expect("an error");
    assert_eq!(error.code.as_str(), "args_schema");
    assert!(!played.is_good());
}

#[test]
fn renders_doubling_bindings_in_bounded_size() {
    let step = |n: usize| {
        let before = json!({"$ref": format!("action:s{}.output", n.saturating_sub(1))});
        let input = if n == 0 {
            json!({"text": "x".repeat(40_000)})
        } else {
            json!({"left": before, "right": before})
        };
        json!({"type": "action", "id": format!("s{n}"), "title": "S", "description": "D.", "reason": "R.",
            "operation": "read", "executor": {"type": "tool", "target": "read"}, "input": input})
    };
    let actions: Vec<_> = (0..30).map(step).collect();
    let declared = json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "T",
        "payload": {"type": "action_graph", "actions": actions}});
    let text = format!("```json agent-protocol\n{declared}\n```\n");
    let (played, _) = played(&text, &open(&text));
    let rendered = show::graph_turn(&played, "");
    assert!(rendered.len() < 3 * text.len(), "{}", rendered.len());
    assert!(rendered.contains("args_too_large"), "{rendered}");
}

#[test]
fn scripts_refuse_duplicates_and_incomplete_answers() {
    for (tools, fault) in [
        (
            json!([{"name": "a"}, {"name": "a"}]),
            "/tools/1/name: `a` is there twice",
        ),
        (
            json!([{"name": "a", "answers": [{}]}]),
            "/tools/0/answers/0: give either `output` or `error`",
        ),
        (
            json!([{"name": "wait", "type": "runtime"}]),
            "/tools/0/type: the runtime's own words cannot be scripted",
        ),
        (
            json!([{"name": "x", "type": "human"}]),
            "/tools/0/name: a question is `ask` or `approve`",
        ),
        (
            json!([{"name": "a", "answer": 1}]),
            "unknown field `answer`",
        ),
    ] {
        let error = script(json!({"tools": tools}))
            .err()
            .expect("a fault")
            .to_string();
        assert!(error.starts_with(fault), "{error}");
    }
}

#[test]
fn diagnostics_show_code_pointer_and_fix() {
    let model = model_output(
        r#"{"kind": "act", "calls": [{"id": "a.b", "type": "tool", "name": "x", "args": {}}]}"#,
    );
    let script = ReplayScript::open(&model);
    let rules = AgentRules {
        enabled: true,
        ..AgentRules::default()
    };
    let facts = KnownFacts::default();
    let context = Context {
        catalog: script.catalog(),
        known: &facts,
        rules: &rules,
    };
    let OutputVerdict::Repair(repair) = accept(&model.output, context) else {
        panic!("accepted")
    };
    let line = show::diagnostic_line(&repair.diagnostics[0]);
    assert!(line.starts_with("error bad_id at /calls/0/id: "), "{line}");
    assert!(line.contains(". Fix: "), "{line}");
    assert_eq!(
        show::lint_summary("refused", &repair.diagnostics[..1]),
        "refused (errors: 1, warnings: 0)"
    );
}
