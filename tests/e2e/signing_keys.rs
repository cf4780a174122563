//! Signing keys: rotation during live runs, and immediate withdrawal after a leak.
//!
//! The tests move the times in the table back instead of waiting.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::support::client::{Client, message, send};
use crate::support::gateway::Replica;
use crate::support::held::HeldRun;
use crate::support::script::{Run, ScriptStep, sse};
use crate::support::template::master_key;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, within};

const DAY_MS: i64 = 24 * 3_600_000;

fn one_word(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(1).concat())
}

/// A gateway and, if the engine allows it, a second one on the same database.
struct GatewayPair {
    replica: Option<Replica>,
    stage: OwnStage,
}

async fn pair(engine: Engine) -> Option<GatewayPair> {
    // Tokens are bound to this name, so both share it.
    let name = "public_url = \"http://runnel.test\"";
    let stage = OwnStage::on(engine, |config| name.clone_into(&mut config.server)).await?;
    let replica = match engine {
        Postgres => Some(stage.gateway.start_replica().await),
        // SQLite allows only one gateway.
        Sqlite => None,
    };
    Some(GatewayPair { replica, stage })
}

impl GatewayPair {
    fn urls(&self) -> Vec<String> {
        let replica = self
            .replica
            .iter()
            .map(|replica| replica.client.url.clone());
        std::iter::once(self.stage.client.url.clone())
            .chain(replica)
            .collect()
    }

    /// Status of a host API call to each gateway.
    async fn call_back(&self, token: &str) -> Vec<u16> {
        let mut statuses = Vec::new();
        for url in self.urls() {
            let host = Client::new(&format!("{url}/host/v1"), token);
            statuses.push(host.get("/run").await.status);
        }
        statuses
    }

    #[track_caller]
    fn assert_all(&self, statuses: &[u16], expected: u16) {
        assert_eq!(statuses, vec![expected; self.urls().len()]);
    }

