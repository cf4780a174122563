//! Amendments: a call that the frozen grant of a run denies asks a person, who opens no more than the run needs.

use rstest::rstest;
use serde_json::{Value, json};

use crate::approvals::{answer, approvals, call, held, open_questions, question};
use crate::isolation::admin_key_of;
use crate::support::client::{Client, message};
use crate::support::database::rows;
use crate::support::effect_server::EffectServer;
use crate::support::held::HeldRun;
use crate::support::runner::RUNNER_ID;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};
use crate::tools::stage_of;

const ASKS: &str = r#"tools = ["find"], on_denied = "ask""#;

async fn stage_with_policy(
    engine: Engine,
    server: &EffectServer,
    policy: &'static str,
) -> Option<OwnStage> {
    stage_of(engine, server.tools(""), |config| {
        config.agents[0].resources = policy;
    })
    .await
}

async fn stage(engine: Engine, server: &EffectServer) -> Option<OwnStage> {
    stage_with_policy(engine, server, ASKS).await
}

/// Tool calls in the audit of a run, oldest first.
async fn audited(client: &Client, run_id: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run_id}/audit?limit=100");
    let audit = client.get(&path).await.expect(200).body;
    let rows = audit["items"].as_array().unwrap().iter();
    let mut calls: Vec<_> = rows
        .filter(|row| row["action"] == "call_tool")
        .cloned()
        .collect();
    calls.sort_by_key(|row| row["id"].to_string());
    calls
}

async fn amendments(client: &Client, run_id: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run_id}/authorization");
    let explained = client.get(&path).await.expect(200).body;
    explained["amendments"].as_array().unwrap().clone()
}

