//! Run tokens: scope, lifetime, and rejection of any other credential.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use reqwest::Method;
use reqwest::header::AUTHORIZATION;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Row};

use crate::support::client::{Client, message, send};
use crate::support::held::HeldRun;
use crate::support::runner::RUNNER_ID;
use crate::support::{OwnStage, Stage};

/// A decoded part of a token: 0 is the header, 1 the claims.
fn part(token: &str, index: usize) -> Value {
    let part = token.split('.').nth(index).unwrap();
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

fn claims(token: &str) -> Value {
    part(token, 1)
}

/// True if the published keys verify the token.
async fn is_signed(client: &Client, token: &str) -> bool {
    let request = client.anonymous(Method::GET, "/.well-known/jwks.json");
    let published = send(request).await.unwrap();
    assert_eq!(published.status, 200);
    let header = part(token, 0);
    let keys = published.body["keys"].as_array().unwrap().clone();
    let key = keys.iter().find(|key| key["kid"] == header["kid"]).unwrap();
    assert_members!(key, {"kty": "OKP", "crv": "Ed25519"});
    assert_eq!(key["d"], Value::Null, "a private key is published");
    let bytes = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).unwrap();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let public = UnparsedPublicKey::new(&ED25519, bytes(key["x"].as_str().unwrap()));
    public.verify(signed.as_bytes(), &bytes(signature)).is_ok()
}

#[tokio::test]
async fn token_names_its_scope_and_verifies_with_jwks() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let header = part(&run.token, 0);
    let names: Vec<_> = header.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["alg", "kid", "typ"], "{header}");
    assert_members!(header, {"alg": "EdDSA", "typ": "run+jwt"});

    let claims = claims(&run.token);
    let authorization = format!("/v1/runs/{}/authorization", run.run_id);
    let snapshot = stage.client.get(&authorization).await.body["snapshot_sha256"].clone();
    for (name, value) in [
        ("iss", json!(stage.client.url)),
        ("aud", run.run_request["host"]["base_url"].clone()),
        ("sub", json!(RUNNER_ID)),
        ("run_id", json!(run.run_id)),
        ("attempt", json!(1)),
        ("ws", json!(stage.workspace)),
        (
            "scope",
            json!("history:page runs:list state:actor state:conversation"),
        ),
        ("res", snapshot),
    ] {
        assert_eq!(claims[name], value, "{name}: {claims}");
    }
    assert_eq!(claims.as_object().unwrap().len(), 12, "{claims}");
    assert_eq!(claims["exp"], run.run_request["host"]["token_expires_at"]);
    let lifetime = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert!((1..=900).contains(&lifetime), "{claims}");
    assert!(run.token.len() <= 2048);

    assert!(is_signed(&stage.client, &run.token).await);
    let (signed, signature) = run.token.rsplit_once('.').unwrap();
    let mut malformed = claims.clone();
    malformed["scope"] = json!("models:invoke");
    let head = signed.split('.').next().unwrap();
    let malformed = BASE64_URL_SAFE_NO_PAD.encode(malformed.to_string());
    let forged = format!("{head}.{malformed}.{signature}");
    assert!(!is_signed(&stage.client, &forged).await);
    run.end(&stage).await;
}

#[tokio::test]
async fn renewed_token_changes_only_its_times() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let renewed = run.post("/token").await.expect(200);
    let token = renewed.body["token"].as_str().unwrap();
    assert_ne!(token, run.token);

    let (mut before, mut after) = (claims(&run.token), claims(token));
    assert_ne!(before["jti"], after["jti"]);
    assert_eq!(after["exp"], renewed.body["token_expires_at"]);
    for claims in [&mut before, &mut after] {
        for name in ["jti", "iat", "nbf", "exp"] {
            assert!(
                claims.as_object_mut().unwrap().remove(name).is_some(),
                "{name}"
            );
        }
    }
    assert_eq!(before, after);
    assert!(is_signed(&stage.client, token).await);

    let host = Client::new(&run.host.url, token);
    assert_eq!(host.get("/run").await.status, 200);
    assert_eq!(run.get("/run").await.status, 200, "the first one lives on");
    run.end(&stage).await;
    assert_eq!(host.get("/run").await.status, 401);
}

#[tokio::test]
async fn token_is_invalid_once_terminal_is_visible() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(run.get("/run").await.status, 200);
    run.end(&stage).await;
    for (method, path) in [
        (Method::GET, "/run"),
        (Method::GET, "/context"),
        (Method::GET, "/history"),
        (Method::GET, "/state/conversation"),
        (Method::POST, "/token"),
    ] {
        let answer = send(run.request(method, path)).await.unwrap();
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(answer.error("code"), "unauthenticated", "{path}");
    }
    run.put("/state/conversation/late", &json!(1))
        .await
        .expect(401);
}

