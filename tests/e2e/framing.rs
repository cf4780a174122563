//! Streams cut, split and encoded in every way that the stream format allows, and some that it does not. F26,
//! F35–F37.

use futures_util::{StreamExt, stream};
use serde_json::Value;

use crate::support::client::message;
use crate::support::script::{Run, ScriptStep, answer, chunk, send, sse, sse_in_chunks};
use crate::support::stream::Frame;
use crate::support::{Stage, number, seed};

/// Number of concurrent runs in tests with hundreds of runs.
const CONCURRENT_RUNS: usize = 16;
/// Characters of one to four bytes, and grapheme clusters of several characters.
const TEXT: &str = "hé 世界 \u{1F389} \u{1F469}\u{200D}\u{1F469}\u{200D}\u{1F467} e\u{301}";

/// Results of every kind, a heartbeat and the terminal: 1.6 KiB, with the same length for every run.
fn fixture(run: &Run) -> String {
    let telemetry = format!(r#"{{"text":"{TEXT}","more":"{}"}}"#, "x".repeat(200));
    let state = r#"{"scope":"conversation","key":"k","value":{"a":[1,2,3]}}"#;
    let message = format!(r#"{{"message":{{"role":"assistant","content":"{TEXT}"}}}}"#);
    [
        run.delta(1, TEXT),
        ": still here\n\n".to_owned(),
        run.result(2, "processor.log", &telemetry),
        run.delta(3, &"y".repeat(300)),
        run.result(4, "state.updated", state),
        run.result(5, "x.vendor.thing", r#"{"anything":[1]}"#),
        run.result(6, "message.completed", &message),
        run.completed(7),
    ]
    .concat()
}

/// Types of the fixture's results.
const TYPES: [&str; 7] = [
    "message.delta",
    "processor.log",
    "message.delta",
    "state.updated",
    "x.vendor.thing",
    "message.completed",
    "run.completed",
];

/// The fixture as a complete response: head, and one chunk with the complete body.
fn full_response(run: &Run) -> (String, usize) {
    let body = fixture(run);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
        body.len()
    );
    let length = head.len();
    (head + &body, length)
}

fn any_run() -> Run {
    Run {
        event_id: String::new(),
        id: uuid::Uuid::nil().to_string(),
        attempt: 1,
        after: 0,
    }
}

async fn stream_run(
    stage: &Stage,
    event_id: &str,
    script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static,
) -> Vec<Frame> {
    stage.runner.answer(event_id, script);
    stage
        .client
        .post_streaming(&message(event_id))
        .await
        .rest()
        .await
}

/// Number of complete events in the first `cut` bytes of the body.
fn complete_events(cut: usize) -> usize {
    fixture(&any_run()).as_bytes()[..cut]
        .split_inclusive(|byte| *byte == b'\n')
        .fold((0, false), |(count, was_data), line| match line {
            b"\n" => (count + usize::from(was_data), false),
            line => (count, line.starts_with(b"data") && line.ends_with(b"\n")),
        })
        .0
}

/// Asserts `n` complete results and a truncated end, or all results. The terminal counts without its empty line,
/// too.
fn assert_is_prefix(frames: &[Frame], n: usize, cut: usize) {
    let kinds: Vec<String> = frames.iter().map(kind).collect();
    let mut expected = TYPES[..n].to_vec();
    let is_unfinished = kinds.last().is_some_and(|last| last == "run.completed");
    if n + 1 == TYPES.len() && is_unfinished {
        let missing = full_response(&any_run()).0.len() - cut;
        assert!(missing <= 2, "cut after {cut} bytes");
        expected.extend(["processor.log", "run.completed"]);
    } else if n < TYPES.len() {
        expected.push("run.failed");
        let last: Value = serde_json::from_str(&frames[frames.len() - 1].data).unwrap();
        let code = &last["data"]["code"];
        assert_eq!(code, "runner.stream_truncated", "cut after {cut} bytes");
        assert_eq!(last["data"]["retryable"], true);
    }
    assert_eq!(kinds, expected, "cut after {cut} bytes");
    let dense = frames
        .iter()
        .map(|frame| frame.id)
        .eq((1..).map(Some).take(frames.len()));
    assert!(dense, "cut after {cut} bytes: {frames:?}");
}

fn kind(frame: &Frame) -> String {
    let event: Value = serde_json::from_str(&frame.data).unwrap();
    event["type"].as_str().unwrap().to_owned()
}

/// Every offset with `RUNNEL_TEST_CUT_STEP=1`, by default every seventh from a random start.
fn cuts() -> impl Iterator<Item = usize> {
    let (length, step) = (
        full_response(&any_run()).0.len(),
        number("RUNNEL_TEST_CUT_STEP", 7),
    );
    let first = usize::try_from(seed() % step as u64).unwrap();
    eprintln!("{length} bytes, cut after {first} and every {step} more");
    (first..=length).step_by(step)
}

#[tokio::test]
async fn response_cut_at_any_byte_keeps_complete_events() {
    let stage = Stage::new().await;
    let stage = &stage;
    let check = |cut: usize| async move {
        let script = move |run: &Run| vec![send(&full_response(run).0.as_bytes()[..cut])];
        let frames = stream_run(stage, &format!("cut-{cut}"), script).await;
        let head = full_response(&any_run()).1;
        assert_is_prefix(&frames, complete_events(cut.saturating_sub(head)), cut);
    };
    stream::iter(cuts())
        .for_each_concurrent(CONCURRENT_RUNS, check)
        .await;
}

/// A reset may drop sent bytes, but never changes them.
#[tokio::test]
async fn response_reset_at_any_byte_keeps_complete_events() {
    let stage = Stage::new().await;
    let stage = &stage;
    let check = |cut: usize| async move {
        let script = move |run: &Run| {
            let sent = send(&full_response(run).0.as_bytes()[..cut]);
            vec![sent, ScriptStep::Reset]
        };
        let frames = stream_run(stage, &format!("reset-{cut}"), script).await;
        let last = frames.last().expect("a terminal event");
        let is_noted = |frame: &Frame| frame.data.contains("\"source\":\"host\"");
        let unfinished = frames.iter().filter(|frame| is_noted(frame)).count() * 2;
        let events = match last.event.as_str() {
            "run.failed" => frames.len() - 1,
            _ => frames.len() - unfinished,
        };
        let head = full_response(&any_run()).1;
        let max_events = complete_events(cut.saturating_sub(head));
        assert!(events <= max_events, "{events} events in {cut} bytes");
        assert_is_prefix(&frames, events, cut);
    };
    stream::iter(cuts())
        .for_each_concurrent(CONCURRENT_RUNS, check)
        .await;
}

#[tokio::test]
async fn text_split_at_any_byte_arrives_unchanged() {
    let stage = Stage::new().await;
    let stage = &stage;
    let check = |at: usize| async move {
        let script = move |run: &Run| {
            let body = run.delta(1, TEXT) + &run.completed(2);
            let (first, second) = body.as_bytes().split_at(at);
            sse_in_chunks([first, second])
        };
        let frames = stream_run(stage, &format!("split-{at}"), script).await;
        let delta: Value = serde_json::from_str(&frames[0].data).unwrap();
        assert_eq!(delta["data"]["chunk"]["content"], TEXT, "split at {at}");
        assert_eq!(frames.len(), 2, "split at {at}");
    };
    let splits = 0..any_run().delta(1, TEXT).len();
    stream::iter(splits)
        .for_each_concurrent(CONCURRENT_RUNS, check)
        .await;
}

type StreamEncoding = fn(String) -> String;

const STREAM_ENCODINGS: [(&str, StreamEncoding); 11] = [
    ("as it is", |text| text),
    ("a byte order mark", |text| format!("\u{FEFF}{text}")),
    ("CR LF", |text| text.replace('\n', "\r\n")),
    ("CR", |text| text.replace('\n', "\r")),
    ("all in turn", |text| {
        text.replacen("\n\n", "\r\r\n", 1)
            .replacen("\n\n", "\n\r", 1)
    }),
    ("no space after the colon", |text| {
        text.replace("data: ", "data:")
    }),
    ("data in several lines", |text| {
        text.replace(",\"", "\ndata: ,\"")
    }),
    ("other fields", |text| {
        text.replace("data: ", "retry: 5\nnope\nwhat: ever\n:\ndata: ")
    }),
    ("names that lie", |text| {
        text.replace("data: ", "id: a\0b\nevent: run.failed\ndata: ")
    }),
    ("events without data", |text| {
        text.replace("data: ", "event: run.failed\n\nid: 9\n\ndata: ")
    }),
    ("more empty lines", |text| {
        format!("\n\n\n{}", text.replace("\n\n", "\n\n\n\n"))
    }),
];

#[tokio::test]
async fn reads_every_stream_encoding_alike() {
    let stage = Stage::new().await;
    for (way, write) in STREAM_ENCODINGS {
        let body = move |run: &Run| write(run.talk(3).concat());
        let byte_by_byte = move |run: &Run| sse_in_chunks(body(run).as_bytes().chunks(1));
        let outcomes = [
            stage.play(move |run| sse(body(run))).await,
            stage.play(byte_by_byte).await,
        ];
        for outcome in outcomes {
            let text = (outcome.ending(), outcome.ledger.text());
            assert_eq!(text, ("completed".to_owned(), "1 2 3 ".to_owned()), "{way}");
            assert_eq!(outcome.ledger.0.len(), 4, "{way}");
            assert!(
                outcome.rejections.is_empty(),
                "{way}: {:?}",
                outcome.rejections
            );
        }
    }
}

#[tokio::test]
async fn accepts_terminals_without_trailing_empty_line() {
    let stage = Stage::new().await;
    for rest in ["", "\n"] {
        let script = move |run: &Run| sse(run.talk(1).concat().trim_end().to_owned() + rest);
        let outcome = stage.play(script).await;
        let types = ["message.delta", "processor.log", "run.completed"];
        outcome.assert("completed", &types);
        let note = &outcome.ledger.events()[1];
        assert_eq!(note["source"], "host", "{note}");
    }
    // A result without its empty line may be incomplete, unless it is a terminal.
    let script = |run: &Run| sse(run.delta(1, "a") + run.delta(2, "b").trim_end());
    let outcome = stage.play(script).await;
    outcome.assert(
        "failed runner.stream_truncated",
        &["message.delta", "run.failed"],
    );
    let last = outcome.ledger.last();
    let message = last["data"]["message"].as_str().unwrap();
    assert!(message.contains("no empty line after it"), "{message}");
}

/// Encodes two results as one body.
type PairEncoding = fn(&[String; 2]) -> String;

/// Bodies under another content type, and the missing part as the message names it.
#[tokio::test]
async fn reads_complete_bodies_of_another_framing() {
    let stage = Stage::new().await;
    let talk = |run: &Run| {
        [
            run.json(1, "message.delta", &chunk("1 ")),
            run.json(2, "run.completed", r#"{"finish_reason":"stop"}"#),
        ]
    };
    let (events, lines, json) = (
        "text/event-stream",
        "application/x-ndjson",
        "application/json",
    );
    let rows: [(&str, PairEncoding); 12] = [
        (events, |[one, two]| format!("data: {one}\ndata: {two}\n")),
        (events, |[one, two]| {
            format!(": hi\nevent: message.delta\ndata: {one}\nevent: run.completed\ndata: {two}\n")
        }),
        (events, |[one, two]| format!("{one}\n{two}\n")),
        (events, |[one, two]| {
            format!("{{\"results\":[{one},{two}]}}")
        }),
        (events, |[one, two]| {
            format!("{{\n  \"results\": [\n{one},\n{two}\n]}}\n")
        }),
        (lines, |[one, two]| {
            format!("data: {one}\n\ndata: {two}\n\n")
        }),
        (lines, |[one, two]| {
            format!("{{\n  \"results\": [\n{one},\n{two}\n]}}\n")
        }),
        (json, |[one, two]| format!("data: {one}\n\ndata: {two}\n\n")),
        (json, |[one, two]| format!("{one}\n{two}")),
        (json, |[one, two]| format!("[{one},{two}]")),
        (json, |[one, two]| {
            format!("\u{feff}\r\n: x\n\ndata: {one}\n\ndata: {two}\n\n")
        }),
        (json, |[one, two]| format!("{one} {two}")),
    ];
    for (content_type, write) in rows {
        let script = move |run: &Run| {
            let head = format!("content-type: {content_type}\r\n");
            answer("200 OK", &head, write(&talk(run)))
        };
        let outcome = stage.play(script).await;
        let shown = format!("{content_type}: {:?}", outcome.ledger.0);
        assert_eq!(outcome.ending(), "completed", "{shown}");
        assert_eq!(outcome.ledger.text(), "1 ", "{shown}");
        assert!(outcome.rejections.is_empty(), "{shown}");
        let types = outcome.ledger.types();
        assert!(types.contains(&"processor.log".to_owned()), "{shown}");
    }
    for (content_type, body, named) in [
        (events, "<html>", "holds no event"),
        (events, "", "its body is empty"),
        (json, "{\"ok\":true}", "its body is no {\"results\""),
        (lines, "{\"run_id\":", "its last line is cut"),
    ] {
        let script = move |_: &Run| {
            let head = format!("content-type: {content_type}\r\n");
            answer("200 OK", &head, body)
        };
        let outcome = stage.play(script).await;
        assert_eq!(outcome.ending(), "failed runner.stream_truncated");
        let last = outcome.ledger.last();
        let message = last["data"]["message"].as_str().unwrap();
        assert!(message.contains(named), "{content_type} {body}: {message}");
    }
}

#[tokio::test]
async fn events_with_empty_data_do_not_end_runs() {
    let stage = Stage::new().await;
    for empty in ["data:\n\n", "data\n\n", "data: \n\n", "data:\ndata:\n\n"] {
        let script = move |run: &Run| sse(run.delta(1, "a") + empty + &run.completed(2));
        let outcome = stage.play(script).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
    }
}

#[tokio::test]
async fn replaces_bytes_that_are_not_utf_8() {
    let stage = Stage::new().await;
    for (bytes, count) in [
        (&b"\xff"[..], 1),
        (b"\xc3", 1),
        (b"\xc0\x80", 2),
        (b"\xed\xa0\x80", 3),
        (b"\xf4\x90\x80\x80", 4),
    ] {
        let script = move |run: &Run| {
            let malformed = run.delta(2, "X").into_bytes();
            let at = malformed.iter().position(|byte| *byte == b'X').unwrap();
            let malformed = [&malformed[..at], bytes, &malformed[at + 1..]].concat();
            let parts = [
                run.delta(1, "a").into_bytes(),
                malformed,
                run.completed(3).into_bytes(),
            ];
            sse(parts.concat())
        };
        let outcome = stage.play(script).await;
        let types = [
            "message.delta",
            "processor.log",
            "message.delta",
            "run.completed",
        ];
        outcome.assert("completed", &types);
        assert!(outcome.rejections.is_empty());
        let events = outcome.ledger.events();
        assert_eq!(events[1]["source"], "host");
        assert_eq!(events[2]["metadata"]["repaired"], true);
        let replaced = "\u{FFFD}".repeat(count);
        assert_eq!(outcome.ledger.text(), format!("a{replaced}"));
    }
}
