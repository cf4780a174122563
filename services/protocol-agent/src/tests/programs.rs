//! Graphs that programs declare by an event of type `graph.run`.

use protocol::context::AgentRunContext;
use serde_json::{Value, json};

use crate::testing::*;

/// An event that runs this declaration.
fn program(declaration: &Value, data: &Value) -> AgentRunContext {
    let mut context = context("", &json!({}));
    context.input = serde_json::from_value(json!({})).unwrap();
    context.event.event_type = "graph.run".to_owned();
    let mut data = data.as_object().unwrap().clone();
    data.insert("declaration".to_owned(), declaration.clone());
    context.event.data = data;
    context.resources.models.clear();
    context
}

fn full(actions: &Value) -> Value {
    json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "T",
        "payload": {"type": "action_graph", "actions": actions}})
}

fn action(id: &str, tool: &str, input: &Value) -> Value {
    json!({"type": "action", "id": id, "title": id, "executor": {"type": "tool", "target": tool}, "input": input})
}

#[tokio::test]
async fn programs_run_graphs_without_a_model() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Echoes]);
    let first = action(
        "first",
        "look",
        &json!({"x": {"$ref": "input:event#/data/inputs/city"}}),
    );
    let second = action(
        "second",
        "look",
        &json!({"x": {"$ref": "action:first.output#/x"}}),
    );
    let declaration = full(&json!([first, second]));
    for city in ["Oslo", "Tokyo"] {
        let mut context = program(&declaration, &json!({"inputs": {"city": city}}));
        context = later(&context, &new_run(), city);
        let results = run(&host, context).await;
        assert_eq!(ending(&results), ("run.completed", "stop"));
        assert!(
            final_message(&results).contains(city),
            "{}",
            final_message(&results)
        );
        let shown = all(&results, "x.graph.projection");
        assert_eq!(shown.last().unwrap()["projection"]["status"], "completed");
    }
    let flat = json!({"kind": "act", "message": "I look.", "calls": [call("a", "tool", "look", &json!({"x": "seen"}), &[])]});
    let flat = later(&program(&flat, &json!({})), &new_run(), "flat");
    assert!(final_message(&run(&host, flat).await).contains("seen"));
    assert_eq!(host.model_calls(), 0);
}

#[tokio::test]
async fn graphs_of_programs_wait_for_approvals() {
    let host = GraphTestHost::new();
    host.tool("send", [ToolReply::Says(json!("sent"))]);
    let context = program(
        &full(&json!([action("mail", "send", &json!({"x": 1}))])),
        &json!({}),
    );
    let results = run(&host, context.clone()).await;
    assert_eq!(ending(&results), ("run.completed", "waiting_user"));
    assert_eq!(host.calls(), []);
    let id = questions(&results)[0]["interaction_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut answer = submitted(&context, &new_run(), &id, "allow_once", &json!({}));
    answer.event.data.clear();
    let results = run(&host, answer).await;
    assert_eq!(
        (ending(&results), final_message(&results)),
        (("run.completed", "stop"), "sent".to_owned())
    );
    assert_eq!(host.model_calls(), 0);
}

#[tokio::test]
async fn failed_graphs_of_programs_list_their_actions() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [
            ToolReply::Says(json!("seen")),
            ToolReply::Fails("runtime_error"),
        ],
    );
    let mut second = action("second", "look", &json!({"x": 2}));
    second["depends_on"] = json!(["first"]);
    let actions = json!([action("first", "look", &json!({"x": 1})), second]);
    let results = run(&host, program(&full(&actions), &json!({}))).await;
    assert_eq!(ending(&results), ("run.completed", "actions_failed"));
    let text = final_message(&results);
    has_parts(
        &text,
        &[
            "did not complete",
            "Done:\n- first",
            "Not done:\n- second: failed",
        ],
    );
}

