//! API keys: created and revoked in the API and by the CLI.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::{CommandOutput, Engine, OwnStage, Postgres, Sqlite, Stage};

/// Creates a key in the API. Returns its id and a client that uses it.
async fn made(admin: &Client, name: &str, role: &str) -> (String, Client) {
    let spec = json!({"name": name, "role": role});
    let answer = admin.create("/v1/api-keys", &spec).await.expect(201);
    let text = |member: &str| answer.body[member].as_str().unwrap().to_owned();
    let key = text("key");
    assert!(
        key.starts_with(&format!("rnl_{}_", text("prefix"))),
        "{}",
        answer.body
    );
    (text("id"), Client::new(&admin.url, &key))
}

fn path(id: &str) -> String {
    format!("/v1/api-keys/{id}")
}

async fn listed(admin: &Client) -> Vec<Value> {
    let answer = admin.get("/v1/api-keys?limit=100").await.expect(200);
    answer.body["items"].as_array().unwrap().clone()
}

/// Keys without their last use, which the gateway records in the background.
fn without_last_use(mut keys: Vec<Value>) -> Vec<Value> {
    for key in &mut keys {
        key.as_object_mut().unwrap().remove("last_used_at");
    }
    keys
}

/// Id of the client's own key.
async fn own_id(client: &Client, admin: &Client) -> String {
    let prefix = client.key.split('_').nth(1).unwrap();
    let keys = listed(admin).await;
    let own = keys.iter().find(|key| key["prefix"] == prefix).unwrap();
    own["id"].as_str().unwrap().to_owned()
}

#[rstest]
#[tokio::test]
async fn revoked_keys_are_refused_on_every_replica(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let mut urls = vec![stage.client.url.clone()];
    let replica = match engine {
        Postgres => Some(stage.gateway.start_replica().await),
        // SQLite allows one gateway only.
        Sqlite => None,
    };
    urls.extend(replica.as_ref().map(|replica| replica.client.url.clone()));
    let admin = stage.admin.clone();
    let (id, client) = made(&admin, "billing", "client").await;
    let everywhere: Vec<_> = urls
        .iter()
        .map(|url| Client::new(url, &client.key))
        .collect();

    for client in &everywhere {
        assert_eq!(client.get("/v1/runs").await.status, 200);
        let spec = json!({"name": "mine", "role": "admin"});
        for (method, path) in [
            (Method::POST, "/v1/api-keys".to_owned()),
            (Method::GET, "/v1/api-keys".to_owned()),
            (Method::GET, path(&id)),
            (Method::DELETE, path(&id)),
            (Method::GET, "/v1/agents".to_owned()),
        ] {
            let answer = client.call(method, &path, &spec).await;
            assert_eq!(answer.status, 403, "{path}: {}", answer.body);
            assert_eq!(answer.error("code"), "unauthorized", "{path}");
        }
    }
    let (_, operator) = made(&admin, "ops", "admin").await;
    assert_eq!(operator.get("/v1/agents").await.status, 200);
    assert_eq!(operator.get("/v1/runs").await.status, 200);

    let shown = admin.get(&path(&id)).await;
    shown.assert_body(200, "name", "billing");
    let members: Vec<_> = shown.body.as_object().unwrap().keys().cloned().collect();
    let expected = [
        "agents",
        "created_at",
        "expires_at",
        "id",
        "last_used_at",
        "limits",
        "name",
        "prefix",
        "revoked_at",
        "role",
    ];
    assert_eq!(members, expected);
    assert_eq!(shown.body["revoked_at"], Value::Null);
    let one = without_last_use(vec![shown.body.clone()]);
    assert!(without_last_use(listed(&admin).await).contains(&one[0]));

    assert_eq!(operator.delete(&path(&id)).await.status, 204);
    for client in &everywhere {
        let answer = client.get("/v1/runs").await;
        assert_eq!(answer.status, 401, "{}: {}", client.url, answer.body);
        assert_eq!(answer.error("code"), "unauthenticated");
        assert_eq!(client.post(&message("late")).await.status, 401);
    }
    let revoked = admin.get(&path(&id)).await.body;
    assert!(revoked["revoked_at"].as_i64() >= shown.body["created_at"].as_i64());
    assert_eq!(admin.delete(&path(&id)).await.status, 204);
    let again = admin.get(&path(&id)).await.body;
    assert_eq!(again["revoked_at"], revoked["revoked_at"], "it moved");

    let log = stage.gateway.log();
    for what in ["was made", "was revoked"] {
        let line = format!("API key {id} {what}");
        let line = log.lines().find(|logged| logged.contains(&line));
        let line = line.unwrap_or_else(|| panic!("{what} is not in the log:\n{log}"));
        assert!(line.contains("billing"), "{line}");
    }
    for key in [&client.key, &admin.key, &operator.key] {
        assert!(!log.contains(key.as_str()), "a key was logged");
        let secret = key.splitn(3, '_').nth(2).unwrap();
        assert!(!log.contains(secret), "a key was logged");
    }
}

