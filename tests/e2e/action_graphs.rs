//! Action graphs end to end: gateway, protocol agent, and a scripted model.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::graphs::GraphFixture;
use crate::support::{Engine, Postgres, Sqlite, until};

fn tool_call(id: &str, name: &str, text: &Value) -> Value {
    json!({"id": id, "type": "tool", "name": name, "args": {"text": text}})
}

async fn completed(house: &GraphFixture, run: &str) -> Value {
    let ended = house.client.finished(run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    ended
}

fn answer_text(run: &Value) -> &str {
    run["output"]["content"].as_str().unwrap_or_default()
}

#[rstest]
#[tokio::test]
async fn approved_calls_are_made_once_by_later_runs(#[values(Sqlite, Postgres)] engine: Engine) {
    let house = or_skip!(GraphFixture::open(engine).await);
    let bound = json!({"$ref": "action:seen.output#/body/text"});
    house.declares(&json!([
        tool_call("seen", "look", &json!("hi")),
        tool_call("posted", "post", &bound)
    ]));
    let asking = house.post("Post it").await;
    let ended = completed(&house, &asking).await;
    assert_eq!(answer_text(&ended), "I work.", "{ended}");
    assert!(house.tools.seen("/echo/post").is_empty());

    house.answers("It is posted.");
    let posting = house.take_action(&asking, "allow_once").await;
    let ended = completed(&house, &posting).await;
    assert_eq!(answer_text(&ended), "It is posted.", "{ended}");
    let posted = house.tools.seen("/echo/post");
    assert_eq!(posted.len(), 1);
    assert_eq!(posted[0].body["text"], "hi");
    // The model sees the call once, with its resolved argument and without the carrier.
    let shown = house.shown();
    assert!(shown.contains("### Result for posted"), "{shown}");
    assert!(!shown.contains("\\\"kind\\\""), "{shown}");

    // The client gets a full graph, patches, and a full graph. Every side effect is recorded with its run.
    let forms = |results: Vec<Value>| -> Vec<String> {
        let form = |result: &Value| result["data"]["form"].as_str().unwrap().to_owned();
        results.iter().map(form).collect()
    };
    let first = forms(house.results(&asking, "x.graph.projection").await);
    assert_eq!(first.first().map(String::as_str), Some("whole"));
    let last = forms(house.results(&posting, "x.graph.projection").await);
    assert_eq!(last.last().map(String::as_str), Some("whole"), "{last:?}");
    let audit = house
        .client
        .get(&format!("/v1/runs/{posting}/audit?limit=100"))
        .await;
    let rows = audit.body["items"].as_array().unwrap().clone();
    let calls = rows.iter().filter(|row| row["resource"] == "post");
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.len(), 1, "{rows:?}");
    assert_eq!(calls[0]["rule"], "resource_policy.tools allows it");
    let approval = &calls[0]["approval"];
    assert_members!(approval, {"run_id": asking, "action_id": "allow_once"});
    assert_eq!(approval["by"]["kind"], "api_key", "{approval}");
    let id = approval["interaction_id"].as_str().unwrap();
    let question = house.client.get(&format!("/v1/interactions/{id}")).await;
    assert_eq!(question.body["request"]["title"], approval["title"]);
}

#[rstest]
#[tokio::test]
async fn messages_of_other_users_keep_interactions_open(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let house = or_skip!(GraphFixture::open(engine).await);
    house.declares(&json!([tool_call("posted", "post", &json!("hi"))]));
    let asking = house.post("Post it").await;
    completed(&house, &asking).await;
    house.answers("It waits for an approval.");
    let other = house.post_as("u-2", "Is it posted?").await;
    assert_eq!(
        answer_text(&completed(&house, &other).await),
        "It waits for an approval."
    );
    assert!(house.shown().contains("Waiting: "), "{}", house.shown());
    assert!(house.tools.seen("/echo/post").is_empty());

    house.answers("Posted.");
    let posting = house.take_action(&asking, "allow_once").await;
    assert_eq!(answer_text(&completed(&house, &posting).await), "Posted.");
    assert_eq!(house.tools.seen("/echo/post").len(), 1);
}

