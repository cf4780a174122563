//! Circuit breaker: it stops runs on a failing endpoint only. O19.

use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::gateway::{Agent, Config};
use crate::support::proxy::{NetworkFault, Proxy};
use crate::support::runner::{StubRunner, manifest};
use crate::support::script::{Gate, Run, RunScript, ScriptStep, answer, sse};
use crate::support::{Sqlite, Stage, until};

const SECOND: &str = "plugin:test/second/default";

fn broken(_: &Run) -> Vec<ScriptStep> {
    answer("500 Internal Server Error", "", "")
}

/// Opens after three failures in a row and waits for `wait` seconds.
fn breaker_after_three(wait: f64) -> impl FnOnce(&mut Config) {
    move |config| {
        config.runs = format!(
            "breaker_failures = 3\nbreaker_wait_seconds = {wait:?}\nbreaker_longest_wait_seconds = {wait:?}"
        );
    }
}

async fn breaker(admin: &Client, name: &str) -> Value {
    let endpoints = admin.get("/v1/runner-endpoints").await.body;
    let all = endpoints["items"].as_array().unwrap().clone();
    let found = all.into_iter().find(|endpoint| endpoint["name"] == name);
    found.unwrap()["breaker"].clone()
}

/// The response of a runner after a cancel is no failure of its endpoint.
#[tokio::test]
async fn reset_after_cancel_does_not_open_the_breaker() {
    let stage = Stage::with(|config| {
        breaker_after_three(3600.0)(config);
        config.runs += "\ncancel_grace_seconds = 300";
    })
    .await;
    for n in 0..4 {
        let event_id = format!("m-{n}");
        let gate = Gate::new();
        let hold = gate.clone();
        stage.runner.answer(&event_id, move |_| {
            vec![ScriptStep::Hold(hold.clone()), ScriptStep::Reset]
        });
        let run_id = stage.client.post(&message(&event_id)).await.run_id();
        stage.runner.run_request(&run_id).await;
        assert_eq!(stage.client.cancel(&run_id).await.status, 202);
        gate.cancel();
        assert_eq!(stage.outcome(&run_id).await.ending(), "cancelled cancelled");
    }
    let state = breaker(&stage.admin.clone(), "stub").await;
    let closed = json!({"state": "closed", "failures": 0, "opened_at": null, "retry_at": null});
    assert_eq!(state, closed);
}

#[tokio::test]
async fn consecutive_failures_open_breaker_of_that_endpoint_only() {
    let second = StubRunner::start_as(manifest(SECOND)).await;
    let stage = Stage::with(|config| {
        breaker_after_three(3600.0)(config);
        config.rest = format!(
            "[[runner_endpoints]]\nname = \"second\"\nbase_url = \"{}\"\nsecret = \"env:STUB_SECRET\"\n",
            second.url
        );
        config.agents.push(Agent {
            name: "second",
            event_types: "test.second",
            runner_id: SECOND,
            ..Agent::default()
        });
    })
    .await;
    let admin = stage.admin.clone();
    for failures in 0..3 {
        let state = breaker(&admin, "stub").await;
        assert_eq!(
            state,
            json!({"state": "closed", "failures": failures, "opened_at": null, "retry_at": null})
        );
        stage
            .play(broken)
            .await
            .assert("failed runner.http_error", &["run.failed"]);
    }
    let state = breaker(&admin, "stub").await;
    assert_members!(state, {"state": "open", "failures": 3});
    let [opened, retry] = ["opened_at", "retry_at"].map(|member| state[member].as_i64().unwrap());
    // From half of the wait to all of it, each rounded to a second.
    assert!((1799..=3601).contains(&(retry - opened)), "{state}");

    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    outcome.assert("failed runner.circuit_open", &["run.failed"]);
    assert_eq!(outcome.run["error"]["retryable"], true);
    assert_eq!(
        stage.runner.posts(
            outcome.run["id"]
                .as_str()
                .or(outcome.run["run_id"].as_str())
                .unwrap()
        ),
        0
    );

    second.answer_all(|run| sse(run.talk(1).concat()));
    let mut event = message("o-1");
    event["event_type"] = json!("test.second");
    let run_id = stage.client.post(&event).await.run_id();
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
    assert_eq!(breaker(&admin, "second").await["state"], "closed");
}

