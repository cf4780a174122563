//! Roles of API keys: each operation of the API document with a key of each role.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::interactions;
use crate::isolation::{Tenant, request, visible_response};
use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::repository::repository_file;
use crate::support::routes::{Face, operations};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite};

/// Roles in the order of the columns of `docs/roles.md`. The last two change what the others read.
const ROLES: [&str; 6] = ["client", "approver", "viewer", "operator", "admin", "owner"];

/// Operations of `docs/roles.md`, and whether each role opens them.
fn documented_roles() -> BTreeMap<String, Vec<bool>> {
    let text = std::fs::read_to_string(repository_file("docs/roles.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let read = rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let opens: Vec<_> = cells[2..].iter().map(|cell| *cell == "✓").collect();
        assert_eq!(opens.len(), ROLES.len(), "{row}");
        (cells[0].trim_matches('`').to_owned(), opens)
    });
    read.collect()
}

async fn key_of(stage: &OwnStage, role: &str) -> Client {
    let spec = json!({"name": role, "role": role});
    let made = stage.admin.create("/v1/api-keys", &spec).await;
    assert_eq!(made.status, 201, "{}", made.body);
    Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
}

#[tokio::test]
async fn documented_operations_are_those_with_keys() {
    let stage = OwnStage::new().await;
    let served = operations(&stage.client).await.into_iter();
    let with_keys =
        served.filter(|one| matches!(one.face, Face::Client | Face::Admin | Face::Owner));
    let served: BTreeSet<_> = with_keys.map(|one| one.id).collect();
    let documented: BTreeSet<_> = documented_roles().into_keys().collect();
    assert_eq!(documented, served, "docs/roles.md");
}

#[rstest]
#[tokio::test]
async fn roles_open_documented_operations(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let configure = |config: &mut crate::support::gateway::Config| {
        "[[knowledge_bases]]\nkb_id = \"handbook\"".clone_into(&mut config.rest);
    };
    let stage = or_skip!(OwnStage::of(engine, runner, configure).await);
    let ids = Tenant::new(&stage, "default").await.ids;
    let documented = documented_roles();
    for (column, role) in ROLES.into_iter().enumerate() {
        // Only the command line makes owners, and an admin's deletions would close routes to the others.
        if matches!(role, "admin" | "owner") {
            continue;
        }
        let key = key_of(&stage, role).await;
        for operation in &operations(&stage.client).await {
            let id = operation.id.as_str();
            // Routes of runs and links are not in the table.
            let opens = documented.get(id).is_some_and(|opens| opens[column]);
            let request = request(&key, operation, &ids);
            let answer = visible_response(request).await;
            let (status, body) = (answer.status, answer.body);
            if role == "viewer" && operation.method == Method::GET && opens {
                let request = super::isolation::request(&stage.admin, operation, &ids);
                let full = visible_response(request).await.status;
                assert_eq!(status, full, "{id}: viewers read what admins read");
            }
            match operation.face {
                Face::Host | Face::Link => assert_eq!(status, 401, "{id} {role}"),
                Face::Shared => assert_eq!(status, 404, "{id} {role}"),
                Face::Open => assert_eq!(status, 200, "{id} {role}"),
                _ if opens => assert!(
                    !matches!(status, 401 | 403 | 500..),
                    "{id} {role}: {status} {body}"
                ),
                _ => assert_eq!(status, 403, "{id} {role}: {body}"),
            }
        }
    }
}

#[rstest]
#[tokio::test]
async fn approvers_answer_questions_of_their_agents(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(interactions::stage(engine).await);
    let questions = [interactions::question("q", &json!({}))];
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let run_id = interactions::ask(&stage, &interactions::asking_event("m-1"), &questions).await;
    let approver = async |agent: &str| {
        let spec = json!({"name": "approver", "role": "approver", "agents": [agent]});
        let made = stage.admin.create("/v1/api-keys", &spec).await.expect(201);
        Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
    };
    let (own, other) = (approver("main").await, approver("unpermitted").await);
    let listed = own.get("/v1/interactions").await.expect(200).body;
    let path = format!(
        "/v1/interactions/{}",
        listed["items"][0]["id"].as_str().unwrap()
    );
    let answer = json!({"interaction_id": "q", "action_id": "book", "values": {"room": "a"}});
    assert_eq!(other.get("/v1/interactions").await.body["items"], json!([]));
    other.get(&path).await.expect(404);
    let submit = format!("{path}/submit");
    other.create(&submit, &answer).await.expect(404);
    own.get(&format!("/v1/runs/{run_id}")).await.expect(200);
    let accepted = own.create(&submit, &answer).await.expect(202).body;
    let next = accepted["run_id"].as_str().unwrap();
    assert_eq!(stage.client.finished(next).await["status"], "completed");
}

#[tokio::test]
async fn operators_cancel_and_viewers_do_not() {
    let stage = OwnStage::new().await;
    let (viewer, operator) = (
        key_of(&stage, "viewer").await,
        key_of(&stage, "operator").await,
    );
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(viewer.cancel(&run.run_id).await.status, 403);
    assert_eq!(
        viewer.run(&run.run_id).await["cancel_requested_at"],
        Value::Null
    );
    assert_eq!(operator.cancel(&run.run_id).await.status, 202);
    run.release();
    assert_eq!(operator.finished(&run.run_id).await["status"], "cancelled");
    let retried = operator
        .create(&format!("/v1/runs/{}/retry", run.run_id), &json!({}))
        .await;
    assert_eq!(retried.status, 202, "{}", retried.body);
}

/// An agent's configuration may hold secrets, which only admins read.
#[tokio::test]
async fn viewers_read_no_secret_of_an_agent() {
    let stage = OwnStage::new().await;
    let viewer = key_of(&stage, "viewer").await;
    let spec = json!({
        "name": "keyed", "event_types": ["test.keyed"], "runner_id": crate::support::runner::RUNNER_ID,
        "enabled": false, "config": {"api_key": "hidden-7f3", "prompt": "shown"},
    });
    let made = stage.admin.create("/v1/agents", &spec).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let path = format!("/v1/agents/{}", made.body["id"].as_str().unwrap());
    for path in [path.as_str(), "/v1/agents"] {
        let text = viewer.get(path).await.body.to_string();
        assert!(
            text.contains("shown") && !text.contains("hidden-7f3"),
            "{text}"
        );
        let text = stage.admin.get(path).await.body.to_string();
        assert!(text.contains("hidden-7f3"), "{text}");
    }
}
