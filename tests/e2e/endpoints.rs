//! Runner endpoints in the admin API.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::gateway::Config;
use crate::support::runner::{RUNNER_ID, RecordedRequest, SECRET, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, until};

const OTHER: &str = "plugin:test/other/default";
const ENDPOINTS: &str = "/v1/runner-endpoints";

async fn stage() -> (OwnStage, Client) {
    let stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    (stage, admin)
}

/// A second runner that answers every run.
async fn other_runner() -> StubRunner {
    let runner = StubRunner::start_as(manifest(OTHER)).await;
    runner.answer_all(|run| sse(run.talk(2).concat()));
    runner
}

async fn registered(admin: &Client, spec: &Value) -> Value {
    admin.create(ENDPOINTS, spec).await.expect(201).body
}

async fn endpoint_names(admin: &Client) -> Vec<Value> {
    let list = admin.get(ENDPOINTS).await.body;
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["name"].clone()).collect()
}

async fn runner(admin: &Client, id: &str) -> Option<Value> {
    let list = admin.get(&format!("/v1/runners?id={id}")).await.expect(200);
    list.body["items"].as_array().unwrap().first().cloned()
}

/// Binds an agent to the runner and completes a run.
async fn run_once(admin: &Client, runner_id: &str) -> Value {
    let agent =
        json!({"name": "of-the-test", "event_types": ["test.event"], "runner_id": runner_id});
    admin.create("/v1/agents", &agent).await.expect(201);
    let mut event = message("m-1");
    event["event_type"] = json!("test.event");
    let run_id = admin.post(&event).await.run_id();
    let run = admin.finished(&run_id).await;
    assert_eq!(run["status"], "completed", "{run}");
    run
}

