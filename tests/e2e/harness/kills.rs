//! Kills of service, gateway and harness during a turn and during a permission request.

use reqwest::Method;
use serde_json::json;

use crate::support::client::send;
use crate::support::harness::{HarnessFixture, fake};
use crate::support::programs::runnel_harness;
use crate::support::waiting::until;

/// Waits until the turn runs, or until its permission is requested.
async fn wait_for_turn_or_permission(house: &HarnessFixture, text: &str, run: &str) {
    if text == "sleep" {
        // The supervisor and the harness.
        until("the turn", async || house.processes().len() > 1).await;
    } else {
        house.question(run).await;
    }
}

#[tokio::test]
async fn killed_service_leaves_no_process_and_conversation_continues() {
    for text in ["sleep", "permit made.txt"] {
        let mut house = HarnessFixture::open(fake("good")).await;
        let run = house.post(text).await;
        wait_for_turn_or_permission(&house, text, &run).await;
        house.kill_service();
        let ended = house.ended(&run).await;
        assert_eq!(ended.run["status"], "failed", "{}", ended.run);
        house.wait_for_no_process().await;
        assert!(!house.workspace().join("made.txt").exists());
        house.start_service().await;
        assert_eq!(house.ask("hello").await.ending(), "completed");
    }
}

#[tokio::test]
async fn killed_harness_fails_run_and_conversation_continues() {
    for text in ["sleep", "permit made.txt"] {
        let house = HarnessFixture::open(fake("good")).await;
        let run = house.post(text).await;
        wait_for_turn_or_permission(&house, text, &run).await;
        for pid in house.processes() {
            let _ = std::process::Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status();
        }
        let ended = house.ended(&run).await;
        assert_eq!(ended.ending(), "failed harness.exited", "{}", ended.run);
        house.wait_for_no_process().await;
        assert_eq!(house.ask("hello").await.ending(), "completed");
    }
}

#[tokio::test]
async fn harness_works_on_through_gateway_kill() {
    let mut house = HarnessFixture::open(fake("good")).await;
    let run = house.post("permit made.txt").await;
    let question = house.question(&run).await;
    let processes = house.processes();
    house.restart_gateway().await;
    assert_eq!(house.processes(), processes);
    house.answer(&question, "allow_once").await;
    let ended = house.ended(&run).await;
    assert_eq!(ended.ending(), "completed", "{}", ended.run);
    assert!(house.workspace().join("made.txt").exists());
    assert_eq!(house.ask("hello").await.ending(), "completed");
}

#[tokio::test]
async fn relay_key_expires_with_its_run() {
    let house = HarnessFixture::open(fake("good")).await;
    let run = house.post("sleep").await;
    until("the turn", async || !house.processes().is_empty()).await;
    // The environment of the harness process contains key and address.
    let mut found = None;
    until("the environment of the harness", async || {
        found = house.processes().into_iter().find_map(environment);
        found.is_some()
    })
    .await;
    let (url, key) = found.unwrap();
    let body = json!({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]});
    let ask = async || {
        let request =
            reqwest::Client::new().request(Method::POST, format!("{url}/chat/completions"));
        send(request.bearer_auth(&key).json(&body))
            .await
            .unwrap()
            .status
    };
    assert_eq!(ask().await, 200);
    // The key opens only models and the MCP server.
    let state = url.replace("/openai/v1", "/state/conversation");
    let closed = send(reqwest::Client::new().get(&state).bearer_auth(&key))
        .await
        .unwrap();
    assert_eq!(closed.status, 404, "{}", closed.body);
    house
        .client
        .create(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .await;
    house.ended(&run).await;
    assert_eq!(ask().await, 401);
}

fn environment(pid: i32) -> Option<(String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let found = text
            .split('\0')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned)
    };
    Some((value("OPENAI_BASE_URL")?, value("OPENAI_API_KEY")?))
}

/// A thread of a pool starts the harness, and ends while the harness works.
#[test]
fn harness_survives_the_thread_that_started_it() {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    let mut child = std::thread::spawn(|| {
        let parent = std::process::id().to_string();
        let mut child = Command::new(runnel_harness())
            .args([
                "harness-process",
                "supervise",
                "--parent",
                &parent,
                "--",
                "cat",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The supervisor watches its parent before it starts the command.
        child.stdin.as_mut().unwrap().write_all(b"first\n").unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    })
    .join()
    .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for turn in 0..200 {
        stdin.write_all(format!("{turn}\n").as_bytes()).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), turn.to_string());
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
