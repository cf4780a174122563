//! Limits on a runner's output size and silence. F23–F25, F38.

use std::time::Duration;

use crate::support::Stage;
use crate::support::runner::RecordedRequest;
use crate::support::script::{Gate, Run, RunScript, ScriptStep, send, sse, sse_and_wait, sse_head};

const SIZES: &str = "line_bytes = 4096\nevent_bytes = 8192\nrun_bytes = 65536\nrun_events = 20";

/// A large event of short lines.
fn event_in_lines(run: &Run) -> Vec<ScriptStep> {
    let words = "x".repeat(3000);
    let data = format!(
        r#"{{"chunk":{{"role":"assistant","content":"a"}},"b":"{words}",LF"c":"{words}",LF"d":"{words}"}}"#
    );
    sse(run
        .result(1, "message.delta", &data)
        .replace("LF", "\ndata: ")
        + &run.completed(2))
}

fn deltas(run: &Run, count: usize, bytes: usize) -> Vec<ScriptStep> {
    let text = "x".repeat(bytes);
    let frames: String = (1..=count).map(|n| run.delta(n, &text)).collect();
    sse(frames + &run.completed(count + 1))
}

/// An endless stream without a line end.
fn endless(start: &str) -> Vec<ScriptStep> {
    vec![
        sse_head(),
        send(start),
        ScriptStep::Repeat(vec![b'x'; 1024], Duration::from_millis(5)),
    ]
}

const OVERSIZED_OUTPUT: [(&str, RunScript); 6] = [
    ("a long line", |run| deltas(run, 1, 4200)),
    ("a line without end", |_| endless("data: ")),
    ("a comment without end", |_| endless(":")),
    ("an event of many lines", event_in_lines),
    ("many bytes", |run| deltas(run, 19, 3800)),
    ("many events", |run| deltas(run, 21, 1)),
];

#[tokio::test]
async fn oversized_runner_output_fails_run() {
    let stage = Stage::with(|config| config.limits = SIZES.into()).await;
    for (what, script) in OVERSIZED_OUTPUT {
        let outcome = stage.play(script).await;
        assert_eq!(outcome.ending(), "failed runner.output_limit", "{what}");
        let mut types = outcome.ledger.types();
        types.pop();
        assert!(types.len() <= 20, "{what}: {types:?}");
        assert!(
            types.iter().all(|kind| kind == "message.delta"),
            "{what}: {types:?}"
        );
    }
}

#[tokio::test]
async fn accepts_output_within_limits_announced_to_runner() {
    let stage = Stage::with(|config| config.limits = SIZES.into()).await;
    for (count, bytes) in [(1, 3900), (15, 3800), (18, 1)] {
        let outcome = stage.play(move |run| deltas(run, count, bytes)).await;
        assert_eq!(
            outcome.ending(),
            "completed",
            "{count} deltas of {bytes} bytes"
        );
        assert_eq!(outcome.ledger.0.len(), count + 1);
    }
    let request = stage
        .runner
        .wait_for_request("a run", RecordedRequest::is_run)
        .await;
    let context = &request.json()["context"];
    let limits = &context["runtime"]["metadata"]["limits"];
    assert_eq!(limits["line_bytes"], 4096, "{context}");
}

