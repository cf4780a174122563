//! The list of conversations, and the additional fields of runs in lists.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::message;
use crate::support::database::rows;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

/// Posts a message with this text to a conversation and waits for the end of its run, if it has one.
async fn say(stage: &Stage, conversation: &Value, text: &str) {
    let mut event = message(text);
    event["input"]["text"] = json!(text);
    event["bot_id"] = conversation["bot_id"].clone();
    event["conversation"] = conversation["conversation"].clone();
    let answer = stage.client.post(&event).await;
    stage.client.finished(&answer.run_id()).await;
}

/// All conversations, in pages of two.
async fn listed(stage: &Stage) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/conversations?limit=2{cursor}");
        let page = stage.client.get(&path).await.body;
        found.extend(page["items"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

#[rstest]
#[tokio::test]
async fn lists_conversations_by_newest_event(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(|run| sse(run.talk(2).concat()));
    assert!(listed(&stage).await.is_empty());
    let of = |id: &str| json!({"conversation": {"conversation_id": id}});
    let thread =
        json!({"bot_id": "b-1", "conversation": {"conversation_id": "c-1", "thread_id": "t-1"}});
    for (conversation, text) in [
        (of("c-1"), "one"),
        (of("c-2"), "two"),
        (thread, "three"),
        (of("c-3"), "four"),
        (of("c-1"), "five"),
    ] {
        say(&stage, &conversation, text).await;
    }
    // An event without a conversation is in none.
    let mut alone = message("six");
    alone.as_object_mut().unwrap().remove("conversation");
    stage.client.post(&alone).await;

    let found = listed(&stage).await;
    let shown = |one: &Value| {
        let fields = ["conversation_id", "bot_id", "thread_id", "input_preview"];
        let fields = fields.map(|field| one[field].as_str().unwrap_or("-").to_owned());
        (fields.join(" "), one["event_count"].as_i64())
    };
    let found_fields: Vec<_> = found.iter().map(shown).collect();
    assert_eq!(
        found_fields,
        [
            ("c-1 - - five".to_owned(), Some(2)),
            ("c-3 - - four".to_owned(), Some(1)),
            ("c-1 b-1 t-1 three".to_owned(), Some(1)),
            ("c-2 - - two".to_owned(), Some(1)),
        ]
    );
    assert_eq!(found[0]["last_event_id"], "five");
    assert_eq!(found[0]["message_count"], 4);
    assert_eq!(found[0]["is_busy"], false);

    let foreign = "/v1/conversations?cursor=bent";
    assert_eq!(stage.client.get(foreign).await.status, 400);
}

#[rstest]
#[tokio::test]
async fn runs_show_agent_input_and_duration(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(|run| sse(run.talk(2).concat()));
    let long = "天".repeat(300);
    let parts = json!({"contents": [{"type": "text", "text": "in a part"}]});
    for (input, expected) in [
        (
            json!({"text": "how \"are\" you\n?"}),
            Some("how \"are\" you\n?".to_owned()),
        ),
        (
            json!({"text": long}),
            Some(format!("{}…", "天".repeat(199))),
        ),
        (parts, Some("in a part".to_owned())),
    ] {
        let mut event = message(&uuid::Uuid::new_v4().to_string());
        event["input"] = input;
        let id = stage.client.post(&event).await.run_id();
        let run = stage.client.finished(&id).await;
        assert_eq!(run["input_preview"].as_str(), expected.as_deref());
        assert_eq!(run["agent_name"], "main", "{run}");
        let duration = run["duration_ms"].as_i64().unwrap();
        assert!((0..60_000).contains(&duration), "{duration}");
        let newest = stage.client.get("/v1/runs?limit=1").await.body;
        assert_eq!(newest["items"][0], run);
    }
}

/// Posts an event to an agent whose conversations end after ten idle minutes.
async fn held(stage: &OwnStage, event_id: &str) -> HeldRun {
    let mut event = message(event_id);
    event["source"] = json!("expiring");
    event["input"]["text"] = json!(event_id);
    HeldRun::start(stage, &event).await
}

/// Texts that a run reads by paging and searching its history, oldest first.
async fn readable(run: &HeldRun) -> [Vec<String>; 2] {
    let texts = |page: Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        let texts = items.map(|item| item["content"].as_str().unwrap().to_owned());
        texts.rev().collect()
    };
    let search = json!({"query": "message"});
    [
        texts(run.get("/history").await.body),
        texts(run.call("/history/search", &search).await.body),
    ]
}

#[rstest]
#[tokio::test]
async fn idle_conversation_begins_new_generation(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut reading = manifest(RUNNER_ID);
    reading["permissions"]["history"] = json!(["page", "search"]);
    reading["permissions"]["events"] = json!(["page"]);
    let runner = StubRunner::start_as(reading).await;
    let stage = or_skip!(OwnStage::of(engine, runner, |_| {}).await);
    let agent = json!({
        "name": "expiring", "event_types": ["message.received"], "runner_id": RUNNER_ID,
        "filters": {"source": ["expiring"]},
        "conversation_idle_seconds": 600,
        "resource_policy": {"history": ["page", "search"], "events": ["page"]},
        "state_policy": {"enabled": true, "scopes": ["conversation", "actor"]},
    });
    stage.admin.create("/v1/agents", &agent).await.expect(201);
    let facts = |run: &HeldRun| {
        let context = &run.run_request["context"];
        json!([
            context["context"]["has_history_before"],
            context["state"]["conversation"],
            context["state"]["actor"],
            context["runtime"]["metadata"]["conversation_generation"],
        ])
    };
    let age = async || {
        let url = stage.gateway.database_url();
        rows(
            &url,
            "UPDATE transcript_items SET created_at = created_at - 600000",
        )
        .await;
    };

    let run = held(&stage, "message 1").await;
    assert_eq!(facts(&run), json!([false, {}, {}, null]));
    run.put("/state/conversation/key", &json!("old"))
        .await
        .expect(200);
    run.put("/state/actor/key", &json!("kept"))
        .await
        .expect(200);
    // A live run keeps its conversation.
    age().await;
    let second = held(&stage, "message 2").await;
    let old = json!([true, {"key": "old"}, {"key": "kept"}, null]);
    assert_eq!(facts(&second), old);
    run.end(&stage).await;
    second.end(&stage).await;
    let run = held(&stage, "message 3").await;
    assert_eq!(facts(&run), old);
    run.end(&stage).await;

    age().await;
    let run = held(&stage, "message 4").await;
    assert_eq!(facts(&run), json!([false, {}, {"key": "kept"}, 1]));
    assert_eq!(readable(&run).await, [["message 4"], ["message 4"]]);
    let events = run.get("/events").await.body;
    assert_eq!(events["items"].as_array().unwrap().len(), 1, "{events}");
    run.put("/state/conversation/key", &json!("new"))
        .await
        .expect(200);
    run.end(&stage).await;
    let run = held(&stage, "message 5").await;
    assert_eq!(
        facts(&run),
        json!([true, {"key": "new"}, {"key": "kept"}, 1])
    );
    let own = &readable(&run).await[1];
    assert_eq!(own, &["message 4", "message 5"]);
    run.end(&stage).await;

    age().await;
    let run = held(&stage, "message 6").await;
    assert_eq!(facts(&run), json!([false, {}, {"key": "kept"}, 2]));
    run.end(&stage).await;
    let all = stage
        .client
        .get("/v1/conversations/c-7/history?limit=100")
        .await;
    let items = all.body["items"].as_array().unwrap().clone();
    let of_user = items.iter().filter(|item| item["role"] == "user");
    assert_eq!(of_user.count(), 6, "{items:?}");
}