#[tokio::test]
async fn credentials_open_only_their_own_api() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let admin = stage.admin.clone();
    for key in [&stage.client.key, &admin.key] {
        let host = Client::new(&run.host.url, key);
        for path in ["/run", "/context", "/history", "/state/conversation"] {
            assert_eq!(host.get(path).await.status, 401, "{path}");
        }
    }
    let runner = Client::new(&stage.client.url, &run.token);
    for path in [
        "/v1/runs",
        "/v1/agents",
        "/v1/runner-endpoints",
        "/v1/models",
    ] {
        assert_eq!(runner.get(path).await.status, 401, "{path}");
    }
    assert_eq!(runner.post(&message("m-2")).await.status, 401);
    assert_eq!(runner.cancel(&run.run_id).await.status, 401);
    run.end(&stage).await;
}

#[tokio::test]
async fn token_authorizes_only_its_own_run() {
    let stage = Stage::new().await;
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let mut event = message("m-2");
    event["conversation"]["conversation_id"] = json!("c-8");
    event["actor"]["actor_id"] = json!("u-2");
    let second = HeldRun::start(&stage, &event).await;
    first
        .put("/state/conversation/secret", &json!("first"))
        .await;
    first.put("/state/actor/secret", &json!("first")).await;

    assert_eq!(second.get("/run").await.body["run_id"], second.run_id);
    assert_members!(second.get("/context").await.body["event"], {"event_id": "m-2"});
    for scope in ["conversation", "actor"] {
        let path = format!("/state/{scope}/secret");
        assert_eq!(second.get(&path).await.status, 404, "{scope}");
    }
    let history = second.get("/history").await.body;
    let items = history["items"].as_array().unwrap();
    assert!(
        items.iter().all(|item| item["event_id"] == "m-2"),
        "{history}"
    );

    // Parts of two valid tokens form no valid token.
    let pieces: Vec<_> = first
        .token
        .split('.')
        .zip(second.token.split('.'))
        .collect();
    let mixed = format!("{}.{}.{}", pieces[0].0, pieces[1].1, pieces[2].0);
    Client::new(&first.host.url, &mixed)
        .get("/run")
        .await
        .expect(401);
    first.end(&stage).await;
    assert_eq!(second.get("/run").await.status, 200);
    second.end(&stage).await;
}

#[tokio::test]
async fn accepts_token_only_in_one_authorization_header() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let anonymous = |path: &str| run.host.anonymous(Method::GET, path);
    let bearer = format!("Bearer {}", run.token);
    let query = format!("/run?access_token={token}&token={token}", token = run.token);
    let elsewhere = [
        anonymous("/run"),
        anonymous(&query),
        anonymous("/run").header("cookie", format!("token={}", run.token)),
        anonymous("/run").header("x-api-key", &run.token),
        anonymous("/run").header(AUTHORIZATION, &run.token),
        anonymous("/run").header(AUTHORIZATION, format!("Basic {}", run.token)),
        anonymous("/run").header(AUTHORIZATION, format!("{bearer}x")),
        anonymous("/run").header(AUTHORIZATION, "Bearer "),
    ];
    for request in elsewhere {
        let answer = send(request).await.unwrap();
        answer.assert_error(401, "code", "unauthenticated");
        assert!(answer.headers.contains_key("www-authenticate"));
    }
    let twice = anonymous("/run")
        .header(AUTHORIZATION, &bearer)
        .header(AUTHORIZATION, &bearer);
    assert_eq!(send(twice).await.unwrap().status, 400);
    assert_eq!(run.get("/run").await.status, 200);
    run.end(&stage).await;
}

#[tokio::test]
async fn audits_every_call_allowed_or_denied() {
    let stage = OwnStage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    run.get("/run").await;
    run.get("/context").await;
    run.get("/history").await;
    run.get("/history?conversation_id=c-8").await;
    run.put("/state/conversation/a", &json!("five")).await;
    run.get("/state/conversation/a").await;
    run.delete("/state/conversation/a").await;
    run.get("/state/subject/a").await;
    run.put("/state/runner/a", &json!(1)).await;
    run.post("/token").await;
    run.end(&stage).await;

    let options: SqliteConnectOptions = stage.gateway.database_url().parse().unwrap();
    let mut database = options.read_only(true).connect().await.unwrap();
    let sql =
        "SELECT action, resource, decision FROM audit_entries WHERE run_id = $1 ORDER BY at, id";
    let rows = sqlx::query(sql)
        .bind(&run.run_id)
        .fetch_all(&mut database)
        .await
        .unwrap();
    let rows: Vec<[String; 3]> = rows
        .iter()
        .map(|row| [row.get(0), row.get(1), row.get(2)])
        .collect();
    let expected = [
        ["run_get", "run", "allow"],
        ["context", "run", "allow"],
        ["history_page", "conversation", "allow"],
        ["history_page", "conversation", "deny"],
        ["state_set", "conversation/a", "allow"],
        ["state_get", "conversation/a", "allow"],
        ["state_delete", "conversation/a", "allow"],
        ["state_get", "subject/a", "deny"],
        ["state_set", "runner/a", "deny"],
        ["token", "run", "allow"],
    ];
    assert_eq!(rows, expected.map(|row| row.map(str::to_owned)));
}
