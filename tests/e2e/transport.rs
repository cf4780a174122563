//! Transport faults of a runner: no connection, a response that is no stream, a truncated stream. F20–F27, F41,
//! F43.

use rstest::rstest;
use serde_json::Value;

use crate::support::runner::StubRunner;
use crate::support::script::{Run, RunScript, ScriptStep, answer, frame, head, sse};
use crate::support::{Engine, Postgres, Sqlite, Stage};

const STREAM: &str = "content-type: text/event-stream\r\n";

/// The gateway's details in its own `run.failed`.
fn details(failed: &Value) -> &Value {
    &failed["metadata"]["details"]
}

#[rstest]
#[tokio::test]
async fn refused_connection_fails_as_unreachable(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.stop().await;
    let outcome = stage.play(|_| vec![]).await;
    outcome.assert("failed runner.unreachable", &["run.failed"]);
    assert_eq!(outcome.run["error"]["retryable"], true);

    let failed = outcome.ledger.last();
    assert_eq!(failed["source"], "host");
    assert_eq!(failed["data"]["code"], "runner.unreachable");
    assert_eq!(failed["data"]["retryable"], true);
    assert_eq!(failed["data"]["message"], failed["data"]["error"]);
    assert!(failed["data"]["message"].is_string(), "{failed}");
}

#[tokio::test]
async fn fails_on_redirect_without_following_it() {
    let stage = Stage::new().await;
    let elsewhere = StubRunner::start().await;
    for status in [
        "301 Moved",
        "302 Found",
        "303 See Other",
        "307 Temporary",
        "308 Permanent",
    ] {
        let headers = format!("{STREAM}location: {}/runs\r\n", elsewhere.url);
        let outcome = stage.play(move |_| answer(status, &headers, "")).await;
        outcome.assert("failed runner.http_error", &["run.failed"]);
        let code: u16 = status[..3].parse().unwrap();
        assert_eq!(details(&outcome.ledger.last())["status"], code);
    }
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn reports_error_status_regardless_of_body() {
    let stage = Stage::new().await;
    for status in [
        "400 Bad Request",
        "404 Not Found",
        "429 Slow Down",
        "500 Oops",
        "503 Later",
    ] {
        let outcome = stage
            .play(move |run| answer(status, STREAM, run.talk(1).concat()))
            .await;
        outcome.assert("failed runner.http_error", &["run.failed"]);
        let code: u16 = status[..3].parse().unwrap();
        assert_eq!(details(&outcome.ledger.last())["status"], code);
    }
}

#[tokio::test]
async fn rejects_wrong_content_types_and_codings() {
    let stage = Stage::new().await;
    for headers in [
        "",
        "content-type: text/html\r\n",
        "content-type: text/plain; charset=utf-8\r\n",
        "content-type: text/event-streams\r\n",
        "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n",
        "content-type: text/event-stream\r\ncontent-encoding: br\r\n",
        "content-type: application/json\r\ncontent-encoding: deflate\r\n",
    ] {
        let outcome = stage
            .play(move |run| answer("200 OK", headers, run.talk(1).concat()))
            .await;
        outcome.assert("failed runner.bad_content_type", &["run.failed"]);
    }
}

#[tokio::test]
async fn accepts_ndjson_and_single_json_documents() {
    let lines = |run: &Run| {
        let completed = run.json(2, "run.completed", r#"{"finish_reason":"stop"}"#);
        [run.json(1, "message.delta", DELTA), completed]
    };
    let stage = Stage::new().await;
    for (content_type, script) in [
        ("text/event-stream; charset=utf-8", "sse"),
        ("Text/Event-Stream", "sse"),
        ("application/x-ndjson", "lines"),
        ("application/x-ndjson", "lines without the last LF"),
        ("application/json", "document"),
        ("application/json; charset=utf-8", "document"),
    ] {
        let answer_as = move |run: &Run| {
            let [first, second] = lines(run);
            let body = match script {
                "sse" => frame(&first) + &frame(&second),
                "lines" => format!("{first}\n\n{second}\n"),
                "document" => format!("{{\"results\": [{first},\n {second}]}}"),
                _ => format!("{first}\r\n{second}"),
            };
            answer("200 OK", &format!("content-type: {content_type}\r\n"), body)
        };
        let outcome = stage.play(answer_as).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
        assert_eq!(outcome.ledger.text(), "hello", "{content_type} {script}");
    }
}

const DELTA: &str = r#"{"chunk":{"role":"assistant","content":"hello"}}"#;

#[tokio::test]
async fn missing_terminal_fails_as_truncated() {
    let stage = Stage::new().await;
    let cases: [(RunScript, &[&str]); 5] = [
        (|_| sse(""), &[]),
        (|_| sse(": only a heartbeat\n\n"), &[]),
        (|run| sse(run.delta(1, "a")), &["message.delta"]),
        (
            |run| lines(&run.json(1, "message.delta", DELTA)),
            &["message.delta"],
        ),
        (
            |run| document(&run.json(1, "message.delta", DELTA)),
            &["message.delta"],
        ),
    ];
    for (script, events) in cases {
        let outcome = stage.play(script).await;
        outcome.assert(
            "failed runner.stream_truncated",
            &[events, &["run.failed"]].concat(),
        );
        assert_eq!(outcome.run["error"]["retryable"], true);
    }
}

fn lines(line: &str) -> Vec<ScriptStep> {
    answer(
        "200 OK",
        "content-type: application/x-ndjson\r\n",
        format!("{line}\n"),
    )
}

fn document(result: &str) -> Vec<ScriptStep> {
    let body = format!("{{\"results\":[{result}]}}");
    answer("200 OK", "content-type: application/json\r\n", body)
}

#[tokio::test]
async fn retries_after_runner_retry_after() {
    let stage = Stage::with(|config| config.agents[0].retries = 2).await;
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let script = move |run: &Run| match run.attempt {
            1 => answer(status, "retry-after: 0\r\n", ""),
            _ => sse(run.talk(1).concat()),
        };
        let outcome = stage.play(script).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);

        let run_id = outcome.run["run_id"].as_str().unwrap();
        assert_eq!(stage.runner.posts(run_id), 2);
        let webhook_id = format!("run_{}_2", run_id.replace('-', ""));
        let second = stage
            .runner
            .wait_for_request("the second attempt", |request| {
                request.header("webhook-id") == Some(&webhook_id)
            });
        let second = second.await;
        assert_eq!(second.header("runnel-attempt"), Some("2"));
        assert!(second.is_signed(), "{second:?}");
    }
}

