//! Workspaces: created through the API or the command line, and fully usable.

#[path = "workspaces/teams.rs"]
mod teams;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::database::rows;
use crate::support::runner::{RUNNER_ID, SECRET};
use crate::support::script::sse;
use crate::support::{OwnStage, Postgres, Stage};

/// The code of an error and its pointer.
fn refusal(body: &Value) -> (&str, &str) {
    let error = &body["error"];
    let pointer = error["details"]["pointer"].as_str().unwrap_or_default();
    (error["code"].as_str().unwrap(), pointer)
}

#[tokio::test]
async fn owners_create_and_list_workspaces() {
    let stage = OwnStage::new().await;
    let owner = stage.gateway.owner();
    let made = owner
        .create("/v1/workspaces", &json!({"id": "team-a", "name": "Team A"}))
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(made.body["api_key"]["role"], "admin");
    let key = made.body["api_key"]["key"].as_str().unwrap();
    let again = owner
        .create("/v1/workspaces", &json!({"id": "team-a"}))
        .await;
    again.assert_detail(409, "reason", "workspace_exists");
    let log = stage.gateway.log();
    assert!(
        log.contains("workspace team-a was made") && !log.contains(key),
        "{log}"
    );
    for (spec, pointer) in [
        (json!({"id": "Team"}), "/id"),
        (json!({"id": ""}), "/id"),
        (json!({"id": "b", "name": ""}), "/name"),
        (json!({}), "/id"),
    ] {
        let refused = owner.create("/v1/workspaces", &spec).await;
        assert_eq!(refused.status, 400, "{spec} {}", refused.body);
        assert_eq!(
            refusal(&refused.body),
            ("invalid_argument", pointer),
            "{spec}"
        );
    }
    let first = owner.get("/v1/workspaces?limit=1").await.body;
    assert_eq!(first["items"][0]["id"], "default");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = owner
        .get(&format!("/v1/workspaces?cursor={cursor}"))
        .await
        .body;
    let items: Vec<_> = second["items"].as_array().unwrap().iter().collect();
    assert_eq!(items.len(), 1, "{second}");
    assert_members!(items[0], {"id": "team-a", "name": "Team A"});
}

#[tokio::test]
async fn admins_cannot_create_or_revoke_owners() {
    let stage = OwnStage::new().await;
    let spec = json!({"name": "more", "role": "owner"});
    let refused = stage.admin.create("/v1/api-keys", &spec).await.expect(403);
    assert_eq!(refusal(&refused.body).1, "/role");
    let keys = stage.admin.get("/v1/api-keys").await.body;
    let mut keys = keys["items"].as_array().unwrap().iter();
    let owner = keys.find(|key| key["role"] == "owner").unwrap();
    let path = format!("/v1/api-keys/{}", owner["id"].as_str().unwrap());
    assert_eq!(stage.admin.delete(&path).await.status, 403);
    stage
        .gateway
        .owner()
        .get("/v1/workspaces")
        .await
        .expect(200);
}

/// Ids of events, conversations and agents are scoped to a workspace.
#[tokio::test]
async fn workspaces_isolate_equal_ids() {
    let (one, two) = (Stage::new().await, Stage::new().await);
    assert_ne!(one.workspace, two.workspace);
    assert_eq!(one.client.url, two.client.url, "they share a gateway");
    for (stage, word) in [(&one, "first"), (&two, "second")] {
        stage
            .runner
            .answer_all(move |run| sse([run.delta(1, word), run.completed(2)].concat()));
        let posted = stage.client.post(&message("m-1")).await;
        assert!(!posted.is_replay());
        let outcome = stage.outcome(&posted.run_id()).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
        assert_eq!(stage.runner.posts(&posted.run_id()), 1);
        let runs = stage.client.get("/v1/runs").await.body;
        assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
    }
}

/// `runnel workspace create` and `runnel token create --workspace` with a running gateway.
#[tokio::test]
async fn command_creates_immediately_usable_workspaces() {
    let stage = OwnStage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let made = ["workspace", "create", "team-a", "--json"];
    let made = stage.gateway.command(&made).await.exited(0);
    let made = made.json();
    let admin = Client::new(&stage.client.url, made["api_key"]["key"].as_str().unwrap());
    let endpoint = json!({"name": "stub", "base_url": stage.runner.url, "secret": SECRET});
    let registered = admin.create("/v1/runner-endpoints", &endpoint).await;
    assert_eq!(registered.status, 201, "{}", registered.body);
    let agent =
        json!({"name": "main", "event_types": ["message.received"], "runner_id": RUNNER_ID});
    assert_eq!(admin.create("/v1/agents", &agent).await.status, 201);
    let key = [
        "token",
        "create",
        "--workspace",
        "team-a",
        "--role",
        "client",
        "--name",
        "app",
    ];
    let key = stage.gateway.command(&key).await.stdout;
    let client = Client::new(&stage.client.url, key.trim());
    let run = client
        .finished(&client.post(&message("m-1")).await.run_id())
        .await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(stage.client.get("/v1/runs").await.body["items"], json!([]));
    for (arguments, words) in [
        (&["workspace", "create", "team-a"][..], "another id"),
        (&["workspace", "create", "Team"], "must have 1 to 64"),
        (
            &["token", "list", "--workspace", "nope"],
            "runnel workspace list",
        ),
        (
            &[
                "token",
                "create",
                "--role",
                "owner",
                "--name",
                "x",
                "--workspace",
                "team-a",
            ],
            "belongs to no workspace",
        ),
    ] {
        let printed = stage.gateway.command(arguments).await;
        assert!(!printed.status.success(), "{printed:?}");
        assert!(printed.stderr.contains(words), "{printed:?}");
    }
    let listed = stage.gateway.command(&["workspace", "list"]).await.stdout;
    assert_contains!(listed, "default", "team-a");
    assert_eq!(
        admin
            .request(Method::GET, "/v1/workspaces")
            .send()
            .await
            .unwrap()
            .status(),
        403
    );
}

#[tokio::test]
async fn concurrent_creations_yield_one_workspace() {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    let replica = stage.gateway.start_replica().await;
    let owner = stage.gateway.owner();
    let urls = [&stage.client.url, &replica.client.url];
    for n in 0..8 {
        let spec = json!({"id": format!("team-{n}")});
        let creations = urls.map(async |url| {
            let owner = Client::new(url, &owner.key);
            owner.create("/v1/workspaces", &spec).await.status
        });
        let mut ends = futures_util::future::join_all(creations).await;
        ends.sort_unstable();
        assert_eq!(ends, [201, 409], "{spec}");
    }
    let sql = "SELECT workspace_id FROM api_keys WHERE workspace_id LIKE 'team-%'";
    assert_eq!(rows(&stage.gateway.database_url(), sql).await.len(), 8);
}
