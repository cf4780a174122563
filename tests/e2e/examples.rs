//! The example runners in Rust, Python and TypeScript: three programs, one behavior.

use std::any::Any;

use reqwest::Method;
use rstest::rstest;
use runner_kit::SigningSecret;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::client::{Client, message, send};
use crate::support::gateway::{Config, GatewayProcess};
use crate::support::node;
use crate::support::playground::Playground;
use crate::support::python;
use crate::support::runner::SECRET;
use crate::support::{Sqlite, TempDirectory};

const PYTHON: &str = "plugin:runnel/echo-python/default";
const TYPESCRIPT: &str = "plugin:runnel/echo-typescript/default";

/// Events of a run, without ids and times.
type RunEvents = Vec<(String, Value)>;

/// Language of an example.
#[derive(Clone, Copy, Debug)]
enum ExampleLanguage {
    Rust,
    Python,
    TypeScript,
}
use ExampleLanguage::{Python, Rust, TypeScript};

/// Processes that live as long as an example is used.
type Processes = Box<dyn Any>;

impl ExampleLanguage {
    /// The example behind a gateway. `None` without the language.
    async fn start(self) -> Option<(Client, Processes)> {
        let (runner, runner_id) = match self {
            // As `runnel dev` serves it.
            Rust => {
                let directory = TempDirectory::new();
                let playground = Playground::start_echoing(&directory.file("runnel-data")).await;
                return Some((playground.client(), Box::new((playground, directory))));
            }
            Python => (python::python_echo().await?, PYTHON),
            TypeScript => (node::typescript_echo().await?, TYPESCRIPT),
        };
        let gateway = gateway_for_runner(&runner.url, runner_id).await;
        Some((gateway.client(), Box::new((gateway, runner))))
    }
}

/// A gateway with one agent that takes every event.
async fn gateway_for_runner(runner_url: &str, runner_id: &'static str) -> GatewayProcess {
    let mut config = Config::for_runner_at(runner_url);
    config.agents[0].runner_id = runner_id;
    config.agents[0].event_types = "*";
    let started = GatewayProcess::start(Sqlite, config).await;
    started.expect("SQLite is always at hand")
}

