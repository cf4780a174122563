//! Invalid, duplicate and late results, each with its own verdict. F28–F34, F39, F40.

use std::time::Duration;

use futures_util::StreamExt;
use rstest::rstest;
use serde_json::json;

use crate::support::gateway::Agent;
use crate::support::script::{
    Gate, Run, RunScript, ScriptStep, chunk, frame, sse, sse_and_wait, sse_around, sse_head,
};
use crate::support::{Engine, Postgres, Sqlite, Stage};

const DELTA: &str = "message.delta";
const COMPLETED: &str = "run.completed";
const FAILED: &str = "run.failed";
const VIOLATION: &str = "failed runner.protocol_violation";

/// A runner's results, and the expected ledger.
struct ResultCase {
    script: RunScript,
    ending: &'static str,
    types: &'static [&'static str],
    rejected: &'static [&'static str],
    duplicates: u64,
    gaps: u64,
}

const CLEAN: ResultCase = ResultCase {
    script: |run| sse(run.talk(1).concat()),
    ending: "completed",
    types: &[DELTA, COMPLETED],
    rejected: &[],
    duplicates: 0,
    gaps: 0,
};

#[rstest]
#[case::nothing_wrong(CLEAN)]
#[case::the_same_bytes_twice(ResultCase {
    script: |run| sse(run.delta(1, "a") + &run.delta(1, "a") + &run.completed(2)),
    duplicates: 1,
    ..CLEAN
})]
#[case::a_number_twice_with_other_bytes(ResultCase {
    script: |run| sse(run.delta(1, "a") + &run.delta(1, "b") + &run.completed(2)),
    rejected: &["sequence_conflict"],
    ..CLEAN
})]
#[case::a_gap(ResultCase {
    script: |run| sse(run.delta(1, "a") + &run.delta(5, "b") + &run.completed(6)),
    types: &[DELTA, DELTA, COMPLETED],
    gaps: 1,
    ..CLEAN
})]
#[case::a_number_from_the_gap(ResultCase {
    script: |run| {
        sse(run.delta(1, "a") + &run.delta(5, "b") + &run.delta(3, "c") + &run.completed(6))
    },
    types: &[DELTA, DELTA, COMPLETED],
    rejected: &["sequence_backward"],
    gaps: 1,
    ..CLEAN
})]
#[case::everything_twice(ResultCase {
    script: |run| {
        let deltas = run.delta(1, "a") + &run.delta(2, "b") + &run.delta(3, "c");
        sse(deltas.repeat(2) + &run.completed(4))
    },
    types: &[DELTA, DELTA, DELTA, COMPLETED],
    duplicates: 3,
    ..CLEAN
})]
#[case::no_numbers(ResultCase {
    script: |run| {
        let stop = run.unnumbered(COMPLETED, r#"{"finish_reason":"stop"}"#);
        sse(run.unnumbered(DELTA, &chunk("a")).repeat(2) + &stop)
    },
    types: &[DELTA, DELTA, COMPLETED],
    ..CLEAN
})]
#[case::null_for_a_number(ResultCase {
    script: |run| sse(run.delta("null", "a") + &run.completed("null")),
    ..CLEAN
})]
#[case::completed_then_failed(ResultCase {
    script: |run| sse_and_wait(run.talk(1).concat() + &run.failed(3)),
    ..CLEAN
})]
#[case::failed_then_completed(ResultCase {
    script: |run| sse_and_wait(run.delta(1, "a") + &run.failed(2) + &run.completed(3)),
    ending: "failed boom",
    types: &[DELTA, FAILED],
    ..CLEAN
})]
#[case::no_message_at_all(ResultCase {
    script: |run| sse(run.completed(1)),
    ending: "failed runner.no_output",
    types: &[FAILED],
    rejected: &["no_output"],
    ..CLEAN
})]
#[case::the_message_in_the_terminal(ResultCase {
    script: |run| {
        let data = r#"{"finish_reason":"stop","message":{"role":"assistant","content":"a"}}"#;
        sse(run.result(1, COMPLETED, data))
    },
    types: &[COMPLETED],
    ..CLEAN
})]
#[case::a_failure_without_words(ResultCase {
    script: |run| sse(run.delta(1, "a") + &run.result(2, FAILED, r#"{"code":"boom"}"#)),
    ending: VIOLATION,
    types: &[DELTA, FAILED],
    rejected: &["invalid_payload"],
    ..CLEAN
})]
#[case::a_failure_in_the_other_words(ResultCase {
    script: |run| sse(run.result(1, FAILED, r#"{"code":"boom","error":"it broke"}"#)),
    ending: "failed boom",
    types: &[FAILED],
    ..CLEAN
})]
#[case::an_unknown_type(ResultCase {
    script: |run| {
        let unknown = run.result(1, "vendor.thing", r#"{"anything":[1]}"#);
        let again = run.result(2, "vendor.thing", "{}");
        let extension = run.result(3, "x.vendor.thing", "{}");
        sse(unknown + &again + &extension + &run.delta(4, "a") + &run.completed(5))
    },
    // One note for each type. Types that begin with x. are extensions.
    types: &["processor.log", "vendor.thing", "vendor.thing", "x.vendor.thing", DELTA, COMPLETED],
    ..CLEAN
})]
#[case::loose_telemetry(ResultCase {
    script: |run| {
        let call = run.result(1, "tool.call.started", r#"{"whatever":true}"#);
        sse(call + &run.delta(2, "a") + &run.completed(3))
    },
    types: &["tool.call.started", DELTA, COMPLETED],
    ..CLEAN
})]
#[case::an_action(ResultCase {
    script: |run| {
        let data = r#"{"action":"platform.react","target":{"chat":"c-7"},"payload":{}}"#;
        let action = run.result(1, "action.requested", data);
        sse(action + &run.delta(2, "a") + &run.completed(3))
    },
    types: &["action.requested", DELTA, COMPLETED],
    ..CLEAN
})]
#[case::an_action_without_a_name(ResultCase {
    script: |run| {
        let action = run.result(1, "action.requested", r#"{"target":{"chat":"c-7"}}"#);
        sse(action + &run.delta(2, "a") + &run.completed(3))
    },
    rejected: &["invalid_payload"],
    ..CLEAN
})]
#[case::a_key_of_the_host(ResultCase {
    script: |run| {
        let data = r#"{"scope":"conversation","key":"host.x","value":1}"#;
        sse(run.delta(1, "a") + &run.result(2, "state.updated", data) + &run.completed(3))
    },
    rejected: &["unauthorized"],
    ..CLEAN
})]
#[tokio::test]
async fn judges_each_result_separately(#[case] row: ResultCase) {
    let stage = Stage::new().await;
    let outcome = stage.play(row.script).await;
    outcome.assert(row.ending, row.types);
    let late = |rejection: &serde_json::Value| rejection["reason"] == "after_terminal";
    if !outcome.rejections.iter().any(late) {
        outcome.assert_rejected(row.rejected);
    }
    let counted = &outcome.run["metadata"];
    assert_members!(counted, {"duplicates": row.duplicates, "gaps": row.gaps});
}

