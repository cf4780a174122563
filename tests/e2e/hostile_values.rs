//! Values that parsers and databases treat differently, from clients and runners. Both databases give the same
//! verdict, and accepted values can be read again. F60, D6, D16, D22.

use futures_util::{StreamExt, stream};
use reqwest::Method;
use reqwest::header::ACCEPT;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send as ask};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Run, chunk, frame, sse};
use crate::support::stage::VerifiedOutcome;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, within};

/// Concurrent runs.
const CONCURRENCY: usize = 6;

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// JSON texts, and whether they are accepted.
fn values() -> Vec<(&'static str, String, bool)> {
    let keys = |count: usize| {
        (0..count)
            .map(|n| format!("\"k{n}\":{n}"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let text = |json: &str| json.to_owned();
    vec![
        ("plain", text(r#"{"a":[1,2.5,null,true,"é\n"]}"#), true),
        ("NUL", text(r#""\u0000""#), false),
        ("NUL in a key", text(r#"{"\u0000":1}"#), false),
        ("NUL that is none", text(r#""\\u0000""#), true),
        ("a raw NUL", text("\"\0\""), false),
        ("a raw control character", text("\"\u{1}\""), false),
        (
            "U+0001 to U+001F, escaped",
            text(r#""\u0001\u001f\b\f""#),
            true,
        ),
        (
            "what is no character",
            text("\"\u{ffff}\u{fdd0}\u{fffd}\""),
            true,
        ),
        (
            "separators of lines",
            text("\"\u{2028}\u{2029}\u{85}\u{b}\"").replace('\u{b}', "\\u000b"),
            true,
        ),
        ("half a pair", text(r#""\ud800""#), false),
        ("the other half", text(r#""\udc00x""#), false),
        (
            "halves in the wrong order",
            text(r#""\udf89\ud83c""#),
            false,
        ),
        ("a pair", text(r#""\ud83c\udf89""#), true),
        ("a number that is none", text("NaN"), false),
        ("infinity", text("-Infinity"), false),
        ("1e400", text("1e400"), false),
        ("1e-400", text("1e-400"), true),
        ("2^64", text("18446744073709551616"), true),
        ("-2^63 - 1", text("-9223372036854775809"), true),
        ("four hundred digits", "9".repeat(400), false),
        (
            "four hundred decimals",
            format!("0.{}", "3".repeat(400)),
            true,
        ),
        ("a leading zero", text("01"), false),
        ("-0", text("[-0,-0.0]"), true),
        ("60 levels", nested(60), true),
        ("66 levels", nested(66), false),
        ("129 levels", nested(129), false),
        ("10,000 levels", nested(10_000), false),
        ("open levels", "[".repeat(10_000), false),
        ("5,000 keys", format!("{{{}}}", keys(5_000)), true),
        (
            "a key of 10 KiB",
            format!("{{\"{}\":1}}", "k".repeat(10_000)),
            true,
        ),
        ("a key twice", text(r#"{"a":1,"a":2}"#), true),
        ("an empty key", text(r#"{"":{"":""}}"#), true),
        (
            "__proto__",
            text(r#"{"__proto__":{"x":1},"constructor":null}"#),
            true,
        ),
        ("single quotes", text("{'a':1}"), false),
        ("a comma too many", text("[1,]"), false),
        ("a comment", text("/* x */ 1"), false),
        (
            "what PostgreSQL would read",
            text(r#""\\x00 E'\\000' $1 :a ?""#),
            true,
        ),
        ("SQL", text(r#""'; DROP TABLE runs; --""#), true),
    ]
}

/// Values that are invalid in a client's text and repaired in a result.
const REPAIRED: [&str; 7] = [
    "NUL",
    "NUL in a key",
    "a raw NUL",
    "a raw control character",
    "half a pair",
    "the other half",
    "halves in the wrong order",
];

async fn stage(engine: Engine) -> Option<OwnStage> {
    let mut reader = manifest(RUNNER_ID);
    reader["permissions"] = json!({
        "events": ["get", "page"], "history": ["page", "search"], "storage": ["plugin"],
    });
    let runner = StubRunner::start_as(reader).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        config.agents[0].event_types = "*";
        config.agents[0].resources =
            r#"events = ["get", "page"], history = ["page", "search"], storage = ["plugin"]"#;
    })
    .await
}

async fn post_text(client: &Client, path: &str, body: String) -> ApiResponse {
    let request = client.request(Method::POST, path).body(body);
    ask(request.header("content-type", "application/json"))
        .await
        .unwrap()
}

/// Checks that both databases give the same list, if both are available.
async fn on_both<F: Future<Output = Vec<String>>>(play: impl Fn(OwnStage) -> F) {
    let sqlite = play(stage(Sqlite).await.unwrap()).await;
    if let Some(postgres) = stage(Postgres).await {
        let postgres = play(postgres).await;
        for (sqlite, postgres) in sqlite.iter().zip(&postgres) {
            assert_eq!(sqlite, postgres);
        }
        assert_eq!(sqlite.len(), postgres.len());
    }
}

#[tokio::test]
async fn judges_client_values_alike_on_both_databases() {
    on_both(async |stage: OwnStage| {
        let posting = values().into_iter().map(|value| post_value(&stage, value));
        let verdicts: Vec<_> = stream::iter(posting).buffered(CONCURRENCY).collect().await;
        verdicts.concat()
    })
    .await;
}

async fn post_value(stage: &Stage, (what, value, taken): (&str, String, bool)) -> Vec<String> {
    let mut verdicts = Vec::new();
    let contents = format!(r#"[{{"type":"other","v":{value}}}]"#);
    for (location, member) in [
        ("data", format!(r#""data":{{"v":{value}}}"#)),
        ("raw", format!(r#""raw":{{"v":{value}}}"#)),
        (
            "contents",
            format!(r#""input":{{"text":"x","contents":{contents}}}"#),
        ),
    ] {
        let body = format!(r#"{{"event_type":"test.poison",{member}}}"#);
        let answer = post_text(&stage.client, "/v1/events", body).await;
        let pointer = answer.detail("pointer");
        verdicts.push(format!("{what} as {location}: {} {pointer}", answer.status));
        if location != "contents" {
            let expected = if taken { 202 } else { 400 };
            assert_eq!(
                answer.status, expected,
                "{what} as {location}: {}",
                answer.body
            );
        }
        if answer.status == 202 {
            let event_id = answer.body["event_id"].as_str().unwrap();
            read_again(stage, &answer.run_id(), event_id).await;
        }
    }
    verdicts
}

/// Checks that an accepted run completes and all of its data can be read.
async fn read_again(stage: &Stage, run_id: &str, event_id: &str) {
    let outcome = stage.outcome(run_id).await;
    assert_eq!(outcome.ending(), "completed", "{}", outcome.run);
    let authorization = format!("/v1/runs/{run_id}/authorization");
    for path in [format!("/v1/events/{event_id}"), authorization] {
        let answer = stage.client.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn judges_runner_values_alike_on_both_databases() {
    on_both(async |stage: OwnStage| {
        let playing = values().into_iter().enumerate();
        let playing = playing.map(|(index, value)| play_value(&stage, index, value));
        let verdicts: Vec<_> = stream::iter(playing).buffered(CONCURRENCY).collect().await;
        verdicts.concat()
    })
    .await;
}

async fn play_value(
    stage: &Stage,
    index: usize,
    (what, value, taken): (&str, String, bool),
) -> Vec<String> {
    // Texts of runners are repaired where texts of clients are rejected.
    let taken = taken || REPAIRED.contains(&what);
    let mut verdicts = Vec::new();
    let in_chunk = format!(r#"{{"chunk":{{"role":"assistant","content":"a","v":{value}}}}}"#);
    let in_state = format!(r#"{{"scope":"actor","key":"k{index}","value":{value}}}"#);
    for (pointer, kind, data) in [
        ("telemetry", "vendor.thing", format!(r#"{{"v":{value}}}"#)),
        ("an unknown member", "message.delta", in_chunk),
        ("state", "state.updated", in_state),
    ] {
        let script = move |run: &Run| {
            let poison = run.result(1, kind, &data);
            let delta = run.result(2, "message.delta", &chunk("b"));
            sse(poison + &delta + &run.completed(3))
        };
        let outcome = stage.play(script).await;
        let reasons = reasons(&outcome);
        verdicts.push(format!(
            "{what} as {pointer}: {} {reasons:?}",
            outcome.ending()
        ));
        assert_eq!(outcome.ending(), "completed", "{what} as {pointer}");
        assert_eq!(
            reasons.is_empty(),
            taken,
            "{what} as {pointer}: {reasons:?}"
        );
    }
    let run = HeldRun::start(stage, &message(&format!("read {index}"))).await;
    let state = run.get(&format!("/state/actor/k{index}")).await;
    let expected = if taken { 200 } else { 404 };
    assert_eq!(state.status, expected, "{what}: {}", state.body);
    run.end(stage).await;
    verdicts
}

fn reasons(outcome: &VerifiedOutcome) -> Vec<String> {
    let rows = outcome.rejections.iter();
    rows.map(|row| row["reason"].to_string()).collect()
}

#[tokio::test]
async fn judges_result_framing_alike_on_both_databases() {
    on_both(async |stage: OwnStage| {
        let mut verdicts = Vec::new();
        for (what, json) in [
            (
                "text after it",
                r#"{"run_id":"ID","type":"a.b","data":{}} {}"#,
            ),
            (
                "a comma after it",
                r#"{"run_id":"ID","type":"a.b","data":{}},"#,
            ),
            (
                "a mark before it",
                "\u{feff}{\"run_id\":\"ID\",\"type\":\"a.b\",\"data\":{}}",
            ),
            (
                "a member twice",
                r#"{"run_id":"ID","run_id":"ID","type":"a.b","data":{}}"#,
            ),
            (
                "two data",
                r#"{"run_id":"ID","type":"a.b","data":{},"data":{"x":1}}"#,
            ),
            ("a list", r#"["ID","a.b",{}]"#),
            ("a text", r#""ID""#),
            (
                "a run id of another case",
                r#"{"RUN_ID":"ID","type":"a.b","data":{}}"#,
            ),
            (
                "a type of one NUL",
                r#"{"run_id":"ID","type":"\u0000","data":{}}"#,
            ),
            (
                "half a type",
                r#"{"run_id":"ID","type":"\ud800","data":{}}"#,
            ),
            (
                "a type of lines",
                r#"{"run_id":"ID","type":"a\r\ndata: x\n\n","data":{}}"#,
            ),
            ("no type", r#"{"run_id":"ID","type":"","data":{}}"#),
            (
                "usage of numbers",
                r#"{"run_id":"ID","type":"a.b","data":{},"usage":{"total_tokens":1e400}}"#,
            ),
            (
                "usage that is a list",
                r#"{"run_id":"ID","type":"a.b","data":{},"usage":[1]}"#,
            ),
            (
                "escaped names",
                r#"{"run\u005fid":"ID","\u0074ype":"a.b","data":{}}"#,
            ),
        ] {
            let json = json.to_owned();
            let script = move |run: &Run| {
                sse(run.delta("null", "a")
                    + &frame(&json.replace("ID", &run.id))
                    + &run.completed("null"))
            };
            let outcome = stage.play(script).await;
            let reasons = reasons(&outcome);
            verdicts.push(format!(
                "{what}: {} {:?} {reasons:?}",
                outcome.ending(),
                outcome.ledger.types()
            ));
            assert_eq!(outcome.ending(), "completed", "{what}: {reasons:?}");
        }
        verdicts
    })
    .await;
}

// --- every parameter of every route ---

const HOSTILE: [&str; 9] = [
    "a%00b",
    "%FF",
    "%F0%9F%8E%89",
    "%0D%0Ax-injected:%201",
    "..%2F..%2Fetc",
    "%27%20OR%201%3D1--%5C%25_",
    "-1",
    "18446744073709551616",
    "LONG",
];

/// The paths of the OpenAPI document, with each parameter in turn set to `value`.
fn addresses(value: &str) -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(include_str!("../../openapi/gateway.json")).unwrap();
    let mut addresses = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let none = Vec::new();
            let parameters = operation["parameters"].as_array().unwrap_or(&none);
            for parameter in parameters {
                let name = parameter["name"].as_str().unwrap();
                let filled = match parameter["in"].as_str().unwrap() {
                    "path" => path.replace(&format!("{{{name}}}"), value),
                    "query" => format!("{path}?{name}={value}"),
                    _ => continue,
                };
                addresses.push((method.to_uppercase(), filled));
            }
        }
    }
    addresses
}

/// Fills every other parameter with a valid value.
fn fill_parameters(path: &str, run_id: &str) -> String {
    let mut filled = path.to_owned();
    for (name, value) in [
        ("{run_id}", run_id),
        ("{conversation_id}", "c-7"),
        ("{scope}", "conversation"),
        ("{area}", "plugin"),
        ("{key}", "k"),
        ("{event_id}", "m-1"),
    ] {
        filled = filled.replace(name, value);
    }
    while let (Some(from), Some(to)) = (filled.find('{'), filled.find('}')) {
        filled.replace_range(from..=to, run_id);
    }
    filled
}

#[tokio::test]
async fn hostile_parameters_cause_no_server_error() {
    on_both(async |stage: OwnStage| {
        let admin = stage.admin.clone();
        let mut verdicts = Vec::new();
        for (index, value) in HOSTILE.iter().enumerate() {
            let long = "x".repeat(9_000);
            let value = if *value == "LONG" { &long } else { *value };
            let run = HeldRun::start(&stage, &message(&format!("m-{index}"))).await;
            let addresses = addresses(value).into_iter();
            let asking = addresses.map(|(method, path)| ask_hostile(&admin, &run, method, path));
            let outcomes: Vec<_> = stream::iter(asking).buffered(CONCURRENCY).collect().await;
            verdicts.extend(outcomes.into_iter().flatten());
            assert_eq!(run.end(&stage).await.ending(), "completed");
        }
        assert!(verdicts.len() > 700, "{}", verdicts.len());
        verdicts
    })
    .await;
}

async fn ask_hostile(
    admin: &Client,
    run: &HeldRun,
    method: String,
    path: String,
) -> Option<String> {
    let path = fill_parameters(&path, &run.run_id);
    // Skip operations that end the run or its token.
    if path.ends_with("/cancel") || path.ends_with("/token") {
        return None;
    }
    let key = if path.starts_with("/host/") {
        &run.token
    } else {
        &admin.key
    };
    let method: Method = method.parse().unwrap();
    let request = Client::new(&admin.url, key).request(method.clone(), &path);
    let request = request.header(ACCEPT, "application/json");
    let request = if [Method::POST, Method::PUT].contains(&method) {
        request
            .header("content-type", "application/json")
            .body("{}")
    } else {
        request
    };
    let response = within("an answer", request.send()).await.unwrap();
    let status = response.status().as_u16();
    let path = path.replace(&run.run_id, "RUN");
    assert!(status < 500, "{method} {path:.200}: {status}");
    assert!(
        response.headers().get("x-injected").is_none(),
        "{method} {path:.200}"
    );
    // A concurrent request may have written this entry before.
    let status = if [200, 204].contains(&status) {
        404
    } else {
        status
    };
    Some(format!("{method} {path:.120}: {status}"))
}

#[tokio::test]
async fn rejects_oversized_pages_and_searches() {
    let stage = stage(Sqlite).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let admin = stage.admin.clone();
    for limit in [
        "0",
        "101",
        "-1",
        "1000000",
        "18446744073709551615",
        "1.5",
        "a",
    ] {
        for path in [
            "/v1/events",
            "/v1/runs",
            "/v1/agents",
            "/v1/runner-endpoints",
            "/v1/conversations/c-7/history",
        ] {
            let refused = admin.get(&format!("{path}?limit={limit}")).await;
            assert_eq!(
                refused.status, 400,
                "{path}?limit={limit}: {}",
                refused.body
            );
        }
        for path in [
            "/history",
            "/events",
            "/runs",
            "/state/conversation",
            "/storage/plugin",
        ] {
            let refused = run.get(&format!("{path}?limit={limit}")).await;
            assert_eq!(
                refused.status, 400,
                "{path}?limit={limit}: {}",
                refused.body
            );
        }
    }
    for top_k in [json!(0), json!(101), json!(-1), json!(1e9), json!("5")] {
        let refused = run
            .call("/history/search", &json!({"query": "a", "top_k": top_k}))
            .await;
        assert_eq!(refused.status, 400, "{top_k}: {}", refused.body);
    }
    let long = "word ".repeat(50_000);
    let refused = run.call("/history/search", &json!({"query": long})).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    run.end(&stage).await;
}

// --- times ---

#[tokio::test]
async fn clamps_or_rejects_extreme_durations() {
    const CAP: f64 = 86_400.0;
    let stage = Stage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let admin = stage.admin.clone();
    let timeouts = [
        (json!(0), 201),
        (json!(null), 201),
        (json!(-1), 400),
        (json!(-1e300), 400),
        (json!("NaN"), 400),
        (json!("3600"), 400),
        (json!(1e18), 201),
        (json!(1e308), 201),
        (json!(253_402_300_800_i64), 201),
        (json!(i64::MAX), 201),
        (json!(u64::MAX), 201),
        (json!(0.000_001), 201),
        (json!(true), 400),
        (json!([1]), 400),
        (json!({}), 400),
    ];
    for (index, (timeout, expected)) in timeouts.into_iter().enumerate() {
        let event_type = format!("time.t{index}");
        let agent = json!({
            "name": event_type, "event_types": [event_type], "runner_id": RUNNER_ID, "config": {"timeout": timeout},
        });
        let created = admin.create("/v1/agents", &agent).await;
        assert_eq!(created.status, expected, "{timeout}: {}", created.body);
        if expected == 400 {
            continue;
        }
        let run_id = stage
            .client
            .post(&json!({"event_type": event_type}))
            .await
            .run_id();
        let run = stage.client.finished(&run_id).await;
        let time = |member: &str| run[member].as_f64().unwrap();
        let left = time("deadline_at") - time("created_at");
        assert!(
            (0.0..=CAP + 1.0).contains(&left),
            "{timeout}: {left} s in {run}"
        );
    }
}

#[tokio::test]
async fn rejects_malformed_event_times() {
    let stage = OwnStage::with(|config| config.agents[0].event_types = "*").await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    for (index, at) in [
        0,
        -1,
        i64::MIN,
        i64::MAX,
        253_402_300_800,
        1_000_000_000_000_000_000,
    ]
    .iter()
    .enumerate()
    {
        let mut event = message(&format!("time-{index}"));
        event["event_time"] = json!(at);
        let answer = stage.client.post(&event).await;
        assert_eq!(answer.status, 202, "{at}: {}", answer.body);
        assert_eq!(
            stage.client.finished(&answer.run_id()).await["status"],
            "completed",
            "{at}"
        );
        let shown = stage.client.get(&format!("/v1/events/time-{index}")).await;
        assert_eq!((shown.status, &shown.body["event_time"]), (200, &json!(at)));
    }
    for at in [
        "1e3",
        "1.5",
        "\"2026-01-01\"",
        "9223372036854775808",
        "1e400",
        "true",
    ] {
        let body = format!(r#"{{"event_type":"time.t0","event_time":{at}}}"#);
        let refused = post_text(&stage.client, "/v1/events", body).await;
        assert_eq!(refused.status, 400, "{at}: {}", refused.body);
    }
    for (time, expected) in [
        ("9999-12-31T23:59:59Z", 202),
        ("0000-01-01T00:00:00Z", 202),
        ("-0001-01-01T00:00:00Z", 400),
        ("2026-13-01T00:00:00Z", 400),
        ("NaN", 400),
    ] {
        let event = json!({
            "specversion": "1.0", "id": time, "source": "/t", "type": "time.t0", "time": time, "data": {},
        });
        let request = stage
            .client
            .request(Method::POST, "/v1/events")
            .body(event.to_string());
        let answer = ask(request.header("content-type", "application/cloudevents+json"))
            .await
            .unwrap();
        assert_eq!(answer.status, expected, "{time}: {}", answer.body);
    }
}