#[tokio::test]
async fn refuses_to_revoke_last_admin_key() {
    let stage = Stage::new().await;
    let first = stage.admin.clone();
    let first_id = own_id(&first, &first).await;
    let (client_id, _) = made(&first, "a client counts for nothing", "client").await;
    for _ in 0..2 {
        let answer = first.delete(&path(&first_id)).await;
        answer.assert_detail(409, "reason", "last_admin_key");
        let message = answer.error("message").as_str().unwrap();
        assert!(message.contains("create another one first"), "{message}");
    }
    assert_eq!(first.delete(&path(&client_id)).await.status, 204);

    let (second_id, second) = made(&first, "second", "admin").await;
    assert_eq!(first.delete(&path(&first_id)).await.status, 204);
    assert_eq!(first.get("/v1/api-keys").await.status, 401);
    assert_eq!(second.delete(&path(&second_id)).await.status, 409);
    assert_eq!(second.get("/v1/api-keys").await.status, 200);
}

#[tokio::test]
async fn reports_key_faults_by_pointer_and_creates_nothing() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let before = listed(&admin).await;
    for (spec, pointer) in [
        (json!({"role": "client"}), "/name"),
        (json!({"name": "", "role": "client"}), "/name"),
        (json!({"name": "x".repeat(129), "role": "client"}), "/name"),
        (json!({"name": "a\nb", "role": "client"}), "/name"),
        (json!({"name": 7, "role": "client"}), "/name"),
        (json!({"name": "x"}), "/role"),
        (json!({"name": "x", "role": "root"}), "/role"),
        (json!({"name": "x", "role": "Admin"}), "/role"),
        (json!({"name": "x", "role": "admin", "key": "rnl_"}), "/key"),
        (
            json!({"name": "x", "role": "client", "expires_at": 1}),
            "/expires_at",
        ),
        // Milliseconds.
        (
            json!({"name": "x", "role": "client", "expires_at": 1_900_000_000_000_i64}),
            "/expires_at",
        ),
        (
            json!({"name": "x", "role": "client", "expires_at": "2030-01-01"}),
            "/expires_at",
        ),
        (json!([]), ""),
    ] {
        let answer = admin.create("/v1/api-keys", &spec).await;
        assert_eq!(answer.status, 400, "{spec}: {}", answer.body);
        assert_eq!(answer.detail("pointer"), pointer, "{spec}");
    }
    let after = listed(&admin).await;
    assert_eq!(without_last_use(after), without_last_use(before));

    for id in ["nobody", "00000000-0000-7000-8000-000000000000"] {
        assert_eq!(admin.get(&path(id)).await.status, 404, "{id}");
        assert_eq!(admin.delete(&path(id)).await.status, 404, "{id}");
    }
}

