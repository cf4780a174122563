//! The context that a runner receives: the event, the configured agent, and no earlier messages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Sqlite, Stage};

fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<_> = object
        .as_object()
        .unwrap_or_else(|| panic!("no object: {object}"))
        .keys()
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names
}

/// The run request that the runner received for this event, after the run has ended.
async fn run_context(stage: &Stage, event: &Value) -> Value {
    let run_id = stage.client.post(event).await.run_id();
    stage.client.finished(&run_id).await;
    stage.runner.context_of(&run_id).await
}

/// Pointers and their members in the context of a minimal message.
const MEMBERS: [(&str, &str); 7] = [
    (
        "",
        "actor config context conversation delivery event input metadata resources run_id runtime \
         state trigger",
    ),
    ("/trigger", "source timestamp type"),
    ("/event", "data event_id event_type source"),
    ("/conversation", "conversation_id sender_id workspace_id"),
    ("/input", "attachments contents text"),
    (
        "/context",
        "available_apis conversation_id event_seq has_history_before inline_policy transcript_seq",
    ),
    (
        "/runtime",
        "deadline_at host metadata protocol_version static_refs trace_id",
    ),
];

/// The context of a first message to the configured agent, without ids of the run.
fn plain() -> Value {
    let closed = json!({
        "plugin_storage": false, "workspace_storage": false, "binding_storage": false,
    });
    json!({
        "/config": {"timeout": 50.0},
        "/metadata": {},
        "/delivery": {
            "surface": "api", "supports_streaming": true, "supports_edit": false,
            "supports_reaction": false, "platform_capabilities": {},
        },
        "/resources": {
            "models": [], "tools": [], "knowledge_bases": [], "skills": [], "files": [],
            "storage": closed, "platform_capabilities": {},
        },
        "/context/has_history_before": false,
        "/context/inline_policy": {
            "mode": "current_event", "delivered_count": 0, "messages_complete": false,
            "reason": "current_event_only",
        },
        "/state": {"conversation": {}, "actor": {}, "subject": {}, "runner": {}},
        "/runtime/host": "runnel",
        "/runtime/protocol_version": "1",
    })
}

#[tokio::test]
async fn context_has_exactly_the_documented_members() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let context = &run.run_request["context"];
    for (pointer, expected) in MEMBERS {
        let found = names(context.pointer(pointer).unwrap()).join(" ");
        assert_eq!(found, expected, "{pointer}: {context}");
    }
    for (pointer, expected) in plain().as_object().unwrap() {
        assert_eq!(context.pointer(pointer), Some(expected), "{pointer}");
    }
    assert_open(&context["context"]["available_apis"]);

    let trace_id = run.run_id.replace('-', "");
    assert_eq!(context["runtime"]["trace_id"], trace_id);
    let path = format!("/v1/runs/{}/authorization", run.run_id);
    let snapshot = stage.client.get(&path).await.body["snapshot_sha256"].clone();
    let authorization = &context["runtime"]["metadata"]["authorization_sha256"];
    assert_eq!(authorization, &snapshot);
    let refs = names(&context["runtime"]["static_refs"]);
    assert_eq!(
        refs.join(" "),
        "prompt_policy resource_manifest tool_schemas"
    );
    run.end(&stage).await;
}

/// APIs available to a run with grants for history and state.
#[track_caller]
fn assert_open(apis: &Value) {
    let apis = apis.as_object().unwrap();
    assert!(apis.values().all(Value::is_boolean), "{apis:?}");
    let open = apis.iter().filter(|(_, open)| **open == json!(true));
    let mut open: Vec<_> = open.map(|(name, _)| name.as_str()).collect();
    open.sort_unstable();
    let expected = "history_page run_cancel run_events_page run_get run_list state";
    assert_eq!(open.join(" "), expected);
    for closed in [
        "prompt_get",
        "history_search",
        "event_get",
        "event_page",
        "artifact_metadata",
        "artifact_read",
        "storage",
        "steering_pull",
    ] {
        assert_eq!(apis[closed], false, "{closed}");
    }
}

#[tokio::test]
async fn trigger_names_one_of_six_sources() {
    let stage = Stage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    for (source, trigger) in [
        ("platform", "platform"),
        ("webui", "webui"),
        ("api", "api"),
        ("scheduler", "scheduler"),
        ("system", "system"),
        ("host_adapter", "host_adapter"),
        ("pipeline_adapter", "host_adapter"),
        ("the shop", "api"),
    ] {
        let mut event = message(source);
        event["source"] = json!(source);
        event["event_time"] = json!(1_795_291_200);
        let context = run_context(&stage, &event).await;
        let expected =
            json!({"type": "message.received", "source": trigger, "timestamp": 1_795_291_200});
        assert_eq!(context["trigger"], expected);
        assert_eq!(context["event"]["source"], source);
        assert_eq!(context["event"]["event_time"], 1_795_291_200);
    }
}