#[tokio::test]
async fn successful_refresh_half_opens_the_breaker() {
    let stage = Stage::with(breaker_after_three(3600.0)).await;
    for _ in 0..3 {
        stage.play(broken).await;
    }
    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    outcome.assert("failed runner.circuit_open", &["run.failed"]);
    let message = outcome.run["error"]["message"].as_str().unwrap();
    let seconds = message.split(" again in ").nth(1).unwrap();
    let seconds: u32 = seconds.strip_suffix(" s").unwrap().parse().unwrap();
    assert!((1790..=3600).contains(&seconds), "{message}");

    let endpoints = stage.admin.get("/v1/runner-endpoints").await.body;
    let id = endpoints["items"][0]["id"].as_str().unwrap();
    let path = format!("/v1/runner-endpoints/{id}/refresh");
    let refreshed = stage.admin.create(&path, &json!({})).await.body;
    assert_eq!(refreshed["breaker"]["state"], "half_open", "{refreshed}");
    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    assert_eq!(outcome.ending(), "completed");
}

#[tokio::test]
async fn failed_dispatch_checks_the_endpoint_at_once() {
    let runner = StubRunner::start().await;
    let between = Proxy::to(runner.url.trim_start_matches("http://")).await;
    let url = between.url();
    let stage = Stage::of(Sqlite, runner, |config| {
        breaker_after_three(3600.0)(config);
        config.set_runner_url(&url);
    });
    let stage = stage.await.unwrap();
    let health = async || {
        let endpoints = stage.admin.get("/v1/runner-endpoints").await.body;
        endpoints["items"][0].clone()
    };
    until("the first check", async || {
        health().await["health"] == "healthy"
    })
    .await;
    between.set(NetworkFault::Refusing);
    for _ in 0..3 {
        let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
        assert_eq!(outcome.ending(), "failed runner.unreachable");
    }
    until("a check", async || {
        health().await["health"] == "unreachable"
    })
    .await;
    let shown = health().await;
    assert_eq!(shown["breaker"]["state"], "open");
    let reason =
        format!("the endpoint cannot be reached: could not connect: connection refused ({url}/)");
    assert_eq!(shown["health_reason"], reason);
    // The check of an endpoint that comes back lets a run pass.
    between.set(NetworkFault::Forwarding);
    until("a check", async || health().await["health"] == "healthy").await;
    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    assert_eq!(outcome.ending(), "completed");
}

#[tokio::test]
async fn half_open_breaker_probes_with_one_run() {
    let stage = Stage::with(breaker_after_three(0.05)).await;
    let admin = stage.admin.clone();
    for _ in 0..3 {
        stage.play(broken).await;
    }
    until("a run that is let through", async || {
        let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
        if outcome.ending() == "completed" {
            return true;
        }
        outcome.assert("failed runner.circuit_open", &["run.failed"]);
        false
    })
    .await;
    let calm = json!({"state": "closed", "failures": 0, "opened_at": null, "retry_at": null});
    assert_eq!(breaker(&admin, "stub").await, calm);
}

#[tokio::test]
async fn waits_for_short_breaker_within_retry_count() {
    let stage = Stage::with(|config| {
        breaker_after_three(0.2)(config);
        config.agents[0].retries = 5;
    })
    .await;
    for _ in 0..3 {
        stage.play(broken).await;
    }
    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    assert_eq!(outcome.ending(), "completed", "{}", outcome.run);
}

/// Responses of a live endpoint; the run may fail.
const LIVE_RESPONSES: [RunScript; 4] = [
    |run| sse(run.failed(1)),
    |_| sse("data: no json\n\n"),
    |_| answer("404 Not Found", "", ""),
    |_| answer("503 Service Unavailable", "retry-after: 3600\r\n", ""),
];

#[tokio::test]
async fn any_response_resets_the_breaker() {
    let stage = Stage::with(breaker_after_three(3600.0)).await;
    for script in LIVE_RESPONSES {
        for _ in 0..2 {
            stage.play(broken).await;
        }
        for _ in 0..4 {
            let outcome = stage.play(script).await;
            assert_ne!(outcome.ending(), "failed runner.circuit_open");
        }
    }
}
