//! Platform actions: a run requests one, manifest, agent and approval decide, and one program performs it.

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message};
use crate::support::database::rows;
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::receiver::Receiver;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

const UNREQUESTED: &str = "plugin:runnel/unrequested/default";
const EDITS: &str = r#""message.edit" = "auto", "message.recall" = "ask""#;

/// A stage with a runner that requests two actions, and agents that each lack one layer.
async fn stage(engine: Engine) -> Option<OwnStage> {
    stage_with(engine, "").await
}

async fn stage_with(engine: Engine, server: &str) -> Option<OwnStage> {
    let mut manifests = [manifest(RUNNER_ID), manifest(UNREQUESTED)];
    manifests[0]["permissions"]["platform_api"] = json!(["message.edit", "message.recall"]);
    let runner = StubRunner::start_listing(json!(manifests)).await;
    OwnStage::of(engine, runner, |config| {
        server.clone_into(&mut config.server);
        config.agents[0].platform_actions = EDITS;
        for (name, event_types, runner_id, platform_actions) in [
            ("unrequested", "test.unrequested", UNREQUESTED, EDITS),
            (
                "unallowed",
                "test.unallowed",
                RUNNER_ID,
                r#""message.recall" = "auto""#,
            ),
        ] {
            config.agents.push(Agent {
                name,
                event_types,
                runner_id,
                platform_actions,
                ..Agent::default()
            });
        }
    })
    .await
}

fn edit(key: &str) -> Value {
    json!({
        "action": "message.edit", "target": {"message_id": "p-1"}, "payload": {"text": "new"},
        "idempotency_key": key,
    })
}

fn recall() -> Value {
    json!({"action": "message.recall", "target": {"message_id": "p-1"}})
}

fn delivered(event_id: &str) -> Value {
    let mut event = message(event_id);
    event["delivery"] = json!({"surface": "chat", "reply_target": {"chat": 7}});
    event
}

async fn request(run: &HeldRun, body: &Value) -> ApiResponse {
    run.call("/platform/actions", body).await
}

async fn outcome(run: &HeldRun, id: &str, seconds: u64) -> ApiResponse {
    run.get(&format!("/platform/actions/{id}?wait_seconds={seconds}"))
        .await
}

async fn claim(client: &Client, id: &str, body: &Value) -> ApiResponse {
    client
        .create(&format!("/v1/actions/{id}/claim"), body)
        .await
}

async fn report(client: &Client, id: &str, token: &Value, status: &str) -> ApiResponse {
    let mut body = json!({"claim_token": token, "status": status});
    match status {
        "done" => body["output"] = json!({"message_id": "p-1"}),
        _ => body["error"] = json!({"code": "unsupported", "message": "no edits here"}),
    }
    client
        .create(&format!("/v1/actions/{id}/result"), &body)
        .await
}

async fn listed(client: &Client, query: &str) -> Vec<Value> {
    let found = client
        .get(&format!("/v1/actions?{query}"))
        .await
        .expect(200);
    found.body["items"].as_array().unwrap().clone()
}

fn id_of(response: &ApiResponse) -> String {
    assert_eq!(response.status, 200, "{}", response.body);
    response.body["id"].as_str().unwrap().to_owned()
}

/// The events of the run that request an action.
async fn requested_events(stage: &Stage, run_id: &str) -> Vec<Value> {
    let mut events = stage.client.ledger(run_id).await.events();
    events.retain(|event| event["type"] == "action.requested");
    events
}

/// Makes the period of an action end, without a wait.
async fn lapse(stage: &OwnStage, id: &str) {
    let sql = format!("UPDATE platform_actions SET expires_at = 1 WHERE id = '{id}'");
    rows(&stage.gateway.database_url(), &sql).await;
}

