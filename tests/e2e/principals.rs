//! Principals: answers, cancels and changes name the credential or component that made them.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::interactions::{ask, asking_event, question, stage, stage_with};
use crate::support::client::{Client, message, send};
use crate::support::held::HeldRun;
use crate::support::runner::RUNNER_ID;
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};
use crate::tools::tools_at;

/// An API key of this role, with its id.
struct NamedKey {
    client: Client,
    id: Value,
}

impl NamedKey {
    async fn create(stage: &OwnStage, role: &str) -> Self {
        let spec = json!({"name": format!("the {role}"), "role": role});
        let made = stage.admin.create("/v1/api-keys", &spec).await.expect(201);
        Self {
            client: Client::new(&stage.client.url, made.body["key"].as_str().unwrap()),
            id: made.body["id"].clone(),
        }
    }

    /// The key as a principal, for readers of role admin, operator and viewer.
    fn named(&self, role: &str) -> Value {
        json!({"kind": "api_key", "id": self.id, "name": format!("the {role}")})
    }

    /// The key as a principal, for readers of role client.
    fn anonymous(&self) -> Value {
        json!({"kind": "api_key", "id": self.id})
    }
}

async fn only_interaction(client: &Client, run_id: &str) -> Value {
    let found = client
        .get(&format!("/v1/interactions?run_id={run_id}"))
        .await
        .expect(200);
    assert_eq!(found.body["items"].as_array().unwrap().len(), 1);
    found.body["items"][0].clone()
}

#[rstest]
#[tokio::test]
async fn answers_name_their_credential_and_no_secret(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let operator = NamedKey::create(&stage, "operator").await;
    let secret = json!({"fields": [
        {"id": "room", "label": "Room", "type": "text"},
        {"id": "pin", "label": "Password of the door", "type": "text"},
    ]});
    let run_id = ask(&stage, &asking_event("m-1"), &[question("q", &secret)]).await;
    let open = only_interaction(&stage.admin, &run_id).await;
    assert_eq!(open["answer"], Value::Null);
    let path = format!("/v1/interactions/{}", open["id"].as_str().unwrap());
    let answer = json!({"interaction_id": "q", "action_id": "book",
        "values": {"room": "a", "pin": "1234"}});
    let submit = format!("{path}/submit");
    operator.client.create(&submit, &answer).await.expect(202);
    let expected = json!({"action_id": "book", "values": {"room": "a", "pin": "***"},
        "by": operator.named("operator")});
    let listed = only_interaction(&stage.admin, &run_id).await;
    assert_eq!(listed["answer"], expected);
    let read = operator.client.get(&path).await.expect(200);
    assert_eq!(read.body["answer"], expected);
    let read = stage.client.get(&path).await.expect(200);
    assert_eq!(read.body["answer"]["by"], operator.anonymous());

    let run_id = ask(&stage, &asking_event("m-2"), &[question("q", &json!({}))]).await;
    let open = only_interaction(&stage.client, &run_id).await;
    let path = format!("/v1/interactions/{}", open["id"].as_str().unwrap());
    let link = format!("{path}/link");
    let link = stage
        .client
        .create(&link, &json!({}))
        .await
        .expect(200)
        .body;
    let by_link = format!("/v1/interactions/{}", link["token"].as_str().unwrap());
    let answer = json!({"interaction_id": "q", "action_id": "book", "values": {"room": "b"}});
    stage.client.create(&by_link, &answer).await.expect(202);
    let read = stage.admin.get(&path).await.expect(200);
    let expected = json!({"action_id": "book", "values": {"room": "b"}, "by": {"kind": "link"}});
    assert_eq!(read.body["answer"], expected);
}

#[rstest]
#[tokio::test]
async fn cancelled_runs_name_the_first_key(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let operator = NamedKey::create(&stage, "operator").await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let live = stage.admin.run(&run.run_id).await;
    assert_eq!(live["cancelled_by"], Value::Null);
    let first = operator.client.cancel(&run.run_id).await.expect(202);
    assert_eq!(first.body["cancelled_by"], operator.named("operator"));
    stage.admin.cancel(&run.run_id).await;
    run.release();
    stage.client.finished(&run.run_id).await;
    let read = stage.admin.run(&run.run_id).await;
    assert_eq!(read["cancelled_by"], operator.named("operator"));
    let listed = stage.client.get("/v1/runs").await.expect(200).body;
    assert_eq!(listed["items"][0]["cancelled_by"], operator.anonymous());
}

