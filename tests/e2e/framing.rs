//! Bytes cut, split and written in every way that the stream format allows, and some that it does not. F26, F35–F37.

use futures_util::{StreamExt, stream};
use serde_json::Value;

use crate::support::Stage;
use crate::support::client::message;
use crate::support::script::{Run, Step, sse, sse_cut, sse_in_chunks};
use crate::support::stream::Frame;

/// How many runs go on at a time where there are hundreds.
const TOGETHER: usize = 16;
/// One, two, three and four bytes, and signs made of several.
const TEXT: &str = "hé 世界 \u{1F389} \u{1F469}\u{200D}\u{1F469}\u{200D}\u{1F467} e\u{301}";

/// Three deltas, a heartbeat and the terminal: about 600 bytes, of the same length for every run.
fn fixture(run: &Run) -> String {
    let mut frames = run.talk(3);
    frames.insert(1, ": still here\n\n".to_owned());
    frames.concat()
}

fn any_run() -> Run {
    Run {
        event_id: String::new(),
        id: uuid::Uuid::nil().to_string(),
        attempt: 1,
    }
}

async fn stream_run(
    stage: &Stage,
    event_id: &str,
    script: impl Fn(&Run) -> Vec<Step> + Send + Sync + 'static,
) -> Vec<Frame> {
    stage.runner.answer(event_id, script);
    stage
        .client
        .post_streaming(&message(event_id))
        .await
        .rest()
        .await
}

/// `n` whole deltas of the fixture and a truncated end, or all of it.
fn assert_is_prefix(frames: &[Frame], n: usize, cut: usize) {
    let told: Vec<_> = frames.iter().map(|frame| frame.event.as_str()).collect();
    let mut expected = vec!["message.delta"; n.min(3)];
    expected.push(if n == 4 {
        "run.completed"
    } else {
        "run.failed"
    });
    assert_eq!(told, expected, "cut after {cut} bytes");

    let last: Value = serde_json::from_str(&frames[frames.len() - 1].data).unwrap();
    if n < 4 {
        assert_eq!(
            last["data"]["code"], "runner.stream_truncated",
            "cut after {cut} bytes"
        );
    }
}

/// The first `cut` bytes of the fixture hold so many whole events.
fn whole_events(cut: usize) -> usize {
    fixture(&any_run())[..cut]
        .split_inclusive("\n\n")
        .fold(0, |count, part| {
            count + usize::from(part.starts_with("data") && part.ends_with("\n\n"))
        })
}

#[tokio::test]
async fn a_stream_that_is_cut_after_any_byte_leaves_whole_events_only() {
    let stage = Stage::new().await;
    let stage = &stage;
    let check = |cut| async move {
        let script = move |run: &Run| sse_cut(&fixture(run), cut);
        let frames = stream_run(stage, &format!("cut-{cut}"), script).await;
        assert_is_prefix(&frames, whole_events(cut), cut);
    };
    let cuts = 0..=fixture(&any_run()).len();
    stream::iter(cuts)
        .for_each_concurrent(TOGETHER, check)
        .await;
}

/// A reset may overtake bytes that were sent, but never turns them into others.
#[tokio::test]
async fn a_stream_that_is_reset_after_any_byte_leaves_whole_events_only() {
    let stage = Stage::new().await;
    let stage = &stage;
    let check = |cut| async move {
        let script = move |run: &Run| [sse_cut(&fixture(run), cut), vec![Step::Reset]].concat();
        let frames = stream_run(stage, &format!("cut-{cut}"), script).await;
        let last = frames.last().expect("a terminal event");
        let events = frames.len() - usize::from(last.event == "run.failed");
        assert!(
            events <= whole_events(cut),
            "{events} events in {cut} bytes"
        );
        if events > 0 || frames[0].data.contains("stream_truncated") {
            assert_is_prefix(&frames, events, cut);
        }
    };
    let cuts = (0..=fixture(&any_run()).len()).step_by(5);
    stream::iter(cuts)
        .for_each_concurrent(TOGETHER, check)
        .await;
}

#[tokio::test]
async fn text_that_is_split_at_any_byte_arrives_as_it_was() {
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
        .for_each_concurrent(TOGETHER, check)
        .await;
}

type Write = fn(String) -> String;

const WAYS: [(&str, Write); 11] = [
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
async fn every_way_to_write_a_stream_is_read_the_same() {
    let stage = Stage::new().await;
    for (way, write) in WAYS {
        let body = move |run: &Run| write(run.talk(3).concat());
        let byte_by_byte = move |run: &Run| sse_in_chunks(body(run).as_bytes().chunks(1));
        let outcomes = [
            stage.play(move |run| sse(body(run))).await,
            stage.play(byte_by_byte).await,
        ];
        for outcome in outcomes {
            let told = (outcome.ending(), outcome.ledger.text());
            assert_eq!(told, ("completed".to_owned(), "1 2 3 ".to_owned()), "{way}");
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
async fn a_terminal_without_its_empty_line_was_not_sent() {
    let stage = Stage::new().await;
    for kept in ["", "\n"] {
        let script = move |run: &Run| sse(run.talk(1).concat().trim_end().to_owned() + kept);
        let outcome = stage.play(script).await;
        outcome.assert(
            "failed runner.stream_truncated",
            &["message.delta", "run.failed"],
        );
    }
}

#[tokio::test]
async fn an_event_with_empty_data_is_nothing_worse_than_a_rejected_one() {
    let stage = Stage::new().await;
    for empty in ["data:\n\n", "data\n\n", "data: \n\n", "data:\ndata:\n\n"] {
        let script = move |run: &Run| sse(run.delta(1, "a") + empty + &run.completed(2));
        let outcome = stage.play(script).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
    }
}

#[tokio::test]
async fn bytes_that_are_not_utf_8_are_rejected_and_never_replaced() {
    let stage = Stage::new().await;
    for bytes in [
        &b"\xff"[..],
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ] {
        let script = move |run: &Run| {
            let bent = run.delta(2, "X").into_bytes();
            let at = bent.iter().position(|byte| *byte == b'X').unwrap();
            let bent = [&bent[..at], bytes, &bent[at + 1..]].concat();
            let parts = [
                run.delta(1, "a").into_bytes(),
                bent,
                run.completed(3).into_bytes(),
            ];
            sse(parts.concat())
        };
        let outcome = stage.play(script).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
        outcome.assert_rejected(&["invalid_utf8"]);
        assert!(
            outcome
                .ledger
                .0
                .iter()
                .all(|event| !event.contains('\u{FFFD}'))
        );
    }
}
