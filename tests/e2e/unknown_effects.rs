//! Tool calls whose outcome a crash or a broken connection hides: executed once, or known to be unknown.

use std::os::unix::process::ExitStatusExt;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::effect_server::{Delivery, EffectServer, response};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::programs::runnel;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, run, until};
use crate::tools::{stage_of, stage_with};

/// SIGABRT.
const ABORTED: i32 = 6;
const ASKS: &str = r#"tools = "*", on_unknown_effect = "ask""#;

/// A call of `act` with this key, or without one.
async fn call(host: &Client, key: Option<&str>) -> reqwest::Result<ApiResponse> {
    let request = host.request(Method::POST, "/tools/act/call");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    send(request.json(&json!({"parameters": {"amount": 7}}))).await
}

/// The moment at which the gateway dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// At a failpoint.
    At(&'static str),
    /// While the tool works.
    WhileToolWorks,
}

const DEATHS: [Death; 5] = [
    Death::At("tool_call.before_ticket"),
    Death::At("tool_call.after_ticket"),
    Death::WhileToolWorks,
    Death::At("tool_call.before_outcome"),
    Death::At("tool_call.after_outcome"),
];

/// Lets the gateway die during a call of an async run, and starts it again.
async fn die_during_call(
    stage: &mut OwnStage,
    server: &EffectServer,
    death: Death,
    key: Option<&str>,
) -> Deferred {
    stage.gateway.kill().await;
    let failpoints = match death {
        Death::At(name) => format!("{name}=1*return(abort)"),
        Death::WhileToolWorks => String::new(),
    };
    assert!(stage.gateway.start_with_failpoints(&failpoints).await);
    let deferred = Deferred::start(stage, &message("m-1")).await;
    // From the first result on, the run survives its gateway.
    deferred.accepted(&[deferred.delta(1, "one")], 1).await;
    if death == Death::WhileToolWorks {
        server.deliver(Delivery::Held);
        let calling = call(&deferred.host, key);
        let killing = async {
            server.acted(1).await;
            stage.gateway.kill().await;
        };
        let (called, ()) = tokio::join!(calling, killing);
        assert!(called.is_err(), "{called:?}");
        server.deliver(Delivery::Complete);
    } else {
        let called = call(&deferred.host, key).await;
        assert!(called.is_err(), "{called:?}");
        let status = stage.gateway.exited().await;
        assert_eq!(status.signal(), Some(ABORTED), "{status}");
    }
    stage.gateway.restart().await;
    deferred
}

async fn end(stage: &Stage, deferred: &Deferred) {
    deferred.accepted(&[deferred.completed(2)], 2).await;
    let outcome = stage.outcome(&deferred.run_id).await;
    outcome.assert("completed", &["message.delta", "run.completed"]);
}

/// Rows of the tool calls in the audit of a run: ticket and effect.
async fn audited(client: &Client, run_id: &str) -> Vec<(Value, Value)> {
    let audit = client.get(&format!("/v1/runs/{run_id}/audit")).await.body;
    let rows = audit["items"].as_array().unwrap().iter();
    let calls = rows.filter(|row| row["action"] == "call_tool");
    calls
        .map(|row| (row["ticket"].clone(), row["effect"].clone()))
        .collect()
}

#[rstest]
#[tokio::test]
async fn killed_gateway_repeats_no_effect(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(0, 1, 2, 3, 4)] death: usize,
    #[values(Some("k"), None)] key: Option<&str>,
) {
    let death = DEATHS[death];
    let server = EffectServer::start().await;
    let mut stage = or_skip!(stage_with(engine, server.tools("")).await);
    let deferred = die_during_call(&mut stage, &server, death, key).await;
    let (reached, outcome) = match death {
        Death::At("tool_call.before_ticket") => (0, 200),
        Death::At("tool_call.after_ticket") => (0, 409),
        Death::At("tool_call.after_outcome") => (1, 200),
        _ => (1, 409),
    };
    assert_eq!(server.effects().len(), reached, "{death:?}");
    let again = call(&deferred.host, key).await.unwrap();
    if outcome == 200 {
        // Without a key, a call after a recorded one is another call.
        let is_another = reached == 1 && key.is_none();
        let expected = if is_another { 2 } else { 1 };
        let again = again.expect(200);
        assert_eq!(again.body["result"], json!({"effect": expected}));
        assert_eq!(server.effects().len(), expected);
    } else {
        again.assert_detail(409, "reason", "outcome_unknown");
        assert_eq!(again.detail("effect"), "unknown");
        assert_eq!(server.effects().len(), reached, "{death:?}");
        let ticket = again.detail("ticket").clone();
        assert!(server.effects().iter().all(|effect| ticket == *effect));
        let row = (ticket, json!("unknown"));
        until("the audit", async || {
            audited(&stage.client, &deferred.run_id)
                .await
                .contains(&row)
        })
        .await;
        // With its key the call stays unknown. Without one, the runner knows of it now and decides.
        let later = call(&deferred.host, key).await.unwrap();
        assert_eq!(later.status, if key.is_some() { 409 } else { 200 });
        let repeated = usize::from(key.is_none());
        assert_eq!(server.effects().len(), reached + repeated);
    }
    end(&stage, &deferred).await;
}

