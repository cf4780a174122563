//! Interactions: a run requests input from a user. It is answered once, by a client or through a link, and only
//! where all policies allow it.

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, ScriptStep, send as step, sse, sse_head};
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

const NOT_PERMITTED: &str = "plugin:runnel/unpermitted/default";
const INCAPABLE: &str = "plugin:runnel/incapable/default";

/// A stage with one runner that may request interactions and three that each lack one permission.
pub async fn stage(engine: Engine) -> Option<OwnStage> {
    stage_with(engine, |_| {}).await
}

/// As `stage`, with changes to the configuration.
pub async fn stage_with(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let asking = |id: &str| {
        let mut manifest = manifest(id);
        manifest["permissions"]["interactions"] = json!(["request"]);
        manifest["permissions"]["tools"] = json!(["call"]);
        manifest["capabilities"]["interactions"] = json!(true);
        manifest
    };
    let mut manifests = [RUNNER_ID, NOT_PERMITTED, INCAPABLE].map(asking);
    manifests[1]["permissions"]["interactions"] = json!([]);
    manifests[2]["capabilities"]["interactions"] = json!(false);
    let runner = StubRunner::start_listing(json!(manifests)).await;
    OwnStage::of(engine, runner, |config| {
        config.agents[0].interactions = true;
        for (name, event_types, runner_id, interactions) in [
            ("unpermitted", "test.unpermitted", NOT_PERMITTED, true),
            ("incapable", "test.incapable", INCAPABLE, true),
            ("unallowed", "test.unallowed", RUNNER_ID, false),
        ] {
            config.agents.push(Agent {
                name,
                event_types,
                runner_id,
                interactions,
                ..Agent::default()
            });
        }
        configure(config);
    })
    .await
}

pub fn question(id: &str, more: &Value) -> Value {
    let mut question = json!({
        "interaction_id": id, "kind": "form", "title": "Which room?",
        "fields": [{"id": "room", "label": "Room", "type": "select", "required": true,
            "options": [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]}],
        "actions": [{"id": "book", "label": "Book", "style": "primary"}],
        "fallback_text": "Which room?",
    });
    let more = more.as_object().unwrap().clone();
    question.as_object_mut().unwrap().extend(more);
    question
}

fn answer(choice: &str) -> Value {
    json!({"interaction_id": "q", "action_id": "book", "values": {"room": choice}})
}

pub fn asking_event(event_id: &str) -> Value {
    let mut event = message(event_id);
    event["delivery"] = json!({
        "surface": "chat", "reply_target": {"chat": 7},
        "interactions": {"field_types": ["select"], "action_styles": ["primary"]},
    });
    event
}

/// Scripts the run of this event to request these interactions and end. Returns its run id.
pub async fn ask(stage: &Stage, event: &Value, questions: &[Value]) -> String {
    let questions = questions.to_vec();
    stage
        .runner
        .answer(event["event_id"].as_str().unwrap(), move |run| {
            let mut body = String::new();
            for (number, question) in (1..).zip(&questions) {
                let data = json!({
                    "action": "interaction.requested", "payload": question, "target": {"chat": 666},
                });
                body += &run.result(number, "action.requested", &data.to_string());
            }
            body += &run.delta(questions.len() + 1, "question ");
            body += &run.completed(questions.len() + 2);
            sse(body)
        });
    let run_id = stage.client.post(event).await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");
    run_id
}

async fn interactions_of(client: &Client, run_id: &str) -> Vec<Value> {
    let answer = client
        .get(&format!("/v1/interactions?run_id={run_id}"))
        .await
        .expect(200);
    answer.body["items"].as_array().unwrap().clone()
}

/// The id of the only interaction of a run.
async fn only_id(stage: &Stage, run_id: &str) -> String {
    let found = interactions_of(&stage.client, run_id).await;
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]["id"].as_str().unwrap().to_owned()
}

async fn submit(client: &Client, id: &str, body: &Value) -> ApiResponse {
    client
        .create(&format!("/v1/interactions/{id}/submit"), body)
        .await
}

async fn submit_by(client: &Client, token: &str, body: &Value) -> ApiResponse {
    let request = client.anonymous(Method::POST, &format!("/v1/interactions/{token}"));
    send(request.json(body)).await.unwrap()
}

async fn link(client: &Client, id: &str) -> Value {
    client
        .create(&format!("/v1/interactions/{id}/link"), &json!({}))
        .await
        .expect(200)
        .body
}