fn codes_of(faults: &Value) -> Vec<&str> {
    let faults = faults.as_array().unwrap();
    faults
        .iter()
        .map(|fault| fault["pointer"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn registration_discovers_runners_and_hides_secrets() {
    let (_stage, admin) = stage().await;
    let no_label = json!({"id": "plugin:test/other/second", "name": "second"});
    let echo = StubRunner::start_listing(json!([manifest(OTHER), no_label])).await;
    echo.answer_all(|run| sse(run.talk(2).concat()));
    let answer = registered(
        &admin,
        &json!({
            "name": "echo", "base_url": echo.url, "mode": "standard", "delta_mode": "increment",
            "secret": SECRET, "headers": {"x-api-key": "opens-everything"},
            "manifests": null, "replaces": null,
        }),
    )
    .await;
    for (member, value) in [
        ("name", json!("echo")),
        ("origin", json!("api")),
        ("base_url", json!(echo.url)),
        ("mode", json!("standard")),
        ("delta_mode", json!("increment")),
        ("health", json!("healthy")),
        ("secret_set", json!(true)),
        ("secret", Value::Null),
        ("header_names", json!(["x-api-key"])),
        ("accepted", json!([{"id": OTHER}])),
        ("incompatible", json!([])),
        (
            "rejected",
            json!([{"pointer": "/runners/1/label", "message": "is required"}]),
        ),
    ] {
        assert_eq!(answer[member], value, "{member}: {answer}");
    }

    let path = format!("{ENDPOINTS}/{}", answer["id"].as_str().unwrap());
    let shown = admin.get(&path).await.body;
    assert_eq!(shown, answer);
    let list = admin.get(ENDPOINTS).await.body;
    for text in [&shown, &list].map(Value::to_string) {
        assert_lacks!(text, "opens-everything", SECRET);
    }

    let run_request = echo
        .wait_for_request("its runners", |request| request.path == "/runners")
        .await;
    assert_eq!(run_request.header("x-api-key"), Some("opens-everything"));
    assert!(run_request.is_signed());
    assert_starts_with!(run_request.header("webhook-id").unwrap(), "list_");
    assert_eq!(run_once(&admin, OTHER).await["runner_id"], OTHER);
    let run_request = echo
        .wait_for_request("the run", RecordedRequest::is_run)
        .await;
    assert_eq!(run_request.header("x-api-key"), Some("opens-everything"));
}

#[tokio::test]
async fn shows_generated_secret_once() {
    let (_stage, admin) = stage().await;
    let other = other_runner().await;
    let answer = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    let secret = answer["secret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_"), "{secret}");
    let run_request = other
        .wait_for_request("its runners", |request| request.path == "/runners")
        .await;
    assert!(run_request.is_signed_with(secret));

    let path = format!("{ENDPOINTS}/{}", answer["id"].as_str().unwrap());
    let refreshed = admin.create(&format!("{path}/refresh"), &json!({})).await;
    for body in [
        admin.get(&path).await.body,
        admin.get(ENDPOINTS).await.body,
        refreshed.body,
    ] {
        assert!(!body.to_string().contains(secret), "{body}");
    }
}

#[tokio::test]
async fn invalid_manifest_does_not_hide_others() {
    let (_stage, admin) = stage().await;
    let mut newer = manifest("plugin:test/newer/default");
    newer["protocol_version"] = json!("2");
    let mut unsure = manifest("plugin:test/unsure/default");
    unsure["permissions"] = json!({"models": ["invoke", "fly"], "teleport": ["there"]});
    unsure["capabilities"] = json!({"streaming": true, "telepathy": true});
    let other = StubRunner::start_listing(json!([
        manifest(OTHER), "not an object", newer, manifest(OTHER), {"id": "plugin:only/two"}, unsure,
    ]))
    .await;
    let answer = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    let accepted = answer["accepted"].as_array().unwrap();
    let ids: Vec<_> = accepted.iter().map(|runner| runner["id"].clone()).collect();
    assert_eq!(ids, [OTHER, "plugin:test/unsure/default"]);
    let rejected = codes_of(&answer["rejected"]);
    assert_eq!(
        rejected,
        ["/runners/1", "/runners/3/id", "/runners/4/id"],
        "{answer}"
    );
    assert_eq!(answer["incompatible"][0]["id"], "plugin:test/newer/default");
    let warned = codes_of(&accepted[1]["warnings"]).join(" ");
    for pointer in [
        "/permissions/models/1",
        "/permissions/teleport",
        "/capabilities/telepathy",
    ] {
        assert!(warned.contains(pointer), "{pointer}: {answer}");
    }

    let newer = runner(&admin, "plugin:test/newer/default").await.unwrap();
    assert_eq!(newer["status"], "incompatible");
    assert!(newer["reason"].as_str().unwrap().contains('2'), "{newer}");
    let agent =
        json!({"name": "a", "event_types": ["x"], "runner_id": "plugin:test/newer/default"});
    let refused = admin.create("/v1/agents", &agent).await;
    refused.assert_detail(400, "pointer", "/runner_id");
    let unsure = runner(&admin, "plugin:test/unsure/default").await.unwrap();
    assert_members!(unsure["manifest"]["permissions"], {"models": json!(["invoke"])});
}

#[tokio::test]
async fn runner_id_moves_only_with_explicit_replaces() {
    let (_stage, admin) = stage().await;
    let (first, second) = (other_runner().await, other_runner().await);
    registered(&admin, &json!({"name": "first", "base_url": first.url})).await;

    let mut spec = json!({"name": "second", "base_url": second.url});
    let refused = admin.create(ENDPOINTS, &spec).await;
    refused.assert_error(409, "code", "conflict");
    assert!(
        refused.error("details").to_string().contains(OTHER),
        "{}",
        refused.body
    );
    assert_eq!(endpoint_names(&admin).await, ["first", "stub"]);

    spec["replaces"] = json!("nobody");
    let refused = admin.create(ENDPOINTS, &spec).await;
    refused.assert_detail(400, "pointer", "/replaces");

    spec["replaces"] = json!("first");
    registered(&admin, &spec).await;
    assert_eq!(runner(&admin, OTHER).await.unwrap()["endpoint"], "second");
    run_once(&admin, OTHER).await;
    assert!(second.requests().iter().any(RecordedRequest::is_run));
    assert!(!first.requests().iter().any(RecordedRequest::is_run));

    let taken = json!({"name": "stub", "base_url": "http://127.0.0.1:9"});
    admin.create(ENDPOINTS, &taken).await.expect(409);
}

#[tokio::test]
async fn stores_unreachable_endpoint_with_health() {
    let (_stage, admin) = stage().await;
    let mut gone = StubRunner::start().await;
    gone.stop().await;
    let answer = registered(&admin, &json!({"name": "gone", "base_url": gone.url})).await;
    assert_eq!(answer["health"], "unreachable");
    assert!(answer["health_reason"].is_string(), "{answer}");
    assert_eq!(answer["accepted"], json!([]));
    assert_eq!(endpoint_names(&admin).await, ["gone", "stub"]);

    let path = format!("{ENDPOINTS}/{}/refresh", answer["id"].as_str().unwrap());
    let refreshed = admin.create(&path, &json!({})).await;
    refreshed.assert_body(200, "health", "unreachable");
}

#[tokio::test]
async fn refresh_applies_changes() {
    let (_stage, admin) = stage().await;
    let other = other_runner().await;
    let answer = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    let path = format!("{ENDPOINTS}/{}", answer["id"].as_str().unwrap());

    other.list(json!([manifest("plugin:test/newcomer/default")]));
    let refreshed = admin.create(&format!("{path}/refresh"), &json!({})).await;
    assert_eq!(refreshed.status, 200, "{}", refreshed.body);
    let expected = json!([{"id": "plugin:test/newcomer/default"}]);
    assert_eq!(refreshed.body["accepted"], expected);
    assert!(
        runner(&admin, "plugin:test/newcomer/default")
            .await
            .is_some()
    );
    assert_eq!(runner(&admin, OTHER).await, None);
}

#[tokio::test]
async fn deleting_an_endpoint_removes_its_runners() {
    let (_stage, admin) = stage().await;
    let other = other_runner().await;
    let answer = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    let path = format!("{ENDPOINTS}/{}", answer["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    assert_eq!(admin.get(&path).await.status, 404);
    assert_eq!(admin.delete(&path).await.status, 404);
    assert_eq!(runner(&admin, OTHER).await, None);
    assert_eq!(endpoint_names(&admin).await, ["stub"]);

    let stub = admin.get(ENDPOINTS).await.body["items"][0].clone();
    assert_eq!(stub["origin"], "config");
    let path = format!("{ENDPOINTS}/{}", stub["id"].as_str().unwrap());
    let refused = admin.delete(&path).await;
    refused.assert_detail(409, "reason", "read_only");
}

#[tokio::test]
async fn periodic_discovery_claims_no_bound_runner_ids() {
    let often = |config: &mut Config| config.runs = "discovery_ttl_seconds = 0.05".into();
    let stage = Stage::with(often).await;
    let admin = stage.admin.clone();
    let bound = other_runner().await;
    let answer = registered(&admin, &json!({"name": "bound", "base_url": bound.url})).await;
    let agent = json!({"name": "of-the-test", "event_types": ["test.event"], "runner_id": OTHER});
    assert_eq!(admin.create("/v1/agents", &agent).await.status, 201);

    // It also lists a foreign id, to claim it once the owner is deleted.
    let third = "plugin:test/third/default";
    let greedy = StubRunner::start_as(manifest(third)).await;
    let spec = json!({"name": "greedy", "base_url": greedy.url});
    let own = registered(&admin, &spec).await;
    let path = format!("{ENDPOINTS}/{}", own["id"].as_str().unwrap());
    greedy.list(json!([manifest(third), manifest(OTHER)]));
    let deleted = format!("{ENDPOINTS}/{}", answer["id"].as_str().unwrap());
    assert_eq!(admin.delete(&deleted).await.status, 204);

    until("the next list request with the rejection", async || {
        let rejected = &admin.get(&path).await.body["rejected"];
        rejected.to_string().contains("agents are bound to")
    })
    .await;
    assert_eq!(runner(&admin, OTHER).await, None);
    assert!(runner(&admin, third).await.is_some());
    let mut event = message("m-1");
    event["event_type"] = json!("test.event");
    let refused = send(admin.posting(&event)).await.unwrap();
    let why = (refused.status, refused.detail("reason"));
    assert_eq!(why, (503, &json!("runner_unavailable")));

    // An explicit refresh claims the id.
    let refresh = format!("{path}/refresh");
    let refreshed = admin.create(&refresh, &json!({})).await.body;
    assert_eq!(codes_of(&refreshed["rejected"]), [""; 0], "{refreshed}");
    let served = runner(&admin, OTHER).await.unwrap();
    assert_eq!(served["endpoint"], "greedy");
}

#[tokio::test]
async fn rejects_endpoint_urls_outside_egress_policy() {
    let (_stage, admin) = stage().await;
    for base_url in [
        "http://10.0.0.1:80",
        "http://169.254.169.254/latest",
        "http://[::1]:9100",
        "http://runner.example",
        "https://user:hunter2@runner.example",
        "https://127.1:99999",
        "ftp://runner.example",
        "not a url",
        "",
    ] {
        let refused = admin
            .create(ENDPOINTS, &json!({"name": "x", "base_url": base_url}))
            .await;
        assert_eq!(refused.status, 400, "{base_url}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), "/base_url", "{base_url}");
        assert_lacks!(refused.body.to_string(), "hunter2");
    }
    for (member, value, pointer) in [
        ("name", json!(""), "/name"),
        ("secret", json!("short"), "/secret"),
        ("headers", json!({"host": "x"}), "/headers/host"),
        ("headers", json!({"x-a": "line\nbreak"}), "/headers/x-a"),
        ("mode", json!("telnet"), "/mode"),
        ("nme", json!("x"), "/nme"),
    ] {
        let mut spec = json!({"name": "x", "base_url": "http://127.0.0.1:9"});
        spec[member] = value;
        let refused = admin.create(ENDPOINTS, &spec).await;
        assert_eq!(refused.status, 400, "{spec}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
    assert_eq!(endpoint_names(&admin).await, ["stub"]);
}

#[tokio::test]
async fn registers_endpoint_with_given_manifests() {
    let (_stage, admin) = stage().await;
    let other = other_runner().await;
    let spec = json!({"name": "other", "base_url": other.url, "manifests": [manifest(OTHER)]});
    let answer = registered(&admin, &spec).await;
    assert_eq!(answer["accepted"], json!([{"id": OTHER}]));
    run_once(&admin, OTHER).await;
    assert!(
        other.requests().iter().all(RecordedRequest::is_run),
        "it received a list request"
    );
}

#[tokio::test]
async fn single_url_endpoint_receives_all_requests() {
    let (_stage, admin) = stage().await;
    let other = other_runner().await;
    let base_url = format!("{}/function", other.url);
    let spec = json!({
        "name": "other", "base_url": base_url, "mode": "single_url", "secret": SECRET,
    });
    let answer = registered(&admin, &spec).await;
    assert_eq!(answer["accepted"], json!([{"id": OTHER}]));
    let run = run_once(&admin, OTHER).await;

    let requests = other.requests();
    for (request, action) in requests.iter().zip(["list_runners", "run"]) {
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/function")
        );
        assert_eq!(request.json()["action"], action);
        assert!(request.is_signed());
    }
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].json()["context"]["run_id"], run["run_id"]);
    assert_eq!(requests[1].json()["runner_id"], OTHER);
}

#[tokio::test]
async fn disables_endpoints_removed_from_configuration() {
    let second = "[[runner_endpoints]]\nname = \"second\"\nbase_url = \"http://127.0.0.1:9\"\n\
                  secret = \"env:STUB_SECRET\"\n";
    let mut stage = OwnStage::with(|config| config.rest = second.to_owned()).await;
    stage.gateway.kill().await;
    stage.gateway.reconfigure(|config| config.rest.clear());
    stage.gateway.restart().await;
    let log = stage.gateway.log();
    let warning =
        "endpoint second of an earlier configuration, or of another replica's, is disabled";
    assert!(log.contains(warning), "{log}");
    assert!(!log.contains("endpoint stub of an earlier"), "{log}");
}

#[rstest]
#[tokio::test]
async fn disables_agent_with_invalid_config_and_serves_rest(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let entry = |config: &str| {
        format!(
            "[[agents]]\nname = \"unfit\"\nevent_types = [\"a.b\"]\nrunner_id = \"{RUNNER_ID}\"\n\
             config = {config}\n"
        )
    };
    let mut stage = or_skip!(OwnStage::on(engine, |config| config.rest = entry("{}")).await);
    // The agent was valid, but its new configuration no longer fits.
    stage.gateway.kill().await;
    stage
        .gateway
        .reconfigure(|config| config.rest = entry("{ colour = 1 }"));
    for starts in 1..=2 {
        stage.gateway.restart().await;
        let log = stage.gateway.log();
        let fault = "/config/colour is no field of the runner's config_schema";
        let fault = format!(
            "agent unfit does not fit its runner {RUNNER_ID} and is disabled, other agents are served: {fault}"
        );
        assert_eq!(log.matches(&fault).count(), starts, "{log}");
        stage.gateway.kill().await;
    }
    stage.gateway.restart().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let client = stage.client.clone();
    let run_id = client.post(&message("m-1")).await.run_id();
    assert_eq!(client.finished(&run_id).await["status"], "completed");
    let mut event = message("m-2");
    event["event_type"] = json!("a.b");
    let posted = client.post(&event).await;
    assert_eq!(posted.body["reason"], "no_agent", "{}", posted.body);

    let admin = stage.admin.clone();
    let agents = admin.get("/v1/agents").await.body;
    let named = |name: &str| {
        let mut items = agents["items"].as_array().unwrap().iter();
        items.find(|agent| agent["name"] == name).unwrap().clone()
    };
    let unfit = named("unfit");
    assert_eq!(unfit["enabled"], false, "{unfit}");
    assert_eq!(unfit["refused"][0]["pointer"], "/config/colour", "{unfit}");
    assert_eq!(named("main").get("refused"), None);
    let tried = admin
        .call(Method::POST, "/v1/agents/dry-run", &event)
        .await
        .body;
    let mut candidates = tried["candidates"].as_array().unwrap().iter();
    let shown = candidates.find(|one| one["name"] == "unfit").unwrap();
    assert_eq!(shown["reason"], "refused", "{shown}");
    let detail = shown["detail"].as_str().unwrap();
    assert!(detail.contains("/config/colour"), "{detail}");

    // After the correction, it gets events again.
    stage.gateway.kill().await;
    stage
        .gateway
        .reconfigure(|config| config.rest = entry("{}"));
    stage.gateway.restart().await;
    let admin = stage.admin.clone();
    let unfit = admin
        .get(&format!("/v1/agents/{}", unfit["id"].as_str().unwrap()))
        .await
        .body;
    assert_eq!(
        (&unfit["enabled"], unfit.get("refused")),
        (&json!(true), None),
        "{unfit}"
    );
}

#[tokio::test]
async fn check_config_probes_agent_configs_against_runners() {
    let directory = TempDirectory::new();
    let half = || uuid::Uuid::new_v4().simple().to_string();
    let key = directory.write("master.key", &(half() + &half()));
    let secret = directory.write("endpoint.secret", SECRET);
    let mut formed = manifest(RUNNER_ID);
    formed["config_schema"] = json!([{"type": "string", "name": "tone", "required": true}]);
    let runner = StubRunner::start_as(formed).await;
    let probe = async |url: &str, config: &str, more: &[&str]| {
        let text = format!(
            "[auth]\nmaster_key = \"file:{key}\"\n[database]\nurl = \"sqlite://{key}.db\"\n\
             [egress]\nallow = [\"127.0.0.0/8\"]\n[[runner_endpoints]]\nname = \"stub\"\nbase_url = \"{url}\"\n\
             secret = \"file:{secret}\"\n[[agents]]\nname = \"main\"\nevent_types = [\"a.b\"]\n\
             runner_id = \"{RUNNER_ID}\"\nconfig = {config}\n",
            key = key.display(),
            secret = secret.display(),
        );
        let file = directory.write("runnel.toml", &text);
        let mut command = tokio::process::Command::new(crate::support::programs::runnel());
        command
            .args(["check-config", "--probe", "--config"])
            .arg(file);
        crate::support::run(command.args(more)).await
    };
    let good = probe(&runner.url, "{ tone = \"dry\" }", &[]).await;
    assert!(good.status.success(), "{good:?}");
    let row = |kind: &str, printed: &crate::support::CommandOutput| {
        let mut rows = printed.stdout.lines().filter(|line| line.starts_with(kind));
        let words = rows.next().unwrap_or_default().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    };
    let listed = format!("runner endpoint stub ok {RUNNER_ID}");
    assert_eq!(row("runner endpoint", &good), listed, "{good:?}");
    assert_eq!(row("agent", &good), format!("agent main ok {RUNNER_ID}"));
    let unfit = probe(&runner.url, "{ colour = 1 }", &["--json"]).await;
    assert!(!unfit.status.success(), "{unfit:?}");
    let report = unfit.json();
    assert_eq!(report["valid"], true);
    assert_eq!(report["runner_endpoints"][0]["state"], "ready");
    let mut faults: Vec<_> = report["agents"][0]["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["pointer"].clone())
        .collect();
    faults.sort_by_key(ToString::to_string);
    assert_eq!(faults, ["/config/colour", "/config/tone"], "{report}");
    let away = probe("http://127.0.0.1:1", "{}", &[]).await;
    assert!(!away.status.success(), "{away:?}");
    let report = row("runner endpoint", &away);
    assert!(
        report.starts_with("runner endpoint stub FAILED "),
        "{away:?}"
    );
}

#[tokio::test]
async fn logs_api_agents_taken_over_by_configuration() {
    let mut stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    let third = json!({"name": "third", "event_types": ["a.b"], "runner_id": RUNNER_ID});
    admin.create("/v1/agents", &third).await;
    stage.gateway.kill().await;
    let entry = format!(
        "[[agents]]\nname = \"third\"\nevent_types = [\"a.c\"]\nrunner_id = \"{RUNNER_ID}\"\n"
    );
    stage.gateway.reconfigure(|config| config.rest = entry);
    let warning = "agent third was created over the API; the configuration replaces it";
    // Logged at the first start only: then the agent belongs to the configuration.
    for _ in 0..2 {
        stage.gateway.restart().await;
        assert_eq!(stage.gateway.log().matches(warning).count(), 1);
        stage.gateway.kill().await;
    }
}
