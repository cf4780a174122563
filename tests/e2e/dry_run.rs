//! Dry runs of events, over HTTP and by `runnel explain`.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{Client, message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::programs::runnel;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{
    CommandOutput, Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, run,
};

const AGENTS: &str = "/v1/agents";
const CATALOG: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "picked"
provider = "script"
[[models]]
model_id = "other"
provider = "script"
[[tools]]
tool_name = "search"
url = "https://tools.example/search"
[[tools]]
tool_name = "launch"
url = "https://tools.example/launch"
"#;

/// The configured agent `main` with this policy and a catalog.
async fn stage(engine: Engine, policy: &'static str) -> Option<(OwnStage, Client)> {
    let mut steerable = manifest(RUNNER_ID);
    steerable["capabilities"]["steering"] = json!(true);
    steerable["permissions"] = json!({
        "models": ["invoke"], "tools": ["detail", "call"], "history": ["page"],
        "state": ["conversation"],
    });
    steerable["config_schema"] = json!([{"type": "select-llm-model", "name": "model"}]);
    let runner = StubRunner::start_as(steerable).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let configure = |config: &mut Config| {
        config.agents[0].concurrency = policy;
        CATALOG.clone_into(&mut config.rest);
    };
    let stage = OwnStage::of(engine, runner, configure).await?;
    let admin = stage.admin.clone();
    Some((stage, admin))
}

async fn created(admin: &Client, name: &str, changes: &Value) -> Value {
    let mut spec = json!({"name": name, "event_types": ["message.*"], "runner_id": RUNNER_ID});
    spec.as_object_mut()
        .unwrap()
        .extend(changes.as_object().unwrap().clone());
    admin.create(AGENTS, &spec).await.expect(201).body
}

async fn tried(admin: &Client, agent: Option<&Value>, event: &Value) -> Value {
    let path = match agent {
        Some(agent) => format!("{AGENTS}/{}/dry-run", agent["id"].as_str().unwrap()),
        None => format!("{AGENTS}/dry-run"),
    };
    admin.create(&path, event).await.expect(200).body
}

/// Name, standing and reason of each candidate.
fn standings(answer: &Value) -> Vec<[&str; 3]> {
    let candidates = answer["candidates"].as_array().unwrap().iter();
    candidates
        .map(|one| ["name", "standing", "reason"].map(|member| one[member].as_str().unwrap_or("")))
        .collect()
}

async fn nothing_was_stored(stage: &Stage) {
    for path in ["/v1/events", "/v1/runs"] {
        let items = stage.client.get(path).await.body["items"].clone();
        assert_eq!(items, json!([]), "{path}");
    }
}

#[rstest]
#[tokio::test]
async fn explains_each_losing_candidate_and_stores_nothing(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let (stage, admin) = or_skip!(stage(engine, "concurrent").await);
    let bot = json!({"kind": "bot", "bot_id": "b-1"});
    let low = created(&admin, "low", &json!({"scope": bot})).await;
    created(&admin, "high", &json!({"scope": bot, "priority": 5})).await;
    created(&admin, "off", &json!({"enabled": false})).await;
    created(&admin, "other-type", &json!({"event_types": ["group.*"]})).await;
    created(
        &admin,
        "filtered",
        &json!({"filters": {"source": ["webui"]}}),
    )
    .await;
    let elsewhere = json!({"scope": {"kind": "bot", "bot_id": "b-2"}});
    created(&admin, "other-bot", &elsewhere).await;
    let mut event = message("m-1");
    event["bot_id"] = json!("b-1");

    let answer = tried(&admin, None, &event).await;
    assert_members!(answer, {"status": 202, "outcome": "created", "winner": "high"});
    assert_eq!(
        standings(&answer),
        [
            ["high", "wins", ""],
            ["filtered", "loses", "filter"],
            ["low", "loses", "lower_priority"],
            ["main", "loses", "less_specific_scope"],
            ["off", "loses", "disabled"],
            ["other-bot", "loses", "scope"],
            ["other-type", "loses", "event_type"],
        ]
    );
    assert_eq!(answer["agent"]["name"], "high");

    // The explanation of a losing agent assumes that it wins.
    let answer = tried(&admin, Some(&low), &event).await;
    assert_eq!(answer["winner"], "high");
    let agent = &answer["agent"];
    assert_members!(agent, {"name": "low", "standing": "loses", "reason": "lower_priority"});
    assert_eq!(agent["admission"]["decision"], "start");
    assert_eq!(agent["available_apis"]["state"], true);

    created(&admin, "twin", &json!({"scope": bot, "priority": 5})).await;
    let answer = tried(&admin, None, &event).await;
    assert_members!(answer, {"status": 409, "outcome": "refused"});
    assert_members!(answer["error"]["details"], {"agents": json!(["high", "twin"])});
    assert_eq!(answer["agent"], Value::Null);
    assert_eq!(
        standings(&answer)[..2],
        [["high", "ties", ""], ["twin", "ties", ""]]
    );
    event["event_type"] = json!("nobody.wants");
    let answer = tried(&admin, None, &event).await;
    assert_eq!(answer["outcome"], "no_agent");
    nothing_was_stored(&stage).await;
    assert!(
        stage
            .runner
            .requests()
            .iter()
            .all(|request| !request.is_run())
    );
}

