//! Approvals and questions: the run ends, and the next event continues it.

use serde_json::{Value, json};

use crate::testing::*;

fn send() -> Value {
    call("mail", "tool", "send", &json!({"x": "hello"}), &[])
}

fn ask(fields: &Value) -> Value {
    let form = json!({"kind": "form", "title": "Where?", "fields": fields});
    call("city", "tool", "human.ask", &form, &[])
}

/// A first run that sends a question, and the question.
pub(super) async fn asks(
    host: &GraphTestHost,
    calls: &[Value],
) -> (protocol::context::AgentRunContext, Value) {
    host.says([act("I send it.", calls)]);
    let context = context("send it", &json!({}));
    let results = run(host, context.clone()).await;
    assert_eq!(ending(&results), ("run.completed", "waiting_user"));
    assert_eq!(final_message(&results), "I send it.");
    let questions = questions(&results);
    assert_eq!(questions.len(), 1, "{questions:?}");
    (context, questions[0].clone())
}

/// The run that an answer starts.
pub(super) async fn answers(
    host: &GraphTestHost,
    (context, question): &(protocol::context::AgentRunContext, Value),
    button: &str,
    values: &Value,
) -> Vec<protocol::result::AgentRunResult> {
    let id = question["interaction_id"].as_str().unwrap();
    let run_id = new_run();
    run(host, submitted(context, &run_id, id, button, values)).await
}

#[tokio::test]
async fn approval_waits_and_goes_on_once_answered() {
    let host = GraphTestHost::new();
    let pending = asks(&host, &[send()]).await;
    assert_eq!(host.calls(), []);
    let text = pending.1["description"].as_str().unwrap();
    has_parts(
        text,
        &[
            "`send` (external)",
            "\"x\": \"hello\"",
            "For this conversation means",
        ],
    );
    host.says([answer("Sent.")]);
    let results = answers(&host, &pending, "allow_once", &json!({})).await;
    assert_eq!(ending(&results), ("run.completed", "stop"));
    assert_eq!(final_message(&results), "Sent.");
    assert_eq!(host.calls(), [("send".to_owned(), json!({"x": "hello"}))]);
    let request = host.request(1);
    has_parts(
        &request,
        &["send it", "Status: completed", "### Result for mail"],
    );
}

#[tokio::test]
async fn second_answer_to_a_question_changes_nothing() {
    let host = GraphTestHost::new();
    let pending = asks(&host, &[send()]).await;
    host.says([answer("Sent.")]);
    answers(&host, &pending, "allow_once", &json!({})).await;
    let results = answers(&host, &pending, "allow_once", &json!({})).await;
    assert_eq!(
        final_message(&results),
        "This question is not open any more."
    );
    assert_eq!(host.calls().len(), 1);
}

#[tokio::test]
async fn conversation_approval_skips_further_questions() {
    let host = GraphTestHost::new();
    let pending = asks(&host, &[send()]).await;
    host.says([
        act(
            "Again.",
            &[call("again", "tool", "send", &json!({"x": "hello"}), &[])],
        ),
        act(
            "Else.",
            &[call("other", "tool", "send", &json!({"x": "bye"}), &[])],
        ),
    ]);
    let results = answers(&host, &pending, "allow_conversation", &json!({})).await;
    assert_eq!(
        ending(&results),
        ("run.completed", "waiting_user"),
        "other arguments ask again"
    );
    assert_eq!(host.calls().len(), 2);
    let id = pending.1["interaction_id"].as_str().unwrap();
    let question = format!("{}/{id}", pending.0.run_id);
    assert_eq!(host.approvals(), [Some(question.clone()), Some(question)]);
    assert!(
        questions(&results)[0]["description"]
            .as_str()
            .unwrap()
            .contains("bye")
    );
}

