//! Marked secrets: a gateway with maximum output, and a search for the marks in log, tables, responses and
//! runner requests.

#[path = "canaries/upstream_credentials.rs"]
mod upstream_credentials;

use std::path::Path;

use reqwest::header::ACCEPT;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use url::Url;

use crate::support::client::{Client, body_of, message};
use crate::support::database::rows;
use crate::support::gateway::{Config, STUB_API_KEY};
use crate::support::held::HeldRun;
use crate::support::routes::{Face, operations};
use crate::support::runner::{RecordedRequest, SECRET};
use crate::support::script::answer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, within};

/// A secret, and the places where it is allowed.
struct Canary {
    what: &'static str,
    text: String,
    may_be_in: &'static [&'static str],
}

fn canary(what: &'static str, text: &str, may_be_in: &'static [&'static str]) -> Canary {
    let text = text.trim().to_owned();
    assert!(text.len() >= 12, "{what} is too short to be searched for");
    Canary {
        what,
        text,
        may_be_in,
    }
}

/// Collected output by place.
#[derive(Default)]
struct Haystack(Vec<(&'static str, String, Vec<u8>)>);

impl Haystack {
    fn add(&mut self, store: &'static str, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((store, name.into(), bytes.into()));
    }

    async fn call(&mut self, name: &str, request: RequestBuilder) -> Vec<u8> {
        let response = within("an answer", request.send()).await.unwrap();
        let mut bytes = format!("{:?}\n", response.headers()).into_bytes();
        bytes.extend_from_slice(&within("its body", body_of(response)).await.unwrap());
        self.add("answers", name, bytes.clone());
        bytes
    }

    fn hits(&self, canaries: &[Canary]) -> Vec<String> {
        let mut hits = Vec::new();
        for canary in canaries {
            let needle = canary.text.as_bytes();
            for (store, name, bytes) in &self.0 {
                let found = bytes.windows(needle.len()).position(|part| part == needle);
                if let Some(at) = found.filter(|_| !canary.may_be_in.contains(store)) {
                    let around =
                        &bytes[at.saturating_sub(80)..(at + needle.len() + 20).min(bytes.len())];
                    let around = String::from_utf8_lossy(around).into_owned();
                    hits.push(format!("{} in {store}, {name}: …{around}…", canary.what));
                }
            }
        }
        hits
    }
}

/// Adds all tables as text and, for SQLite, the raw database files.
async fn dump(url: &str, haystack: &mut Haystack) {
    if let Some(path) = url.strip_prefix("sqlite://") {
        for end in ["", "-wal", "-journal"] {
            if let Ok(bytes) = std::fs::read(Path::new(&format!("{path}{end}"))) {
                haystack.add("database", format!("the file{end}"), bytes);
            }
        }
        return;
    }
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
    let tables = rows(url, tables).await;
    assert!(tables.len() > 15, "{tables:?}");
    for table in tables {
        let rows = rows(url, &format!("SELECT t::text FROM \"{table}\" t")).await;
        haystack.add("database", table, rows.join("\n"));
    }
}

const USER_TEXT: &str = "canary-user-text-Kj3";
const PASSWORD: &str = "canary-database-password-Zq8";
const ENDPOINT_SECRET: &str = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXI=";
const ACTOR_TOKEN: &str = "canary-actor-token-Lp9";
const ENDPOINT_HEADER: &str = "canary-endpoint-header-Wm2";

/// The database URL with a password, on a server that does not ask for one. SQLite has no password.
fn with_password(url: &str) -> String {
    let mut url = Url::parse(url).unwrap();
    let _ = url.set_password(Some(PASSWORD));
    url.into()
}

/// Classifies a runner request by endpoint and run.
fn classify_request(request: &RecordedRequest, run_id: &str) -> &'static str {
    if request.path.starts_with("/second/") {
        "requests to the registered endpoint"
    } else if !request.is_run() {
        "requests to the endpoint"
    } else if request.header("runnel-run-id") == Some(run_id) {
        "the request of the run"
    } else {
        "requests of other runs"
    }
}

/// Invalid requests, each with a secret in it.
fn wrong_requests(client: &Client, url: &str) -> Vec<RequestBuilder> {
    let anonymous = |method, path: &str| client.anonymous(method, path);
    let long = format!("rnl_canaryky_{}", "canary-wrong-key-Xc4".repeat(3));
    vec![
        anonymous(Method::GET, "/v1/runs").bearer_auth("canary-wrong-key-Xc4"),
        anonymous(Method::GET, "/v1/runs").bearer_auth(&long[..56]),
        anonymous(Method::GET, "/v1/runs").header("authorization", "Basic canary-wrong-key-Xc4"),
        anonymous(Method::GET, "/v1/runs").header("cookie", "session=canary-wrong-key-Xc4"),
        anonymous(Method::GET, "/host/v1/run").bearer_auth("a.canary-wrong-key-Xc4.b"),
        anonymous(Method::GET, "/v1/runs?access_token=canary-wrong-key-Xc4"),
        anonymous(Method::GET, "/canary-wrong-key-Xc4"),
        client.request(Method::GET, "/v1/runs?cursor=canary-wrong-key-Xc4"),
        client.request(Method::GET, "/v1/runs/canary-wrong-key-Xc4"),
        client
            .request(Method::POST, "/v1/events")
            .header("content-type", "application/json")
            .body("{\"canary-wrong-key-Xc4"),
        client
            .request(Method::POST, "/v1/api-keys")
            .json(&json!({"name": "x", "role": "canary-wrong-key-Xc4"})),
        client.request(Method::POST, "/v1/runner-endpoints").json(&json!({
            "name": "bad", "base_url": format!("{url}/x"), "secret": "whsec_canary-wrong-key-Xc4",
        })),
        client.request(Method::POST, "/v1/runner-endpoints").json(&json!({
            "name": "bad", "base_url": "http://user:canary-wrong-key-Xc4@127.0.0.1:1/", "secret": ENDPOINT_SECRET,
        })),
    ]
}

/// Calls every operation without a body; read operations get a valid credential.
async fn call_all_operations(client: &Client, admin: &Client, run: &HeldRun, all: &mut Haystack) {
    let host = Client::new(&client.url, &run.token);
    for operation in operations(client).await {
        let own = operation.path_with(|name| match name {
            "run_id" => run.run_id.clone(),
            "event_id" => "m-1".to_owned(),
            "scope" | "area" => "conversation".to_owned(),
            "key" => "k".to_owned(),
            "conversation_id" => "c-7".to_owned(),
            _ => "x".to_owned(),
        });
        let caller = if operation.face == Face::Host {
            &host
        } else {
            admin
        };
        if operation.method == Method::GET {
            let request = caller
                .request(Method::GET, &own)
                .header(ACCEPT, "application/json");
            all.call(&operation.id, request).await;
        }
        all.call(&operation.id, caller.anonymous(operation.method, &own))
            .await;
    }
    for path in ["/v1/runner-endpoints", "/v1/api-keys"] {
        for item in admin.get(path).await.body["items"].as_array().unwrap() {
            let path = format!("{path}/{}", item["id"].as_str().unwrap());
            all.call(&path, admin.request(Method::GET, &path)).await;
        }
    }
}

#[rstest]
#[tokio::test]
async fn secrets_never_reach_logs_tables_responses_or_requests(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let staged = OwnStage::on(engine, |config: &mut Config| {
        config.environment.push(("RUNNEL_LOG", "trace".to_owned()));
        config.database_at = Some(Box::new(with_password));
        config.endpoint = format!("headers = {{ x-api-key = \"env:{}\" }}", STUB_API_KEY.0);
    });
    let stage = or_skip!(staged.await);
    let admin = stage.admin.clone();
    let mut all = Haystack::default();

    let made = admin
        .create("/v1/api-keys", &json!({"name": "made", "role": "client"}))
        .await
        .body;
    let made_key = made["key"].as_str().unwrap().to_owned();
    let endpoint = json!({
        "name": "second", "base_url": format!("{}/second", stage.runner.url), "secret": ENDPOINT_SECRET,
        "headers": {"x-token": ENDPOINT_HEADER},
    });
    all.call(
        "register",
        admin
            .request(Method::POST, "/v1/runner-endpoints")
            .json(&endpoint),
    )
    .await;

    let mut event = message("m-1");
    event["input"]["text"] = json!(USER_TEXT);
    event["actor"] = json!({
        "actor_type": "user", "actor_id": "u-1", "credential": {"token": ACTOR_TOKEN},
    });
    let run = HeldRun::start(&stage, &event).await;
    let renewed = run.post("/token").await.body["token"]
        .as_str()
        .unwrap()
        .to_owned();
    run.put("/state/conversation/k", &json!(USER_TEXT)).await;
    let mut failing = message("m-2");
    failing["input"]["text"] = json!(USER_TEXT);
    stage
        .runner
        .answer("m-2", |_| answer("500 Oops", "x-secret: canary\r\n", "no"));
    let failed = stage.client.post(&failing).await.run_id();
    stage.client.finished(&failed).await;

    for request in wrong_requests(&admin, &stage.runner.url) {
        let response = within("an answer", request.send()).await.unwrap();
        assert!(response.status().is_client_error(), "{response:?}");
        all.add(
            "answers to who sent it",
            "wrong",
            within("a body", response.bytes()).await.unwrap(),
        );
    }
    call_all_operations(&stage.client, &admin, &run, &mut all).await;
    let outcome = run.end(&stage).await;
    all.add("answers", "the ledger", outcome.ledger.0.join("\n"));
    all.call("after the end", run.request(Method::GET, "/run"))
        .await;
    for arguments in [
        &["check-config"][..],
        &["check-config", "--json"],
        &["token", "list"],
        &["keys", "list"],
        &["keys", "rotate"],
        &["explain", "--url", &admin.url, "--key", &admin.key],
    ] {
        // `explain` needs no configuration.
        let printed = match arguments[0] {
            "explain" => {
                let mut command = tokio::process::Command::new(crate::support::programs::runnel());
                crate::support::run(command.args(arguments)).await
            }
            _ => stage.gateway.command(arguments).await,
        };
        assert!(printed.status.success(), "{printed:?}");
        all.add(
            "commands",
            arguments.join(" "),
            printed.stdout + &printed.stderr,
        );
    }
    let mut gateway_log = stage.gateway.log();
    assert!(
        gateway_log.contains("\"level\":\"TRACE\""),
        "it logs all that it can"
    );
    // A log line that contains a table row counts as a row.
    gateway_log.push('\n');
    all.add("log", "stderr", gateway_log);
    dump(&stage.gateway.database_url(), &mut all).await;
    for request in stage.runner.requests() {
        all.add(
            classify_request(&request, &run.run_id),
            request.path.clone(),
            format!("{request:?}\n{}", String::from_utf8_lossy(&request.body)),
        );
    }

    let signature = |token: &str| token.rsplit_once('.').unwrap().1.to_owned();
    let secret_part = |key: &str| key.splitn(3, '_').nth(2).unwrap().to_owned();
    let canaries = [
        canary("the master key", &stage.gateway.master_key(), &[]),
        canary(
            "the secret of the endpoint",
            SECRET.trim_start_matches("whsec_"),
            &[],
        ),
        canary(
            "the secret of an endpoint that was registered",
            ENDPOINT_SECRET.trim_start_matches("whsec_"),
            &[],
        ),
        canary(
            "a header of the endpoint",
            STUB_API_KEY.1,
            &[
                "requests to the endpoint",
                "the request of the run",
                "requests of other runs",
            ],
        ),
        canary(
            "a header of an endpoint that was registered",
            ENDPOINT_HEADER,
            &["requests to the registered endpoint"],
        ),
        canary("the password of the database", PASSWORD, &[]),
        canary("the key of a client", &secret_part(&stage.client.key), &[]),
        canary("the key of an admin", &secret_part(&admin.key), &[]),
        canary("a key that was made", &secret_part(&made_key), &[]),
        canary(
            "the token of a run",
            &signature(&run.token),
            &["the request of the run"],
        ),
        canary("a renewed token", &signature(&renewed), &[]),
        canary("the token of an actor", ACTOR_TOKEN, &[]),
        // The caller sees its own invalid credential in the error.
        canary(
            "a wrong credential",
            "canary-wrong-key-Xc4",
            &["answers to who sent it"],
        ),
        canary(
            "the text of a user",
            USER_TEXT,
            &[
                "answers",
                "database",
                "the request of the run",
                "requests of other runs",
            ],
        ),
    ];
    let hits = all.hits(&canaries);
    assert!(hits.is_empty(), "{} hits:\n{}", hits.len(), hits.join("\n"));
    // Self-test: the search finds marks that are present.
    for (text, store) in [
        (USER_TEXT, "answers"),
        (USER_TEXT, "database"),
        (USER_TEXT, "the request of the run"),
        (USER_TEXT, "requests of other runs"),
        (&signature(&run.token), "the request of the run"),
        (STUB_API_KEY.1, "requests to the endpoint"),
        (ENDPOINT_HEADER, "requests to the registered endpoint"),
    ] {
        let hits = all.hits(&[canary("it", text, &[])]);
        assert!(hits.iter().any(|hit| hit.contains(store)), "{store}");
    }
}

/// The gateway does not forward client headers, credentials or cookies.
#[tokio::test]
async fn client_headers_are_not_forwarded_to_runners() {
    let stage = Stage::new().await;
    let posting = stage
        .client
        .posting(&message("m-1"))
        .header("cookie", "session=canary-cookie")
        .header("x-api-key", "canary-header")
        .header("traceparent", "00-canary-trace-01")
        .header("x-forwarded-host", "canary-forwarded.example")
        .header("x-forwarded-for", "203.0.113.77")
        .header(
            "forwarded",
            "for=203.0.113.77;host=canary-forwarded.example",
        );
    let accepted = crate::support::client::send(posting).await.unwrap();
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    let run_id = accepted.run_id();
    assert_members!(accepted.body, {"run_url": format!("/v1/runs/{run_id}")});
    stage.client.finished(&run_id).await;
    let run_request = stage.runner.run_request(&run_id).await;
    let document = format!(
        "{run_request:?}{}",
        String::from_utf8_lossy(&run_request.body)
    );
    for text in ["canary", "203.0.113.77", &stage.client.key] {
        assert!(!document.contains(text), "{text}");
    }
    let received = run_request.json();
    assert_members!(received["host"], {"base_url": format!("{}/host/v1", stage.client.url)});
}