#[tokio::test]
async fn results_carry_every_state_value_that_put_accepts() {
    let stage = Stage::new().await;
    let escaped = |bytes: usize| format!("\"{}\"", "\\u00e9".repeat((bytes - 2) / 2));
    for (value, is_written) in [
        (format!("\"{}\"", "x".repeat(262_142)), true),
        (escaped(262_144), true),
        (format!("\"{}\"", "x".repeat(262_143)), false),
        (format!("\"{}\"", "x".repeat(900_000)), false),
    ] {
        let outcome = stage
            .play(move |run: &Run| {
                let data = format!(r#"{{"scope":"conversation","key":"large","value":{value}}}"#);
                sse(run.result(1, "state.updated", &data) + &run.delta(2, "a") + &run.completed(3))
            })
            .await;
        assert_eq!(outcome.ending(), "completed");
        let mut events = outcome.ledger.events().into_iter();
        let written = events.any(|event| event["type"] == "state.updated");
        assert_eq!(written, is_written);
        if !is_written {
            let message = outcome.rejections[0]["message"].as_str().unwrap();
            assert!(message.contains("PUT /host/v1/storage"), "{message}");
        }
    }
}

const SILENCE: [(RunScript, &str, &[&str]); 3] = [
    (
        |_| vec![ScriptStep::AwaitClose],
        "runner.first_byte_timeout",
        &[],
    ),
    (
        |run| sse_and_wait(run.delta(1, "a")),
        "runner.idle_timeout",
        &["message.delta"],
    ),
    (
        |run| sse_and_wait(&run.delta(1, "a")[..40]),
        "runner.idle_timeout",
        &[],
    ),
];

#[tokio::test]
async fn silent_runner_times_out_and_is_disconnected() {
    let waits = "first_byte_seconds = 0.5\nsilence_seconds = 0.5";
    let stage = Stage::with(|config| config.limits = waits.into()).await;
    for ((script, code, events), count) in SILENCE.into_iter().zip(1..) {
        let outcome = stage.play(script).await;
        outcome.assert(
            &format!("failed {code}"),
            &[events, &["run.failed"]].concat(),
        );
        stage.runner.closed(count).await;
    }
}

/// Endless bytes that never form a response.
const EMPTY_RESPONSES: [(RunScript, &str); 3] = [
    (
        |_| again("", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        "runner.first_byte_timeout",
    ),
    (|_| again(CHUNKED, b"0"), "runner.idle_timeout"),
    (|_| again(CHUNKED, b"1;a=b"), "runner.idle_timeout"),
];
const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn again(start: &str, bytes: &[u8]) -> Vec<ScriptStep> {
    vec![
        send(start),
        ScriptStep::Repeat(bytes.to_vec(), Duration::from_millis(2)),
    ]
}

#[tokio::test]
async fn endless_empty_response_times_out() {
    let waits = "first_byte_seconds = 0.5\nsilence_seconds = 0.5";
    let stage = Stage::with(|config| config.limits = waits.into()).await;
    for ((script, code), count) in EMPTY_RESPONSES.into_iter().zip(1..) {
        let outcome = stage.play(script).await;
        let ending = outcome.ending();
        assert!(
            ending == format!("failed {code}") || ending == "failed runner.stream_truncated",
            "{ending}"
        );
        stage.runner.closed(count).await;
    }
}

#[tokio::test]
async fn heartbeats_do_not_extend_run_deadline() {
    let stage = Stage::with(|config| {
        config.limits = "silence_seconds = 1.5".into();
        config.agents[0].timeout_seconds = 3.0;
    });
    let stage = stage.await;
    let heartbeats = || ScriptStep::Repeat(b": hi\n\n".to_vec(), Duration::from_millis(50));
    let outcome = stage.play(move |_| vec![sse_head(), heartbeats()]).await;
    outcome.assert("timeout deadline_exceeded", &["run.failed"]);
}

/// Seconds of tolerance after a run's deadline, for a busy machine.
const DEADLINE_TOLERANCE: f64 = 5.0;

#[tokio::test]
async fn active_run_ends_at_its_deadline() {
    let stage = Stage::with(|config| config.agents[0].timeout_seconds = 1.0).await;
    let outcome = stage
        .play(|run| {
            let never = ScriptStep::Hold(Gate::new());
            vec![
                sse_head(),
                send(run.delta(1, "a")),
                never,
                send(run.completed(2)),
            ]
        })
        .await;
    outcome.assert(
        "timeout deadline_exceeded",
        &["message.delta", "run.failed"],
    );
    let [created, deadline, finished] = ["created_at", "deadline_at", "finished_at"]
        .map(|member| outcome.run[member].as_f64().unwrap());
    assert!(
        created <= deadline
            && deadline <= finished + 1.0
            && finished <= deadline + DEADLINE_TOLERANCE,
        "{}",
        outcome.run
    );
}
