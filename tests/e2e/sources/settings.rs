//! Settings of sources: the API, the configuration, rights, limits, and secrets.

use rstest::rstest;
use tokio::process::Command;

use super::*;
use crate::support::database::rows;
use crate::support::programs::runnel;
use crate::support::{Postgres, Sqlite, TempDirectory, run};

fn github(body: &str) -> Posted {
    signed("github", SECRET, body, now())
}

#[tokio::test]
async fn filters_choose_events_and_keys() {
    let stage = stage_of(Sqlite).await.unwrap();
    let filter = r#"select(.headers["x-github-event"] == "push") | {event_type: "push", data: {ref: .body.ref}}"#;
    let more = json!({"secret": SECRET, "filter": filter, "dedupe": ".body.after"});
    let source = create(&stage.admin, "github", &more).await;
    let post = |kind: &str, body: &Value| {
        let mut posted = github(&body.to_string());
        posted.headers.push(("x-github-event", kind.to_owned()));
        let path = path_of(&source).to_owned();
        let client = stage.client.clone();
        async move { posted.to(&client, &path).await }
    };
    let ping = post("ping", &json!({"zen": "z"})).await.expect(200);
    assert_eq!(ping.body, json!({"event_id": null}));
    let push = json!({"ref": "refs/heads/main", "after": "abc"});
    let first = post("push", &push).await.expect(200);
    assert_eq!(first.body, json!({"event_id": "github/abc"}));
    // Another body with the same key is the same event.
    let again = json!({"ref": "refs/heads/other", "after": "abc"});
    let again = post("push", &again).await.expect(200);
    assert_eq!(again.body, first.body);
    let event = stage.admin.get("/v1/events/github/abc").await.expect(200);
    assert_eq!(event.body["source"], "github");
    // No key, and no text for the sender to learn from.
    let faulty = post("push", &json!({"ref": "r"})).await.expect(400);
    assert_eq!(faulty.detail("pointer"), &Value::Null);
    assert_eq!(events(&stage).await.len(), 1);
}