#[rstest]
#[tokio::test]
async fn allowed_action_is_claimed_done_and_awaited(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let opened = request(&run, &edit("k")).await;
    let id = id_of(&opened);
    assert_members!(opened.body, {"status": "open", "run_id": run.run_id, "sequence": 1});
    assert_eq!(opened.body["event"], Value::Null, "{}", opened.body);
    let shown = listed(&stage.client, "status=open").await;
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert_members!(shown[0], {"id": id, "payload": json!({"text": "new"})});

    let performing = async {
        let claimed = claim(&stage.client, &id, &json!({})).await.expect(200).body;
        // The program learns the frozen target, and performs the action there.
        assert_eq!(
            claimed["action"]["event"]["delivery"]["reply_target"],
            json!({"chat": 7})
        );
        assert_eq!(claimed["action"]["status"], "claimed");
        let token = &claimed["claim_token"];
        let extension = json!({"claim_token": token, "lease_seconds": 600});
        let longer = claim(&stage.client, &id, &extension).await.expect(200).body;
        let end = |claimed: &Value| claimed["action"]["expires_at"].as_i64().unwrap();
        assert!(end(&longer) > end(&claimed) + 60, "{longer}");
        let done = report(&stage.client, &id, token, "done").await;
        assert_eq!(
            (done.status, done.is_replay()),
            (200, false),
            "{}",
            done.body
        );
        token.clone()
    };
    let (awaited, token) = tokio::join!(outcome(&run, &id, 30), performing);
    // The wait may return at the claim or at the result; all but the result are not final.
    let awaited = match awaited.body["status"].as_str() {
        Some("done") => awaited,
        _ => outcome(&run, &id, 30).await,
    };
    assert_members!(awaited.body, {"status": "done", "output": json!({"message_id": "p-1"})});
    let again = report(&stage.client, &id, &token, "done").await;
    assert_eq!(
        (again.status, again.is_replay()),
        (200, true),
        "{}",
        again.body
    );
    let other = report(&stage.client, &id, &token, "failed").await;
    other.assert_detail(409, "reason", "finished");
    let late = claim(&stage.client, &id, &json!({})).await;
    late.assert_detail(409, "reason", "finished");
    run.end(&stage).await;
    let events = requested_events(&stage, &run.run_id).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_members!(events[0], {"source": "host", "metadata": json!({"action": {"id": id, "status": "open"}})});
    assert_members!(events[0]["data"], {"action": "message.edit", "target": json!({"message_id": "p-1"})});
    let audit = format!("/v1/runs/{}/audit", run.run_id);
    let audit = stage.client.get(&audit).await.body;
    let entries = audit["items"].as_array().unwrap();
    let of = |action: &str| entries.iter().find(|entry| entry["action"] == action);
    let rule = &of("platform_action_request").unwrap()["rule"];
    assert_eq!(rule, "delivery_policy.platform_actions allows it");
    assert!(of("platform_action_result").is_some(), "{audit}");
}

#[rstest]
#[tokio::test]
async fn each_layer_denies_alone_and_names_its_rule(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    for (event_type, rule) in [
        (
            "test.unrequested",
            "permissions.platform_api does not name it",
        ),
        (
            "test.unallowed",
            "delivery_policy.platform_actions does not name it",
        ),
    ] {
        let mut event = delivered(event_type);
        event["event_type"] = json!(event_type);
        let run = HeldRun::start(&stage, &event).await;
        let denied = request(&run, &edit("k")).await;
        denied.assert_detail(403, "rule", rule);
        run.end(&stage).await;
        let path = format!("/v1/runs/{}/authorization", run.run_id);
        let explained = stage.client.get(&path).await.body;
        assert!(explained.to_string().contains(rule), "{explained}");

        // A result of the same action is telemetry.
        let id = format!("{event_type}-2");
        event["event_id"] = json!(id);
        stage.runner.answer(&id, move |run| {
            let data = edit("k").to_string();
            sse(run.result(1, "action.requested", &data) + &run.completed(2))
        });
        let run_id = stage.client.post(&event).await.run_id();
        assert_eq!(stage.client.finished(&run_id).await["status"], "completed");
        let events = requested_events(&stage, &run_id).await;
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["metadata"]["action"], Value::Null, "{events:?}");
    }
    assert_eq!(listed(&stage.client, "").await, Vec::<Value>::new());
}