/// The answer in the context of the follow-up run.
fn answer_context(stage: &Stage, run_id: &str) -> Value {
    let requests = stage.runner.requests();
    let of_run = requests
        .iter()
        .find(|request| request.is_run() && request.header("runnel-run-id") == Some(run_id));
    of_run.unwrap().json()["context"].clone()
}

#[rstest]
#[tokio::test]
async fn interaction_answer_starts_run_of_requesting_agent(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine).await);
    let event = asking_event("m-1");
    let asking_run_id = ask(&stage, &event, &[question("q", &json!({}))]).await;
    let ledger = stage.client.ledger(&asking_run_id).await;
    let first: Value = serde_json::from_str(&ledger.0[0]).unwrap();
    assert_eq!(first["type"], "action.requested");
    let id = only_id(&stage, &asking_run_id).await;
    assert_eq!(first["metadata"]["interaction"]["id"], id.as_str());

    let one = format!("/v1/interactions/{id}");
    let shown = stage.client.get(&one).await.body;
    assert_members!(shown, {"status": "open", "run_id": asking_run_id, "sequence": 1});
    assert_eq!(shown["request"]["fields"][0]["options"][1]["value"], "b");
    let lasts = shown["expires_at"].as_i64().unwrap() - shown["asked_at"].as_i64().unwrap();
    assert!((1795..=1805).contains(&lasts), "half an hour: {shown}");
    let open = "/v1/interactions?status=open&conversation_id=c-7";
    assert_eq!(
        stage.client.get(open).await.body["items"][0]["id"],
        id.as_str()
    );
    let elsewhere = "/v1/interactions?conversation_id=c-8";
    assert_eq!(stage.client.get(elsewhere).await.body["items"], json!([]));

    for (wrong, pointer) in [
        (
            json!({"interaction_id": "other", "values": {"room": "a"}}),
            "/interaction_id",
        ),
        (
            json!({"interaction_id": "q", "values": {"room": "c"}}),
            "/values/room",
        ),
        (json!({"interaction_id": "q", "values": {}}), "/values/room"),
        (
            json!({"interaction_id": "q", "action_id": "x", "values": {"room": "a"}}),
            "/action_id",
        ),
        (json!({"interaction_id": "q", "nope": 1}), "/nope"),
    ] {
        let refused = submit(&stage.client, &id, &wrong).await.expect(400);
        assert_eq!(refused.detail("pointer"), pointer, "{wrong}");
    }
    let large = json!({"interaction_id": "q", "values": {"room": "x".repeat(256 * 1024)}});
    assert_eq!(submit(&stage.client, &id, &large).await.status, 413);

    let taken = submit(&stage.client, &id, &answer("b")).await;
    let run_id = taken.run_id();
    assert!(!taken.is_replay());
    stage.client.finished(&run_id).await;
    let context = answer_context(&stage, &run_id);
    assert_eq!(context["event"]["event_type"], "interaction.submitted");
    let answered = &context["input"]["interaction"];
    assert_eq!(
        (
            &answered["interaction_id"],
            &answered["action_id"],
            &answered["values"]
        ),
        (&json!("q"), &json!("book"), &json!({"room": "b"}))
    );
    assert!(answered["submitted_at"].is_i64(), "{answered}");
    assert_eq!(context["conversation"]["conversation_id"], "c-7");
    assert_eq!(context["delivery"]["reply_target"], json!({"chat": 7}));
    let run = stage.client.run(&run_id).await;
    let asking = stage.client.run(&asking_run_id).await;
    assert_eq!(run["agent_id"], asking["agent_id"]);

    let mut again = answer("b");
    again["submitted_at"] = json!(1);
    let again = submit(&stage.client, &id, &again).await;
    assert!(again.is_replay());
    assert_eq!(again.body, taken.body);
    let other = submit(&stage.client, &id, &answer("a")).await;
    other.assert_detail(409, "reason", "already_submitted");
    let shown = stage.client.get(&one).await.body;
    assert_members!(shown, {"status": "submitted", "submitted_run_id": run_id});
    let link = stage
        .client
        .create(&format!("{one}/link"), &json!({}))
        .await;
    assert_eq!(link.detail("reason"), "already_submitted");
    assert_eq!(stage.client.get(open).await.body["items"], json!([]));
}