/// Every order of four numbered results before the terminal one. A result below the highest number is rejected,
/// and a gap is counted; the gateway does not wait.
#[tokio::test]
async fn accepts_only_results_with_increasing_numbers() {
    let stage = Stage::new().await;
    let stage = &stage;
    let check = |order: Vec<usize>| async move {
        let sent = order.clone();
        let outcome = stage
            .play(move |run| {
                let words: String = sent.iter().map(|n| run.delta(n, &format!("{n}"))).collect();
                sse(words + &run.completed(5))
            })
            .await;
        let (mut highest, mut text, mut backward, mut gaps) = (0, String::new(), 0, 0);
        for n in order {
            if n > highest {
                gaps += u64::from(n > highest + 1);
                text += &n.to_string();
                highest = n;
            } else {
                backward += 1;
            }
        }
        assert_eq!(outcome.ending(), "completed");
        assert_eq!(outcome.ledger.text(), text);
        outcome.assert_rejected(&vec!["sequence_backward"; backward]);
        assert_eq!(outcome.run["metadata"]["gaps"], gaps, "{text}");
    };
    futures_util::stream::iter(orders(&[1, 2, 3, 4]))
        .for_each_concurrent(8, check)
        .await;
}

fn orders(left: &[usize]) -> Vec<Vec<usize>> {
    if left.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in left {
        let others: Vec<_> = left.iter().copied().filter(|n| n != first).collect();
        all.extend(
            orders(&others)
                .into_iter()
                .map(|rest| [vec![*first], rest].concat()),
        );
    }
    all
}

