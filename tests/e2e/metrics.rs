//! The gateway's metrics, parsed as Prometheus parses them.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::support::client::{Client, message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::repository::repository_file;
use crate::support::routes::operations;
use crate::support::runner::SECRET;
use crate::support::script::{answer, sse};
use crate::support::stage::VerifiedOutcome;
use crate::support::tool_server::ToolServer;
use crate::support::{OwnStage, Sqlite, Stage, until, within};
use crate::tools::{stage_with, tools_at};

/// A unique address, and the configuration section that serves metrics there.
pub fn listener() -> (Client, String) {
    let [a, b, ..] = *Uuid::new_v4().as_bytes();
    let address = format!("127.{a}.{b}.2:9464");
    let listen = format!("[metrics]\nlisten = \"{address}\"\n");
    (Client::new(&format!("http://{address}"), ""), listen)
}

/// A gateway with a metrics listener, and a client for it.
struct MeteredStage {
    stage: OwnStage,
    metrics: Client,
}

impl MeteredStage {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(configure: impl FnOnce(&mut Config)) -> Self {
        let (metrics, listen) = listener();
        let stage = OwnStage::with(|config: &mut Config| {
            config.rest = listen;
            configure(config);
        })
        .await;
        Self { stage, metrics }
    }

    async fn scrape(&self) -> Scrape {
        let request = self.metrics.anonymous(Method::GET, "/metrics");
        let response = within("the metrics", request.send()).await.unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        Scrape::read(response.text().await.unwrap())
    }

    /// The first scrape that satisfies `wanted`: some metrics are updated after the response.
    async fn scrape_when(&self, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
        let mut last = None;
        until("the metrics to be as wanted", async || {
            wanted(last.insert(self.scrape().await))
        })
        .await;
        last.expect("it was looked at least once")
    }
}

/// A scrape that conforms to the text format:
///
/// - valid names and labels
/// - one `TYPE` and one `HELP` before the samples of each metric
/// - no duplicate series
/// - consistent histograms
struct Scrape {
    text: String,
    samples: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
}

impl Scrape {
    fn read(text: String) -> Self {
        let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
        let mut helped = BTreeSet::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help has words");
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(helped.contains(name), "no help before {line}");
                let before = types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "{line}");
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert_labels(series);
                let name = metric_of(series, &types);
                assert!(types.contains_key(name), "no type before {line}");
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
                let before = samples.insert(series.to_owned(), value);
                assert_eq!(before, None, "{series} is listed twice");
            }
        }
        let scrape = Self {
            text,
            samples,
            types,
        };
        scrape.assert_kinds();
        scrape
    }

    fn assert_kinds(&self) {
        for (name, kind) in &self.types {
            let is_total = name.ends_with("_total");
            assert_eq!(kind == "counter", is_total, "{name} is a {kind}");
            if kind != "histogram" {
                continue;
            }
            for (series, count) in &self.samples {
                let Some(labels) = series.strip_prefix(&format!("{name}_count")) else {
                    continue;
                };
                let labels = labels.trim_start_matches('{').trim_end_matches('}');
                let comma = if labels.is_empty() { "" } else { "," };
                let all = format!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}}");
                assert_eq!(self.samples.get(&all), Some(count), "{all}\n{}", self.text);
            }
        }
    }

    #[track_caller]
    fn get(&self, series: &str) -> f64 {
        self.find(series)
            .unwrap_or_else(|| panic!("no {series} in\n{}", self.text))
    }

    fn find(&self, series: &str) -> Option<f64> {
        self.samples.get(series).copied()
    }

    #[track_caller]
    fn assert(&self, expected: &[(&str, usize)]) {
        for (series, count) in expected {
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let count = *count as f64;
            assert!(
                (self.get(series) - count).abs() < 1e-9,
                "{series} is {} and not {count}",
                self.get(series)
            );
        }
    }
}