#[rstest]
#[tokio::test]
async fn link_token_allows_exactly_one_answer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let asking_run_id = ask(&stage, &asking_event("m-1"), &[question("q", &json!({}))]).await;
    let id = only_id(&stage, &asking_run_id).await;
    let old = link(&stage.client, &id).await;
    let made = link(&stage.client, &id).await;
    let (void, token) = (
        old["token"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    assert_eq!(token.len(), 43);
    assert!(
        made["url"]
            .as_str()
            .unwrap()
            .ends_with(&format!("/v1/interactions/{token}"))
    );
    for wrong in [void, &id, "x", "%00", &token[..42]] {
        let refused = submit_by(&stage.client, wrong, &answer("a")).await;
        assert!(
            matches!(refused.status, 400 | 401),
            "{wrong}: {}",
            refused.status
        );
    }

    let replica = match engine {
        Postgres => Some(stage.gateway.start_replica().await),
        Sqlite => None,
    };
    let other = replica
        .as_ref()
        .map_or(&stage.client, |replica| &replica.client);
    let choices = (0..20).map(|number| (number, if number % 2 == 0 { "a" } else { "b" }));
    let answers = join_all(choices.map(async |(number, choice)| {
        let client = if number < 10 { &stage.client } else { other };
        submit_by(client, token, &answer(choice)).await
    }))
    .await;
    let new: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 202 && !answer.is_replay())
        .collect();
    assert_eq!(new.len(), 1, "{answers:?}");
    let run_id = new[0].run_id();
    for answer in &answers {
        match answer.status {
            202 => assert_eq!(answer.run_id(), run_id),
            _ => assert_eq!(answer.detail("reason"), "already_submitted", "{answer:?}"),
        }
    }
    let replays = answers.iter().filter(|answer| answer.is_replay()).count();
    assert_eq!(replays, 9, "replays of the first answer");
    let runs = stage.client.get("/v1/runs?limit=100").await.body;
    assert_eq!(runs["items"].as_array().unwrap().len(), 2);
    let stored = rows(
        &stage.gateway.database_url(),
        "SELECT token_sha256 FROM interactions",
    )
    .await;
    assert!(!format!("{stored:?}").contains(token));
    assert!(!stage.gateway.log().contains(token), "no log has it");
}

/// Checks that the question takes no answer and gives no link any more.
async fn assert_gone(stage: &Stage, id: &str, token: &str, reason: &str) {
    let link = format!("/v1/interactions/{id}/link");
    for refused in [
        submit(&stage.client, id, &answer("a")).await,
        submit_by(&stage.client, token, &answer("a")).await,
        stage.client.create(&link, &json!({})).await,
    ] {
        refused.assert_detail(410, "reason", reason);
    }
}

#[rstest]
#[tokio::test]
async fn rejects_answers_to_expired_interactions(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let soon = question("q", &json!({"expires_at": now + 3}));
    let asking_run_id = ask(&stage, &asking_event("m-1"), &[soon]).await;
    let id = only_id(&stage, &asking_run_id).await;
    let token = link(&stage.client, &id).await["token"].clone();
    let one = format!("/v1/interactions/{id}");
    until("the question to expire", async || {
        stage.client.get(&one).await.body["status"] == "expired"
    })
    .await;
    assert_gone(&stage, &id, token.as_str().unwrap(), "expired").await;
}

#[rstest]
#[tokio::test]
async fn cancelling_run_cancels_its_interactions(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    stage.runner.answer("m-1", |run| {
        let request =
            json!({"action": "interaction.requested", "payload": question("q", &json!({}))});
        vec![
            sse_head(),
            step(run.result(1, "action.requested", &request.to_string())),
            ScriptStep::Hold(Gate::new()),
        ]
    });
    let run_id = stage.client.post(&asking_event("m-1")).await.run_id();
    until("the question", async || {
        interactions_of(&stage.client, &run_id).await.len() == 1
    })
    .await;
    let id = only_id(&stage, &run_id).await;
    let token = link(&stage.client, &id).await["token"].clone();
    let cancel = format!("/v1/runs/{run_id}/cancel");
    stage.client.create(&cancel, &json!({})).await.expect(202);
    // The state of the runner does not matter.
    let one = format!("/v1/interactions/{id}");
    assert_eq!(stage.client.get(&one).await.body["status"], "cancelled");
    assert_eq!(stage.client.finished(&run_id).await["status"], "cancelled");
    assert_eq!(stage.client.get(&one).await.body["status"], "cancelled");
    let open = stage.client.get("/v1/interactions?status=open").await;
    assert_eq!(open.body["items"], json!([]));
    assert_gone(&stage, &id, token.as_str().unwrap(), "cancelled").await;
}