/// A retrying proxy resends the complete stream, before the terminal result and after it.
#[tokio::test]
async fn redelivered_stream_adds_no_events() {
    let stage = Stage::new().await;
    for again in 1..=5 {
        let outcome = stage
            .play(move |run| {
                let frames = run.talk(4);
                sse_and_wait(frames[..again].concat() + &frames.concat() + &frames.concat())
            })
            .await;
        assert_eq!(outcome.ending(), "completed");
        assert_eq!(outcome.ledger.text(), "1 2 3 4 ");
        assert_eq!(outcome.ledger.0.len(), 5);
        if again < 5 {
            assert_eq!(outcome.run["metadata"]["duplicates"], again);
        }
        let late = |row: &serde_json::Value| row["reason"] == "after_terminal";
        assert!(
            outcome.rejections.iter().all(late),
            "{:?}",
            outcome.rejections
        );
    }
}

/// Both terminal results in one write, or in two with a pause: the first one holds.
#[tokio::test]
async fn first_of_two_terminals_holds() {
    let stage = Stage::new().await;
    for pause in [None, Some(0), Some(1), Some(2), Some(5), Some(20)] {
        for is_completed_first in [true, false] {
            let outcome = stage
                .play(move |run| {
                    let mut ends = [run.completed(2), run.failed(2)];
                    if !is_completed_first {
                        ends.reverse();
                    }
                    let parts = [run.delta(1, "a")].into_iter().chain(ends);
                    let parts: Vec<_> = parts.map(String::into_bytes).collect();
                    let message = match pause {
                        Some(pause) => ScriptStep::Pace(parts, Duration::from_millis(pause)),
                        None => ScriptStep::Send(parts.concat()),
                    };
                    vec![sse_head(), message]
                })
                .await;
            let ending = if is_completed_first {
                "completed"
            } else {
                "failed boom"
            };
            assert_eq!(outcome.ending(), ending, "{pause:?} ms between");
            assert_eq!(outcome.ledger.0.len(), 2);
        }
    }
}

#[rstest]
#[tokio::test]
async fn invalid_sequence_number_fails_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    for sequence in ["0", "-1", "18446744073709551616", "1.5"] {
        let outcome = stage
            .play(move |run| sse(run.delta(sequence, "a") + &run.completed(2)))
            .await;
        outcome.assert(VIOLATION, &[FAILED]);
    }
}

#[tokio::test]
async fn keeps_differing_runner_sequence_in_metadata() {
    let stage = Stage::new().await;
    let outcome = stage
        .play(|run| sse(run.delta(1, "a") + &run.delta(5, "b") + &run.completed(6)))
        .await;
    let events = outcome.ledger.events();
    assert_eq!(events[0].get("metadata"), None);
    assert_eq!(events[1]["metadata"]["runner_sequence"], 5);
    assert_eq!(events[2]["metadata"]["runner_sequence"], 6);
}

#[tokio::test]
async fn closes_socket_after_terminal_and_drops_rest() {
    let stage = Stage::new().await;
    let outcome = stage
        .play(|run| sse_and_wait(run.talk(1).concat() + &run.delta(3, "late") + &run.completed(4)))
        .await;
    outcome.assert("completed", &[DELTA, COMPLETED]);
    let late = |rejection: &serde_json::Value| rejection["reason"] == "after_terminal";
    assert!(
        outcome.rejections.iter().all(late),
        "{:?}",
        outcome.rejections
    );
    let closed = tokio::time::timeout(Duration::from_secs(2), stage.runner.closed(1));
    closed.await.expect("the socket is closed within a second");
}

#[rstest]
#[tokio::test]
async fn foreign_run_id_fails_only_sending_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let gate = Gate::new();
    let held = gate.clone();
    let victim = stage
        .start(move |run| sse_around(&held, run.delta(1, "a"), run.completed(2)))
        .await;

    let named = Run {
        event_id: String::new(),
        id: victim.clone(),
        attempt: 1,
        after: 0,
    };
    let outcome = stage
        .play(move |run| sse(run.delta(1, "mine") + &named.delta(2, "yours") + &run.completed(3)))
        .await;
    outcome.assert(VIOLATION, &[DELTA, FAILED]);

    gate.cancel();
    let victim = stage.outcome(&victim).await;
    victim.assert("completed", &[DELTA, COMPLETED]);
    assert_eq!(victim.ledger.text(), "a");
    victim.assert_rejected(&[]);
}