#[tokio::test]
async fn invalid_declarations_of_programs_fail_by_pointer() {
    let unknown = full(&json!([action("a", "nothing", &json!({}))]));
    let pointer = "/data/declaration/payload/actions/0/executor/target unknown_tool";
    for (declaration, part) in [
        (unknown, pointer),
        (json!([]), "/data/declaration must be an object"),
        (
            json!({"kind": "answer", "message": "hi"}),
            "declares no graph",
        ),
        (
            json!({"kind": "act"}),
            "/data/declaration/calls missing_calls",
        ),
    ] {
        let host = GraphTestHost::new();
        let results = run(&host, program(&declaration, &json!({}))).await;
        assert_eq!(
            ending(&results),
            ("run.failed", "protocol_agent.declaration_invalid")
        );
        let message = results.last().unwrap().data["error"].as_str();
        let message = message.or(results.last().unwrap().data["message"].as_str());
        assert!(message.unwrap().contains(part), "{message:?}");
        assert_eq!(host.calls(), []);
    }
}

/// Answers the only question of these results.
async fn answered(
    host: &GraphTestHost,
    context: &AgentRunContext,
    results: &[protocol::result::AgentRunResult],
    button: &str,
) -> Vec<protocol::result::AgentRunResult> {
    let id = questions(results)[0]["interaction_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = submitted(context, &new_run(), &id, button, &json!({}));
    run(host, answer).await
}

#[tokio::test]
async fn plans_of_programs_wait_for_their_approval() {
    let mut after = action(
        "second",
        "look",
        &json!({"x": {"$ref": "action:first.output#/x"}}),
    );
    after["when"] = json!({"action": "first", "is": "completed"});
    let declaration = full(&json!([
        action("first", "look", &json!({"x": "seen"})),
        after
    ]));
    let context = program(&declaration, &json!({"approve": "plan"}));
    for (button, calls, end) in [("yes", 2, "stop"), ("decline", 0, "actions_failed")] {
        let host = GraphTestHost::new();
        host.tool("look", [ToolReply::Echoes]);
        let first_run = run(&host, context.clone()).await;
        assert_eq!(
            ending(&first_run),
            ("run.completed", "waiting_user"),
            "{:?}",
            first_run.last()
        );
        assert_eq!(host.calls(), []);
        let text = questions(&first_run)[0]["description"]
            .as_str()
            .unwrap()
            .to_owned();
        has_parts(
            &text,
            &[
                "1. first: `look`",
                "\"x\": \"seen\"",
                "2. second: `look`",
                "from action:first.output",
            ],
        );
        let results = answered(&host, &context, &first_run, button).await;
        assert_eq!(
            (host.calls().len(), ending(&results)),
            (calls, ("run.completed", end))
        );
        let id = questions(&first_run)[0]["interaction_id"].clone();
        let question = format!("{}/{}", context.run_id, id.as_str().unwrap());
        let approvals = host.approvals();
        assert!(approvals.iter().all(|by| by.as_ref() == Some(&question)));
    }
}

#[tokio::test]
async fn models_cannot_go_on_without_an_approved_plan() {
    let host = GraphTestHost::new();
    let plain = |id: &str, after: &[&str]| call(id, "tool", "look", &json!({"x": 1}), after);
    host.says([act("I look.", &[plain("a", &[]), plain("b", &["a"])])]);
    let context = context("look", &json!({"approve": "plan"}));
    let first_run = run(&host, context.clone()).await;
    assert_eq!(ending(&first_run), ("run.completed", "waiting_user"));
    let decide = |action: &str, choice: &str| {
        let args = json!({"graph": "GRAPH", "action": action, "choice": choice, "reason": "r"});
        act(
            "I continue.",
            &[call("d", "tool", "runtime.decide", &args, &[])],
        )
    };
    host.says([decide("a", "skip"), answer("The plan was refused.")]);
    let results = answered(&host, &context, &first_run, "decline").await;
    assert_eq!(final_message(&results), "The plan was refused.");
    assert_eq!(host.calls(), []);
}

#[tokio::test]
async fn plans_that_no_question_shows_are_refused() {
    let host = GraphTestHost::new();
    let long = action("first", "look", &json!({"x": "long ".repeat(2_000)}));
    let results = run(
        &host,
        program(&full(&json!([long])), &json!({"approve": "plan"})),
    )
    .await;
    assert_eq!(ending(&results).0, "run.failed");
    assert_eq!(host.calls(), []);
}
