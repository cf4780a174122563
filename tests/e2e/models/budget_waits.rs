//! Calls that wait for a raise of a budget.

use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{chat_request, scripted_in, scripted_with, stage_in};
use crate::isolation::admin_key_of;
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, until};

/// One call of each run; further ones wait.
const BUDGET: &str = "[[budgets]]\nname = \"run-calls\"\nscope = \"run\"\ncalls = 1\n\
    on_reached = \"pause\"\n";

async fn invoke(host: &Client) -> ApiResponse {
    let request = host.request(Method::POST, "/models/talker/invoke");
    send(request.json(&chat_request("hello"))).await.unwrap()
}

/// A call that waits in the background.
fn invoking(host: &Client) -> JoinHandle<ApiResponse> {
    let host = host.clone();
    tokio::spawn(async move { invoke(&host).await })
}

async fn questions(stage: &Stage, run_id: &str) -> Vec<Value> {
    let path = format!("/v1/interactions?run_id={run_id}");
    let listed = stage.admin.get(&path).await.body;
    listed["items"].as_array().unwrap().clone()
}

/// The open question of the run, once there is one besides `before`.
async fn open_question(stage: &Stage, run_id: &str, before: Option<&Value>) -> Value {
    let mut found = Value::Null;
    until("a question about the budget", async || {
        let found_questions = questions(stage, run_id).await;
        let is_new = |one: &&Value| {
            one["status"] == "open" && before.is_none_or(|old| old["id"] != one["id"])
        };
        if let Some(open) = found_questions.iter().find(is_new) {
            found = open.clone();
        }
        !found.is_null()
    })
    .await;
    found
}

async fn answer(key: &Client, question: &Value, action: &str, values: &Value) -> ApiResponse {
    let path = format!(
        "/v1/interactions/{}/submit",
        question["id"].as_str().unwrap()
    );
    let body = json!({
        "interaction_id": question["request"]["interaction_id"], "action_id": action, "values": values,
    });
    key.create(&path, &body).await
}

async fn raise(key: &Client, question: &Value, amount: impl Into<Value>) -> ApiResponse {
    answer(key, question, "raise", &json!({"amount": amount.into()})).await
}

async fn key_of(stage: &Stage, role: &str) -> Client {
    let made = stage
        .admin
        .create("/v1/api-keys", &json!({"name": role, "role": role}))
        .await;
    Client::new(
        &stage.client.url,
        made.expect(201).body["key"].as_str().unwrap(),
    )
}