#[rstest]
#[case::a_delta_without_a_chunk(&[(DELTA, "{}")])]
#[case::a_message_without_one(&[("message.completed", "{}")])]
#[case::state_of_no_scope(&[("state.updated", r#"{"scope":"bogus","key":"k","value":1}"#)])]
#[case::state_without_a_key(&[("state.updated", r#"{"scope":"actor","value":1}"#)])]
#[case::one_of_each(&[
    (DELTA, "{}"),
    ("message.completed", "{}"),
    ("state.updated", r#"{"scope":"bogus","key":"k","value":1}"#),
])]
#[tokio::test]
async fn third_invalid_payload_fails_run(#[case] bad: &'static [(&'static str, &'static str)]) {
    let stage = Stage::new().await;
    for count in 1..=3_usize {
        let script = move |run: &Run| {
            let bad = (2..).zip(bad.iter().cycle()).take(count);
            let bad: String = bad
                .map(|(n, (kind, data))| run.result(n, kind, data))
                .collect();
            sse(run.delta(1, "a") + &bad + &run.completed(count + 2))
        };
        let outcome = stage.play(script).await;
        if count < 3 {
            outcome.assert("completed", &[DELTA, COMPLETED]);
        } else {
            outcome.assert(VIOLATION, &[DELTA, FAILED]);
        }
        outcome.assert_rejected(&["invalid_payload"; 3][..count]);
    }
}

#[tokio::test]
async fn rejects_malformed_results_and_continues_run() {
    let stage = Stage::new().await;
    let deep = format!("{}1{}", "[".repeat(70), "]".repeat(70));
    for (json, reason) in [
        ("nope".to_owned(), Some("invalid_json")),
        (r#"{"run_id":"#.to_owned(), Some("invalid_json")),
        ("[]".to_owned(), Some("invalid_envelope")),
        (
            r#"{"run_id":"ID","data":{}}"#.to_owned(),
            Some("invalid_envelope"),
        ),
        (
            r#"{"run_id":"ID","type":7,"data":{}}"#.to_owned(),
            Some("invalid_envelope"),
        ),
        (
            r#"{"run_id":"ID","type":"a.b","type":"c.d","data":{}}"#.to_owned(),
            None,
        ),
        (
            format!(r#"{{"run_id":"ID","type":"a.b","data":{{"deep":{deep}}}}}"#),
            None,
        ),
    ] {
        let script = move |run: &Run| {
            sse(run.delta(1, "a") + &frame(&json.replace("ID", &run.id)) + &run.completed(2))
        };
        let outcome = stage.play(script).await;
        outcome.assert("completed", &[DELTA, COMPLETED]);
        match reason {
            Some(reason) => outcome.assert_rejected(&[reason]),
            None => assert_eq!(outcome.rejections.len(), 1, "{:?}", outcome.rejections),
        }
    }
}

#[tokio::test]
async fn unknown_result_types_stream_as_unknown() {
    let stage = Stage::new().await;
    let run_id = stage
        .start(|run| sse(run.result(1, "vendor.thing", "{}") + &run.talk(1).concat()))
        .await;
    let frames = stage.client.follow(&run_id, 0).await.rest().await;
    let note: serde_json::Value = serde_json::from_str(&frames[0].data).unwrap();
    let text = note["data"]["text"].as_str().unwrap();
    assert_contains!(text, "vendor.thing", "the type is unknown");
    assert_eq!(frames[1].event, "unknown");
    assert!(
        frames[1].data.contains(r#""type":"vendor.thing""#),
        "{:?}",
        frames[1]
    );
}

#[tokio::test]
async fn non_message_events_may_complete_without_message() {
    let stage = Stage::with(|config| {
        let quiet = Agent {
            name: "quiet",
            event_types: "timer.*",
            ..Agent::default()
        };
        config.agents.push(quiet);
    });
    let stage = stage.await;
    stage.runner.answer_all(|run| sse(run.completed(1)));
    let run_id = stage
        .client
        .post(&json!({"event_type": "timer.fired"}))
        .await
        .run_id();
    stage
        .outcome(&run_id)
        .await
        .assert("completed", &[COMPLETED]);
}