#[tokio::test]
async fn refused_calls_are_never_made() {
    let house = GraphFixture::open(Sqlite).await.unwrap();
    house.declares(&json!([tool_call("posted", "post", &json!("hi"))]));
    let asking = house.post("Post it").await;
    completed(&house, &asking).await;
    house.answers("Not posted.");
    let refused = house.take_action(&asking, "refuse").await;
    assert_eq!(
        answer_text(&completed(&house, &refused).await),
        "Not posted."
    );
    assert_contains!(house.shown(), "approval_denied");
    assert!(house.tools.seen("/echo/post").is_empty());
}

#[rstest]
#[tokio::test]
async fn child_runs_answer_within_parent_grant(#[values(Sqlite, Postgres)] engine: Engine) {
    let house = or_skip!(GraphFixture::open(engine).await);
    house.declares(&json!([
        {"id": "child", "type": "agent", "name": "helper", "args": {"prompt": "Look around."}}
    ]));
    house.answers("I have looked.");
    house.answers("The helper has looked.");
    let parent = house.post("Have it looked at").await;
    assert_eq!(
        answer_text(&completed(&house, &parent).await),
        "The helper has looked."
    );
    let path = format!("/v1/runs?parent_run_id={parent}");
    let children = house.client.get(&path).await.body["items"].clone();
    assert_eq!(children.as_array().unwrap().len(), 1, "{children}");
    assert_eq!(children[0]["status"], "completed");
    // The child run has no history of its parent.
    let requests = &house.model.requests()[1].body["messages"];
    assert_lacks!(requests.to_string(), "Have it looked at");
}

#[tokio::test]
async fn cancels_reach_child_runs() {
    let house = GraphFixture::open(Sqlite).await.unwrap();
    house.declares(&json!([
        {"id": "child", "type": "agent", "name": "helper", "args": {"prompt": "Look around."}}
    ]));
    // The helper's model stays silent.
    house
        .model
        .reply(crate::support::upstream::UpstreamReply::Hold(Vec::new()));
    let parent = house.post("Have it looked at").await;
    let path = format!("/v1/runs?parent_run_id={parent}");
    let mut child = Value::Null;
    until("the child run to ask its model", async || {
        child = house.client.get(&path).await.body["items"][0].clone();
        child["status"] == "running" && house.model.requests().len() == 2
    })
    .await;
    assert_eq!(house.client.cancel(&parent).await.status, 202);
    let ended = house
        .client
        .finished(child["run_id"].as_str().unwrap())
        .await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    assert_eq!(house.client.finished(&parent).await["status"], "cancelled");
    house.model.left(1).await;
}

#[rstest]
#[tokio::test]
async fn resumes_graphs_after_service_kill(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut house = or_skip!(GraphFixture::open(engine).await);
    house.declares(&json!([
        tool_call("first", "look", &json!("one")),
        {"id": "second", "type": "tool", "name": "slow", "args": {}, "depends": ["first"]},
        {"id": "last", "type": "tool", "name": "post", "args": {"text": "x"}, "depends": ["second"]}
    ]));
    let lost = house.post("Do it").await;
    house
        .tools
        .wait_for_match("the slow call", |seen| seen.path.starts_with("/slow"))
        .await;
    house.restart_service().await;
    house.client.finished(&lost).await;
    house
        .model
        .reply(crate::support::upstream::UpstreamReply::Hold(Vec::new()));
    house.post("And?").await;
    // The read is repeated; the completed call is not.
    until("the slow call again", async || {
        house.tools.seen("/slow").len() == 2
    })
    .await;
    let looked = house.tools.seen("/echo").into_iter();
    assert_eq!(
        looked
            .filter(|seen| !seen.path.starts_with("/echo/post"))
            .count(),
        1
    );
}