#[tokio::test]
async fn trigger_time_defaults_to_arrival_time() {
    let stage = Stage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let before = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let mut event = message("m-1");
    event.as_object_mut().unwrap().remove("event_time");
    event["bot_id"] = json!("b-7");
    let context = run_context(&stage, &event).await;
    let after = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let arrived = context["trigger"]["timestamp"].as_u64().unwrap();
    assert!((before..=after).contains(&arrived), "{context}");
    assert_eq!(context["event"].get("event_time"), None);
    let metadata = &context["runtime"]["metadata"];
    assert_eq!(metadata["bot_id"], "b-7");
    assert_eq!(metadata["workspace_id"], stage.workspace);
}

#[tokio::test]
async fn passes_actor_and_subject_unchanged() {
    let stage = Stage::with(|config| config.agents[0].event_types = "*").await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let user = |id: &str| json!({"actor_type": "user", "actor_id": id, "actor_name": "Ada"});
    for (event_type, actor, subject) in [
        (
            "message.received",
            user("u-1"),
            json!({"subject_type": "message", "subject_id": "m-1", "data": {"quoted": true}}),
        ),
        (
            "group.member_joined",
            user("u-2"),
            json!({"subject_type": "membership", "subject_id": "g-1", "data": {"by": "u-1"}}),
        ),
        (
            "schedule.fired",
            json!({"actor_type": "system"}),
            json!({"subject_type": "schedule", "subject_id": "hourly"}),
        ),
    ] {
        let mut event = message(event_type);
        event["event_type"] = json!(event_type);
        event["actor"] = actor.clone();
        event["subject"] = subject.clone();
        let context = run_context(&stage, &event).await;
        assert_eq!(context["trigger"]["type"], event_type);
        assert_eq!(context["event"]["event_type"], event_type);
        assert_eq!(context["actor"], actor, "{event_type}");
        assert_eq!(context["subject"], subject, "{event_type}");
    }
}

#[tokio::test]
async fn context_includes_context_window_of_first_model() {
    let mut speaking = manifest(RUNNER_ID);
    speaking["permissions"] = json!({"models": ["invoke"]});
    let runner = StubRunner::start_as(speaking).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |config| {
        config.agents[0].resources = r#"models = ["large"]"#;
        config.agents.push(Agent {
            name: "other",
            event_types: "test.other",
            resources: r#"models = ["unknown"]"#,
            ..Agent::default()
        });
        config.rest = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "large"
provider = "script"
context_window_tokens = 128000
[[models]]
model_id = "unknown"
provider = "script"
"#
        .to_owned();
    });
    let stage = stage.await.expect("SQLite is always at hand");
    for (event_type, window) in [
        ("message.received", json!(128_000)),
        ("test.other", Value::Null),
    ] {
        let mut event = message(event_type);
        event["event_type"] = json!(event_type);
        let context = run_context(&stage, &event).await;
        assert_eq!(context["resources"]["models"].as_array().unwrap().len(), 1);
        let metadata = &context["runtime"]["metadata"];
        assert_eq!(metadata["model_context_window_tokens"], window, "{context}");
    }
}

/// A manifest that requests everything a host could add to a context.
fn greedy() -> Value {
    let mut greedy = manifest(RUNNER_ID);
    greedy["permissions"] = json!({"history": ["page"], "events": ["page"]});
    greedy["context"] = json!({
        "supports_history_pull": false, "owns_compaction": false, "ownership": "host_bootstrap",
        "bootstrap": "recent_tail", "max_inline_events": 100, "max_inline_bytes": 100_000,
    });
    greedy
}