#[rstest]
#[tokio::test]
async fn paused_call_continues_after_raise(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    let operator = key_of(&stage, "operator").await;
    invoke(&run.host).await.expect(200);
    let waiting = invoking(&run.host);
    let question = open_question(&stage, &run.run_id, None).await;
    let request = &question["request"];
    assert_eq!(request["kind"], "budget", "{question}");
    assert_eq!(request["fields"][0]["default"], 1, "the missing amount");
    assert!(!waiting.is_finished());

    let taken = raise(&operator, &question, 1).await.expect(200);
    assert_members!(taken.body, {"status": "submitted", "submitted_run_id": run.run_id});
    assert_eq!(taken.body["answer"]["values"], json!({"amount": 1}));
    waiting.await.unwrap().expect(200);
    assert!(raise(&operator, &question, 1).await.is_replay());
    let other = raise(&operator, &question, 2).await;
    other.assert_detail(409, "reason", "already_submitted");
    let audit = stage
        .client
        .get(&format!("/v1/runs/{}/audit", run.run_id))
        .await
        .body;
    let mut entries = audit["items"].as_array().unwrap().iter();
    assert!(
        entries.any(|one| one["action"] == "interaction_answer"),
        "{audit}"
    );

    // A refusal holds: the next call is refused without a question.
    let waiting = invoking(&run.host);
    let next = open_question(&stage, &run.run_id, Some(&question)).await;
    answer(&operator, &next, "refuse", &json!({}))
        .await
        .expect(200);
    waiting
        .await
        .unwrap()
        .assert_detail(429, "budget", "run-calls");
    invoke(&run.host)
        .await
        .assert_detail(429, "budget", "run-calls");
    assert_eq!(questions(&stage, &run.run_id).await.len(), 2);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn only_operators_admins_and_links_raise(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    let admin = &stage.admin;
    invoke(&run.host).await.expect(200);
    let waiting = invoking(&run.host);
    let question = open_question(&stage, &run.run_id, None).await;
    let path = format!("/v1/interactions/{}", question["id"].as_str().unwrap());
    let link = format!("{path}/link");

    let other = Client::new(&admin.url, &admin_key_of(&stage, "other").await);
    for (key, status) in [
        (&stage.client, 403),
        (&key_of(&stage, "viewer").await, 403),
        (&other, 404),
    ] {
        assert_eq!(raise(key, &question, 1).await.status, status);
        assert_eq!(key.create(&link, &json!({})).await.status, status);
    }
    for amount in [
        json!(-1),
        json!(0),
        json!(1.5),
        json!("NaN"),
        json!(null),
        json!(1e13),
    ] {
        let refused = raise(admin, &question, amount.clone()).await;
        refused.assert_detail(400, "pointer", "/values/amount");
    }
    // The runner itself can neither read nor answer it.
    let id = question["request"]["interaction_id"].as_str().unwrap();
    assert_ne!(run.get(&format!("/interactions/{id}")).await.status, 200);
    assert_eq!(admin.get(&path).await.body["status"], "open");
    assert!(!waiting.is_finished());

    let made = admin.create(&link, &json!({})).await.expect(200).body;
    let by_link = format!("/v1/interactions/{}", made["token"].as_str().unwrap());
    let body = json!({"interaction_id": id, "action_id": "raise", "values": {"amount": 1}});
    let taken = send(stage.client.anonymous(Method::POST, &by_link).json(&body))
        .await
        .unwrap();
    assert_eq!(taken.expect(200).body["answer"]["by"]["kind"], "link");
    waiting.await.unwrap().expect(200);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn raise_for_one_call_admits_one(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    invoke(&run.host).await.expect(200);
    let waiting = [invoking(&run.host), invoking(&run.host)];
    let first = open_question(&stage, &run.run_id, None).await;
    raise(&stage.admin, &first, 1).await.expect(200);
    // The other call needs a question of its own.
    let second = open_question(&stage, &run.run_id, Some(&first)).await;
    let ended = waiting.iter().filter(|call| call.is_finished()).count();
    assert!(ended <= 1, "{ended} calls of one raise");
    raise(&stage.admin, &second, 1).await.expect(200);
    for call in waiting {
        call.await.unwrap().expect(200);
    }
    assert_eq!(questions(&stage, &run.run_id).await.len(), 2);
    let used = stage.admin.get("/v1/budgets/run-calls").await.body["used"][0].clone();
    assert_eq!(used["calls"], 3, "{used}");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn unanswered_call_is_refused_at_expiry(#[values(Sqlite, Postgres)] engine: Engine) {
    let budget = format!("{BUDGET}max_wait_seconds = 1\n");
    let (stage, run) = or_skip!(scripted_with(engine, &budget).await);
    let deadline = |run: &Value| run["deadline_at"].as_i64().unwrap();
    let before = deadline(&stage.client.run(&run.run_id).await);
    invoke(&run.host).await.expect(200);
    invoke(&run.host)
        .await
        .assert_detail(429, "budget", "run-calls");
    let found_questions = questions(&stage, &run.run_id).await;
    assert_eq!(found_questions.len(), 1);
    assert_eq!(found_questions[0]["status"], "expired");
    let late = raise(&stage.admin, &found_questions[0], 1).await;
    assert_eq!(late.status, 410, "{}", late.body);
    let after = deadline(&stage.client.run(&run.run_id).await);
    assert_eq!(after - before, 1, "the wait extends the deadline");
    let own = run.get("/run").await.expect(200).body;
    assert_eq!(own["deadline_at"], after, "{own}");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn waits_delay_deadline_and_silence(#[values(Sqlite, Postgres)] engine: Engine) {
    let directory = TempDirectory::new();
    let configure = |config: &mut Config| {
        config.agents[0].timeout_seconds = 4.0;
        config.limits = "silence_seconds = 2.0".into();
        config.rest += BUDGET;
    };
    let (stage, run) = or_skip!(scripted_in(&directory, engine, configure).await);
    let deadline = stage.client.run(&run.run_id).await["deadline_at"]
        .as_i64()
        .unwrap();
    invoke(&run.host).await.expect(200);
    let waiting = invoking(&run.host);
    let question = open_question(&stage, &run.run_id, None).await;
    until("the first deadline to pass", async || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs() > u64::try_from(deadline).unwrap() + 1
    })
    .await;
    run.get("/run").await.expect(200);
    assert!(!waiting.is_finished());
    raise(&stage.admin, &question, 1).await.expect(200);
    waiting.await.unwrap().expect(200);
    assert_eq!(run.end(&stage).await.ending(), "completed");
}

#[rstest]
#[tokio::test]
async fn changed_budget_continues_waiting_calls(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    invoke(&run.host).await.expect(200);
    let waiting = invoking(&run.host);
    open_question(&stage, &run.run_id, None).await;
    let spec = json!({"scope": "run", "calls": 2, "on_reached": "pause"});
    let set = stage
        .admin
        .call(Method::PUT, "/v1/budgets/run-calls", &spec)
        .await;
    assert_members!(set.expect(200).body, {"on_reached": "pause", "max_wait_seconds": 3600});
    waiting.await.unwrap().expect(200);
    let found_questions = questions(&stage, &run.run_id).await;
    assert_eq!(
        (found_questions.len(), &found_questions[0]["status"]),
        (1, &json!("expired"))
    );

    // A budget that refuses from now on ends the waits.
    let waiting = invoking(&run.host);
    open_question(&stage, &run.run_id, None).await;
    let spec = json!({"scope": "run", "calls": 2});
    stage
        .admin
        .call(Method::PUT, "/v1/budgets/run-calls", &spec)
        .await
        .expect(200);
    waiting
        .await
        .unwrap()
        .assert_detail(429, "budget", "run-calls");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn end_of_run_ends_its_waits(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    invoke(&run.host).await.expect(200);
    let waiting = invoking(&run.host);
    let question = open_question(&stage, &run.run_id, None).await;
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    waiting
        .await
        .unwrap()
        .assert_error(409, "code", "cancelled");
    run.end(&stage).await;
    assert_eq!(
        questions(&stage, &run.run_id).await[0]["status"],
        "cancelled"
    );
    assert_eq!(raise(&stage.admin, &question, 1).await.status, 410);

    let completed = HeldRun::start(&stage, &message("m-2")).await;
    invoke(&completed.host).await.expect(200);
    let waiting = invoking(&completed.host);
    let question = open_question(&stage, &completed.run_id, None).await;
    assert_eq!(completed.end(&stage).await.ending(), "completed");
    assert_eq!(waiting.await.unwrap().status, 401);
    let path = format!("/v1/interactions?status=open&run_id={}", completed.run_id);
    assert_eq!(stage.admin.get(&path).await.body["items"], json!([]));
    assert_eq!(raise(&stage.admin, &question, 1).await.status, 410);
    let runs = stage.client.get("/v1/runs").await.body;
    assert_eq!(
        runs["items"].as_array().unwrap().len(),
        2,
        "an answer starts no run"
    );
}

#[rstest]
#[tokio::test]
async fn repeated_call_joins_question_after_restart(#[values(Sqlite, Postgres)] engine: Engine) {
    let directory = TempDirectory::new();
    let configure = |config: &mut Config| {
        config.runs = "lease_seconds = 4".into();
        config.rest += BUDGET;
    };
    let mut stage: OwnStage = or_skip!(stage_in(&directory, engine, configure).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    invoke(&run.host).await.expect(200);
    let request = run.host.request(Method::POST, "/models/talker/invoke");
    let lost = tokio::spawn(request.json(&chat_request("hello")).send());
    let question = open_question(&stage, &run.run_id, None).await;
    stage.gateway.kill().await;
    assert!(lost.await.unwrap().is_err(), "the call was answered");
    stage.gateway.restart().await;
    let waiting = invoking(&run.host);
    raise(&stage.admin, &question, 1).await.expect(200);
    waiting.await.unwrap().expect(200);
    assert_eq!(
        questions(&stage, &run.run_id).await.len(),
        1,
        "the same question"
    );
    run.accepted(&[run.delta(1, "done"), run.completed(2)], 2)
        .await;
    assert_eq!(stage.outcome(&run.run_id).await.ending(), "completed");
}

#[tokio::test]
async fn raise_reaches_call_on_another_replica() {
    let directory = TempDirectory::new();
    let staged = scripted_in(&directory, Postgres, |config| {
        // Replicas share the public URL that issues tokens.
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
        config.rest += BUDGET;
    });
    let (stage, run) = or_skip!(staged.await);
    let replica = stage.gateway.start_replica().await;
    let there = Client::new(&format!("{}/host/v1", replica.client.url), &run.token);
    invoke(&there).await.expect(200);
    let here = Client::new(&format!("{}/host/v1", stage.client.url), &run.token);
    let waiting = [invoking(&there), invoking(&here)];
    let question = open_question(&stage, &run.run_id, None).await;
    raise(&stage.admin, &question, 2).await.expect(200);
    for call in waiting {
        call.await.unwrap().expect(200);
    }
    assert_eq!(questions(&stage, &run.run_id).await.len(), 1);
    run.end(&stage).await;
}

#[tokio::test]
async fn calls_of_all_faces_wait() {
    let (stage, run) = scripted_with(Sqlite, BUDGET).await.unwrap();
    invoke(&run.host).await.expect(200);
    let of_model = |mut body: Value| {
        body["model"] = json!("talker");
        body
    };
    let mut streamed = of_model(chat_request("hello"));
    streamed["stream"] = json!(true);
    let mut bounded = of_model(chat_request("hello"));
    bounded["max_tokens"] = json!(9);
    let mut before = None;
    for (path, body) in [
        ("/models/talker/stream", chat_request("hello")),
        (
            "/models/ranker/rerank",
            json!({"query": "q", "documents": ["d"]}),
        ),
        (
            "/openai/v1/chat/completions",
            of_model(chat_request("hello")),
        ),
        ("/openai/v1/chat/completions", streamed),
        ("/openai/v1/responses", of_model(json!({"input": "hello"}))),
        ("/anthropic/v1/messages", bounded),
    ] {
        let call = run.request(Method::POST, path).json(&body).send();
        let call = tokio::spawn(async move { call.await.unwrap().status().as_u16() });
        let question = open_question(&stage, &run.run_id, before.as_ref()).await;
        raise(&stage.admin, &question, 1).await.expect(200);
        assert_eq!(call.await.unwrap(), 200, "{path}");
        before = Some(question);
    }
    run.end(&stage).await;
}
