//! Protocol deviations of runners: tolerated ones leave a note, others end the run with a specific code.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::script::{Gate, Run, ScriptStep, answer, chunk, frame, send, sse, sse_head};
use crate::support::stage::VerifiedOutcome;
use crate::support::{Engine, Postgres, Sqlite, Stage};

const DELTA: &str = "message.delta";
const LOG: &str = "processor.log";
const MESSAGE: &str = "message.completed";
const COMPLETED: &str = "run.completed";
const FAILED: &str = "run.failed";

fn completed_message(text: &str) -> String {
    format!(r#"{{"message":{{"role":"assistant","content":"{text}"}}}}"#)
}

/// Notes of the gateway in the ledger of a run.
fn notes(outcome: &VerifiedOutcome) -> Vec<String> {
    let events = outcome.ledger.events();
    let notes = events
        .iter()
        .filter(|event| event["source"] == "host" && event["type"] == LOG);
    notes
        .map(|note| note["data"]["text"].as_str().unwrap().to_owned())
        .collect()
}

fn output(outcome: &VerifiedOutcome) -> &Value {
    &outcome.run["output"]["content"]
}

#[rstest]
#[tokio::test]
async fn repairs_texts_of_results(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    for (text, expected) in [
        (r"a\ud83d", "a\u{FFFD}"),
        (r"\ude00", "\u{FFFD}"),
        (r"a\u0000b", "a\u{FFFD}b"),
    ] {
        let in_one_message = move |run: &Run| {
            sse(run.delta(1, "a")
                + &run.result(2, MESSAGE, &completed_message(text))
                + &run.completed(3))
        };
        let outcome = stage.play(in_one_message).await;
        outcome.assert("completed", &[DELTA, LOG, MESSAGE, COMPLETED]);
        assert_eq!(output(&outcome), expected);
        assert!(notes(&outcome)[0].contains("replaced by U+FFFD"));
        let terminal = move |run: &Run| sse(run.result(1, COMPLETED, &completed_message(text)));
        let outcome = stage.play(terminal).await;
        outcome.assert("completed", &[LOG, COMPLETED]);
        assert_eq!(output(&outcome), expected);
    }
    let failed = |run: &Run| {
        let data = r#"{"code":"quota","message":"\ud83d"}"#;
        sse(run.result(1, FAILED, data))
    };
    let outcome = stage.play(failed).await;
    assert_eq!(outcome.ending(), "failed quota");
    let halves = |run: &Run| {
        let deltas = [r"a\ud83d", r"\ude00b", r"\ud83d"].into_iter().zip(1..);
        let deltas: String = deltas.map(|(text, n)| run.delta(n, text)).collect();
        sse(deltas + &run.completed(4))
    };
    let outcome = stage.play(halves).await;
    outcome.assert("completed", &[LOG, DELTA, DELTA, DELTA, COMPLETED]);
    assert_eq!(outcome.ledger.text(), "a😀b");
    assert_eq!(output(&outcome), "a😀b\u{FFFD}");
}

#[tokio::test]
async fn fails_runs_with_rejected_message() {
    let stage = Stage::new().await;
    let script = |run: &Run| {
        let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
        let data = completed_message("b").replacen('{', &format!(r#"{{"x":{deep},"#), 1);
        sse(run.delta(1, "a") + &run.result(2, MESSAGE, &data) + &run.completed(3))
    };
    let outcome = stage.play(script).await;
    outcome.assert("failed runner.protocol_violation", &[DELTA, FAILED]);
    let message = outcome.run["error"]["message"].as_str().unwrap();
    assert!(message.contains("its message was rejected"), "{message}");
    assert!(message.contains("64 levels"), "{message}");
}

#[tokio::test]
async fn counts_foreign_events_as_heartbeats() {
    let stage = Stage::new().await;
    for data in [
        "ping",
        "{}",
        "",
        "null",
        "[1]",
        r#"{"type":"ping"}"#,
        "\u{1F389}",
    ] {
        let script = move |run: &Run| {
            let pings = format!("event: ping\ndata: {data}\n\n").repeat(5);
            let named = |event: String| format!("event: message.delta\n{event}");
            sse(named(run.delta(1, "a")) + &pings + &named(run.completed(2)))
        };
        let outcome = stage.play(script).await;
        assert_eq!(outcome.ending(), "completed", "{data}");
        assert!(outcome.rejections.is_empty(), "{data}");
        assert_eq!(
            notes(&outcome).len(),
            usize::from(!data.is_empty()),
            "{data}"
        );
    }
    // A valid result counts under any event name; an event with one of our names must contain a result.
    let script = |run: &Run| {
        let foreign = format!("event: chunk\n{}", run.delta(1, "a"));
        let own = "event: message.delta\ndata: {}\n\n";
        sse(foreign + own + &frame("hello") + &run.completed(2))
    };
    let outcome = stage.play(script).await;
    outcome.assert("completed", &[DELTA, COMPLETED]);
    outcome.assert_rejected(&["invalid_envelope", "invalid_json"]);
}

#[tokio::test]
async fn counts_unnamed_keep_alives_as_heartbeats() {
    let stage = Stage::new().await;
    for data in ["ping", r#"{"type":"heartbeat"}"#] {
        let events =
            move |run: &Run| sse(run.delta(1, "a") + &frame(data).repeat(5) + &run.completed(2));
        let lines = move |run: &Run| {
            let pings = format!("{data}\n").repeat(5);
            let lines =
                run.json(1, DELTA, &chunk("a")) + "\n" + &pings + &run.json(2, COMPLETED, "{}");
            let head = "content-type: application/x-ndjson\r\n";
            answer("200 OK", head, lines)
        };
        for outcome in [stage.play(events).await, stage.play(lines).await] {
            assert_eq!(outcome.ending(), "completed", "{data}");
            assert!(outcome.rejections.is_empty(), "{data}");
            assert!(notes(&outcome)[0].contains("keep-alive"), "{data}");
        }
    }
    let script = |run: &Run| sse(run.delta(1, "a") + &frame("hello").repeat(3));
    let outcome = stage.play(script).await;
    outcome.assert("failed runner.protocol_violation", &[DELTA, FAILED]);
    let message = outcome.run["error"]["message"].as_str().unwrap();
    assert!(message.contains(r#"begins with "hello""#), "{message}");
}

/// Produces bytes that are no result.
type NonResultBytes = fn() -> String;

#[tokio::test]
async fn limits_bytes_without_results() {
    let small = "run_bytes = 65536\nevent_bytes = 65536\nline_bytes = 65536";
    let stage = Stage::with(|config| config.limits = small.into()).await;
    let rows: [(&str, NonResultBytes); 6] = [
        ("text/event-stream", || ": x\n".repeat(1000)),
        ("text/event-stream", || "\n".repeat(4000)),
        ("text/event-stream", || "nope: ever\n".repeat(400)),
        ("text/event-stream", || "event: ping\n\n".repeat(400)),
        ("text/event-stream", || {
            "event: ping\ndata: x\n\n".repeat(200)
        }),
        ("application/x-ndjson", || " \n".repeat(2000)),
    ];
    for (content_type, filler) in rows {
        let talk = move |run: &Run, pieces: usize| {
            let head = format!("content-type: {content_type}\r\n");
            let begin = if content_type == "text/event-stream" {
                run.delta(1, "a")
            } else {
                run.json(1, DELTA, &chunk("a")) + "\n"
            };
            let mut steps = answer("200 OK", &head, begin);
            steps.extend(std::iter::repeat_with(|| send(filler())).take(pieces));
            steps
        };
        let outcome = stage.play(move |run| talk(run, 60)).await;
        assert_eq!(outcome.ending(), "failed runner.output_limit");
        let message = outcome.run["error"]["message"].as_str().unwrap();
        assert!(message.contains("what is no result"), "{message}");
        let few = move |run: &Run| {
            let mut steps = talk(run, 5);
            let end = match content_type {
                "text/event-stream" => run.completed(2),
                _ => run.json(2, COMPLETED, "{}") + "\n",
            };
            steps.push(send(format!("\n\n{end}")));
            steps
        };
        assert_eq!(stage.play(few).await.ending(), "completed");
    }
}

/// A run whose runner sends its terminal after a cancel.
async fn terminal_after_cancel(
    stage: &Stage,
    event_id: &str,
    (kind, data): (&'static str, &'static str),
) -> VerifiedOutcome {
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer(event_id, move |run| {
        let last = send(run.result(1, kind, data));
        vec![sse_head(), ScriptStep::Hold(hold.clone()), last]
    });
    let run_id = stage.client.post(&message(event_id)).await.run_id();
    stage.runner.run_request(&run_id).await;
    assert_eq!(stage.client.cancel(&run_id).await.status, 202);
    gate.cancel();
    stage.outcome(&run_id).await
}

/// The terminal of the runner remains in the ledger, under the code of the cancel.
#[rstest]
#[tokio::test]
async fn cancelled_runs_end_as_cancelled(#[values(Sqlite, Postgres)] engine: Engine) {
    let grace = |config: &mut Config| config.runs = "cancel_grace_seconds = 50".into();
    let stage = or_skip!(Stage::on(engine, grace).await);
    for (event, data, own) in [
        (
            "m-1",
            r#"{"code":"runner.llm_error","message":"I stop"}"#,
            json!("runner.llm_error"),
        ),
        (
            "m-2",
            r#"{"code":"host.orphaned","message":"x"}"#,
            json!("host.orphaned"),
        ),
        (
            "m-3",
            r#"{"code":"cancelled","message":"on request"}"#,
            Value::Null,
        ),
    ] {
        let outcome = terminal_after_cancel(&stage, event, (FAILED, data)).await;
        outcome.assert("cancelled cancelled", &[FAILED]);
        let last_event = outcome.ledger.last();
        assert_eq!(last_event["source"], "runner", "{last_event}");
        assert_eq!(last_event["data"]["code"], "cancelled", "{last_event}");
        assert_eq!(last_event["data"]["details"]["code"], own, "{last_event}");
        assert_eq!(outcome.run["status_reason"], "cancelled");
    }
    let done = (
        COMPLETED,
        r#"{"message":{"role":"assistant","content":"done"}}"#,
    );
    let outcome = terminal_after_cancel(&stage, "m-4", done).await;
    outcome.assert("cancelled cancelled", &[COMPLETED]);
    assert_eq!(output(&outcome), "done");
    let broken = terminal_after_cancel(&stage, "m-5", ("run.completed", "7")).await;
    assert_eq!(broken.ending(), "cancelled cancelled");
}

#[rstest]
#[tokio::test]
async fn keeps_each_message_of_a_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let script = |run: &Run| {
        let tool = completed_message("21 degrees").replace("assistant", "tool");
        let results = [
            run.result(1, MESSAGE, &completed_message("let me look")),
            run.result(2, MESSAGE, &tool),
            run.result(3, MESSAGE, &completed_message("it is warm")),
            run.completed(4),
        ];
        sse(results.concat())
    };
    stage.runner.answer("m-1", script);
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(output(&outcome), "it is warm");
    assert_eq!(outcome.run["output"]["message_count"], 3);
    stage.runner.answer("m-2", |run| sse(run.talk(1).concat()));
    let second = stage.client.post(&message("m-2")).await.run_id();
    let second = stage.outcome(&second).await;
    assert_eq!(second.run["output"].get("message_count"), None);
    let run = HeldRun::start(&stage, &message("m-3")).await;
    let history = run.host.get("/history?limit=10&direction=forward").await;
    let items = history.body["items"].as_array().unwrap();
    let texts: Vec<_> = items
        .iter()
        .map(|item| {
            (
                item["role"].as_str().unwrap(),
                item["content"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("user", "hello big world"),
        ("assistant", "let me look"),
        ("tool", "21 degrees"),
        ("assistant", "it is warm"),
        ("user", "hello big world"),
        ("assistant", "1 "),
    ];
    assert_eq!(texts[..expected.len()], expected);
    run.end(&stage).await;
    let positions: Vec<_> = items.iter().map(|item| item["seq"].as_i64()).collect();
    assert!(
        positions
            .iter()
            .copied()
            .eq((1..).map(Some).take(positions.len())),
        "{positions:?}"
    );
}