#[tokio::test]
async fn context_size_is_independent_of_conversation_length() {
    const TURNS: usize = 50;
    let runner = StubRunner::start_as(greedy()).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |config| {
        config.agents[0].resources = r#"history = ["page"], events = ["page"]"#;
    });
    let stage = stage.await.expect("SQLite is always at hand");
    let saying = |turn: usize| {
        let mut event = message(&format!("m-{turn:02}"));
        event["input"]["text"] = json!(format!("words of turn {turn:02}."));
        event
    };
    let first = run_context(&stage, &saying(0)).await;
    for turn in 1..TURNS {
        let run_id = stage.client.post(&saying(turn)).await.run_id();
        stage.client.finished(&run_id).await;
    }
    let run = HeldRun::start(&stage, &saying(TURNS)).await;
    let last = &run.run_request["context"];

    let text = last.to_string();
    for turn in 0..TURNS {
        assert!(
            !text.contains(&format!("turn {turn:02}.")),
            "{turn}: {text}"
        );
    }
    assert_eq!(last["input"]["text"], "words of turn 50.");
    assert_eq!(last["context"]["has_history_before"], true);
    assert!(last["context"]["latest_cursor"].is_string(), "{last}");
    let inlined = ["first", "last"].map(|_| json!("current_event"));
    let modes = [&first, last].map(|one| one["context"]["inline_policy"]["mode"].clone());
    assert_eq!(modes, inlined);
    let differing: BTreeSet<_> = differences(&first, last);
    let expected = [
        "/context/event_seq",
        "/context/has_history_before",
        "/context/latest_cursor",
        "/context/transcript_seq",
        "/event/event_id",
        "/input/contents",
        "/input/text",
        "/run_id",
        "/runtime/deadline_at",
        "/runtime/metadata/authorization_sha256",
        "/runtime/trace_id",
        "/trigger/timestamp",
    ];
    // Arrival times in seconds; they may be equal.
    let mut differing = differing;
    differing.insert("/trigger/timestamp".to_owned());
    assert_eq!(differing, expected.map(str::to_owned).into());

    // The runner can page the rest: 50 items by default, newest first.
    for (path, newest) in [("/history", TURNS * 2 + 1), ("/events", TURNS + 1)] {
        let page = run.get(path).await.body;
        assert_eq!(page["items"].as_array().unwrap().len(), 50, "{path}");
        assert_eq!(page["items"][0]["seq"], newest, "{path}");
        assert_eq!(page["has_more"], true, "{path}");
    }
    run.end(&stage).await;
}

/// Pointers at which two objects differ. Lists are compared without descending into them.
fn differences(left: &Value, right: &Value) -> BTreeSet<String> {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else {
        let differs = (left != right).then(String::new);
        return differs.into_iter().collect();
    };
    let members: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let mut found = BTreeSet::new();
    for name in members {
        let inner = |object: &serde_json::Map<String, Value>| object.get(name).cloned();
        let inner = differences(&json!(inner(left)), &json!(inner(right)));
        found.extend(inner.into_iter().map(|rest| format!("/{name}{rest}")));
    }
    found
}

async fn bound(admin: &Client, source: &str, changes: &Value) {
    let mut agent = json!({
        "name": format!("of {source}"), "event_types": ["test.event"], "runner_id": RUNNER_ID,
        "filters": {"source": [source]}, "state_policy": {"enabled": true, "scopes": ["actor"]},
    });
    let members = agent.as_object_mut().unwrap();
    members.extend(changes.as_object().unwrap().clone());
    admin.create("/v1/agents", &agent).await.expect(201);
}

#[tokio::test]
async fn agents_differ_only_in_configuration_and_grants() {
    let mut formed = manifest(RUNNER_ID);
    formed["config_schema"] = json!([{"type": "string", "name": "tone"}]);
    let runner = StubRunner::start_as(formed).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |_| {}).await.unwrap();
    let admin = stage.admin.clone();
    bound(&admin, "api", &json!({"config": {"tone": "dry"}})).await;
    let policy = json!({"config": {"tone": "warm"}, "resource_policy": {"history": ["page"]}});
    bound(&admin, "webui", &policy).await;

    let mut contexts = Vec::new();
    for (source, event_id) in [
        ("webui", "m-1"),
        ("api", "m-2"),
        ("webui", "m-3"),
        ("api", "m-4"),
    ] {
        let mut event = message(event_id);
        event["event_type"] = json!("test.event");
        event["source"] = json!(source);
        contexts.push(run_context(&stage, &event).await);
    }
    let tones: Vec<_> = contexts.iter().map(|one| &one["config"]["tone"]).collect();
    assert_eq!(tones, ["warm", "dry", "warm", "dry"]);

    let same_agent = differences(&contexts[1], &contexts[3]);
    let other_agent = differences(&contexts[2], &contexts[3]);
    let of_agents: Vec<_> = other_agent.difference(&same_agent).collect();
    let expected = [
        "/config/tone",
        "/context/available_apis/history_page",
        "/event/source",
        "/runtime/static_refs/prompt_policy",
        "/trigger/source",
    ];
    assert_eq!(of_agents, expected);
    let runners = admin.get("/v1/runners").await.body;
    assert_eq!(runners["items"].as_array().unwrap().len(), 1, "{runners}");
}