#[tokio::test]
async fn events_have_the_rights_of_a_key() {
    let stage = stage_of(Sqlite).await.unwrap();
    let filter = r#"{event_type: .body.type, input: {text: "hi"}}"#;
    let more = json!({"secret": SECRET, "filter": filter, "agents": ["main"]});
    let source = create(&stage.admin, "github", &more).await;
    let path = path_of(&source);
    let own = github(r#"{"type": "message.received"}"#);
    own.to(&stage.client, path).await.expect(200);
    let foreign = github(r#"{"type": "test.other"}"#);
    let foreign = foreign.to(&stage.client, path).await.expect(409);
    assert_eq!(foreign.detail("agents"), &Value::Null);
    let key = source["api_key_id"].as_str().unwrap();
    let by_key = format!("/v1/runs?posted_by={key}");
    let runs = stage.admin.get(&by_key).await.expect(200);
    assert_eq!(runs.body["items"].as_array().unwrap().len(), 1);
    let record = stage.admin.get(&format!("/v1/api-keys/{key}")).await;
    let record = record.expect(200).body;
    assert_members!(record, { "name": "source github", "role": "client" });
    // No text opens the API as the key of a source.
    for text in [format!("source:{key}"), String::new()] {
        let guess = Client::new(&stage.client.url, &text);
        guess.get("/v1/runs").await.expect(401);
    }
    let revoke = format!("/v1/api-keys/{key}");
    stage.admin.delete(&revoke).await;
    own.to(&stage.client, path).await.expect(401);
}

#[rstest]
#[tokio::test]
async fn rotated_and_deleted_secrets_end(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let source = create(&stage.admin, "github", &json!({"secret": SECRET})).await;
    let own = format!("{SOURCES}/{}", source["id"].as_str().unwrap());
    let path = path_of(&source);
    let rotate = format!("{own}/rotate-secret");
    let rotated = stage
        .admin
        .create(&rotate, &json!({}))
        .await
        .expect(200)
        .body;
    let next = rotated["secret"].as_str().unwrap();
    assert!(rotated["previous_secret_until"].as_i64().unwrap() > now());
    for (secret, body) in [(SECRET, r#"{"n": 1}"#), (next, r#"{"n": 2}"#)] {
        let posted = signed("github", secret, body, now());
        posted.to(&stage.client, path).await.expect(200);
    }
    // A second rotation ends the first secret at once.
    stage.admin.create(&rotate, &json!({})).await.expect(200);
    github("{}").to(&stage.client, path).await.expect(401);
    for shown in [
        stage.admin.get(&own).await.expect(200).body,
        stage.admin.get(SOURCES).await.expect(200).body,
    ] {
        let shown = shown.to_string();
        assert!(!shown.contains(next) && !shown.contains(SECRET), "{shown}");
    }
    let sql = "SELECT secret || previous_secret FROM sources";
    let stored = rows(&stage.gateway.database_url(), sql).await.concat();
    assert!(!stored.contains(next) && !stored.contains(SECRET));
    stage.admin.delete(&own).await.expect(204);
    stage.admin.get(&own).await.expect(404);
    let unknown = signed("github", next, "{}", now());
    let unknown = unknown.to(&stage.client, path).await.expect(401);
    // A deleted source, an absent one and a wrong signature get one answer.
    let absent = github("{}").to(&stage.client, "/in/absent").await;
    assert_eq!(absent.expect(401).body, unknown.body);
}

#[tokio::test]
async fn reports_all_faults_of_sources() {
    let stage = stage_of(Sqlite).await.unwrap();
    let spec = json!({"name": "A B", "scheme": "hmac", "filter": ".a |", "dedupe": "input", "secret": "short",
                      "agents": []});
    let refused = stage.admin.create(SOURCES, &spec).await.expect(400);
    let faults = refused.detail("faults").as_array().unwrap();
    let pointers: Vec<_> = faults
        .iter()
        .map(|fault| fault["pointer"].clone())
        .collect();
    let expected = [
        "/name", "/header", "/agents", "/filter", "/dedupe", "/secret",
    ];
    assert_eq!(pointers, expected);
    // Slack shows its secret, so the gateway cannot choose one.
    let slack = json!({"name": "slack", "scheme": "slack", "filter": "."});
    let refused = stage.admin.create(SOURCES, &slack).await.expect(400);
    assert_eq!(refused.detail("pointer"), "/secret");
    create(&stage.admin, "github", &json!({})).await;
    let again = json!({"name": "github", "scheme": "github", "filter": "."});
    let taken = stage.admin.create(SOURCES, &again).await;
    taken.assert_detail(409, "reason", "name_taken");
}

#[tokio::test]
async fn limits_bodies_and_wrong_signatures() {
    let stage =
        OwnStage::with(|config| "refused_credentials = 20".clone_into(&mut config.limits)).await;
    let source = create(&stage.admin, "github", &json!({"secret": SECRET})).await;
    let path = path_of(&source);
    let large = github(&" ".repeat(1024 * 1024 + 1));
    large.to(&stage.client, path).await.expect(413);
    let wrong = signed("github", "another secret", "{}", now());
    let mut statuses = Vec::new();
    // More than the limit of two windows of ten seconds.
    for _ in 0..60 {
        let answer = wrong.to(&stage.client, path).await;
        statuses.push(answer.status);
        if answer.status == 429 {
            break;
        }
    }
    assert_eq!(statuses.last(), Some(&429));
    assert!(statuses[..statuses.len() - 1].iter().all(|one| *one == 401));
}

#[tokio::test]
async fn configured_sources_are_tried_by_command() {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let configure = |config: &mut Config| {
        let filter = r#"'''{event_type: "message.received", input: {text: .body.text}}'''"#;
        config.rest = format!(
            "[[sources]]\nname = \"shop\"\nscheme = \"hmac\"\nheader = \"x-signature\"\nprefix = \"v1=\"\n\
             encoding = \"base64\"\nsecret = \"env:SHOP\"\nfilter = {filter}\nagents = [\"main\"]\n"
        );
        config.environment.push(("SHOP", SECRET.to_owned()));
    };
    let stage = OwnStage::of(Sqlite, runner, configure).await.unwrap();
    let posted = signed("hmac", SECRET, r#"{"text": "hello"}"#, now());
    let answer = posted.to(&stage.client, "/in/shop").await.expect(200);
    assert!(
        answer.body["event_id"]
            .as_str()
            .unwrap()
            .starts_with("shop/")
    );
    let listed = stage.admin.get(SOURCES).await.expect(200).body;
    let source = &listed["items"][0];
    assert_members!(source, { "name": "shop", "origin": "config", "secret": Value::Null });
    let own = format!("{SOURCES}/{}", source["id"].as_str().unwrap());
    stage.admin.delete(&own).await.expect(409);

    let directory = TempDirectory::new();
    let tried = async |body: &str| {
        let file = directory.write("body.json", body);
        let mut command = Command::new(runnel());
        command
            .args(["sources", "try", "shop"])
            .arg(file)
            .arg("--json");
        command
            .env("RUNNEL_URL", &stage.admin.url)
            .env("RUNNEL_API_KEY", &stage.admin.key);
        run(&mut command).await
    };
    let good = tried(r#"{"text": "hello"}"#).await.exited(0).json();
    assert_eq!(good["event"]["input"]["text"], "hello");
    let bad = tried(r#"{"text": 7}"#).await.exited(1).json();
    assert_eq!(bad["faults"][0]["pointer"], "/input/text");
    // Nothing of it is posted.
    assert_eq!(events(&stage).await.len(), 1);
}
