//! The example runners in Rust and in Python: two programs, one behaviour.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::client::{Client, message};
use crate::support::gateway::{Config, Gateway};
use crate::support::playground::Playground;
use crate::support::python::PythonEcho;
use crate::support::{Directory, Sqlite};

/// What a run told, without its id and its times.
type Told = Vec<(String, Value)>;

/// The Rust example, as `runnel dev` serves it.
async fn rust_echo() -> (Client, impl Sized) {
    let directory = Directory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    (playground.client(), (playground, directory))
}

/// The Python example behind a gateway; `None` without Python.
async fn python_echo() -> Option<(Client, impl Sized)> {
    let runner = PythonEcho::start().await?;
    let mut config = Config::for_runner_at(&runner.url);
    config.agents[0].runner_id = "plugin:runnel/echo-python/default";
    let gateway = Gateway::start(Sqlite, config).await?;
    Some((gateway.client(), (gateway, runner)))
}

async fn say(client: &Client, text: &str) -> Told {
    let mut event = message(&Uuid::new_v4().to_string());
    event["input"]["text"] = json!(text);
    let mut stream = client.post_streaming(&event).await;
    let run_id = stream.run_id();
    let mut told = Told::new();
    while let Some(frame) = stream.event().await {
        let event: Value = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(event["source"], "runner", "{event}");
        assert_eq!(event["metadata"], Value::Null, "{event}");
        told.push((frame.event, event["data"].clone()));
    }
    let run = client.run(&run_id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(run["output"]["content"], text);
    let none = json!({"rejected": 0, "duplicates": 0, "gaps": 0});
    assert_eq!(run["metadata"], none);
    told
}

fn delta(text: &str) -> (String, Value) {
    let chunk = json!({"chunk": {"role": "assistant", "content": text}});
    ("message.delta".to_owned(), chunk)
}

fn ending(count: u32, text: &str) -> Told {
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
async fn hold_a_conversation(client: &Client) -> Vec<Told> {
    let first = say(client, "hello big world").await;
    let words = ["hello ", "big ", "world"].map(delta).to_vec();
    assert_eq!(first, [words, ending(1, "hello big world")].concat());

    let text = "  two\n lines, größer 你好 🎈 ";
    let second = say(client, text).await;
    let words = ["  two\n ", "lines, ", "größer ", "你好 ", "🎈 "];
    let words = words.map(delta).to_vec();
    assert_eq!(second, [words, ending(2, text)].concat());
    vec![first, second]
}

/// The run may be done before the cancel arrives; either way its end says what happened.
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
        ("run.completed", "completed") => {}
        ("run.failed", "cancelled") => {
            let data: Value = serde_json::from_str(&last.data).unwrap();
            assert_eq!(data["data"]["code"], "cancelled", "{data}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_rust_example_echoes_and_counts() {
    let (client, _playground) = rust_echo().await;
    hold_a_conversation(&client).await;
}

#[tokio::test]
async fn the_python_example_echoes_and_counts() {
    let Some((client, _processes)) = python_echo().await else {
        return;
    };
    hold_a_conversation(&client).await;
}

#[tokio::test]
async fn both_examples_tell_the_same() {
    let Some((python, _processes)) = python_echo().await else {
        return;
    };
    let (rust, _playground) = rust_echo().await;
    let (python, rust) = tokio::join!(hold_a_conversation(&python), hold_a_conversation(&rust));
    assert_eq!(python, rust);
}

#[tokio::test]
async fn the_rust_example_can_be_cancelled() {
    let (client, _playground) = rust_echo().await;
    cancel_midway(&client).await;
}

#[tokio::test]
async fn the_python_example_can_be_cancelled() {
    let Some((client, _processes)) = python_echo().await else {
        return;
    };
    cancel_midway(&client).await;
}
