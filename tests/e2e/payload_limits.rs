//! Denial of service by payload, from runners and clients: bytes that exhaust memory, decompression or time.
//! D1–D5, D13, F24, F37, F38.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use reqwest::{Body, Method};
use serde_json::json;

use crate::support::client::{message, send as ask};
use crate::support::held::HeldRun;
use crate::support::script::{
    Run, RunScript, ScriptStep, answer, head, send, sse, sse_head, sse_in_chunks,
};
use crate::support::{OwnStage, Stage};

/// Maximum memory growth of the process for a series of payloads, in KiB.
const MAX_GROWTH_KIB: u64 = 64 * 1024;
const STREAM: &str = "content-type: text/event-stream\r\n";
const LIMIT: &str = "failed runner.output_limit";
const TRUNCATED: &str = "failed runner.stream_truncated";

fn repeat_forever(bytes: impl AsRef<[u8]>) -> ScriptStep {
    let bytes = bytes.as_ref();
    ScriptStep::Repeat(bytes.repeat(64 * 1024 / bytes.len() + 1), Duration::ZERO)
}

fn endless(start: &str, bytes: &str) -> Vec<ScriptStep> {
    vec![sse_head(), send(start), repeat_forever(bytes)]
}

/// Three deltas after `count` copies of `bytes`.
fn after(run: &Run, bytes: &str, count: usize) -> Vec<ScriptStep> {
    sse(bytes.repeat(count) + &run.talk(3).concat())
}

const BOMBS: [(&str, &str, RunScript); 22] = [
    ("a line without end", LIMIT, |_| endless("data: ", "x")),
    ("a field name without end", LIMIT, |_| endless("x", "x")),
    ("a comment without end", LIMIT, |_| endless(":", "x")),
    ("NUL without end", LIMIT, |_| endless("", "\0")),
    ("an event without end", LIMIT, |_| endless("", "data: x\n")),
    ("an event of empty lines", LIMIT, |_| endless("", "data\r")),
    ("a JSON line without end", LIMIT, |_| {
        vec![
            head("200 OK", "content-type: application/x-ndjson\r\n"),
            repeat_forever("["),
        ]
    }),
    ("a JSON document without end", LIMIT, |_| {
        vec![
            head("200 OK", "content-type: application/json\r\n"),
            repeat_forever(" "),
        ]
    }),
    ("a long line in small pieces", LIMIT, |_| {
        let line = "x".repeat(300 * 1024);
        sse_in_chunks(line.as_bytes().chunks(7))
    }),
    ("a million empty events", "completed", |run| {
        after(run, "\n", 1_000_000)
    }),
    ("a million comments", "completed", |run| {
        after(run, ":\n", 1_000_000)
    }),
    ("half a million events without data", "completed", |run| {
        after(run, "id: 1\n\n", 500_000)
    }),
    ("half a million empty data", "completed", |run| {
        after(run, "data\n\n", 500_000)
    }),
    ("half a million field lines", "completed", |run| {
        after(run, "event: x\nretry: 9\r", 250_000)
    }),
    ("byte by byte", "completed", |run| {
        sse_in_chunks(run.talk(40).concat().as_bytes().chunks(1))
    }),
    ("a chunk as large as numbers go", TRUNCATED, |_| {
        let head = head(
            "200 OK",
            "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n",
        );
        vec![head, send("fffffffffffffffff\r\n"), repeat_forever("x")]
    }),
    ("a head without end", TRUNCATED, |_| {
        vec![
            send("HTTP/1.1 200 OK\r\n"),
            repeat_forever("x-a: aaaaaaaaaaaaaa\r\n"),
        ]
    }),
    ("a status line without end", TRUNCATED, |_| {
        vec![send("HTTP/1.1 200 "), repeat_forever("a")]
    }),
    (
        "gzip with its header",
        "failed runner.bad_content_type",
        |_| compressed_stream("gzip"),
    ),
    ("gzip twice", "failed runner.bad_content_type", |_| {
        compressed_stream("gzip, gzip")
    }),
    (
        "a coding named identity with another",
        "failed runner.bad_content_type",
        |_| compressed_stream("identity, br"),
    ),
    ("gzip that does not say so", TRUNCATED, |_| {
        answer("200 OK", STREAM, gzip_bomb())
    }),
];