/// Checks a series: `name` or `name{label="value",…}` with valid Prometheus names.
fn assert_labels(series: &str) {
    let is_name = |name: &str| {
        let mut letters = name.chars();
        let first = letters
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        first && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    assert!(is_name(name), "{series}");
    let labels = labels
        .strip_suffix('}')
        .unwrap_or_else(|| panic!("{series}"));
    for label in labels.split("\",").filter(|label| !label.is_empty()) {
        let (name, value) = label
            .split_once("=\"")
            .unwrap_or_else(|| panic!("{series}"));
        assert!(is_name(name), "{series}");
        assert!(
            !value.trim_end_matches('"').contains(['"', '\n']),
            "{series}"
        );
    }
}

fn metric_of<'a>(series: &'a str, types: &BTreeMap<String, String>) -> &'a str {
    let name = series.split('{').next().unwrap_or_default();
    let part = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|part| name.strip_suffix(part));
    part.filter(|name| types.get(*name).is_some_and(|kind| kind == "histogram"))
        .unwrap_or(name)
}

/// The metric names in the table of the docs.
fn documented() -> BTreeSet<String> {
    let page = std::fs::read_to_string(repository_file("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

/// Runs with each outcome, rejected events, and host API calls.
async fn traffic(stage: &Stage) -> Vec<VerifiedOutcome> {
    let mut outcomes = vec![
        stage.play(|run| sse(run.talk(3).concat())).await,
        stage
            .play(|run| sse(run.delta(1, "a") + &run.failed(2)))
            .await,
        stage.play(|run| sse(run.delta(1, "a"))).await,
        stage
            .play(|run| sse(run.delta(1, "a") + &run.delta(1, "b") + &run.completed(2)))
            .await,
    ];
    let held = HeldRun::start(stage, &message("canary-event")).await;
    assert_eq!(held.get("/run").await.status, 200);
    assert_eq!(held.get("/state/canary-scope/canary-key").await.status, 400);
    assert_eq!(held.post("/steering/pull").await.status, 403);
    let mut again = message("canary-event");
    assert_eq!(stage.client.post(&again).await.status, 202);
    again["input"]["text"] = "canary-text".into();
    assert_eq!(stage.client.post(&again).await.status, 409);
    outcomes.push(held.end(stage).await);
    outcomes
}

#[tokio::test]
async fn metrics_match_traffic() {
    let watched = MeteredStage::new().await;
    let outcomes = traffic(&watched.stage).await;
    let events: usize = outcomes.iter().map(|outcome| outcome.ledger.0.len()).sum();
    let lines = outcomes.iter().flat_map(|outcome| &outcome.ledger.0);
    let bytes: usize = lines.map(|line| line.len() + 1).sum();
    let is_quiet = |scrape: &Scrape| {
        scrape.get("runnel_live_runs") < 1.0
            && scrape.get("runnel_open_streams") < 1.0
            && scrape.find("runnel_ready") == Some(1.0)
            && scrape.find("runnel_runs{status=\"running\"}") == Some(0.0)
    };
    let scrape = watched.scrape_when(is_quiet).await;
    let ended = "runnel_runs_ended_total";
    let posted = "runnel_http_requests_total{method=\"POST\",route=\"/v1/events\"";
    scrape.assert(&[
        ("runnel_events_ingested_total{result=\"accepted\"}", 5),
        ("runnel_events_ingested_total{result=\"duplicate\"}", 1),
        (
            "runnel_events_ingested_total{result=\"idempotency_mismatch\"}",
            1,
        ),
        ("runnel_ingest_seconds_count", 7),
        (&format!("{posted},status=\"2xx\"}}"), 6),
        (&format!("{posted},status=\"4xx\"}}"), 1),
        ("runnel_runs_started_total", 5),
        ("runnel_dispatch_attempts_total{outcome=\"started\"}", 5),
        (&format!("{ended}{{status=\"completed\",code=\"ok\"}}"), 3),
        (
            &format!("{ended}{{status=\"failed\",code=\"runner.failed\"}}"),
            1,
        ),
        (
            &format!("{ended}{{status=\"failed\",code=\"runner.stream_truncated\"}}"),
            1,
        ),
        ("runnel_run_seconds_count", 5),
        ("runnel_events_appended_total", events),
        ("runnel_event_bytes_appended_total", bytes),
        (
            "runnel_results_rejected_total{reason=\"sequence_conflict\"}",
            1,
        ),
        (
            "runnel_host_calls_total{route=\"/host/v1/run\",outcome=\"allowed\"}",
            1,
        ),
        (
            "runnel_host_calls_total{route=\"/host/v1/state/{scope}/{*key}\",outcome=\"refused\"}",
            1,
        ),
        (
            "runnel_host_calls_total{route=\"/host/v1/steering/pull\",outcome=\"denied\"}",
            1,
        ),
        ("runnel_http_request_seconds_count{face=\"host\"}", 3),
        ("runnel_commits_failed_total", 0),
        ("runnel_leases_lost_total", 0),
        ("runnel_writer_queue_items", 0),
        ("runnel_panics_total{task=\"run\"}", 0),
        ("runnel_swept_runs_total{why=\"orphaned\"}", 0),
    ]);
    assert!(scrape.get("runnel_relay_seconds_count") >= 1.0);
    let commits = scrape.get("runnel_commit_seconds_count");
    assert!(commits >= 10.0 && scrape.get("runnel_commit_items_sum") >= commits);
    assert!(scrape.get("runnel_discoveries_total{endpoint=\"stub\",outcome=\"ok\"}") >= 1.0);
    assert!(scrape.get("process_resident_memory_bytes") > 1e6);

    // The documented table and the binary agree.
    let exported: BTreeSet<_> = scrape.types.keys().cloned().collect();
    let mut expected = documented();
    // These appear only after an open circuit, a tolerated deviation, a wait, an exported change, or a call of a model,
    // tool, schedule, source or webhook.
    let late = [
        "runnel_breaker_state",
        "runnel_budget_waits",
        "runnel_changes_exported",
        "runnel_hook_calls",
        "runnel_inputs_tolerated",
        "runnel_model_",
        "runnel_schedule_tries",
        "runnel_source_requests",
        "runnel_tool_call",
        "runnel_webhook_tries",
    ];
    let comes_later = |name: &String| late.iter().any(|late| name.starts_with(late));
    expected.retain(|name| exported.contains(name) || !comes_later(name));
    assert_eq!(exported, expected);
}

#[tokio::test]
async fn unmatched_events_do_not_count_as_accepted() {
    let watched = MeteredStage::new().await;
    let mut event = message("m-1");
    event["event_type"] = "nobody.wants".into();
    let answer = watched.stage.client.post(&event).await;
    assert_eq!(answer.body["reason"], "no_agent", "{}", answer.body);
    let scrape = watched.scrape().await;
    scrape.assert(&[("runnel_events_ingested_total{result=\"no_agent\"}", 1)]);
    let accepted = "runnel_events_ingested_total{result=\"accepted\"}";
    assert_eq!(scrape.find(accepted), None);
}

#[tokio::test]
async fn gauges_count_live_runs_and_streams() {
    let watched = MeteredStage::new().await;
    let held = HeldRun::start(&watched.stage, &message("m-1")).await;
    let stream = watched.stage.client.follow(&held.run_id, 0).await;
    let one = |scrape: &Scrape, series| scrape.find(series) == Some(1.0);
    watched
        .scrape_when(|scrape| {
            one(scrape, "runnel_live_runs")
                && one(scrape, "runnel_open_streams")
                && one(scrape, "runnel_runs{status=\"running\"}")
        })
        .await;
    drop(stream);
    let is_left = |scrape: &Scrape| scrape.find("runnel_open_streams") == Some(0.0);
    let scrape = watched.scrape_when(is_left).await;
    scrape.assert(&[("runnel_live_runs", 1)]);
    held.end(&watched.stage).await;
}

#[tokio::test]
async fn counts_abandoned_tool_calls() {
    let server = ToolServer::start().await;
    let slow = tools_at(&server, "", &["slow"]).replace("= 2.0\n", "= 50.0\n");
    let (metrics, listen) = listener();
    let stage = stage_with(Sqlite, slow + &listen).await.unwrap();
    let watched = MeteredStage { stage, metrics };
    let run = HeldRun::start(&watched.stage, &message("m-1")).await;
    let parameters = json!({"parameters": {}});
    tokio::select! {
        answer = run.call("/tools/slow/call", &parameters) => panic!("{}", answer.body),
        () = until("the call", async || !server.seen("/slow").is_empty()) => {}
    }
    let abandoned = "runnel_tool_calls_total{source=\"http\",outcome=\"abandoned\"}";
    watched
        .scrape_when(|scrape| scrape.find(abandoned) == Some(1.0))
        .await;
    run.end(&watched.stage).await;
}

/// Embedding calls belong to no run, so only metrics show their cost.
#[tokio::test]
async fn counts_embeddings_as_model_calls() {
    let watched = MeteredStage::with(|config| config.rest += VECTORS).await;
    let admin = watched.stage.admin.clone();
    let path = "/v1/knowledge-bases/handbook/documents/guide.txt";
    let request = admin.request(Method::PUT, path);
    let request = request.header("content-type", "text/plain");
    let made = send(request.body("Employees have thirty days of vacation."))
        .await
        .unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
    let query = json!({"query_text": "vacation"});
    let path = "/v1/knowledge-bases/handbook/retrieve";
    admin.call(Method::POST, path, &query).await.expect(200);
    let scrape = watched.scrape().await;
    let called = "runnel_model_calls_total{model=\"talker\",outcome=\"ok\"}";
    scrape.assert(&[(called, 2)]);
    let read = scrape.get("runnel_model_tokens_total{model=\"talker\",direction=\"prompt\"}");
    assert!(read > 5.0, "{read}");
    let cost = scrape.get("runnel_model_cost_total{model=\"talker\"}");
    assert!((cost - 2.0 * read).abs() < 2.5, "{cost} of {read}");
}

const VECTORS: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "talker"
provider = "script"
input_price = 2.0
output_price = 5.0
[[knowledge_bases]]
kb_id = "handbook"
embedding_model = "talker"
"#;

#[tokio::test]
async fn metrics_listener_serves_only_metrics() {
    let watched = MeteredStage::new().await;
    let answer = watched.stage.client.get("/metrics").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.error("code"), "not_found");
    for path in ["/", "/healthz", "/v1/runs", "/openapi.json", "/metrics/"] {
        let request = watched.metrics.anonymous(Method::GET, path);
        assert_eq!(request.send().await.unwrap().status(), 404, "{path}");
    }
    let posted = watched.metrics.anonymous(Method::POST, "/metrics");
    assert_eq!(posted.send().await.unwrap().status(), 405);

    let off = Stage::new().await;
    assert_eq!(off.client.get("/metrics").await.status, 404);
}

/// Sends requests to unknown paths and with unknown methods.
async fn send_unknown_requests(stage: &Stage, times: std::ops::Range<usize>) {
    for n in times {
        let path = format!("/canary-path/{n}");
        let request = stage.client.request(Method::GET, &path);
        assert_eq!(request.send().await.unwrap().status(), 404);
        let method = Method::from_bytes(format!("CANARY{n}").as_bytes()).unwrap();
        let path = format!("/v1/runs/canary-{n}");
        let request = stage.client.request(method, &path);
        assert_eq!(request.send().await.unwrap().status(), 405);
    }
}

#[tokio::test]
async fn labels_are_bounded_and_hold_no_input() {
    let watched = MeteredStage::new().await;
    let outcomes = traffic(&watched.stage).await;
    send_unknown_requests(&watched.stage, 0..1).await;
    let has_looked = |scrape: &Scrape| {
        scrape.find("runnel_ready").is_some()
            && scrape.find("runnel_runs{status=\"running\"}").is_some()
    };
    let before = watched.scrape_when(has_looked).await;
    send_unknown_requests(&watched.stage, 1..40).await;
    let scrape = watched.scrape().await;
    let series = |scrape: &Scrape| -> Vec<_> { scrape.samples.keys().cloned().collect() };
    assert_eq!(series(&scrape), series(&before));
    assert!(scrape.samples.len() < 1000);

    let key = &watched.stage.client.key;
    let run_ids = outcomes
        .iter()
        .map(|outcome| outcome.run["run_id"].as_str());
    let mut canaries: Vec<_> = run_ids.map(Option::unwrap).collect();
    // Texts of clients and runners, their ids, and every secret.
    canaries.extend([
        "canary",
        "CANARY",
        "u-1",
        "c-7",
        "boom",
        "it broke",
        "hello big",
    ]);
    canaries.extend([key.as_str(), &key[4..12], SECRET, "opens-sesame"]);
    for canary in canaries {
        assert!(!scrape.text.contains(canary), "{canary}: {}", scrape.text);
    }
}

/// Covers methods that the route lacks, and requests rejected before routing.
#[tokio::test]
async fn counts_unsupported_methods_as_other() {
    let watched = MeteredStage::new().await;
    let client = &watched.stage.client;
    let all = operations(client).await;
    let served: BTreeSet<_> = all
        .iter()
        .map(|operation| {
            (
                operation.path.replace('*', ""),
                operation.method.to_string(),
            )
        })
        .collect();
    let paths: BTreeMap<_, _> = all
        .iter()
        .map(|operation| (&operation.path, operation.path_with(|_| "x".to_owned())))
        .collect();
    for path in paths.values() {
        for method in ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "HEAD"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            for origin in ["http://localhost", "http://evil.example"] {
                let request = client.anonymous(method.clone(), path);
                let answer = request.header("origin", origin).send();
                let status = within("an answer", answer).await.unwrap().status();
                assert!(status.as_u16() >= 200, "{method} {path}");
            }
        }
    }
    let scrape = watched.scrape().await;
    assert!(scrape.samples.len() < 1000, "{}", scrape.samples.len());
    let mut others = 0;
    for series in scrape.samples.keys() {
        let Some(labels) = series.strip_prefix("runnel_http_requests_total{method=\"") else {
            continue;
        };
        let (method, rest) = labels.split_once('"').unwrap();
        let route = rest.split('"').nth(1).unwrap().replace('*', "");
        let read = if method == "HEAD" { "GET" } else { method };
        if method == "other" {
            others += 1;
        } else {
            let pair = (route, read.to_owned());
            assert!(served.contains(&pair), "{series}");
        }
    }
    assert!(others >= paths.len(), "{others} of {}", paths.len());
}

/// The metrics in a Prometheus query; histograms by their parts.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("runnel_") || word.starts_with("process_"));
    let names = documented();
    ours.map(|word| {
        let part = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| word.strip_suffix(part));
        let complete = part.filter(|part| names.contains(*part) && !names.contains(word));
        complete.unwrap_or(word).to_owned()
    })
    .collect()
}

