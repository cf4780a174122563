//! Outputs of the model: answers, both carriers, repairs, and agents without the protocol.

use serde_json::{Value, json};

use crate::testing::outputs::native;
use crate::testing::*;

/// One action of the full DSL.
fn action(id: &str, tool: &str, input: &Value) -> Value {
    json!({"type": "action", "id": id, "title": id, "executor": {"type": "tool", "target": tool}, "input": input})
}

fn declaration(payload: &Value) -> Value {
    json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "Work", "payload": payload})
}

#[tokio::test]
async fn answers_in_one_turn() {
    let host = GraphTestHost::new();
    host.says([answer("Hello.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.completed", "stop"));
    assert_eq!(final_message(&results), "Hello.");
    assert_eq!(host.model_calls(), 1);
    let request = host.request(0);
    has_parts(
        &request,
        &[
            "# Action protocol",
            "`look(x?: any)`",
            "## User request\n\nhi\n",
            "Limits: 24 declarations left",
        ],
    );
    let usage = results.last().unwrap().usage.clone().unwrap();
    assert_eq!(usage.further["model_calls"], 1);
}

#[tokio::test]
async fn done_ends_without_a_message() {
    let host = GraphTestHost::new();
    host.says([done()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.completed", "stop"));
}

#[tokio::test]
async fn plain_text_is_an_answer() {
    let host = GraphTestHost::new();
    host.says([text("Just text.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Just text.");
}

#[tokio::test]
async fn agent_without_protocol_never_parses() {
    let host = GraphTestHost::new();
    let fenced = fence(&declaration(
        &json!({"type": "action_graph", "actions": [action("a", "look", &json!({}))]}),
    ));
    let full = fenced.plain_text();
    host.says([fenced]);
    let results = run(&host, context("hi", &json!({"protocol-enabled": false}))).await;
    assert_eq!(final_message(&results), full);
    assert_eq!(host.calls(), []);
    let script = host.script();
    assert!(script.requests[0].tools.is_empty());
    let system = script.requests[0].messages[0].plain_text();
    assert!(system.contains("You do not declare actions."), "{system}");
    assert_eq!(script.requests[0].messages[1].plain_text(), "hi");
}

#[tokio::test]
async fn repairs_once_then_answers() {
    let host = GraphTestHost::new();
    host.says([
        act("I look.", &[call("a", "tool", "lok", &json!({}), &[])]),
        answer("Done."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Done.");
    assert_eq!(host.calls(), []);
    let notice = host.request(1);
    has_parts(
        &notice,
        &[
            "## Runtime notice",
            "nothing was executed",
            "`unknown_tool` at `/calls/0/name`",
            "did you mean `look`?",
        ],
    );
    assert!(
        !notice.contains("lok\","),
        "the refused output is not replayed"
    );
}

#[tokio::test]
async fn repairs_are_bounded() {
    let host = GraphTestHost::new();
    let broken = || act("x", &[call("a", "tool", "nothing", &json!({}), &[])]);
    host.says([broken(), broken(), broken(), broken()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", "runner.protocol"));
    assert_eq!(results.last().unwrap().data["retryable"], true);
    assert_eq!(host.model_calls(), 3, "one output and two repairs");
}

#[tokio::test]
async fn recovers_direct_calls_of_readers_alone() {
    let host = GraphTestHost::new();
    host.says([native("look", r#"{"x": 1}"#), answer("Read.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Read.");
    assert_eq!(host.calls(), [("look".to_owned(), json!({"x": 1}))]);
    let host = GraphTestHost::new();
    host.says([native("note", r#"{"x": 1}"#), answer("Not done.")]);
    run(&host, context("hi", &json!({}))).await;
    assert_eq!(host.calls(), []);
}

#[tokio::test]
async fn cut_off_output_runs_nothing() {
    let host = GraphTestHost::new();
    let mut cut = act("x", &[call("a", "tool", "look", &json!({}), &[])]);
    cut.provider_specific_fields = json!({"finish_reason": "length"}).as_object().cloned();
    host.says([cut, answer("Short.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Short.");
    assert_eq!(host.calls(), []);
    assert!(host.request(1).contains("`incomplete_output`"));
}

#[tokio::test]
async fn fenced_agents_declare_in_blocks() {
    let host = GraphTestHost::new();
    let actions = json!([
        action("find", "look", &json!({"x": "a"})),
        action(
            "keep",
            "look",
            &json!({"x": {"$ref": "action:find.output"}})
        ),
    ]);
    host.tool("look", [ToolReply::Echoes]);
    host.says([
        fence(&declaration(
            &json!({"type": "action_graph", "actions": actions}),
        )),
        text("Found it."),
    ]);
    let results = run(&host, context("hi", &json!({"carrier": "fenced"}))).await;
    assert_eq!(final_message(&results), "Found it.");
    assert_eq!(host.calls()[1].1, json!({"x": {"x": "a"}}));
    let script = host.script();
    assert!(script.requests[0].tools.is_empty(), "no carrier tool");
    let last = script.requests[1].messages.last().unwrap().plain_text();
    assert!(
        last.contains("fenced `json agent-protocol` block"),
        "{last}"
    );
}

#[tokio::test]
async fn report_ends_the_run_without_the_model() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Says(json!("12 degrees"))]);
    let payload = json!({
        "type": "action_graph", "actions": [action("weather", "look", &json!({}))],
        "report": {"title": "Weather", "sections": [{"heading": "Bonn", "ref": "action:weather.output"}]},
    });
    host.says([fence(&declaration(&payload))]);
    let results = run(&host, context("hi", &json!({"carrier": "fenced"}))).await;
    assert_eq!(ending(&results), ("run.completed", "stop"));
    assert_eq!(
        final_message(&results),
        "# Weather\n\n## Bonn\n\n12 degrees"
    );
    assert_eq!(host.model_calls(), 1);
}

#[tokio::test]
async fn invalid_configuration_names_json_pointers() {
    let host = GraphTestHost::new();
    let results = run(&host, context("hi", &json!({"carrier": "xml"}))).await;
    assert_eq!(
        ending(&results),
        ("run.failed", "protocol_agent.config_invalid")
    );
    let message = results[0].data["message"].as_str().unwrap();
    assert!(
        message.contains("/carrier must be one of flat, fenced"),
        "{message}"
    );
}

#[tokio::test]
async fn secrets_in_forms_are_refused() {
    let host = GraphTestHost::new();
    let form = json!({"kind": "form", "title": "Log in", "fields": [{"name": "api_key"}]});
    host.says([
        act("x", &[call("q", "tool", "human.ask", &form, &[])]),
        answer("No."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "No.");
    assert!(host.request(1).contains("`secret_in_form`"));
    assert_eq!(questions(&results), Vec::<Value>::new());
}

#[tokio::test]
async fn same_work_is_answered_from_stored_results() {
    let host = GraphTestHost::new();
    let same = || act("x", &[call("a", "tool", "look", &json!({"x": 1}), &[])]);
    host.says([same(), same(), same(), answer("Enough.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Enough.");
    assert_eq!(host.calls().len(), 1);
    assert!(host.request(2).contains("Nothing ran again"));
    assert!(host.request(3).contains("`repeat_declaration`"));
}

#[tokio::test]
async fn requests_alternate_roles_and_pin_the_carrier() {
    let host = GraphTestHost::new();
    let context = context("first", &json!({}));
    for (number, input) in ["first", "second", "third"].into_iter().enumerate() {
        host.says([
            act(
                "I look.",
                &[call("a", "tool", "look", &json!({"x": number}), &[])],
            ),
            answer(&format!("Answer {number}.")),
        ]);
        let mut next = later(&context, &new_run(), input);
        next.input.text = Some(input.to_owned());
        run(&host, next).await;
    }
    let script = host.script();
    let last = script.requests.last().unwrap();
    let roles: Vec<_> = last.messages.iter().map(|one| one.role.as_str()).collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "user", "assistant", "user"]
    );
    assert_eq!(last.messages[2].plain_text(), "Answer 0.");
    let pinned = json!({"type": "function", "function": {"name": "AgentProtocolOutput"}});
    assert_eq!(last.extra_args["tool_choice"], pinned);
}

#[tokio::test]
async fn refused_pins_are_left_out() {
    let host = GraphTestHost::new();
    host.script()
        .models
        .push_back(ScriptedOutput::Fails("invalid_argument"));
    host.says([
        act("I look.", &[call("a", "tool", "look", &json!({}), &[])]),
        answer("Seen."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Seen.");
    let pins = host
        .script()
        .requests
        .iter()
        .map(|one| one.extra_args.contains_key("tool_choice"))
        .collect::<Vec<_>>();
    assert_eq!(pins, [true, false, false]);
}