#[tokio::test]
async fn every_failpoint_of_tool_calls_is_covered() {
    let printed = run(Command::new(runnel()).arg("failpoints")).await;
    let names = printed.stdout.lines();
    for name in names.filter(|name| name.starts_with("tool_call.")) {
        let is_it = |death: &&Death| matches!(death, Death::At(at) if *at == name);
        assert!(DEATHS.iter().any(|death| is_it(&death)), "{name}");
    }
}

#[rstest]
#[tokio::test]
async fn reconcile_settles_unknown_outcomes(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(1, 2, 3)] death: usize,
    #[values(Some("k"), None)] key: Option<&str>,
) {
    let death = DEATHS[death];
    let server = EffectServer::start().await;
    let catalog = server.tools("reconcile = \"find\"");
    let mut stage = or_skip!(stage_with(engine, catalog).await);
    let deferred = die_during_call(&mut stage, &server, death, key).await;
    let done = server.effects().len() == 1;
    let again = call(&deferred.host, key).await.unwrap().expect(200);
    assert_eq!(again.body, json!({"result": {"effect": 1}}), "{death:?}");
    assert_eq!(server.effects().len(), 1, "{death:?}");
    let effect = if done { "recorded" } else { "done" };
    until("the audit", async || {
        let calls = audited(&stage.client, &deferred.run_id).await;
        calls.last().is_some_and(|(_, last)| last == effect)
    })
    .await;
    if key.is_some() {
        let recorded = call(&deferred.host, key).await.unwrap().expect(200);
        assert_eq!(recorded.body, again.body);
        assert_eq!(server.effects().len(), 1);
    }
    end(&stage, &deferred).await;
}

#[rstest]
#[tokio::test]
async fn cut_responses_are_never_repeated(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage_with(engine, server.tools("effect = \"write\"")).await);
    let held = HeldRun::start(&stage, &message("m-1")).await;
    let complete = response(&json!({"effect": 1}));
    let head = complete.find("\r\n\r\n").unwrap() + 4;
    for (number, cut) in [0, 1, 12, 40, head - 2, head, head + 1, complete.len() - 1]
        .into_iter()
        .enumerate()
    {
        server.deliver(Delivery::Cut(cut));
        let key = format!("k-{number}");
        let first = call(&held.host, Some(&key)).await.unwrap();
        first.assert_detail(502, "reason", "upstream_broken");
        assert_eq!(first.detail("effect"), "unknown", "{cut}");
        server.deliver(Delivery::Complete);
        let again = call(&held.host, Some(&key)).await.unwrap();
        again.assert_detail(409, "reason", "outcome_unknown");
        assert_eq!(server.effects().len(), number + 1, "{cut}");
    }
    // Each effect has a ticket of its own.
    let mut tickets = server.effects();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), 8);
    held.end(&stage).await;
}

#[tokio::test]
async fn reconcile_settles_cut_responses_at_once() {
    let server = EffectServer::start().await;
    let catalog = server.tools("reconcile = \"find\"");
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let held = HeldRun::start(&stage, &message("m-1")).await;
    server.deliver(Delivery::Cut(20));
    for key in [Some("k"), None] {
        let effects = server.effects().len();
        let called = call(&held.host, key).await.unwrap().expect(200);
        assert_eq!(called.body["result"], json!({"effect": effects + 1}));
    }
    held.end(&stage).await;
}

/// Answers the open question of the run with this action.
async fn decide(stage: &Stage, run_id: &str, action: &str) -> Value {
    let path = format!("/v1/interactions?status=open&run_id={run_id}");
    let mut open = Value::Null;
    until("the question", async || {
        open = stage.client.get(&path).await.body["items"][0].clone();
        open.is_object()
    })
    .await;
    let (id, request) = (open["id"].as_str().unwrap(), &open["request"]);
    let answer =
        json!({"interaction_id": request["interaction_id"], "action_id": action, "values": {}});
    let path = format!("/v1/interactions/{id}/submit");
    let request = stage.client.create(&path, &answer).await;
    assert_eq!(request.status, 200, "{}", request.body);
    open
}