#[tokio::test]
async fn locale_and_time_zone_fall_back_to_agent() {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |_| {}).await.unwrap();
    let agent = json!({"locale": "pt-BR", "timezone": "America/Sao_Paulo"});
    bound(&stage.admin, "api", &agent).await;
    let posted = |changes: Value| {
        let mut event = message(&changes.to_string());
        event["event_type"] = json!("test.event");
        let members = event.as_object_mut().unwrap();
        members.extend(changes.as_object().unwrap().clone());
        event
    };
    let user = |locale: &str| json!({"actor_type": "user", "actor_id": "u", "locale": locale});
    for (changes, locale, timezone) in [
        (json!({}), "pt_BR", "America/Sao_Paulo"),
        (json!({"timezone": "UTC"}), "pt_BR", "UTC"),
        (
            json!({"actor": user("zh-Hans"), "locale": "en_US"}),
            "zh_Hans",
            "America/Sao_Paulo",
        ),
    ] {
        let context = run_context(&stage, &posted(changes)).await;
        let runtime = &context["runtime"];
        assert_eq!(runtime["locale"], locale, "{runtime}");
        assert_eq!(runtime["timezone"], timezone, "{runtime}");
    }
    let faulty = json!({"actor": user("no language"), "timezone": "+02:00"});
    let refused = stage.client.post(&posted(faulty)).await;
    refused.assert_detail(400, "pointer", "/timezone");
}

#[tokio::test]
async fn static_refs_change_only_with_their_parts() {
    let mut asking = manifest(RUNNER_ID);
    asking["permissions"] = json!({"tools": ["detail", "call"], "storage": ["plugin"]});
    asking["capabilities"]["tool_calling"] = json!(true);
    asking["config_schema"] = json!([{"type": "string", "name": "prompt"}]);
    let runner = StubRunner::start_as(asking).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |config| {
        config.rest = "[[tools]]\ntool_name = \"get_current_time\"\n".to_owned();
    });
    let stage = stage.await.unwrap();
    for (source, changes) in [
        ("plain", json!({})),
        ("prompt", json!({"config": {"prompt": "Be brief."}})),
        (
            "tool",
            json!({"resource_policy": {"tools": ["get_current_time"]}}),
        ),
        (
            "storage",
            json!({"resource_policy": {"storage": ["plugin"]}}),
        ),
    ] {
        bound(&stage.admin, source, &changes).await;
    }
    let mut refs = Vec::new();
    for source in ["plain", "plain", "prompt", "tool", "storage"] {
        let mut event = message(&refs.len().to_string());
        event["event_type"] = json!("test.event");
        event["source"] = json!(source);
        event["input"]["text"] = json!(source);
        let context = run_context(&stage, &event).await;
        refs.push(context["runtime"]["static_refs"].clone());
    }
    let changed = |index: usize| {
        let changed: Vec<_> = differences(&refs[0], &refs[index]).into_iter().collect();
        changed.join(" ")
    };
    assert_eq!(changed(1), "");
    assert_eq!(changed(2), "/prompt_policy");
    assert_eq!(changed(3), "/resource_manifest /tool_schemas");
    assert_eq!(changed(4), "/resource_manifest");
}

#[tokio::test]
async fn sends_no_static_refs_to_unwilling_runners() {
    let mut unwilling = manifest(RUNNER_ID);
    unwilling["context"] = json!({"wants_static_context_refs": false});
    let runner = StubRunner::start_as(unwilling).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |_| {}).await.unwrap();
    let context = run_context(&stage, &message("m-1")).await;
    assert_eq!(context["runtime"]["static_refs"], json!({}));
}

#[tokio::test]
async fn deadline_follows_timeout_of_agent() {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |_| {}).await.unwrap();
    for (source, config, least, max) in [
        ("default", json!({}), 200.0, 301.0),
        ("short", json!({"timeout": 100}), 0.0, 101.0),
        ("zero", json!({"timeout": 0}), 301.0, f64::MAX),
        ("null", json!({"timeout": null}), 301.0, f64::MAX),
    ] {
        bound(&stage.admin, source, &json!({"config": config})).await;
        let mut event = message(source);
        event["event_type"] = json!("test.event");
        event["source"] = json!(source);
        let context = run_context(&stage, &event).await;
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let left = context["runtime"]["deadline_at"].as_f64().unwrap() - now;
        assert!((least..=max).contains(&left), "{source}: {left}");
    }
}