#[rstest]
#[tokio::test]
async fn person_approves_or_declines(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let receiver = Receiver::start().await;
    let spec = json!({"name": "hook", "url": receiver.url, "events": ["action.requested"]});
    stage.admin.create("/v1/webhooks", &spec).await.expect(201);
    for (choice, expected) in [("approve", "open"), ("decline", "declined")] {
        let run = HeldRun::start(&stage, &delivered(choice)).await;
        let opened = request(&run, &recall()).await;
        let id = id_of(&opened);
        assert_eq!(
            opened.body["status"], "awaiting_approval",
            "{}",
            opened.body
        );
        let early = claim(&stage.client, &id, &json!({})).await;
        early.assert_detail(409, "reason", "awaiting_approval");
        let question = opened.body["interaction_id"].as_str().unwrap();
        let path = format!("/v1/interactions/{question}");
        let shown = stage.client.get(&path).await.expect(200).body;
        assert!(
            shown["request"]["title"]
                .as_str()
                .unwrap()
                .contains("message.recall")
        );
        // The run may end: the action outlives it.
        run.end(&stage).await;
        let answer =
            json!({"interaction_id": format!("platform_action.{id}"), "action_id": choice});
        let submit = format!("{path}/submit");
        let taken = stage.client.create(&submit, &answer).await;
        assert_eq!(taken.status, 200, "{}", taken.body);
        let shown = stage.client.get(&format!("/v1/actions/{id}")).await.body;
        assert_eq!(shown["status"], expected, "{shown}");
        let claimed = claim(&stage.client, &id, &json!({})).await;
        if expected == "open" {
            let messages = receiver.wait_for(1).await;
            assert_eq!(messages[0].body["action_id"], id, "{}", messages[0].body);
            assert_eq!(claimed.status, 200, "{}", claimed.body);
        } else {
            claimed.assert_detail(410, "reason", "declined");
        }
        let events = requested_events(&stage, &run.run_id).await;
        assert_eq!(
            events[0]["metadata"]["action"]["status"],
            "awaiting_approval"
        );
    }
    // An action without approval is a message at once. The declined one is none.
    let run = HeldRun::start(&stage, &delivered("auto")).await;
    let id = id_of(&request(&run, &edit("k")).await);
    let messages = receiver.wait_for(2).await;
    assert_eq!(messages[1].body["action_id"], id, "{}", messages[1].body);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn one_of_many_claims_wins(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let id = id_of(&request(&run, &edit("k")).await);
    let body = json!({});
    let claims = join_all((0..8).map(|_| claim(&stage.client, &id, &body))).await;
    let (won, lost): (Vec<_>, Vec<_>) = claims.iter().partition(|claim| claim.status == 200);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for claim in lost {
        claim.assert_detail(409, "reason", "claimed");
    }
    let foreign = report(&stage.client, &id, &json!("guessed"), "done").await;
    foreign.assert_detail(409, "reason", "not_claimed");
    let token = &won[0].body["claim_token"];
    let failed = report(&stage.client, &id, token, "failed")
        .await
        .expect(200);
    let error = json!({"code": "unsupported", "message": "no edits here"});
    assert_members!(failed.body, {"status": "failed", "error": error});
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn refuses_late_claims_and_results(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let unclaimed = id_of(&request(&run, &edit("unclaimed")).await);
    lapse(&stage, &unclaimed).await;
    let shown = listed(&stage.client, "status=expired").await;
    assert_eq!(shown.len(), 1, "{shown:?}");
    let refused = claim(&stage.client, &unclaimed, &json!({})).await;
    refused.assert_detail(410, "reason", "expired");
    let found = outcome(&run, &unclaimed, 30).await;
    assert_members!(found.body, {"status": "expired", "claimed_at": Value::Null});

    let claimed = id_of(&request(&run, &edit("claimed")).await);
    let token = claim(&stage.client, &claimed, &json!({"lease_seconds": 1}))
        .await
        .expect(200);
    let token = &token.body["claim_token"];
    lapse(&stage, &claimed).await;
    let late = report(&stage.client, &claimed, token, "done").await;
    late.assert_detail(410, "reason", "claim_expired");
    let found = outcome(&run, &claimed, 30).await;
    assert_eq!(found.body["status"], "expired");
    assert!(found.body["claimed_at"].is_i64(), "{}", found.body);
    // The row says so now, whatever the clock of another replica.
    let again = claim(&stage.client, &claimed, &json!({"claim_token": token})).await;
    again.assert_detail(410, "reason", "expired");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn repeated_request_returns_the_same_action(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let body = edit("k");
    let (first, second) = tokio::join!(request(&run, &body), request(&run, &body));
    let id = id_of(&first);
    assert_eq!(id_of(&second), id);
    let mut other = edit("k");
    other["payload"]["text"] = json!("another");
    let refused = request(&run, &other).await;
    refused.assert_detail(409, "reason", "idempotency_mismatch");
    let mut invalid = edit("new");
    invalid["target"]["chat_id"] = json!("elsewhere");
    let invalid = request(&run, &invalid).await;
    invalid.assert_detail(400, "pointer", "/target/chat_id");
    run.end(&stage).await;
    let found = listed(&stage.client, &format!("run_id={}", run.run_id)).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(requested_events(&stage, &run.run_id).await.len(), 1);
}

#[rstest]
#[tokio::test]
async fn result_opens_the_same_action(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    stage.runner.answer("m-1", |run| {
        let edit = edit("k").to_string();
        let mut body = run.result(1, "action.requested", &edit);
        // The same key again opens no second action.
        body += &run.result(2, "action.requested", &edit);
        body += &run.result(3, "action.requested", &recall().to_string());
        let invalid = json!({"action": "message.edit", "target": {"chat_id": 1}});
        body += &run.result(4, "action.requested", &invalid.to_string());
        body += &(run.delta(5, "done") + &run.completed(6));
        sse(body)
    });
    let run_id = stage.client.post(&delivered("m-1")).await.run_id();
    let ended = stage.client.finished(&run_id).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let found = listed(&stage.client, &format!("run_id={run_id}")).await;
    let statuses = |status: &str| {
        let is_it = |action: &&Value| action["status"] == status;
        found.iter().filter(is_it).count()
    };
    assert_eq!(
        (found.len(), statuses("open"), statuses("awaiting_approval")),
        (2, 1, 1)
    );
    let events = requested_events(&stage, &run_id).await;
    let ids: Vec<_> = events
        .iter()
        .map(|event| &event["metadata"]["action"]["id"])
        .collect();
    assert_eq!(
        (ids.len(), ids[0] == ids[1], ids[1] == ids[2]),
        (3, true, false),
        "{events:?}"
    );
    let rejected = stage.client.rejections(&run_id).await;
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    // Open for the platform's program after the end of the run.
    let open = found
        .iter()
        .find(|action| action["status"] == "open")
        .unwrap();
    let claimed = claim(&stage.client, open["id"].as_str().unwrap(), &json!({})).await;
    assert_eq!(claimed.status, 200, "{}", claimed.body);
}

#[rstest]
#[tokio::test]
async fn cancelled_run_closes_its_open_actions(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let id = id_of(&request(&run, &edit("k")).await);
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    let refused = claim(&stage.client, &id, &json!({})).await;
    refused.assert_detail(410, "reason", "cancelled");
    let found = outcome(&run, &id, 30).await;
    assert_eq!(found.body["status"], "cancelled", "{}", found.body);
    request(&run, &edit("later"))
        .await
        .assert_error(409, "code", "cancelled");
    run.release();
    stage.client.finished(&run.run_id).await;
    assert_eq!(listed(&stage.client, "status=cancelled").await.len(), 1);
}

#[rstest]
#[tokio::test]
async fn filters_and_pages_by_status_agent_and_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let other = HeldRun::start(&stage, &delivered("m-2")).await;
    for key in ["a", "b", "c"] {
        id_of(&request(&run, &edit(key)).await);
    }
    let foreign = id_of(&request(&other, &edit("a")).await);
    // An action belongs to its run.
    assert_eq!(outcome(&run, &foreign, 0).await.status, 404);
    let agent = stage.client.run(&run.run_id).await["agent_id"].clone();
    let agent = agent.as_str().unwrap();
    let absent = uuid::Uuid::now_v7();
    for (query, expected) in [
        (String::new(), 4),
        ("status=open".to_owned(), 4),
        ("status=claimed".to_owned(), 0),
        (format!("run_id={}", run.run_id), 3),
        (format!("agent_id={agent}&status=open"), 4),
        (format!("agent_id={absent}"), 0),
    ] {
        assert_eq!(
            listed(&stage.client, &query).await.len(),
            expected,
            "{query}"
        );
    }
    let mut seen = Vec::new();
    let mut path = "/v1/actions?limit=3&status=open".to_owned();
    loop {
        let page = stage.client.get(&path).await.expect(200).body;
        let items = page["items"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["id"].clone()));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/actions?limit=3&status=open&after={cursor}");
    }
    seen.sort_by_key(Value::to_string);
    seen.dedup();
    assert_eq!(seen.len(), 4);
    let invalid = stage.client.get("/v1/actions?after=x").await;
    invalid.assert_detail(400, "pointer", "/after");
    run.end(&stage).await;
    other.end(&stage).await;
}

#[tokio::test]
async fn rejects_unknown_actions_of_agents_by_pointer() {
    let stage = OwnStage::new().await;
    let mut spec = Agent::default().spec();
    spec["name"] = json!("second");
    spec["delivery_policy"]["platform_actions"] = json!({"message.edt": "auto"});
    let refused = stage.admin.create("/v1/agents", &spec).await;
    let pointer = "/delivery_policy/platform_actions/message.edt";
    refused.assert_detail(400, "pointer", pointer);
    assert!(
        refused.body.to_string().contains("message.edit"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn action_is_opened_claimed_and_awaited_across_replicas() {
    // A token is valid for one public URL, which replicas share.
    let url = "public_url = \"http://runnel.invalid\"";
    let stage = or_skip!(stage_with(Postgres, url).await);
    let replica = stage.gateway.start_replica().await;
    let run = HeldRun::start(&stage, &delivered("m-1")).await;
    let host = |client: &Client| Client::new(&format!("{}/host/v1", client.url), &run.host.key);
    let path = "/platform/actions";
    let (other, own) = (host(&replica.client), host(&stage.client));
    let opened = other.call(Method::POST, path, &edit("k")).await;
    let id = id_of(&opened);
    // The relay of the run is on the other replica.
    until("the event of the action", async || {
        let path = format!("/v1/actions/{id}");
        stage.client.get(&path).await.body["sequence"] == 1
    })
    .await;
    let claimed = claim(&replica.client, &id, &json!({}))
        .await
        .expect(200)
        .body;
    let done = report(&stage.client, &id, &claimed["claim_token"], "done");
    let waiting = format!("{path}/{id}?wait_seconds=30");
    let (awaited, done) = tokio::join!(own.get(&waiting), done);
    assert_eq!(done.status, 200, "{}", done.body);
    assert_eq!(awaited.body["status"], "done", "{}", awaited.body);
    run.end(&stage).await;
}