#[tokio::test]
async fn dry_run_matches_the_later_run() {
    let (stage, admin) = stage(Sqlite, "concurrent").await.unwrap();
    let agent = json!({
        "event_types": ["test.event"], "config": {"model": "picked"},
        "resource_policy": {"models": "*", "tools": ["search"], "history": ["page", "search"]},
    });
    let agent = created(&admin, "careful", &agent).await;
    let mut event = message("m-1");
    event["event_type"] = json!("test.event");
    let decision = tried(&admin, None, &event).await;
    nothing_was_stored(&stage).await;
    assert_eq!(tried(&admin, Some(&agent), &event).await, decision);

    let run_id = stage.client.post(&event).await.run_id();
    stage.client.finished(&run_id).await;
    let path = format!("/v1/runs/{run_id}/authorization");
    let got = stage.client.get(&path).await.body;
    for member in ["resources", "available_apis", "decisions"] {
        assert_eq!(decision["agent"][member], got[member], "{member}");
    }
    let removed = |layer: &str| {
        let decisions = decision["agent"]["decisions"].as_array().unwrap().iter();
        decisions
            .filter(|one| one["granted"] == false && one["layer"] == layer)
            .map(|one| one["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(removed("config_selector").contains(&"other".to_owned()));
    assert!(removed("agent_policy").contains(&"launch".to_owned()));
    assert!(
        tried(&admin, None, &event).await["known_event"]
            .as_bool()
            .unwrap()
    );
    assert_eq!(decision["known_event"], false);

    for (member, value, pointer) in [
        ("event_type", json!(""), "/event_type"),
        ("colour", json!("red"), "/colour"),
    ] {
        let mut event = event.clone();
        event[member] = value;
        let refused = admin.create(&format!("{AGENTS}/dry-run"), &event).await;
        assert_eq!(
            (refused.status, refused.detail("pointer")),
            (400, &json!(pointer))
        );
    }
    let cloud_event = json!({
        "specversion": "1.0", "id": "c-1", "source": "here", "type": "test.event", "data": {},
    });
    for (media_type, body, status) in [
        ("application/cloudevents+json", cloud_event.clone(), 200),
        (
            "application/cloudevents-batch+json",
            json!([cloud_event]),
            400,
        ),
    ] {
        let request = admin.request(Method::POST, &format!("{AGENTS}/dry-run"));
        let request = request.header("content-type", media_type);
        let answer = send(request.body(body.to_string())).await.unwrap();
        assert_eq!(answer.status, status, "{media_type}: {}", answer.body);
    }
    let missing = format!("{AGENTS}/01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61/dry-run");
    assert_eq!(admin.create(&missing, &event).await.status, 404);
}

#[rstest]
#[case("concurrent", "start", "created", 202)]
#[case("reject", "reject", "refused", 409)]
#[case("enqueue", "queue", "queued", 202)]
#[case("interrupt", "interrupt", "queued", 202)]
#[case("steer", "steer", "steered", 202)]
#[tokio::test]
async fn dry_run_reflects_current_busy_conversation(
    #[case] policy: &'static str,
    #[case] decision: &str,
    #[case] outcome: &str,
    #[case] status: u16,
) {
    let (stage, admin) = stage(Sqlite, policy).await.unwrap();
    let event = message("m-2");
    let idle = tried(&admin, None, &event).await;
    assert_eq!(idle["agent"]["admission"]["decision"], "start");
    let held = HeldRun::start(&stage, &message("m-1")).await;
    let answer = tried(&admin, None, &event).await;
    let admission = &answer["agent"]["admission"];
    assert_eq!(admission["policy"], policy);
    assert_eq!(admission["decision"], decision, "{answer}");
    assert_members!(answer, {"outcome": outcome, "status": status});
    assert_eq!(admission["active"][0]["run_id"], *held.run_id);
    match decision {
        "steer" => assert_eq!(answer["steered_into"], *held.run_id),
        "interrupt" => assert_eq!(admission["cancels"], json!([held.run_id])),
        "reject" => assert_eq!(answer["error"]["details"]["run_id"], *held.run_id),
        _ => {}
    }
    let shown = stage.client.run(&held.run_id).await;
    assert_eq!(
        shown["cancel_requested_at"],
        Value::Null,
        "a dry run has no effects"
    );
    held.end(&stage).await;
}

#[tokio::test]
async fn reports_absent_runners_and_changed_forms() {
    let (stage, admin) = stage(Sqlite, "concurrent").await.unwrap();
    let list = admin.get("/v1/runner-endpoints").await.body;
    let endpoint = list["items"][0]["id"].as_str().unwrap();
    let refresh = format!("/v1/runner-endpoints/{endpoint}/refresh");
    let mut formed = manifest(RUNNER_ID);
    formed["config_schema"] = json!([{"type": "string", "name": "tone", "required": true}]);
    stage.runner.list(json!([formed]));
    admin.create(&refresh, &json!({})).await;
    let answer = tried(&admin, None, &message("m-1")).await;
    assert_eq!(answer["agent"]["faults"][0]["pointer"], "/config/tone");
    let runner = &answer["agent"]["runner"];
    assert_members!(runner, {"status": "accepted", "endpoint": "stub"});
    assert_eq!(runner["endpoint_health"], "healthy");

    stage.runner.list(json!([]));
    admin.create(&refresh, &json!({})).await;
    let answer = tried(&admin, None, &message("m-1")).await;
    assert_members!(answer, {"status": 503, "winner": "main"});
    assert_eq!(answer["error"]["details"]["runner_status"], "absent");
    assert_eq!(answer["agent"]["runner"]["status"], "absent");
    assert_eq!(answer["agent"]["resources"], Value::Null);
    let posted = stage.client.post(&message("m-1")).await;
    assert_eq!(
        (posted.status, &posted.body["error"]),
        (503, &answer["error"])
    );
}

async fn explain(client: &Client, directory: &TempDirectory, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(runnel());
    command
        .arg("explain")
        .args(arguments)
        .current_dir(directory.file(""))
        .env("RUNNEL_URL", &client.url)
        .env("RUNNEL_API_KEY", &client.key);
    run(&mut command).await
}

#[tokio::test]
async fn explain_lists_winner_losers_and_layer_decisions() {
    let (stage, admin) = stage(Sqlite, "concurrent").await.unwrap();
    let directory = TempDirectory::new();
    let careful = json!({
        "scope": {"kind": "bot", "bot_id": "b-1"}, "config": {"model": "picked"},
        "resource_policy": {"models": "*", "tools": ["search"]},
    });
    created(&admin, "careful", &careful).await;
    let printed = explain(
        &admin,
        &directory,
        &["--bot", "b-1", "--conversation", "c-7", "-v"],
    )
    .await
    .exited(0);
    for line in [
        "message.received goes to careful; the run is created",
        "loses    main: scope global is wider than that of another matching agent",
        "granted  model picked invoke",
        "granted  tool search call",
        "policy   concurrent: a run starts at once (0 active, 0 waiting)",
    ] {
        assert!(
            printed.stdout.lines().any(|one| one == line),
            "{line}: {printed:?}"
        );
    }
    for start in [
        "removed  model other invoke, by the agent's config",
        "removed  tool launch call, by the agent's policy",
    ] {
        assert!(
            printed.stdout.lines().any(|one| one.starts_with(start)),
            "{start}: {printed:?}"
        );
    }

    let short = explain(
        &admin,
        &directory,
        &["--bot", "b-1", "--conversation", "c-7"],
    )
    .await;
    assert_contains!(short.stdout, "granted  tool search call");
    let removed: Vec<_> = short
        .stdout
        .lines()
        .filter(|line| line.starts_with("removed"))
        .collect();
    assert!(
        removed.len() == 1 && removed[0].ends_with("-v lists them"),
        "{removed:?}"
    );

    let file = directory.write("event.json", &message("m-1").to_string());
    let file = file.to_str().unwrap();
    let printed = explain(&admin, &directory, &[file, "--agent", "careful", "--json"]).await;
    let answer = printed.json();
    assert_eq!(
        (&answer["winner"], &answer["agent"]["reason"]),
        (&json!("main"), &json!("scope"))
    );
    let printed = explain(&admin, &directory, &["--type", "nobody.wants"]).await;
    let first = printed.stdout.lines().next().unwrap();
    assert_eq!(first, "nobody.wants has no agent: no agent matches it");
    nothing_was_stored(&stage).await;

    for (client, arguments, expected) in [
        (
            &admin,
            &["--agent", "nobody"][..],
            "there is no agent nobody",
        ),
        (&stage.client, &[][..], "needs an API key of role admin"),
        (&admin, &["missing.json"][..], "cannot read missing.json"),
    ] {
        let printed = explain(client, &directory, arguments).await.exited(1);
        assert!(printed.stderr.contains(expected), "{expected}: {printed:?}");
        assert!(!printed.stderr.contains(&client.key));
    }
}