#[rstest]
#[tokio::test]
async fn interactions_need_manifest_agent_and_surface_permission(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine).await);
    for (number, (kind, layer)) in [
        ("test.unpermitted", "manifest"),
        ("test.incapable", "manifest"),
        ("test.unallowed", "agent_policy"),
        ("message.received", "event_scope"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut event = asking_event(&format!("m-{number}"));
        event["event_type"] = json!(kind);
        if layer == "event_scope" {
            event["delivery"]["interactions"] = Value::Null;
        }
        let run_id = ask(&stage, &event, &[question("q", &json!({}))]).await;
        let ledger = stage.client.ledger(&run_id).await;
        assert_eq!(ledger.types()[0], "action.requested", "{kind}");
        assert_eq!(
            interactions_of(&stage.client, &run_id).await,
            Vec::<Value>::new()
        );
        let path = format!("/v1/runs/{run_id}/authorization");
        let decisions = stage.client.get(&path).await.body["decisions"].clone();
        let decision = decisions
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["kind"] == "interactions")
            .unwrap();
        assert_eq!(
            (&decision["granted"], &decision["layer"]),
            (&json!(false), &json!(layer)),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn rejects_duplicate_and_untitled_interactions() {
    let stage = stage(Sqlite).await.unwrap();
    let no_title = question("p", &json!({"title": ""}));
    let twice = [question("q", &json!({})), question("q", &json!({}))];
    let questions = [twice.as_slice(), &[no_title]].concat();
    let run_id = ask(&stage, &asking_event("m-1"), &questions).await;
    let reasons = stage.client.rejections(&run_id).await;
    let reasons: Vec<_> = reasons.iter().map(|row| row["reason"].clone()).collect();
    assert_eq!(reasons, ["invalid_payload", "invalid_payload"]);
    assert_eq!(interactions_of(&stage.client, &run_id).await.len(), 1);
}

#[tokio::test]
async fn answers_go_only_to_requesting_agent() {
    let stage = stage(Sqlite).await.unwrap();
    let run_id = ask(&stage, &asking_event("m-1"), &[question("q", &json!({}))]).await;
    let id = only_id(&stage, &run_id).await;
    let database = stage.gateway.database_url();
    rows(
        &database,
        "UPDATE agents SET enabled = false WHERE name = 'main'",
    )
    .await;
    let refused = submit(&stage.client, &id, &answer("a")).await;
    refused.assert_detail(409, "reason", "agent_gone");
    rows(
        &database,
        "UPDATE agents SET enabled = true WHERE name = 'main'",
    )
    .await;
    submit(&stage.client, &id, &answer("a")).await.run_id();
}

#[rstest]
#[tokio::test]
async fn action_requests_with_targets_have_no_effect(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let elsewhere = ToolServer::start().await;
    let mut other = message("m-1");
    other["conversation"]["conversation_id"] = json!("other");
    stage.runner.answer("m-1", |run| sse(run.talk(1).concat()));
    let other = stage.client.post(&other).await.run_id();
    stage.client.finished(&other).await;
    let history = async || {
        let read = stage.client.get("/v1/conversations/other/history").await;
        assert_eq!(read.status, 200, "{}", read.body);
        read.body["items"].as_array().unwrap().len()
    };
    let before = history().await;

    let target =
        json!({"chat": 666, "url": elsewhere.url, "conversation_id": "other", "run_id": other});
    let actions = ["message.send", "webhook.post", "run.cancel"];
    stage.runner.answer("m-2", move |run| {
        let action = |(number, action): (usize, &str)| {
            let data = json!({"action": action, "payload": {"text": "hi"}, "target": target});
            run.result(number, "action.requested", &data.to_string())
        };
        let mut body: String = (1..).zip(actions).map(action).collect();
        body += &run.delta(actions.len() + 1, "asked");
        body += &run.completed(actions.len() + 2);
        sse(body)
    });
    let run_id = stage.client.post(&message("m-2")).await.run_id();
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    let retained = outcome
        .ledger
        .0
        .iter()
        .filter(|line| line.contains("action.requested"));
    assert_eq!(retained.count(), actions.len(), "they are on record");
    assert_eq!(
        interactions_of(&stage.client, &run_id).await,
        Vec::<Value>::new()
    );
    assert!(
        elsewhere.seen("/").is_empty(),
        "an outbound request was made"
    );
    assert_eq!(history().await, before);
    assert_eq!(stage.client.run(&other).await["status"], "completed");
}

/// Two bots may use one conversation id, and a conversation may have threads.
#[rstest]
#[tokio::test]
async fn filters_interactions_by_bot_and_thread(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    for (event_id, bot, thread) in [
        ("m-1", Some("b-1"), None),
        ("m-2", Some("b-2"), None),
        ("m-3", Some("b-2"), Some("t-1")),
        ("m-4", None, None),
    ] {
        let mut event = asking_event(event_id);
        event["conversation"] = json!({"conversation_id": "chat", "thread_id": thread});
        if let Some(bot) = bot {
            event["bot_id"] = json!(bot);
        }
        ask(&stage, &event, &[question("q", &json!({}))]).await;
    }
    let run_of = async |event_id: &str| {
        let event = stage.client.get(&format!("/v1/events/{event_id}")).await;
        event.body["run_id"].clone()
    };
    for (more, expected) in [
        ("", vec!["m-4", "m-3", "m-2", "m-1"]),
        ("&bot_id=b-2", vec!["m-3", "m-2"]),
        ("&bot_id=b-2&thread_id=", vec!["m-2"]),
        ("&thread_id=t-1", vec!["m-3"]),
        ("&bot_id=", vec!["m-4"]),
        ("&bot_id=b-3", vec![]),
    ] {
        let list = async |of: &str| {
            let path = format!("/v1/{of}?conversation_id=chat{more}");
            let found = stage.client.get(&path).await.expect(200);
            found.body["items"].as_array().unwrap().clone()
        };
        let mut runs = Vec::new();
        for event_id in &expected {
            runs.push(run_of(event_id).await);
        }
        let events = list("events").await;
        let events: Vec<_> = events.iter().map(|event| &event["event_id"]).collect();
        assert_eq!(events, expected, "events{more}");
        for of in ["runs", "interactions"] {
            let found = list(of).await;
            let found: Vec<_> = found.iter().map(|one| &one["run_id"]).collect();
            assert_eq!(found, runs.iter().collect::<Vec<_>>(), "{of}{more}");
        }
    }
    for of in ["events", "runs", "interactions"] {
        let refused = stage.client.get(&format!("/v1/{of}?bot_id=b-1")).await;
        assert_eq!(refused.status, 400, "{of}: {}", refused.body);
    }
}

#[tokio::test]
async fn error_details_list_up_to_eight_faults() {
    let stage = stage(Sqlite).await.unwrap();
    let run_id = ask(&stage, &asking_event("m-1"), &[question("q", &json!({}))]).await;
    let id = only_id(&stage, &run_id).await;
    let token = link(&stage.client, &id).await["token"].clone();
    let values: Vec<_> = (0..18_000).map(|n| (format!("f{n}"), json!(1))).collect();
    let many = json!({"interaction_id": "q", "action_id": "book",
        "values": serde_json::Map::from_iter(values)});
    let long = "x".repeat(200_000);
    let admin = stage.admin.clone();
    let config: Vec<_> = (0..5_000).map(|n| (format!("f{n}"), json!(1))).collect();
    let agent = json!({"name": "many", "event_types": ["test.many"], "runner_id": RUNNER_ID,
        "config": serde_json::Map::from_iter(config)});
    let refusals = [
        (
            submit_by(&stage.client, token.as_str().unwrap(), &many).await,
            8,
        ),
        (submit(&stage.client, &id, &json!({ long: 1 })).await, 1),
        (
            stage
                .client
                .post(&json!({"event_type": "a", "y".repeat(200_000): 1}))
                .await,
            1,
        ),
        (admin.create("/v1/agents", &agent).await, 8),
    ];
    for (refused, named) in refusals {
        let bytes = refused.body.to_string().len();
        assert_eq!(refused.status, 400, "{bytes}");
        assert!(bytes < 8_000, "{bytes}");
        let faults = refused.detail("faults").as_array().unwrap();
        assert_eq!(faults.len(), named, "{faults:?}");
    }
    let refused = submit(&stage.client, &id, &many).await;
    // The missing required field is a fault, too.
    assert_eq!(refused.detail("more_faults"), 18_001 - 8);
}