#[rstest]
#[tokio::test]
async fn agents_name_the_cause_of_their_last_change(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let (first, second) = (
        NamedKey::create(&stage, "admin").await,
        NamedKey::create(&stage, "admin").await,
    );
    let spec = json!({"name": "helper", "event_types": ["test.event"], "runner_id": RUNNER_ID});
    let made = first.client.create("/v1/agents", &spec).await.expect(201);
    assert_eq!(made.body["updated_by"], first.named("admin"));
    let path = format!("/v1/agents/{}", made.body["id"].as_str().unwrap());
    let changed = second.client.call(Method::PUT, &path, &spec).await;
    assert_eq!(
        changed.expect(200).body["updated_by"],
        second.named("admin")
    );
    let listed = stage.admin.get("/v1/agents").await.expect(200).body;
    let causes = listed["items"].as_array().unwrap().iter();
    let causes: Vec<_> = causes
        .map(|agent| (&agent["name"], &agent["updated_by"]))
        .collect();
    let (config, key) = (json!({"kind": "config"}), second.named("admin"));
    assert_eq!(
        causes,
        [(&json!("helper"), &key), (&json!("main"), &config)]
    );
}

#[rstest]
#[tokio::test]
async fn keys_of_every_role_read_themselves(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    for role in ["admin", "operator", "viewer", "client"] {
        let key = NamedKey::create(&stage, role).await;
        let read = key.client.get("/v1/whoami").await.expect(200).body;
        assert_members!(read, {"id": key.id, "name": format!("the {role}"), "role": role,
            "workspace_id": "default", "expires_at": Value::Null, "revoked_at": Value::Null});
        assert_eq!(read.get("key"), None);
    }
    let owner = stage.gateway.owner().get("/v1/whoami").await.expect(200);
    assert_members!(owner.body, {"role": "owner", "workspace_id": Value::Null});
}

#[rstest]
#[tokio::test]
async fn calls_name_only_questions_of_their_conversation(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let tools = ToolServer::start().await;
    let stage = stage_with(engine, |config| {
        config.agents[0].resources = r#"tools = "*""#;
        config.rest = tools_at(&tools, "", &["echo"]);
    });
    let stage = or_skip!(stage.await);
    let operator = NamedKey::create(&stage, "operator").await;
    let questions = ["answered", "open"].map(|id| question(id, &json!({})));
    let asking = ask(&stage, &asking_event("m-1"), &questions).await;
    let found = format!("/v1/interactions?run_id={asking}");
    let found = stage.admin.get(&found).await.expect(200).body;
    let found = found["items"].as_array().unwrap().iter();
    let mut answered = found.filter(|one| one["request"]["interaction_id"] == "answered");
    let id = answered.next_back().unwrap()["id"].as_str().unwrap();
    let answer =
        json!({"interaction_id": "answered", "action_id": "book", "values": {"room": "a"}});
    let submit = format!("/v1/interactions/{id}/submit");
    let taken = operator.client.create(&submit, &answer).await.expect(202);
    stage.client.finished(&taken.run_id()).await;

    let mut elsewhere = message("m-3");
    elsewhere["conversation"]["conversation_id"] = json!("elsewhere");
    let (same, other) = (
        HeldRun::start(&stage, &message("m-2")).await,
        HeldRun::start(&stage, &elsewhere).await,
    );
    let call = async |run: &HeldRun, approved_by: String| {
        let request = run.request(Method::POST, "/tools/echo/call");
        let request = request.header("approved-by", approved_by);
        send(request.json(&json!({"parameters": {}})))
            .await
            .unwrap()
            .status
    };
    for (run, named) in [
        (&same, "answered"),
        (&same, "open"),
        (&same, "absent"),
        (&other, "answered"),
    ] {
        assert_eq!(call(run, format!("{asking}/{named}")).await, 200, "{named}");
    }
    for malformed in [asking.clone(), "x/answered".to_owned()] {
        assert_eq!(call(&same, malformed).await, 400);
    }
    let approvals = async |run: &HeldRun, client: &Client| {
        let audit = format!("/v1/runs/{}/audit?limit=100", run.run_id);
        let audit = client.get(&audit).await.expect(200).body;
        let entries = audit["items"].as_array().unwrap().iter();
        let calls = entries.filter(|entry| entry["action"] == "call_tool");
        let rule = json!("resource_policy.tools allows it");
        calls
            .inspect(|call| assert_eq!(call["rule"], rule))
            .map(|call| call["approval"].clone())
            .collect::<Vec<_>>()
    };
    let expected = json!({"interaction_id": id, "run_id": asking, "title": "Which room?",
        "action_id": "book", "by": operator.named("operator")});
    until("the calls are in the audit log", async || {
        approvals(&same, &stage.admin).await.len() == 3
            && approvals(&other, &stage.admin).await.len() == 1
    })
    .await;
    let mut shown = approvals(&same, &stage.admin).await;
    assert!(shown[0]["answered_at"].is_i64(), "{shown:?}");
    shown[0].as_object_mut().unwrap().remove("answered_at");
    assert_eq!(shown, [expected, Value::Null, Value::Null]);
    assert_eq!(approvals(&other, &stage.admin).await, [Value::Null]);
    let read = approvals(&same, &stage.client).await;
    assert_eq!(read[0]["by"], operator.anonymous());
    same.end(&stage).await;
    other.end(&stage).await;
}