#[test]
fn dashboard_shows_exactly_all_metrics() {
    let text = std::fs::read_to_string(repository_file("deploy/grafana/runnel.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut expressions = String::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_i64()), "an id is listed twice");
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            expressions += target["expr"].as_str().unwrap();
            expressions.push('\n');
        }
    }
    assert_eq!(metrics_in(&expressions), documented());
}

#[test]
fn alerts_name_existing_metrics() {
    let text = std::fs::read_to_string(repository_file("deploy/prometheus/alerts.yml")).unwrap();
    let alerts: serde_norway::Value = serde_norway::from_str(&text).unwrap();
    let operations = std::fs::read_to_string(repository_file("OPERATIONS.md")).unwrap();
    let rules = alerts["groups"][0]["rules"].as_sequence().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let named = metrics_in(rule["expr"].as_str().unwrap());
        assert!(!named.is_empty(), "{name}");
        let unknown: Vec<_> = named.difference(&documented()).cloned().collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        assert!(
            operations.contains(name),
            "OPERATIONS.md does not name {name}"
        );
    }
}

#[tokio::test]
async fn exports_open_circuit_of_endpoint() {
    let watched = MeteredStage::with(|config| {
        config.runs = "breaker_failures = 2\nbreaker_wait_seconds = 3600.0\n\
                       breaker_longest_wait_seconds = 3600.0"
            .to_owned();
    })
    .await;
    let state = "runnel_breaker_state{endpoint=\"stub\"}";
    assert_eq!(watched.scrape().await.find(state), None);
    for _ in 0..2 {
        let outcome = watched
            .stage
            .play(|_| answer("500 Internal Server Error", "", ""))
            .await;
        assert_eq!(outcome.ending(), "failed runner.http_error");
    }
    watched
        .scrape_when(|scrape| scrape.find(state) == Some(2.0))
        .await;
}