#[tokio::test]
async fn approvals_are_listed_and_revoked_by_command() {
    let host = GraphTestHost::new();
    let command = async |text: &str| final_message(&run(&host, context(text, &json!({}))).await);
    let send = |text: &str| call("mail", "tool", "send", &json!({"x": text}), &[]);
    assert!(
        command("/approvals")
            .await
            .starts_with("No call is approved")
    );
    let pending = asks(&host, &[send("two\nlines")]).await;
    host.says([answer("Sent.")]);
    answers(&host, &pending, "allow_conversation", &json!({})).await;

    let listed = command("/approvals").await;
    assert!(listed.contains("every `send`, with any x"), "{listed}");
    let name = listed.split('`').nth(1).unwrap();
    let unknown = command("/approvals revoke s_0").await;
    assert!(unknown.starts_with("There is no approval"), "{unknown}");
    let revoked = command(&format!("/approvals revoke {name}")).await;
    assert!(revoked.contains("is revoked"), "{revoked}");
    assert_eq!(host.calls().len(), 1);
    host.says([act("I send it.", &[send("other\nlines")])]);
    let mut later = context("send it", &json!({}));
    later.run_id = new_run();
    let results = run(&host, later).await;
    assert_eq!(ending(&results), ("run.completed", "waiting_user"));
}

#[tokio::test]
async fn refusal_reaches_the_model() {
    let host = GraphTestHost::new();
    let pending = asks(
        &host,
        &[send(), call("after", "tool", "look", &json!({}), &["mail"])],
    )
    .await;
    host.says([answer("I did not send it.")]);
    let results = answers(&host, &pending, "refuse", &json!({})).await;
    assert_eq!(final_message(&results), "I did not send it.");
    assert_eq!(host.calls(), []);
    host.sees(1, "Reason: approval_denied");
}

#[tokio::test]
async fn unanswered_approval_expires() {
    let host = GraphTestHost::new();
    let pending = asks(&host, &[send()]).await;
    // The clock of the next run is later than the question's end.
    for (key, document) in &mut host.memory.world().documents {
        if key.starts_with("apd.g.") {
            expire(document.bodies.get_mut("head").unwrap());
        }
    }
    host.says([answer("No answer came.")]);
    let context = later(&pending.0, &new_run(), "e-2");
    let results = run(&host, context).await;
    assert_eq!(final_message(&results), "No answer came.");
    host.sees(1, "Reason: interaction_expired");
}