fn compressed_stream(coding: &str) -> Vec<ScriptStep> {
    answer(
        "200 OK",
        &format!("{STREAM}content-encoding: {coding}\r\n"),
        gzip_bomb(),
    )
}

/// The start of a valid gzip stream of zeros that never ends.
fn gzip_bomb() -> Vec<u8> {
    let mut bytes = vec![
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xed, 0xc1, 1, 1, 0, 0, 0, 0x80, 0x90, 0xfe, 0xaf,
    ];
    bytes.extend_from_slice(&[0; 4096]);
    bytes
}

#[tokio::test]
async fn runner_streams_do_not_exhaust_memory() {
    let stage = OwnStage::with(|config| {
        config.limits =
            "first_byte_seconds = 4.0\nsilence_seconds = 4.0\nline_bytes = 262144".into();
    })
    .await;
    stage.play(|run| sse(run.talk(3).concat())).await;
    let before = stage.gateway.peak_memory();
    for (what, ending, script) in BOMBS {
        let outcome = stage.play(script).await;
        let actual = outcome.ending();
        // hyper decides how much of an invalid head it reads.
        let is_head = what.contains("head") || what.contains("status line");
        assert!(
            actual == ending || (is_head && actual.starts_with("failed runner.")),
            "{what}: {actual}"
        );
        assert!(
            outcome.ledger.0.len() <= 41,
            "{what}: {}",
            outcome.ledger.0.len()
        );
        let length: usize = outcome
            .rejections
            .iter()
            .map(|row| row.to_string().len())
            .sum();
        assert!(length < 64 * 1024, "{what}: {length} bytes of rejections");
    }
    assert_no_growth(&stage, before);
    stage.play(|run| sse(run.talk(3).concat())).await.assert(
        "completed",
        &[
            "message.delta",
            "message.delta",
            "message.delta",
            "run.completed",
        ],
    );
}

/// The gateway collects deltas into the final message of a run that sends none. The size of that message is
/// limited.
#[tokio::test]
async fn limits_collected_text_to_maximum_message_size() {
    let stage = Stage::new().await;
    let outcome_of = |run: &Run, events: u32, end: String| {
        let words = "x".repeat(200 * 1024);
        let frames: String = (1..=events).map(|n| run.delta(n, &words)).collect();
        sse(frames + &end)
    };
    let fits = move |run: &Run| outcome_of(run, 20, run.completed(21));
    let outcome = stage.play(fits).await;
    assert_eq!(outcome.ending(), "completed");
    let output = outcome.run["output"]["content"].as_str().unwrap();
    assert_eq!(output.len(), 20 * 200 * 1024);
    let outgrown = move |run: &Run| outcome_of(run, 21, run.completed(22));
    assert_eq!(stage.play(outgrown).await.ending(), LIMIT);
    let in_short = move |run: &Run| {
        let message = r#"{"message":{"role":"assistant","content":"in short"}}"#;
        let message = run.result(22, "message.completed", message);
        outcome_of(run, 21, message + &run.completed(23))
    };
    let outcome = stage.play(in_short).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.run["output"]["content"], "in short");
}

fn assert_no_growth(stage: &OwnStage, before: Option<u64>) {
    let (before, after) = or_skip!(before.zip(stage.gateway.peak_memory()));
    assert!(
        after < before + MAX_GROWTH_KIB,
        "from {before} KiB to {after} KiB"
    );
}

/// A runner may send slowly until the deadline of its run, without effect on other runs.
#[tokio::test]
async fn slow_stream_ends_at_run_deadline() {
    let stage = Stage::with(|config| config.agents[0].timeout_seconds = 2.0).await;
    let drip = |run: &Run| {
        let frame = run.delta(1, &"x".repeat(10_000));
        let drops = frame.into_bytes().chunks(1).map(<[u8]>::to_vec).collect();
        vec![
            sse_head(),
            ScriptStep::Pace(drops, Duration::from_millis(5)),
        ]
    };
    let dripping = stage.start(drip).await;
    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    assert_eq!(outcome.ending(), "completed");
    let outcome = stage.outcome(&dripping).await;
    outcome.assert("timeout deadline_exceeded", &["run.failed"]);
}

// --- from clients ---

const CODINGS: [&str; 8] = [
    "gzip",
    "br",
    "zstd",
    "deflate",
    "x-gzip",
    "gzip, identity",
    "identity, gzip",
    "nonsense",
];