#[rstest]
#[case(r#"tools = ["find"]"#)]
#[case(r#"tools = { find = "allow", act = "deny" }, on_denied = "ask""#)]
#[case(r#"tools = { find = "allow", "*" = "deny" }, on_denied = "ask""#)]
#[tokio::test]
async fn denied_tools_never_ask(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[case] policy: &'static str,
) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage_with_policy(engine, &server, policy).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    // An approval opens no tool.
    let any = json!({"tool": "*", "agent": "main", "arguments": {"": {"any": true}}});
    stage.admin.create("/v1/approvals", &any).await.expect(201);
    call(&run.host, None, 7, 0).await.expect(403);
    assert_eq!(open_questions(&stage.client).await, Vec::<String>::new());
    assert_eq!(server.effects(), Vec::<String>::new());
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn amendment_allows_one_exact_call(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    // An approval of the API is no amendment.
    let any = json!({"tool": "act", "agent": "main", "arguments": {"": {"any": true}}});
    stage.admin.create("/v1/approvals", &any).await.expect(201);
    let question_id = held(&call(&run.host, Some("k"), 7, 0).await);
    assert_eq!(held(&call(&run.host, Some("k"), 7, 0).await), question_id);
    let shown = question(&stage.client, &question_id).await;
    let description = shown["request"]["description"].as_str().unwrap();
    assert!(description.contains(r#"{"amount":7}"#), "{description}");
    assert!(
        description.contains("resource_policy.tools does not name it"),
        "{description}"
    );
    assert_eq!(
        amendments(&stage.client, &run.run_id).await,
        [] as [Value; 0]
    );
    answer(&stage.client, &question_id, "allow_once", json!({}))
        .await
        .expect(200);

    // Other arguments between question and call.
    let swapped = held(&call(&run.host, Some("other"), 8, 0).await);
    assert_ne!(swapped, question_id);
    for _ in 0..2 {
        let called = call(&run.host, Some("k"), 7, 0).await.expect(200);
        assert_eq!(called.body["result"], json!({"effect": 1}));
    }
    held(&call(&run.host, Some("again"), 7, 0).await);
    assert_eq!(server.effects().len(), 1);

    let amendment = amendments(&stage.client, &run.run_id).await.remove(0);
    assert_members!(amendment, {
        "amendment": true, "status": "used", "scope": "run", "tool": "act", "used": 1, "count": 1,
        "run_id": run.run_id, "interaction_id": question_id,
    });
    let run_row = stage.client.run(&run.run_id).await;
    assert!(amendment["expires_at"].as_i64() <= run_row["deadline_at"].as_i64());
    until("the audit", async || {
        let calls = audited(&stage.client, &run.run_id).await;
        calls
            .iter()
            .filter(|row| row["approval_id"] == amendment["id"])
            .count()
            == 1
    })
    .await;
    let calls = audited(&stage.client, &run.run_id).await;
    // One denial for each question, however often the call is repeated.
    let denied = calls.iter().filter(|row| row["decision"] == "deny");
    assert_eq!(denied.count(), 3, "{calls:?}");
    assert_members!(calls[0], {"decision": "deny", "rule": "resource_policy.tools does not name it"});

    let outcome = run.end(&stage).await;
    let amended = outcome.ledger.of_type("run.amended");
    assert_eq!(amended.len(), 1, "{:?}", outcome.ledger.types());
    assert_eq!(amended[0]["source"], "host");
    assert_members!(amended[0]["data"], {
        "approval_id": amendment["id"], "interaction_id": question_id, "tool": "act", "count": 1,
        "expires_at": amendment["expires_at"],
    });
    assert_eq!(amended[0]["data"]["allowed_by"]["kind"], "api_key");
    // The run has ended, so its open questions take no answer.
    let late = answer(&stage.client, &swapped, "allow_once", json!({})).await;
    late.expect(410);
    assert_eq!(amendments(&stage.client, &run.run_id).await.len(), 1);
}

#[rstest]
#[tokio::test]
async fn wider_amendment_lasts_until_revoked(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let question_id = held(&call(&run.host, None, 7, 0).await);
    let rules = r#"{"/amount": {"range": {"min": 5, "max": 10}}}"#;
    let none = json!({"arguments": rules, "count": 0});
    let refused = answer(&stage.client, &question_id, "allow_run", none).await;
    assert_eq!(refused.expect(400).detail("pointer"), "/values/count");
    // An amendment never outlives its run.
    let wider = answer(&stage.client, &question_id, "allow_conversation", json!({})).await;
    wider.expect(400);
    let values = json!({"arguments": rules, "count": 3});
    answer(&stage.client, &question_id, "allow_run", values)
        .await
        .expect(200);
    for amount in [5, 10] {
        call(&run.host, None, amount, 0).await.expect(200);
    }
    let beyond = held(&call(&run.host, None, 11, 0).await);
    answer(
        &stage.client,
        &beyond,
        "deny",
        json!({"reason": "too much"}),
    )
    .await
    .expect(200);
    call(&run.host, None, 11, 0)
        .await
        .assert_detail(409, "reason", "call_denied");

    let amendment = amendments(&stage.client, &run.run_id).await.remove(0);
    assert_members!(amendment, {"status": "active", "used": 2, "count": 3});
    let path = format!("/v1/approvals/{}/revoke", amendment["id"].as_str().unwrap());
    stage.admin.create(&path, &json!({})).await.expect(200);
    held(&call(&run.host, None, 6, 0).await);
    assert_eq!(server.effects().len(), 2);
    run.end(&stage).await;
    // A later run of the conversation begins with the grant of its agent.
    let later = HeldRun::start(&stage, &message("m-2")).await;
    held(&call(&later.host, None, 7, 0).await);
    later.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn refuses_amendments_without_the_right(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let question_id = held(&call(&run.host, Some("k"), 7, 0).await);
    let key_of = async |body: Value| {
        let made = stage.admin.create("/v1/api-keys", &body).await.expect(201);
        Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
    };
    let viewer = key_of(json!({"name": "viewer", "role": "viewer"})).await;
    let foreign = json!({"name": "foreign", "event_types": ["test.none"], "runner_id": RUNNER_ID});
    stage.admin.create("/v1/agents", &foreign).await.expect(201);
    let restricted =
        key_of(json!({"name": "other", "role": "client", "agents": ["foreign"]})).await;
    let neighbour = admin_key_of(&stage, "neighbour").await;
    let neighbour = Client::new(&stage.client.url, &neighbour);
    let shown = question(&stage.client, &question_id).await;
    let body =
        json!({"interaction_id": shown["request"]["interaction_id"], "action_id": "allow_once"});
    let path = format!("/v1/interactions/{question_id}/submit");
    for (client, status) in [
        (&viewer, 403),
        (&restricted, 404),
        (&neighbour, 404),
        (&run.host, 404),
    ] {
        let refused = client.create(&path, &body).await;
        assert_eq!(refused.status, status, "{}", refused.body);
    }
    held(&call(&run.host, Some("k"), 7, 0).await);

    // Replayed: the same answer changes nothing, and another one is refused.
    stage.client.create(&path, &body).await.expect(200);
    assert!(stage.client.create(&path, &body).await.is_replay());
    answer(
        &stage.client,
        &question_id,
        "allow_run",
        json!({"count": 9}),
    )
    .await
    .expect(409);
    assert_eq!(approvals(&stage.admin).await.len(), 1);
    let sql = "UPDATE approvals SET expires_at = 1".to_owned();
    rows(&stage.gateway.database_url(), &sql).await;
    let repeated = held(&call(&run.host, Some("k"), 7, 0).await);
    assert_ne!(repeated, question_id);
    let sql = format!("UPDATE interactions SET expires_at = 1 WHERE id = '{repeated}'");
    rows(&stage.gateway.database_url(), &sql).await;
    answer(&stage.client, &repeated, "allow_once", json!({}))
        .await
        .expect(410);
    assert_eq!(server.effects(), Vec::<String>::new());
    // The answer after the end of the run amends nothing.
    let open = held(&call(&run.host, Some("k"), 9, 0).await);
    run.end(&stage).await;
    answer(&stage.client, &open, "allow_once", json!({}))
        .await
        .expect(410);
    assert_eq!(approvals(&stage.admin).await.len(), 1);
}

#[rstest]
#[tokio::test]
async fn waiting_call_over_mcp_continues_after_amendment(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let params = json!({"name": "act", "arguments": {"amount": 7}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let calling = run.call("/mcp", &message);
    let answering = async {
        until("a question", async || {
            open_questions(&stage.client).await.len() == 1
        })
        .await;
        let question_id = open_questions(&stage.client).await.remove(0);
        answer(&stage.client, &question_id, "allow_once", json!({}))
            .await
            .expect(200);
    };
    let (called, ()) = tokio::join!(calling, answering);
    let result = &called.expect(200).body["result"];
    assert_eq!(
        result["structuredContent"],
        json!({"effect": 1}),
        "{result}"
    );
    assert_eq!(server.effects().len(), 1);
    run.end(&stage).await;
}

#[tokio::test]
async fn bounds_questions_about_amendments() {
    let server = EffectServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for amount in 0..100 {
        held(&call(&run.host, None, amount, 0).await);
    }
    call(&run.host, None, 100, 0).await.expect(403);
    // An open question stays open.
    held(&call(&run.host, None, 99, 0).await);
    run.end(&stage).await;
}

#[tokio::test]
async fn concurrent_calls_use_amendment_once_on_all_replicas() {
    let server = EffectServer::start().await;
    let stage = stage_of(Postgres, server.tools(""), |config| {
        config.agents[0].resources = ASKS;
        // A token is valid for one public URL, which replicas share.
        "public_url = \"http://runnel.invalid\"".clone_into(&mut config.server);
    });
    let stage = or_skip!(stage.await);
    let replica = stage.gateway.start_replica().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let host = |client: &Client| Client::new(&format!("{}/host/v1", client.url), &run.token);
    let (here, there) = (host(&stage.client), host(&replica.client));
    let question_id = held(&call(&here, None, 7, 0).await);
    assert_eq!(held(&call(&there, None, 7, 0).await), question_id);
    answer(&replica.client, &question_id, "allow_once", json!({}))
        .await
        .expect(200);
    let calls = (0..6).map(async |number| {
        let host = if number % 2 == 0 { &here } else { &there };
        call(host, None, 7, 0).await.status
    });
    let statuses = futures_util::future::join_all(calls).await;
    let passed = statuses.iter().filter(|status| **status == 200);
    assert_eq!(passed.count(), 1, "{statuses:?}");
    assert_eq!(server.effects().len(), 1);
    let outcome = run.end(&stage).await;
    assert_eq!(outcome.ledger.of_type("run.amended").len(), 1);
}
