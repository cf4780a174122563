//! The playground: what it prints works, and what it keeps stays.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::message;
use crate::support::gateway::BINARY;
use crate::support::playground::Playground;
use crate::support::script::sse;
use crate::support::{Directory, Printed, Stage, run};

/// A playground whose data stands in `runnel-data` of a directory of its own.
async fn start() -> (Playground, Directory) {
    let directory = Directory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    (playground, directory)
}

async fn send(here: &Path, arguments: &[&str]) -> Printed {
    let mut command = Command::new(BINARY);
    command
        .arg("send")
        .args(arguments)
        .current_dir(here)
        .env_remove("RUNNEL_URL")
        .env_remove("RUNNEL_API_KEY");
    run(&mut command).await
}

fn assert_sent(printed: &Printed, text: &str) {
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert_eq!(printed.stdout, format!("{text}\n"));
    assert!(printed.stderr.starts_with("[run "), "{printed:?}");
    assert!(printed.stderr.contains("… completed in "), "{printed:?}");
    assert!(printed.stderr.ends_with(" s]\n"), "{printed:?}");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_printed_curl_command_works_as_it_is_printed() {
    let (playground, _directory) = start().await;

    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(playground.try_command())
        .env("NO_PROXY", "*");
    let printed = run(&mut shell).await;

    assert!(printed.status.success(), "{printed:?}");
    let mut lines = printed.stdout.lines();
    assert!(lines.next().unwrap().starts_with(": run "), "{printed:?}");
    let data = lines.filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let types: Vec<_> = events.iter().map(|event| event["type"].clone()).collect();
    let expected = [
        "message.delta",
        "state.updated",
        "message.completed",
        "run.completed",
    ];
    assert_eq!(types, expected);
    assert_eq!(events[0]["data"]["chunk"]["content"], "hello");
    assert_eq!(events[2]["data"]["message"]["content"], "hello");
}

#[tokio::test]
async fn it_says_what_it_serves() {
    let (playground, directory) = start().await;
    let data = directory.file("runnel-data");
    let lines: Vec<_> = playground.greeting.lines().take(4).collect();
    let expected = [
        format!("runnel {}  {}", env!("CARGO_PKG_VERSION"), playground.url),
        format!("data     {}", data.display()),
        "agent    hello → plugin:runnel/echo/default".to_owned(),
        format!("key      {}", playground.key),
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn send_finds_the_playground_here_and_in_a_parent() {
    let (_playground, directory) = start().await;
    let below = directory.file("some/where/below");
    std::fs::create_dir_all(&below).unwrap();

    let printed = send(&directory.file(""), &["hello big world"]).await;
    assert_sent(&printed, "hello big world");
    assert_sent(&send(&below, &["and again"]).await, "and again");
}

#[tokio::test]
async fn send_goes_where_it_is_told_to() {
    let (playground, _directory) = start().await;
    let root = Path::new("/");
    let arguments = ["hello", "--url", &playground.url, "--key", &playground.key];
    assert_sent(&send(root, &arguments).await, "hello");

    let mut command = Command::new(BINARY);
    command
        .args(["send", "by environment", "--conversation", "c-9"])
        .current_dir(root)
        .env("RUNNEL_URL", &playground.url)
        .env("RUNNEL_API_KEY", &playground.key);
    assert_sent(&run(&mut command).await, "by environment");
    let runs = playground
        .client()
        .get("/v1/runs?conversation_id=c-9")
        .await;
    assert_eq!(runs.body["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn send_gives_the_events_themselves_to_programs() {
    let (_playground, directory) = start().await;
    let printed = send(&directory.file(""), &["hello big world", "--json"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap()["type"].clone();
    let types: Vec<_> = printed.stdout.lines().map(parse).collect();
    let expected = json!([
        "message.delta",
        "message.delta",
        "message.delta",
        "state.updated",
        "message.completed",
        "run.completed",
    ]);
    assert_eq!(Value::from(types), expected);
}

#[tokio::test]
async fn send_says_that_it_knows_no_gateway() {
    let printed = send(Path::new("/"), &["hello"]).await;
    assert_eq!(printed.status.code(), Some(2), "{printed:?}");
    assert_eq!(printed.stdout, "");
    assert!(printed.stderr.contains("runnel dev"), "{printed:?}");
}

#[tokio::test]
async fn send_fails_when_the_run_fails_or_there_is_no_gateway() {
    let stage = Stage::new().await;
    stage
        .runner
        .answer_all(|run| sse([run.delta(1, "hm"), run.failed(2)].concat()));
    let Stage {
        client,
        mut gateway,
        ..
    } = stage;
    let arguments = ["hello", "--url", &client.url, "--key", &client.key];
    let printed = send(Path::new("/"), &arguments).await;
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert_eq!(printed.stdout, "hm\n");
    assert!(printed.stderr.contains("boom: it broke"), "{printed:?}");

    gateway.kill().await;
    let printed = send(Path::new("/"), &arguments).await;
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert!(printed.stderr.contains("is it running?"), "{printed:?}");
    assert!(!printed.stderr.contains(&client.key), "{printed:?}");
}

#[tokio::test]
async fn a_second_start_finds_everything_again() {
    let (first, directory) = start().await;
    let data = directory.file("runnel-data");
    let run_id = first.client().post(&message("m-1")).await.run_id();
    let before = first.client().finished(&run_id).await;
    let key = first.key.clone();
    first.stop().await;

    let second = Playground::start(&data).await;
    assert_eq!(second.key, key);
    assert_eq!(second.client().run(&run_id).await, before);
    let replay = second.client().post(&message("m-1")).await;
    assert_eq!(replay.run_id(), run_id);
    assert!(replay.is_replay());

    // The echo runner has another port and another secret now; the conversation goes on.
    let mut event = message("m-2");
    event["input"]["text"] = json!("once more");
    let run_id = second.client().post(&event).await.run_id();
    let run = second.client().finished(&run_id).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = second.client().ledger(&run_id).await.events();
    let count = events.iter().find(|event| event["type"] == "state.updated");
    assert_eq!(count.unwrap()["data"]["value"], 2);

    let printed = send(&directory.file(""), &["found again"]).await;
    assert_sent(&printed, "found again");
}

#[tokio::test]
async fn what_it_keeps_is_its_owners_alone() {
    let (playground, directory) = start().await;
    let data = directory.file("runnel-data");
    assert_eq!(mode(&data), 0o700);
    for name in ["dev.json", "master.key"] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
    assert!(data.join("runnel.db").exists());
    let file: Value =
        serde_json::from_slice(&std::fs::read(data.join("dev.json")).unwrap()).unwrap();
    let expected = json!({"url": playground.url, "api_key": playground.key});
    assert_eq!(file, expected);
}