/// Lets every question of a stored head end long ago.
fn expire(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                if name == "expires_at" {
                    *value = json!(1);
                } else {
                    expire(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(expire),
        _ => {}
    }
}

#[tokio::test]
async fn no_surface_makes_approvals_unavailable() {
    let host = GraphTestHost::new();
    host.says([
        act("I send it.", &[send()]),
        answer("It cannot be approved here."),
    ]);
    let mut context = context("send it", &json!({}));
    context.delivery.interactions = None;
    let results = run(&host, context).await;
    assert_eq!(final_message(&results), "It cannot be approved here.");
    assert_eq!(host.calls(), []);
    host.sees(1, "Reason: approval_unavailable");
}

#[tokio::test]
async fn several_approvals_are_one_question() {
    let host = GraphTestHost::new();
    let other = call("other", "tool", "send", &json!({"x": "bye"}), &[]);
    let pending = asks(&host, &[send(), other]).await;
    assert_eq!(pending.1["fields"].as_array().unwrap().len(), 2);
    host.says([answer("One of two.")]);
    let values = json!({"mail": "allow_once", "other": "refuse"});
    answers(&host, &pending, "submit", &values).await;
    assert_eq!(host.calls(), [("send".to_owned(), json!({"x": "hello"}))]);
}

#[tokio::test]
async fn form_values_reach_dependent_calls() {
    let host = GraphTestHost::new();
    let next = call(
        "next",
        "tool",
        "look",
        &json!({"x": {"$ref": "action:city.output#/city"}}),
        &[],
    );
    let pending = asks(
        &host,
        &[ask(&json!([{"name": "city", "required": true}])), next],
    )
    .await;
    assert_eq!(pending.1["fields"][0]["id"], "city");
    host.says([answer("Bonn it is.")]);
    let results = answers(&host, &pending, "submit", &json!({"city": "Bonn"})).await;
    assert_eq!(final_message(&results), "Bonn it is.");
    assert_eq!(host.calls(), [("look".to_owned(), json!({"x": "Bonn"}))]);
}

#[tokio::test]
async fn declined_form_is_delivered_and_opens_nothing() {
    let host = GraphTestHost::new();
    let next = call("next", "tool", "look", &json!({}), &["city"]);
    let pending = asks(&host, &[ask(&json!([{"name": "city"}])), next]).await;
    host.says([answer("Fine.")]);
    answers(&host, &pending, "decline", &json!({})).await;
    assert_eq!(host.calls(), []);
    host.sees(1, "\"declined\":true");
}

#[tokio::test]
async fn message_while_waiting_leaves_the_question_open() {
    let host = GraphTestHost::new();
    let pending = asks(&host, &[send()]).await;
    host.says([answer("I wait for your approval.")]);
    let mut message = later(&pending.0, &new_run(), "e-2");
    message.input.text = Some("how far are you?".to_owned());
    let results = run(&host, message).await;
    assert_eq!(final_message(&results), "I wait for your approval.");
    let request = host.request(1);
    has_parts(
        &request,
        &[
            "how far are you?",
            "waits for an approval",
            "Waiting: the user was asked",
        ],
    );
    host.says([answer("Sent.")]);
    let results = answers(&host, &pending, "allow_once", &json!({})).await;
    assert_eq!(final_message(&results), "Sent.");
    assert_eq!(host.calls().len(), 1);
}

#[tokio::test]
async fn unknown_outcome_is_a_question_to_the_user() {
    let host = GraphTestHost::new();
    let pending = asks(&host, &[send()]).await;
    host.tool("send", [ToolReply::Fails("runtime_error/outcome_unknown")]);
    let results = answers(&host, &pending, "allow_once", &json!({})).await;
    assert_eq!(ending(&results), ("run.completed", "waiting_user"));
    let question = questions(&results)[0].clone();
    assert_eq!(question["title"], "Did this happen? mail");
    host.says([answer("It was sent.")]);
    let results = answers(&host, &(pending.0, question), "happened", &json!({})).await;
    assert_eq!(final_message(&results), "It was sent.");
    assert_eq!(host.calls().len(), 1, "it is not sent again");
}

#[tokio::test]
async fn unknown_outcome_without_records_reaches_the_model() {
    let host = GraphTestHost::new();
    host.tool(
        "mystery",
        [ToolReply::Fails("runtime_error/outcome_unknown")],
    );
    host.says([
        act("I do it.", &[call("m", "tool", "mystery", &json!({}), &[])]),
        answer("It is not known whether it happened."),
    ]);
    let results = run(&host, context("do it", &json!({}))).await;
    assert_eq!(
        final_message(&results),
        "It is not known whether it happened."
    );
    assert_eq!(questions(&results), Vec::<Value>::new());
    assert!(
        host.request(1)
            .contains("Status: blocked (outcome unknown)")
    );
    assert_eq!(host.calls().len(), 1);
}

#[tokio::test]
async fn status_tool_settles_unknown_outcomes() {
    let host = GraphTestHost::new();
    let config = json!({"carrier": "fenced", "remotes": [
        {"name": "billing", "type": "service", "tool": "mystery", "status_tool": "look"},
    ]});
    host.tool(
        "mystery",
        [ToolReply::Fails("runtime_error/outcome_unknown")],
    );
    host.tool(
        "look",
        [ToolReply::Says(
            json!({"done": true, "output": {"invoice": 7}}),
        )],
    );
    let declaration = json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "Bill", "payload": {
    "type": "action_graph", "actions": [
        {"type": "action", "id": "bill", "title": "bill", "executor": {"type": "service", "target": "billing"}, "input": {}},
    ]}});
    host.says([fence(&declaration), text("Billed.")]);
    let results = run(&host, context("bill", &config)).await;
    assert_eq!(final_message(&results), "Billed.");
    host.sees(1, "\"invoice\":7");
}