#[rstest]
#[tokio::test]
async fn pages_keys_in_creation_order(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let admin = stage.admin.clone();
    let mut ids = Vec::new();
    // Names need not be unique.
    for _ in 0..5 {
        ids.push(made(&admin, "same", "client").await.0);
    }
    let mut found = Vec::new();
    let mut query = "?limit=2".to_owned();
    for _ in 0..4 {
        let page = admin.get(&format!("/v1/api-keys{query}")).await.body;
        for key in page["items"].as_array().unwrap() {
            if key["name"] == "same" {
                found.push(key["id"].as_str().unwrap().to_owned());
            }
        }
        let next = page["next_cursor"].as_str();
        assert_eq!(page["has_more"], next.is_some());
        let Some(next) = next else { break };
        query = format!("?limit=2&cursor={next}");
    }
    assert_eq!(found, ids);
    for query in ["?cursor=bent", "?limit=0", "?limit=101"] {
        let answer = admin.get(&format!("/v1/api-keys{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
    }
    // A cursor is valid for its own list only.
    let page = admin.get("/v1/api-keys?limit=2").await.body;
    let cursor = page["next_cursor"].as_str().unwrap();
    let answer = admin.get(&format!("/v1/agents?cursor={cursor}")).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
}

fn json_of(printed: &CommandOutput) -> Value {
    assert!(printed.status.success(), "{printed:?}");
    printed.json()
}

#[rstest]
#[tokio::test]
async fn cli_lists_and_revokes_keys_of_running_gateway(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let admin = stage.admin.clone();
    let mut keys = Vec::new();
    for name in ["by id", "by prefix", "by key"] {
        keys.push(made(&admin, name, "client").await);
    }
    let printed = stage.gateway.command(&["token", "list", "--json"]).await;
    let printed = json_of(&printed)["items"].as_array().unwrap().clone();
    let expected = without_last_use(listed(&admin).await);
    assert_eq!(without_last_use(printed), expected);

    let names = [
        keys[0].0.clone(),
        keys[1].1.key.split('_').nth(1).unwrap().to_owned(),
        keys[2].1.key.clone(),
    ];
    for ((id, client), name) in keys.iter().zip(&names) {
        assert_eq!(client.get("/v1/runs").await.status, 200);
        let mut before = Value::Null;
        for _ in 0..2 {
            let revoke = ["token", "revoke", name, "--json"];
            let revoked = json_of(&stage.gateway.command(&revoke).await);
            assert_eq!(revoked["id"], json!(id));
            assert!(revoked["revoked_at"].is_i64(), "{revoked}");
            let at = &revoked["revoked_at"];
            assert!(before.is_null() || before == *at, "it moved");
            before = at.clone();
        }
        assert_eq!(client.get("/v1/runs").await.status, 401);
    }
    let printed = stage.gateway.command(&["token", "list"]).await;
    for (id, client) in &keys {
        let row = printed.stdout.lines().find(|line| line.contains(id));
        assert!(row.unwrap().contains("client"), "{printed:?}");
        assert!(!printed.stdout.contains(&client.key), "{printed:?}");
    }

    let unknown = format!("rnl_aaaaaaaa_{}", "A".repeat(43));
    for name in ["aaaaaaaa", &unknown, "00000000-0000-7000-8000-000000000000"] {
        let printed = stage.gateway.command(&["token", "revoke", name]).await;
        assert_eq!(printed.status.code(), Some(1), "{printed:?}");
        assert!(printed.stderr.contains("runnel token list"), "{printed:?}");
        assert!(!printed.stderr.contains(name), "{printed:?}");
    }

    // The CLI may revoke the last admin key, and prints a warning.
    let own = own_id(&admin, &admin).await;
    let printed = stage.gateway.command(&["token", "revoke", &own]).await;
    assert!(printed.status.success(), "{printed:?}");
    assert!(printed.stderr.contains("token create --role admin"));
    assert_eq!(admin.get("/v1/agents").await.status, 401);
}

#[tokio::test]
async fn revoking_a_key_ends_its_streams() {
    let often = "heartbeat_seconds = 0.2";
    let stage = Stage::with(|config| often.clone_into(&mut config.server)).await;
    let admin = stage.admin.clone();
    let (id, client) = made(&admin, "viewer", "client").await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let (theirs, ours) = (
        client.follow(&run.run_id, 0).await,
        stage.client.follow(&run.run_id, 0).await,
    );
    assert_eq!(admin.delete(&path(&id)).await.status, 204);
    assert_eq!(
        theirs.rest().await,
        [],
        "the stream ends, the run continues"
    );
    assert_eq!(stage.client.run(&run.run_id).await["status"], "running");
    run.end(&stage).await;
    assert_eq!(ours.rest().await.len(), 2, "others see the end");
}