async fn say(client: &Client, text: &str) -> RunEvents {
    let mut event = message(&Uuid::new_v4().to_string());
    event["input"]["text"] = json!(text);
    let mut stream = client.post_streaming(&event).await;
    let run_id = stream.run_id();
    let mut events = RunEvents::new();
    while let Some(frame) = stream.event().await {
        let event: Value = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(event["source"], "runner", "{event}");
        assert_eq!(event["metadata"], Value::Null, "{event}");
        events.push((frame.event, event["data"].clone()));
    }
    let run = client.run(&run_id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(run["output"]["content"], text);
    let none = json!({"rejected": 0, "duplicates": 0, "gaps": 0});
    assert_eq!(run["metadata"], none);
    events
}

fn delta(text: &str) -> (String, Value) {
    let chunk = json!({"chunk": {"role": "assistant", "content": text}});
    ("message.delta".to_owned(), chunk)
}

fn ending(count: u32, text: &str) -> RunEvents {
    let state = json!({"scope": "conversation", "key": "echo.count", "value": count});
    let message = json!({"message": {"role": "assistant", "content": text}, "file_ids": []});
    [
        ("state.updated", state),
        ("message.completed", message),
        ("run.completed", json!({"finish_reason": "stop"})),
    ]
    .map(|(kind, data)| (kind.to_owned(), data))
    .to_vec()
}

/// Two events in one conversation.
async fn run_conversation(client: &Client) {
    let first = say(client, "hello big world").await;
    let words = ["hello ", "big ", "world"].map(delta).to_vec();
    assert_eq!(first, [words, ending(1, "hello big world")].concat());

    let text = "  two\n lines, größer 你好 🎈 ";
    let second = say(client, text).await;
    let words = ["  two\n ", "lines, ", "größer ", "你好 ", "🎈 "];
    let words = words.map(delta).to_vec();
    assert_eq!(second, [words, ending(2, text)].concat());
}

/// The run may end before the cancel arrives. Either way, its terminal must agree with its status.
async fn cancel_midway(client: &Client) {
    let mut event = message("m-long");
    event["input"]["text"] = json!("word ".repeat(20_000));
    let mut stream = client.post_streaming(&event).await;
    let run_id = stream.run_id();
    assert_eq!(stream.event().await.unwrap().event, "message.delta");

    let answer = client.cancel(&run_id).await;
    assert!(matches!(answer.status, 200 | 202), "{}", answer.body);
    let last = stream.rest().await.pop().unwrap();
    let run = client.run(&run_id).await;
    match (last.event.as_str(), run["status"].as_str().unwrap()) {
        ("run.completed", "completed" | "cancelled") => {}
        ("run.failed", "cancelled") => {
            let data: Value = serde_json::from_str(&last.data).unwrap();
            assert_eq!(data["data"]["code"], "cancelled", "{data}");
        }
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[tokio::test]
async fn example_echoes_and_counts(#[values(Rust, Python, TypeScript)] language: ExampleLanguage) {
    if let Some((client, _processes)) = language.start().await {
        run_conversation(&client).await;
    }
}

#[rstest]
#[tokio::test]
async fn example_can_be_cancelled(#[values(Rust, Python, TypeScript)] language: ExampleLanguage) {
    if let Some((client, _processes)) = language.start().await {
        cancel_midway(&client).await;
    }
}

const TOO_LONG: &str = "too long a body";

/// A forged request: name, the three signature headers, body.
type ForgedRequest = (&'static str, String, String, Vec<u8>);

fn forged() -> Vec<ForgedRequest> {
    let secret: SigningSecret = SECRET.parse().unwrap();
    let now = chrono::Utc::now().timestamp();
    let signed = |when: i64, body: &[u8]| secret.sign("list_1", when, body);
    let oversized = vec![b' '; 9 * 1024 * 1024];
    vec![
        ("nothing is signed", now.to_string(), String::new(), vec![]),
        (
            "an old one",
            (now - 400).to_string(),
            signed(now - 400, b""),
            vec![],
        ),
        (
            "one to come",
            (now + 400).to_string(),
            signed(now + 400, b""),
            vec![],
        ),
        (
            "another time",
            (now - 1).to_string(),
            signed(now, b""),
            vec![],
        ),
        ("no time", "soon".to_owned(), signed(now, b""), vec![]),
        ("another body", now.to_string(), signed(now, b"{}"), vec![]),
        (
            "cut short",
            now.to_string(),
            signed(now, b"")[..20].to_owned(),
            vec![],
        ),
        (
            TOO_LONG,
            now.to_string(),
            signed(now, &oversized),
            oversized,
        ),
    ]
}

async fn assert_rejects_forged_requests(runner_url: &str) {
    let http = Client::new(runner_url, "");
    for (name, when, signature, body) in forged() {
        let request = http
            .anonymous(Method::GET, "/runners")
            .header("webhook-id", "list_1")
            .header("webhook-timestamp", when)
            .header("webhook-signature", signature)
            .body(body);
        let expected = if name == TOO_LONG { 413 } else { 401 };
        let refused = send(request).await.unwrap();
        assert_eq!(refused.status, expected, "{name}");
    }
    let now = chrono::Utc::now().timestamp();
    let good = SECRET
        .parse::<SigningSecret>()
        .unwrap()
        .sign("list_1", now, b"");
    let either = http
        .anonymous(Method::GET, "/runners")
        .header("webhook-id", "list_1")
        .header("webhook-timestamp", now)
        .header("webhook-signature", format!("v1,bm8= v1a,bm8= {good}"));
    let listed = send(either).await.unwrap();
    assert_eq!(listed.status, 200);
    assert_eq!(listed.body["runners"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn examples_without_runner_kit_reject_forged_requests() {
    if let Some(python) = python::python_echo().await {
        assert_rejects_forged_requests(&python.url).await;
    }
    if let Some(typescript) = node::typescript_echo().await {
        assert_rejects_forged_requests(&typescript.url).await;
    }
}