#[tokio::test]
async fn limits_retries_to_announced_and_allowed_ones() {
    let stage = Stage::with(|config| config.agents[0].retries = 2).await;
    for (status, headers, posts) in [
        ("429 Too Many Requests", "", 1),
        ("503 Service Unavailable", "", 1),
        ("500 Oops", "retry-after: 0\r\n", 1),
        ("429 Too Many Requests", "retry-after: 0\r\n", 3),
        ("503 Service Unavailable", "retry-after: 0\r\n", 3),
    ] {
        let outcome = stage.play(move |_| answer(status, headers, "")).await;
        outcome.assert("failed runner.http_error", &["run.failed"]);
        let run_id = outcome.run["run_id"].as_str().unwrap();
        assert_eq!(stage.runner.posts(run_id), posts, "{status} {headers}");
    }
}

#[tokio::test]
async fn never_repeats_post_with_unknown_outcome() {
    let stage = Stage::with(|config| config.agents[0].retries = 2).await;
    let cases: [RunScript; 3] = [
        |_| vec![],
        |_| vec![ScriptStep::Reset],
        |_| vec![head("200 OK", STREAM), ScriptStep::Reset],
    ];
    for script in cases {
        let outcome = stage.play(script).await;
        assert_eq!(outcome.run["status"], "failed", "{}", outcome.run);
        assert_eq!(outcome.ledger.types(), ["run.failed"]);
        let run_id = outcome.run["run_id"].as_str().unwrap();
        assert_eq!(stage.runner.posts(run_id), 1);
    }
}