#[tokio::test]
async fn rejects_compressed_bodies_on_every_route() {
    let stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    let run = HeldRun::start(&stage, &message("held")).await;
    for coding in CODINGS {
        let requests = [
            stage.client.request(Method::POST, "/v1/events"),
            stage
                .client
                .request(Method::POST, "/v1/adapters/pipeline/queries"),
            admin.request(Method::POST, "/v1/runner-endpoints"),
            admin.request(Method::POST, "/v1/agents"),
            run.request(Method::PUT, "/state/conversation/key"),
            run.request(Method::PUT, "/storage/plugin/key"),
            run.request(Method::POST, "/steering/pull"),
        ];
        for request in requests {
            let request = request
                .header("content-type", "application/json")
                .header("content-encoding", coding)
                .body(gzip_bomb());
            let refused = ask(request).await.unwrap();
            assert_eq!(refused.status, 415, "{coding}: {}", refused.body);
            assert_eq!(refused.error("code"), "invalid_argument", "{coding}");
        }
    }
    let plain = stage
        .client
        .posting(&message("plain"))
        .header("content-encoding", "identity");
    assert_eq!(ask(plain).await.unwrap().status, 202);
    run.end(&stage).await;
}

/// Small on the wire, large as parsed values.
fn amplifiers() -> Vec<(&'static str, String)> {
    let many = |part: &str| part.repeat(4_000_000 / part.len());
    let keys: Vec<_> = (0..300_000).map(|n| format!("\"{n:x}\":1,")).collect();
    let keys = keys.concat();
    vec![
        ("empty lists", format!("[{}0]", many("[],"))),
        ("numbers", format!("[{}0]", many("1,"))),
        ("empty objects", format!("[{}0]", many("{},"))),
        ("keys", format!("{{{keys}\"z\":1}}")),
        ("the same key", format!("{{{}\"a\":1}}", many("\"a\":1,"))),
        ("levels", many("[")),
        ("levels of objects", many("{\"a\":")),
    ]
}

#[tokio::test]
async fn client_bodies_do_not_exhaust_memory() {
    let stage = OwnStage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    // Baseline: the memory growth of a plain payload of 4 MiB.
    let mut event = message("large");
    event["raw"] = json!("x".repeat(4_000_000));
    assert_eq!(stage.client.post(&event).await.status, 202);
    let before = stage.gateway.peak_memory();
    for (what, raw) in amplifiers() {
        let body = format!("{{\"event_type\":\"message.received\",\"raw\":{raw}}}");
        let request = stage.client.request(Method::POST, "/v1/events").body(body);
        let refused = ask(request.header("content-type", "application/json"))
            .await
            .unwrap();
        assert_eq!(refused.status, 400, "{what}: {}", refused.body);
    }
    assert_no_growth(&stage, before);
    let events = stage.client.get("/v1/events?limit=100").await.body;
    assert_eq!(
        events["items"].as_array().unwrap().len(),
        1,
        "what is refused is not kept"
    );
}

#[tokio::test]
async fn discards_oversized_chunked_bodies_up_to_a_limit() {
    let stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    let before = stage.gateway.peak_memory();
    let sent = Arc::new(AtomicUsize::new(0));
    let endless = || {
        let sent = Arc::clone(&sent);
        let part = move || {
            sent.fetch_add(64 * 1024, Ordering::Relaxed);
            Ok::<_, std::io::Error>(vec![b' '; 64 * 1024])
        };
        Body::wrap_stream(stream::repeat_with(part).take(2048))
    };
    for path in [
        "/v1/events",
        "/v1/adapters/pipeline/queries",
        "/v1/runner-endpoints",
    ] {
        let request = admin.request(Method::POST, path).body(endless());
        let answer = ask(request.header("content-type", "application/json")).await;
        // The connection may be reset before the client reads the error.
        if let Ok(refused) = answer {
            assert_eq!(refused.status, 413, "{path}: {}", refused.body);
        }
        // Sum of the body limit, the discarded bytes and the socket buffers of both ends. The bodies in total have
        // 128 MiB.
        let sent = sent.swap(0, Ordering::Relaxed);
        eprintln!("{path}: {sent} bytes were sent");
        assert!(sent < 72 * 1024 * 1024, "{path}: {sent} bytes were sent");
    }
    assert_no_growth(&stage, before);
}