#[rstest]
#[tokio::test]
async fn person_decides_about_unknown_effects(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let asking = |config: &mut Config| config.agents[0].resources = ASKS;
    let stage = or_skip!(stage_of(engine, server.tools(""), asking).await);
    let held = HeldRun::start(&stage, &message("m-1")).await;
    for (action, status) in [("done", 200), ("not_done", 409), ("again", 200)] {
        server.deliver(Delivery::Cut(20));
        let before = server.effects().len();
        let deciding = async {
            server.acted(before + 1).await;
            server.deliver(Delivery::Complete);
            decide(&stage, &held.run_id, action).await
        };
        let (called, question) = tokio::join!(call(&held.host, Some(action)), deciding);
        let called = called.unwrap().expect(status);
        assert_contains!(question["request"]["description"].to_string(), "amount");
        assert_eq!(question["sequence"], 0, "no event of the ledger");
        let effects = before + 1 + usize::from(action == "again");
        assert_eq!(server.effects().len(), effects, "{action}");
        match action {
            "done" => assert_eq!(called.body["result"]["outcome"], "done"),
            "not_done" => assert_eq!(called.detail("reason"), "not_done"),
            _ => assert_eq!(called.body["result"], json!({"effect": effects})),
        }
        // A decided call is recorded; one that did not happen has a free key.
        let again = call(&held.host, Some(action)).await.unwrap().expect(200);
        let made = usize::from(action == "not_done");
        assert_eq!(server.effects().len(), effects + made, "{action}");
        if status == 200 {
            assert_eq!(again.body, called.body, "{action}");
        }
    }
    held.end(&stage).await;
}

#[tokio::test]
async fn question_waits_for_the_repeated_call_after_a_kill() {
    let server = EffectServer::start().await;
    let asking = |config: &mut Config| config.agents[0].resources = ASKS;
    let mut stage = stage_of(Sqlite, server.tools(""), asking).await.unwrap();
    let death = Death::At("tool_call.before_outcome");
    let deferred = die_during_call(&mut stage, &server, death, Some("k")).await;
    let deciding = decide(&stage, &deferred.run_id, "done");
    let (called, _) = tokio::join!(call(&deferred.host, Some("k")), deciding);
    assert_eq!(
        called.unwrap().expect(200).body["result"]["outcome"],
        "done"
    );
    assert_eq!(server.effects().len(), 1);
    end(&stage, &deferred).await;
}

#[tokio::test]
async fn answer_after_the_run_starts_no_run() {
    let server = EffectServer::start().await;
    let asking = |config: &mut Config| config.agents[0].resources = ASKS;
    let stage = stage_of(Sqlite, server.tools(""), asking).await.unwrap();
    let held = HeldRun::start(&stage, &message("m-1")).await;
    server.deliver(Delivery::Cut(20));
    let path = format!("/v1/interactions?run_id={}", held.run_id);
    let mut open = Value::Null;
    let questioned = until("the question", async || {
        open = stage.client.get(&path).await.body["items"][0].clone();
        open.is_object()
    });
    tokio::select! {
        called = call(&held.host, Some("k")) => panic!("{called:?}"),
        () = questioned => {}
    }
    held.end(&stage).await;
    let id = open["id"].as_str().unwrap();
    let answer = json!({"interaction_id": open["request"]["interaction_id"], "action_id": "done", "values": {}});
    let late = stage
        .client
        .create(&format!("/v1/interactions/{id}/submit"), &answer)
        .await;
    late.assert_detail(410, "reason", "cancelled");
}

#[rstest]
#[tokio::test]
async fn only_calls_with_effects_have_tickets(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let catalog = server.tools("effect = \"read\"")
        + &server
            .tools("effect = \"write\"")
            .replace("\"act\"", "\"write\"")
            .replace("\"find\"", "\"other\"");
    let stage = or_skip!(stage_with(engine, catalog).await);
    let held = HeldRun::start(&stage, &message("m-1")).await;
    for name in ["act", "act", "write", "write"] {
        let path = format!("/tools/{name}/call");
        held.call(&path, &json!({"parameters": {}}))
            .await
            .expect(200);
    }
    let tickets = server.effects();
    assert_eq!(tickets[..2], ["", ""]);
    assert_eq!(tickets[2].len(), 64);
    assert_ne!(tickets[2], tickets[3], "the second call is another one");
    let expected = [
        (Value::Null, Value::Null),
        (Value::Null, Value::Null),
        (json!(tickets[2]), json!("done")),
        (json!(tickets[3]), json!("done")),
    ];
    until("the audit", async || {
        audited(&stage.client, &held.run_id).await == expected
    })
    .await;
    held.end(&stage).await;
}

#[tokio::test]
async fn mcp_calls_take_idempotency_keys() {
    let server = EffectServer::start().await;
    let stage = stage_with(Sqlite, server.tools("")).await.unwrap();
    let held = HeldRun::start(&stage, &message("m-1")).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "act", "arguments": {}}});
    let called = async |key: &str| {
        let request = held
            .request(Method::POST, "/mcp")
            .header("idempotency-key", key);
        send(request.json(&body)).await.unwrap().expect(200).body
    };
    let first = called("k").await;
    assert_eq!(called("k").await, first);
    assert_eq!(server.effects().len(), 1);
    called("other").await;
    assert_eq!(server.effects().len(), 2);
    held.end(&stage).await;
}