    /// Returns once each gateway publishes exactly these keys.
    async fn published(&self, expected: &[&str]) {
        for url in self.urls() {
            let client = Client::new(&url, "");
            within("the published keys to change", async {
                while published(&client).await != expected {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }

    async fn keys(&self) -> Vec<Value> {
        let printed = self
            .stage
            .gateway
            .command(&["keys", "list", "--json"])
            .await;
        let listed = printed.json();
        listed["items"].as_array().unwrap().clone()
    }

    /// Kid of the key with this purpose and phase.
    async fn key(&self, purpose: &str, phase: &str) -> Option<String> {
        let keys = self.keys().await;
        let found = keys
            .iter()
            .find(|key| key["purpose"] == purpose && key["phase"] == phase);
        found.map(|key| key["kid"].as_str().unwrap().to_owned())
    }

    async fn rotate(&self, arguments: &[&str]) -> Vec<Value> {
        let arguments = [&["keys", "rotate", "--json"], arguments].concat();
        let printed = self.stage.gateway.command(&arguments).await.exited(0);
        let done = printed.json();
        done["items"].as_array().unwrap().clone()
    }

    /// Simulates elapsed time: moves all times of the table back.
    async fn age_keys(&self, milliseconds: i64) {
        let sql = format!(
            "UPDATE signing_keys SET created_at = created_at - {milliseconds}, \
             sign_until = sign_until - {milliseconds}, verify_until = verify_until - {milliseconds}"
        );
        self.execute(sql).await;
    }

    async fn execute(&self, sql: String) {
        let (url, sql) = (self.stage.gateway.database_url(), AssertSqlSafe(sql));
        if url.starts_with("sqlite:") {
            let mut database = SqliteConnection::connect(&url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut database).await.unwrap();
            database.close().await.unwrap();
        } else {
            let mut database = PgConnection::connect(&url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut database).await.unwrap();
            database.close().await.unwrap();
        }
    }
}

/// The sorted key ids that a gateway publishes.
async fn published(client: &Client) -> Vec<String> {
    let request = client.anonymous(Method::GET, "/.well-known/jwks.json");
    let keys = send(request).await.unwrap().body["keys"].clone();
    let kids = keys.as_array().unwrap().iter().map(|key| &key["kid"]);
    let mut kids: Vec<_> = kids.map(|kid| kid.as_str().unwrap().to_owned()).collect();
    kids.sort_unstable();
    kids
}

fn sorted<const COUNT: usize>(mut kids: [&str; COUNT]) -> [&str; COUNT] {
    kids.sort_unstable();
    kids
}

fn kid_of(token: &str) -> String {
    let head = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap());
    let head: Value = serde_json::from_slice(&head.unwrap()).unwrap();
    head["kid"].as_str().unwrap().to_owned()
}

/// A renewed token for the same run, once the gateway signs with the key `kid`.
async fn renewed(url: &str, token: &str, kid: &str) -> String {
    let host = Client::new(&format!("{url}/host/v1"), token);
    within("a token of the new key", async {
        loop {
            let answer = host.create("/token", &json!({})).await;
            // Frequent renewals hit the rate limit.
            if answer.status == 429 {
                continue;
            }
            assert_eq!(answer.status, 200, "{}", answer.body);
            let token = answer.body["token"].as_str().unwrap();
            if kid_of(token) == kid {
                return token.to_owned();
            }
        }
    })
    .await
}

#[rstest]
#[tokio::test]
async fn run_continues_through_token_key_rotation(#[values(Sqlite, Postgres)] engine: Engine) {
    let pair = or_skip!(pair(engine).await);
    let stage = &pair.stage;
    let first = HeldRun::start(stage, &message("m-1")).await;
    let old = kid_of(&first.token);
    pair.published(&[&old]).await;

    // Published immediately; it signs nothing yet.
    let made = pair.rotate(&["--purpose", "run_token"]).await;
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["outcome"], "made");
    let new = made[0]["kid"].as_str().unwrap().to_owned();
    pair.published(&sorted([&old, &new])).await;
    let second = HeldRun::start(stage, &message("m-2")).await;
    assert_eq!(kid_of(&second.token), old);
    let again = pair.rotate(&["--purpose", "run_token"]).await;
    assert_members!(again[0], {"outcome": "under_way", "kid": new});

    // Ten minutes later it signs; the old key still verifies.
    pair.age_keys(10 * 60_000).await;
    // A timely renewal hides the end of the old key.
    let mut fresh = Vec::new();
    for url in pair.urls() {
        fresh.push(renewed(&url, &first.token, &new).await);
    }
    let third = HeldRun::start(stage, &message("m-3")).await;
    assert_eq!(kid_of(&third.token), new);
    pair.published(&sorted([&old, &new])).await;
    for run in [&second, &third] {
        pair.assert_all(&pair.call_back(&run.token).await, 200);
    }
    assert_eq!(pair.key("run_token", "verifying").await, Some(old.clone()));
    assert_eq!(pair.key("run_token", "signing").await, Some(new.clone()));

    // Seventeen minutes later the old key has expired and is gone.
    pair.age_keys(17 * 60_000).await;
    pair.published(&[&new]).await;
    pair.assert_all(&pair.call_back(&second.token).await, 401);
    for token in fresh.iter().chain([&third.token]) {
        pair.assert_all(&pair.call_back(token).await, 200);
    }
    within("the old key to be deleted", async {
        while pair
            .keys()
            .await
            .iter()
            .any(|key| key["kid"] == old.as_str())
        {}
    })
    .await;
    for run in [first, second, third] {
        run.end(stage)
            .await
            .assert("completed", &["message.delta", "run.completed"]);
    }
}

#[rstest]
#[tokio::test]
async fn rotates_expired_keys_automatically_once(#[values(Sqlite, Postgres)] engine: Engine) {
    let pair = or_skip!(pair(engine).await);
    let old_token = pair.key("run_token", "signing").await.unwrap();
    let old_cursor = pair.key("cursor", "signing").await.unwrap();
    pair.published(&[&old_token]).await;
    pair.age_keys(30 * DAY_MS).await;
    let waiting = within("the next keys", async {
        loop {
            let next = [
                pair.key("run_token", "waiting").await,
                pair.key("cursor", "waiting").await,
            ];
            if let [Some(token), Some(cursor)] = next {
                return [token, cursor];
            }
        }
    })
    .await;
    let [new_token, new_cursor] = &waiting;
    pair.published(&sorted([&old_token, new_token])).await;
    let mut kids: Vec<_> = pair
        .keys()
        .await
        .iter()
        .map(|key| key["kid"].clone())
        .collect();
    kids.sort_by_key(ToString::to_string);
    let mut expected = [&old_token, &old_cursor, new_token, new_cursor].map(|kid| json!(kid));
    expected.sort_by_key(ToString::to_string);
    assert_eq!(kids, expected, "it was not made once");
    let log = pair.stage.gateway.log();
    assert!(!log.contains("v1."), "a sealed secret was logged");
}

#[rstest]
#[tokio::test]
async fn cursors_stay_valid_a_month_after_rotation(#[values(Sqlite, Postgres)] engine: Engine) {
    let pair = or_skip!(pair(engine).await);
    let clients: Vec<_> = pair
        .urls()
        .iter()
        .map(|url| Client::new(url, &pair.stage.client.key))
        .collect();
    for _ in 0..3 {
        pair.stage.start(one_word).await;
    }
    let next = |client: Client| async move {
        let page = client.get("/v1/runs?limit=1").await.body;
        page["next_cursor"].as_str().unwrap().to_owned()
    };
    let opened = |cursor: String| {
        let clients = clients.clone();
        async move {
            let mut pages = Vec::new();
            for client in &clients {
                let page = client
                    .get(&format!("/v1/runs?limit=1&cursor={cursor}"))
                    .await;
                pages.push((page.status, page.body["items"][0]["run_id"].clone()));
            }
            pages
        }
    };
    let before = next(clients[0].clone()).await;
    let page = opened(before.clone()).await;
    assert!(page.iter().all(|page| page.0 == 200), "{page:?}");

    pair.rotate(&["--purpose", "cursor"]).await;
    pair.age_keys(10 * 60_000).await;
    let mut after = Vec::new();
    for client in &clients {
        let cursor = within("a cursor of the new key", async {
            loop {
                let cursor = next(client.clone()).await;
                if cursor != before {
                    return cursor;
                }
            }
        })
        .await;
        after.push(cursor);
    }
    assert_eq!(opened(before.clone()).await, page);
    // A month, less a margin for the duration of this test.
    let mut shown = Vec::new();
    for client in &clients {
        shown.push((client, published(client).await));
    }
    pair.age_keys(30 * DAY_MS - 5 * 60_000).await;
    for (client, before) in shown {
        // The other key has also expired; its successor shows that the gateways read the new times.
        within("the new times to be read", async {
            while published(client).await == before {}
        })
        .await;
    }
    assert_eq!(opened(before.clone()).await, page);
    pair.age_keys(5 * 60_000).await;
    within("the old cursors to end", async {
        while opened(before.clone())
            .await
            .iter()
            .any(|page| page.0 == 200)
        {}
    })
    .await;
    for cursor in after {
        assert_eq!(opened(cursor).await, page);
    }
    assert!(opened(before).await.iter().all(|page| page.0 == 400));
}

#[rstest]
#[tokio::test]
async fn withdrawn_key_is_rejected_immediately(#[values(Sqlite, Postgres)] engine: Engine) {
    let pair = or_skip!(pair(engine).await);
    let stage = &pair.stage;
    let run = HeldRun::start(stage, &message("m-1")).await;
    pair.assert_all(&pair.call_back(&run.token).await, 200);
    stage.start(one_word).await;
    let page = stage.client.get("/v1/runs?limit=1").await.body;
    let listing = format!(
        "/v1/runs?limit=1&cursor={}",
        page["next_cursor"].as_str().unwrap()
    );
    assert_eq!(stage.client.get(&listing).await.status, 200);

    let replaced = pair.rotate(&["--now"]).await;
    let [token, cursor] = &replaced[..] else {
        panic!("{replaced:?}")
    };
    for (item, purpose) in [(token, "run_token"), (cursor, "cursor")] {
        assert_eq!(item["purpose"], purpose, "{item}");
        assert_eq!(item["outcome"], "replaced", "{item}");
    }
    assert_eq!(token["withdrawn"], json!([kid_of(&run.token)]));
    let new = token["kid"].as_str().unwrap();
    pair.published(&[new]).await;
    pair.assert_all(&pair.call_back(&run.token).await, 401);
    assert_eq!(stage.client.get(&listing).await.status, 400);
    let kids: Vec<_> = pair
        .keys()
        .await
        .iter()
        .map(|key| key["kid"].clone())
        .collect();
    assert_eq!(kids, [token["kid"].clone(), cursor["kid"].clone()]);

    // Streamed results are still accepted, and the next run's token is signed with the new key.
    run.end(stage)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
    let next = HeldRun::start(stage, &message("m-3")).await;
    assert_eq!(kid_of(&next.token), new);
    pair.assert_all(&pair.call_back(&next.token).await, 200);
    next.end(stage).await;
}

#[rstest]
#[tokio::test]
async fn creates_missing_signing_keys(#[values(Sqlite, Postgres)] engine: Engine) {
    let pair = or_skip!(pair(engine).await);
    let lost = HeldRun::start(&pair.stage, &message("m-1")).await;
    pair.execute("DELETE FROM signing_keys".to_owned()).await;
    let new = within("a new key", async {
        loop {
            if let Some(kid) = pair.key("run_token", "signing").await {
                return kid;
            }
        }
    })
    .await;
    pair.published(&[&new]).await;
    pair.assert_all(&pair.call_back(&lost.token).await, 401);
    let run = HeldRun::start(&pair.stage, &message("m-2")).await;
    assert_eq!(kid_of(&run.token), new);
    pair.assert_all(&pair.call_back(&run.token).await, 200);
    run.end(&pair.stage).await;
    lost.end(&pair.stage).await;
}

#[tokio::test]
async fn rejects_unknown_keys_without_side_effects() {
    let pair = or_skip!(pair(Postgres).await);
    let run = HeldRun::start(&pair.stage, &message("m-1")).await;
    // Concurrent requests with unknown keys share one read of the table.
    let (head, rest) = run.token.split_once('.').unwrap();
    let head = BASE64_URL_SAFE_NO_PAD.decode(head).unwrap();
    let invented = String::from_utf8(head)
        .unwrap()
        .replace(&kid_of(&run.token), &BASE64_URL_SAFE_NO_PAD.encode([7; 32]));
    let invented = format!("{}.{rest}", BASE64_URL_SAFE_NO_PAD.encode(invented));
    let calls = (0..20).map(|_| pair.call_back(&invented));
    for statuses in futures_util::future::join_all(calls).await {
        pair.assert_all(&statuses, 401);
    }
    // The gateways continue to serve.
    pair.assert_all(&pair.call_back(&run.token).await, 200);
    run.end(&pair.stage).await;
}

#[tokio::test]
async fn commands_print_no_secret_and_check_master_key() {
    let stage = OwnStage::new().await;
    let listed = stage.gateway.command(&["keys", "list"]).await.exited(0);
    for word in ["run_token", "cursor", "signing"] {
        assert!(listed.stdout.contains(word), "{listed:?}");
    }
    assert!(!listed.stdout.contains("v1."), "{listed:?}");
    let help = stage.gateway.command(&["keys", "rotate", "--help"]).await;
    assert!(help.stdout.contains("answered by 401"), "{help:?}");

    let right = stage.gateway.replace_master_key(&"0f".repeat(16).repeat(2));
    for arguments in [&["keys", "rotate"][..], &["keys", "rotate", "--now"][..]] {
        let refused = stage.gateway.command(arguments).await.exited(1);
        assert!(refused.stderr.contains("auth.master_key"), "{refused:?}");
    }
    stage.gateway.replace_master_key(&right);
    let again = stage.gateway.command(&["keys", "list"]).await;
    assert_eq!(again.stdout, listed.stdout);
}

/// Neither a running nor a stopped gateway notices the probe.
#[rstest]
#[tokio::test]
async fn probe_tries_master_key_against_the_database(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let database = stage.gateway.database_url();
    let write_ahead_log = format!("{}-wal", database.trim_start_matches("sqlite://"));
    let wrong = master_key();
    // A stopped gateway under load may leave its log; the probe adds none.
    let mut stopped_with_log = false;
    for stops in [true, false] {
        let right = stage.gateway.replace_master_key(&wrong);
        assert_eq!(probed_master_key(&stage).await, "FAILED");
        stage.gateway.replace_master_key(&right);
        assert_eq!(probed_master_key(&stage).await, "ok");
        if stops {
            stage.gateway.stop().await;
            stopped_with_log = std::path::Path::new(&write_ahead_log).exists();
        }
    }
    let has_log = std::path::Path::new(&write_ahead_log).exists();
    assert_eq!(has_log, stopped_with_log, "{write_ahead_log}");
}

/// The state in the row of the master key.
async fn probed_master_key(stage: &OwnStage) -> String {
    let printed = stage.gateway.command(&["check-config", "--probe"]).await;
    let mut rows = printed.stdout.lines();
    let row = rows.find_map(|row| row.strip_prefix("master key "));
    let row = row.unwrap_or_else(|| panic!("{printed:?}"));
    row.split_whitespace().nth(1).unwrap().to_owned()
}
