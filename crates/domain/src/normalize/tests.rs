use std::sync::Arc;

use protocol::message::Message;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::run::Failure;

fn snapshot() -> AuthorizationSnapshot {
    serde_json::from_value(json!({
        "v": 1, "run_id": Uuid::nil(), "workspace_id": "default", "agent_id": Uuid::nil(),
        "agent_version": 1, "runner_id": "plugin:a/b/c", "endpoint_id": Uuid::nil(), "event_id": "e",
        "conversation": null, "resources": {}, "available_apis": {},
        "operations": ["interactions:request", "state:conversation"],
        "state": {"conversation": "identity"}, "decisions": [],
    }))
    .unwrap()
}

const LIMITS: ResultLimits = ResultLimits {
    event_bytes: 400,
    run_bytes: 4_000,
    run_events: 12,
    state_value_bytes: 32,
};

/// Epoch seconds.
const NOW: i64 = 1_000_000;

fn result(kind: &str, data: &Value, sequence: &Value) -> String {
    json!({"run_id": Uuid::nil(), "type": kind, "data": data, "sequence": sequence}).to_string()
}

fn delta(text: &str, sequence: u64) -> String {
    result(
        "message.delta",
        &json!({"chunk": {"role": "assistant", "content": text}}),
        &json!(sequence),
    )
}

/// Validates the lines and names each verdict.
fn verdicts(lines: &[String]) -> Vec<String> {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    lines
        .iter()
        .map(|line| name(validator.validate(line.as_bytes(), NOW)))
        .collect()
}

fn name(verdict: Verdict) -> String {
    match verdict {
        Verdict::Accept(accepted) => match accepted.effect {
            ResultEffect::End(ending) => format!("end {}", ending.reason),
            ResultEffect::SetState(update) => format!("state {}={}", update.key, update.value),
            ResultEffect::BindArtifact(id) => format!("artifact {id}"),
            ResultEffect::Ask(question) => format!("ask {}", question.interaction_id),
            ResultEffect::Act(action) => format!("act {}", action.action),
            ResultEffect::None if accepted.gap => "gap".to_owned(),
            ResultEffect::None => "ok".to_owned(),
        },
        Verdict::Duplicate => "duplicate".to_owned(),
        Verdict::Reject(rejection) => rejection.reason.as_str().to_owned(),
        Verdict::Fail(_, failure) => format!("fail {}", failure.code.as_str()),
    }
}

#[test]
fn accepts_question_once_from_permitted_run() {
    let ask = |id: &str, more: &Value, sequence: u64| {
        let mut payload = json!({"interaction_id": id, "title": "t", "fallback_text": "f"});
        payload
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let data = json!({"action": "interaction.requested", "payload": payload});
        result("action.requested", &data, &json!(sequence))
    };
    let lines = [
        ask("a", &json!({}), 1),
        ask("a", &json!({}), 2),
        ask("b", &json!({"expires_at": NOW + 60}), 3),
        ask("c", &json!({"expires_at": NOW}), 4),
    ];
    let expected = ["ask a", "invalid_payload", "ask b", "invalid_payload"];
    assert_eq!(verdicts(&lines), expected);
    let other = json!({"action": "send", "payload": {"title": ""}});
    let other = result("action.requested", &other, &json!(1));
    assert_eq!(verdicts(&[other]), ["ok"]);
    let mut snapshot = snapshot();
    snapshot.operations = Arc::default();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    let bad = ask("a", &json!({"title": ""}), 1);
    assert_eq!(
        name(validator.validate(bad.as_bytes(), NOW)),
        "ok",
        "telemetry"
    );
}

#[test]
fn rejects_conflicting_and_backward_sequences() {
    let lines = [
        delta("a", 1),
        delta("a", 1),
        delta("b", 1),
        delta("c", 5),
        delta("d", 3),
        delta("e", 6),
    ];
    let expected = [
        "ok",
        "duplicate",
        "sequence_conflict",
        "gap",
        "sequence_backward",
        "ok",
    ];
    assert_eq!(verdicts(&lines), expected);
}

/// No result follows a terminal one, so the run must not wait for its deadline.
#[test]
fn backward_terminal_result_fails_run() {
    let done = |sequence: u64| result("run.completed", &json!({}), &json!(sequence));
    for sequence in [1, 3] {
        let lines = [delta("a", 1), delta("b", 3), done(sequence)];
        let expected = ["ok", "gap", "fail runner.protocol_violation"];
        assert_eq!(verdicts(&lines), expected, "{sequence}");
    }
}

#[test]
fn accepts_messages_of_assistant_and_tool_only() {
    let says = |role: &str| json!({"message": {"role": role, "content": "x"}});
    let shows = |role: &str| json!({"chunk": {"role": role, "content": "x"}});
    let check = |role: &str, expected: &str| {
        let complete = result("message.completed", &says(role), &json!(1));
        assert_eq!(verdicts(&[complete]), [expected], "{role:?}");
        let piece = result("message.delta", &shows(role), &json!(1));
        assert_eq!(verdicts(&[piece]), [expected], "{role:?}");
    };
    check("assistant", "ok");
    check("tool", "ok");
    for role in [
        "user",
        "User",
        "user ",
        " user",
        "system",
        "System",
        "developer",
        "human",
        "\u{ff55}ser",
        "Assistant",
        "assistant\n",
        "function",
        "",
    ] {
        check(role, "invalid_payload");
    }
    let last = result("run.completed", &says("user"), &json!(1));
    assert_eq!(verdicts(&[last]), ["fail runner.protocol_violation"]);
}

#[test]
fn rejects_artifact_references_without_an_id() {
    let of = |kind: &str, url: &str| {
        let file = json!([{"type": "file_url", "file_url": url, "file_name": "a"}]);
        let image = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let message = |content: &Value| json!({"role": "assistant", "content": content});
        let data = [&file, &image].map(|content| match kind {
            "message.delta" => json!({"chunk": message(content)}),
            "message.completed" => json!({"message": message(content)}),
            _ => json!({"finish_reason": "stop", "message": message(content)}),
        });
        data.map(|data| verdicts(&[result(kind, &data, &json!(1))]).remove(0))
    };
    for kind in ["message.delta", "message.completed", "run.completed"] {
        let last = kind == "run.completed";
        let (refused, taken) = if last {
            ("fail runner.protocol_violation", "end stop")
        } else {
            ("invalid_payload", "ok")
        };
        for id in ["../conversations/OTHER/history?x=", "..", "", "a-1"] {
            let url = format!("artifact:{id}");
            assert_eq!(of(kind, &url), [refused; 2], "{kind} {url}");
            assert_eq!(of(kind, &url.to_uppercase()), [refused; 2], "{kind} {url}");
        }
        let id = format!("artifact:{}", Uuid::max());
        for url in [
            id.as_str(),
            "https://a.example/artifact:..",
            "data:,artifact:..",
        ] {
            assert_eq!(of(kind, url), [taken; 2], "{kind} {url}");
        }
    }
}

#[test]
fn missing_message_failure_names_first_rejection() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    let bad = result(
        "message.completed",
        &json!({"message": {"content": "x"}}),
        &json!(1),
    );
    validator.validate(bad.as_bytes(), NOW);
    let done = result("run.completed", &json!({}), &json!(2));
    let Verdict::Fail(_, failure) = validator.validate(done.as_bytes(), NOW) else {
        panic!("no violation of the protocol");
    };
    assert_eq!(
        failure.message,
        format!(
            "the runner completed without any message; 1 of its results was rejected (event 1: \
             message.completed needs a message with role and content): see GET /v1/runs/{}/rejections",
            snapshot.run_id
        )
    );
    let first = &failure.details["first_rejection"];
    assert_eq!(first["reason"], "invalid_payload", "{}", failure.details);
    assert!(
        first["excerpt"]
            .as_str()
            .unwrap()
            .contains("message.completed")
    );
}

#[test]
fn missing_message_failure_names_unknown_type() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    for n in 1..3 {
        let part = result("message.part", &json!({"text": "hi"}), &json!(n));
        validator.validate(part.as_bytes(), NOW);
    }
    let done = result("run.completed", &json!({}), &json!(3));
    let Verdict::Fail(_, failure) = validator.validate(done.as_bytes(), NOW) else {
        panic!("no violation of the protocol");
    };
    assert_eq!(
        failure.message,
        "the runner completed without any message; 2 results have an unknown type, first \
         \"message.part\" (did you mean message.delta?)"
    );
}

#[test]
fn failures_name_no_extension_types() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    let shown = result("x.graph.projection", &json!({"form": "whole"}), &json!(1));
    validator.validate(shown.as_bytes(), NOW);
    let broken = || Failure::new(FailureCode::RunnerStreamTruncated, "the stream broke");
    assert_eq!(validator.explain(broken()), broken());
}

#[test]
fn broken_stream_with_rejections_is_final() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    let broken = || Failure::new(FailureCode::RunnerStreamTruncated, "the stream broke");
    assert_eq!(validator.explain(broken()), broken());
    for line in [r#"{"choices":[]}"#, "[DONE]"] {
        validator.validate(line.as_bytes(), NOW);
    }
    let failure = validator.explain(broken());
    assert!(!failure.retryable);
    let expected = "the stream broke; 2 of its results were rejected (first event 1: an event is not an \
                    AgentRunResult, an object with `run_id`, `type` and `data`): see GET /v1/runs/";
    assert!(failure.message.starts_with(expected), "{}", failure.message);
}

#[test]
fn sequence_is_positive_integer_or_absent() {
    for bad in [
        json!(0),
        json!(-1),
        json!(1.0),
        json!("1"),
        json!(18_446_744_073_709_551_616.0),
    ] {
        let line = result("x", &json!({}), &bad);
        assert_eq!(
            verdicts(&[line]),
            ["fail runner.protocol_violation"],
            "{bad}"
        );
    }
    assert_eq!(verdicts(&[result("x", &json!({}), &Value::Null)]), ["ok"]);
}

#[test]
fn third_invalid_payload_or_invalid_terminal_fails_run() {
    let bad = |sequence: u64| result("message.delta", &json!({"chunk": 1}), &json!(sequence));
    let expected = [
        "invalid_payload",
        "ok",
        "invalid_payload",
        "fail runner.protocol_violation",
    ];
    assert_eq!(verdicts(&[bad(1), delta("a", 2), bad(3), bad(4)]), expected);
    let terminal = result("run.failed", &json!({}), &json!(1));
    assert_eq!(verdicts(&[terminal]), ["fail runner.protocol_violation"]);
}

#[test]
fn third_rejection_quotes_the_event() {
    let long = "x".repeat(300);
    for (event, quote) in [
        ("hello", "\"hello\"".to_owned()),
        ("say \"hi\"\u{7}", r#""say \"hi\"\u{7}""#.to_owned()),
        (r#"{"a":1}"#, r#""{\"a\":1}""#.to_owned()),
        (&long, format!("\"{}\"", "x".repeat(80))),
    ] {
        let snapshot = snapshot();
        let mut validator = ResultValidator::new(
            &snapshot,
            LIMITS,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        );
        validator.validate(b"first", NOW);
        validator.validate(event.as_bytes(), NOW);
        let Verdict::Fail(rejection, failure) = validator.validate(event.as_bytes(), NOW) else {
            panic!("{event} was the third");
        };
        let expected = format!(
            "{}; it begins with {quote}; 2 of its results were rejected (first event 1: an event is not JSON): \
             see GET /v1/runs/{}/rejections",
            rejection.message, snapshot.run_id
        );
        assert_eq!(failure.message, expected);
        assert_eq!(failure.details["first_rejection"]["excerpt"], "first");
    }
}

#[test]
fn rejected_terminal_result_fails_run() {
    let id = Uuid::nil();
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    for rest in [
        r#""data":"x""#,
        r#""data":[]"#,
        r#""data":{},"usage":[]"#,
        r#""data":{"finish_reason":"stop"},"usage":7"#,
        r#""data":{"finish_reason":7}"#,
        &format!(r#""data":{{"more":{deep}}}"#),
    ] {
        for kind in ["run.completed", "run.failed"] {
            let terminal = format!(r#"{{"run_id":"{id}","type":"{kind}",{rest}}}"#);
            let outcomes = verdicts(&[delta("a", 1), terminal]);
            assert_eq!(
                outcomes,
                ["ok", "fail runner.protocol_violation"],
                "{kind} {rest}"
            );
        }
        let other = format!(r#"{{"run_id":"{id}","type":"run.progress",{rest}}}"#);
        assert!(!verdicts(&[other])[0].starts_with("fail"), "{rest}");
    }
}

#[test]
fn foreign_run_id_fails_and_terminal_is_final() {
    let foreign = json!({"run_id": Uuid::max(), "type": "x"}).to_string();
    assert_eq!(verdicts(&[foreign]), ["fail runner.protocol_violation"]);
    let failed = result("run.failed", &json!({"error": "no"}), &json!(1));
    assert_eq!(
        verdicts(&[failed, delta("a", 2)]),
        ["end runner.error", "after_terminal"]
    );
}

#[test]
fn message_run_fails_without_message() {
    let done = |sequence: u64| result("run.completed", &json!({}), &json!(sequence));
    assert_eq!(verdicts(&[done(1)]), ["fail runner.no_output"]);
    assert_eq!(verdicts(&[delta("a", 1), done(2)]), ["ok", "end stop"]);
}

#[test]
fn state_needs_granted_scope_valid_key_small_value() {
    let state = |scope: &str, key: &str, value: &Value| {
        result(
            "state.updated",
            &json!({"scope": scope, "key": key, "value": value}),
            &Value::Null,
        )
    };
    assert_eq!(
        verdicts(&[state("conversation", "k", &json!([1]))]),
        ["state k=[1]"]
    );
    assert_eq!(
        verdicts(&[state("actor", "k", &json!(1))]),
        ["unauthorized"]
    );
    assert_eq!(
        verdicts(&[state("conversation", "host.k", &json!(1))]),
        ["unauthorized"]
    );
    assert_eq!(
        verdicts(&[state("moon", "k", &json!(1))]),
        ["invalid_payload"]
    );
    assert_eq!(
        verdicts(&[state("conversation", "k", &json!("x".repeat(40)))]),
        ["invalid_payload"]
    );
    // Escapes and spaces of the runner do not count, as in the host API.
    let escaped = state("conversation", "k", &json!(0))
        .replace(":0", r#":  ["\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"]"#);
    assert_eq!(verdicts(&[escaped]), ["state k=[\"éééééé\"]"]);
}

#[test]
fn reports_exact_reason_of_malformed_bytes() {
    let snapshot = snapshot();
    let check = |raw: &[u8], expected: &str| {
        let mut validator = ResultValidator::new(
            &snapshot,
            LIMITS,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        );
        assert_eq!(name(validator.validate(raw, NOW)), expected, "{raw:?}");
    };
    check(b"\"\xff\"", "invalid_utf8");
    check(b"{", "invalid_json");
    check(b"{}", "invalid_envelope");
    check(
        br#"{"run_id":"a","run_id":"b","type":"x"}"#,
        "invalid_envelope",
    );
    check(b"{\xff", "invalid_utf8");
    for poison in [r#""\ud8""#, "1e999", "[-1E400]", "1.5e+309"] {
        let result = format!(r#"{{"run_id":"a","type":"x","data":{{"a":{poison}}}}}"#);
        check(result.as_bytes(), "invalid_json");
    }
    let huge = format!(r#"{{"type":"x","n":{}}}"#, "9".repeat(310));
    check(huge.as_bytes(), "invalid_json");
    for valid in [
        r#""\ud83c\udf89 \\ud800 \\u0000 \u00e9""#,
        "[1e308,-0.0,1e-400,18446744073709551616]",
    ] {
        let result = format!(r#"{{"type":"x","data":{{"a":{valid}}}}}"#);
        check(result.as_bytes(), "invalid_envelope");
    }
    check(
        format!("{}{}", "[".repeat(65), "]".repeat(65)).as_bytes(),
        "invalid_json",
    );
    check(&[b'x'; 401], "fail runner.output_limit");
}

#[test]
fn limits_run_events_and_bytes() {
    let many: Vec<_> = (1..=13).map(|sequence| delta("a", sequence)).collect();
    assert_eq!(verdicts(&many).last().unwrap(), "fail runner.output_limit");
    let large: Vec<_> = (1..=12)
        .map(|sequence| delta(&"a".repeat(270), sequence))
        .collect();
    assert_eq!(verdicts(&large).last().unwrap(), "fail runner.output_limit");
}

fn ending(delta_mode: DeltaMode, lines: &[String]) -> (Option<String>, String, bool) {
    let snapshot = snapshot();
    let mut validator =
        ResultValidator::new(&snapshot, LIMITS, delta_mode, ExpectedOutput::Message);
    let mut last = None;
    for line in lines {
        if let Verdict::Accept(accepted) = validator.validate(line.as_bytes(), NOW)
            && let ResultEffect::End(ending) = accepted.effect
        {
            let message = ending.completed_messages.last().map(Message::plain_text);
            last = Some((
                message,
                accepted.data.get().to_owned(),
                accepted.message_omitted,
            ));
        }
    }
    last.unwrap()
}

#[test]
fn output_prefers_complete_message_over_terminal_over_deltas() {
    let message = |text: &str| json!({"message": {"role": "assistant", "content": text}});
    let complete = |text: &str| result("message.completed", &message(text), &Value::Null);
    let done = |data: &Value| result("run.completed", data, &Value::Null);
    let bare = done(&json!({}));
    let increments = [delta("a", 1), delta("b", 2), bare.clone()];
    assert_eq!(ending(DeltaMode::Increment, &increments).0.unwrap(), "ab");
    let snapshots = [delta("a", 1), delta("ab", 2), bare.clone()];
    assert_eq!(ending(DeltaMode::Snapshot, &snapshots).0.unwrap(), "ab");
    assert_eq!(
        ending(DeltaMode::Increment, &[delta("a", 1), complete("w"), bare])
            .0
            .unwrap(),
        "w"
    );
    let (text, data, omitted) = ending(DeltaMode::Increment, &[complete("w"), done(&message("w"))]);
    assert_eq!(
        (text.as_deref(), data.as_str(), omitted),
        (Some("w"), "{}", true)
    );
    let (text, data, omitted) = ending(DeltaMode::Increment, &[delta("a", 1), done(&message("m"))]);
    assert_eq!((text.as_deref(), omitted), (Some("m"), false));
    assert!(data.contains("\"m\""));
}

#[test]
fn oversized_deltas_fail_run_without_complete_message() {
    const MIB: usize = 1024 * 1024;
    let check = |event_bytes: usize, last: &[String]| {
        let limits = ResultLimits {
            event_bytes,
            run_bytes: 64 * MIB,
            ..LIMITS
        };
        let snapshot = snapshot();
        let mut validator = ResultValidator::new(
            &snapshot,
            limits,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        );
        // Five bytes above four mebibytes.
        let large = "x".repeat(MIB + 1);
        for sequence in 1..=5 {
            let text = if sequence == 5 { "!" } else { &large };
            assert_eq!(
                name(validator.validate(delta(text, sequence).as_bytes(), NOW)),
                "ok"
            );
        }
        let (end, before) = last.split_last().unwrap();
        for line in before {
            assert_eq!(name(validator.validate(line.as_bytes(), NOW)), "ok");
        }
        match validator.validate(end.as_bytes(), NOW) {
            Verdict::Accept(AcceptedResult {
                effect: ResultEffect::End(ending),
                ..
            }) => format!(
                "{} bytes",
                ending.completed_messages.last().unwrap().plain_text().len()
            ),
            other => name(other),
        }
    };
    let end = |data: &Value| result("run.completed", data, &Value::Null);
    let message = json!({"message": {"role": "assistant", "content": "in short"}});
    let complete = result("message.completed", &message, &Value::Null);
    let snapshot =
        json!({"chunk": {"role": "assistant", "content": "", "all_content": "all of it"}});
    let snapshot = result("message.delta", &snapshot, &Value::Null);
    let bare = end(&json!({}));
    let max = 2 * MIB;
    assert_eq!(
        check(max, std::slice::from_ref(&bare)),
        "fail runner.output_limit"
    );
    assert_eq!(check(max, &[end(&message)]), "8 bytes");
    assert_eq!(check(max, &[complete, bare.clone()]), "8 bytes");
    assert_eq!(check(max, &[snapshot, bare.clone()]), "9 bytes");
    // The limit of one event also applies to the sum of many.
    assert_eq!(check(5 * MIB, &[bare]), format!("{} bytes", 4 * MIB + 5));
}

#[test]
fn snapshots_reach_clients_as_increment_and_full_text() {
    let snapshot = snapshot();
    let chunks = |mode, sent: &[Value]| -> Vec<Value> {
        let mut validator = ResultValidator::new(&snapshot, LIMITS, mode, ExpectedOutput::Message);
        let chunks = sent.iter().map(|chunk| {
            let line = result("message.delta", &json!({"chunk": chunk}), &Value::Null);
            let Verdict::Accept(accepted) = validator.validate(line.as_bytes(), NOW) else {
                panic!("{chunk} is a delta");
            };
            let data: Value = serde_json::from_str(accepted.data.get()).unwrap();
            data["chunk"].clone()
        });
        chunks.collect()
    };
    let content_only = |content: &str| json!({"role": "assistant", "content": content});
    let with_full_text = |content: &str, full_text: &str| json!({"role": "assistant", "content": content, "all_content": full_text});
    let sent = [
        content_only("a"),
        content_only("a b"),
        content_only(""),
        with_full_text("a b c", "a b c"),
        content_only("new"),
    ];
    assert_eq!(
        chunks(DeltaMode::Snapshot, &sent),
        [
            with_full_text("a", "a"),
            with_full_text(" b", "a b"),
            content_only(""),
            with_full_text(" c", "a b c"),
            with_full_text("new", "new"),
        ]
    );
    assert_eq!(chunks(DeltaMode::Increment, &sent), sent);
    let parts = json!({"role": "assistant", "content": [{"type": "text", "text": "a"}]});
    let mut expected = parts.clone();
    expected["all_content"] = json!("a");
    assert_eq!(chunks(DeltaMode::Snapshot, &[parts]), [expected]);
}

#[test]
fn data_is_written_on_one_line() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    let raw = format!(
        "{{\"run_id\":\"{}\",\"type\":\"x\",\"data\":{{\n\"a\":\r\n1}}}}",
        Uuid::nil()
    );
    let Verdict::Accept(accepted) = validator.validate(raw.as_bytes(), NOW) else {
        panic!("accepted")
    };
    assert_eq!(accepted.data.get(), "{ \"a\":  1}");
}

#[test]
fn accepts_announcements_of_uploaded_artifacts_only() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    )
    .with_uploaded_artifacts();
    let id = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";
    let announce = |sequence: u64, id: &str| {
        let run = snapshot.run_id;
        format!(
            r#"{{"run_id":"{run}","type":"artifact.created","data":{{"artifact_id":"{id}"}},"sequence":{sequence}}}"#
        )
    };
    let first = announce(1, id);
    let Verdict::Reject(rejection) = validator.validate(first.as_bytes(), NOW) else {
        panic!("accepts an artifact without an upload");
    };
    assert_eq!(rejection.reason, Reason::UnknownArtifact);
    let named = announced_artifact(first.as_bytes()).unwrap();
    assert_eq!(named.to_string(), id);
    validator.add_artifact(named);
    let second = announce(2, id);
    let Verdict::Accept(accepted) = validator.validate(second.as_bytes(), NOW) else {
        panic!("it is known");
    };
    assert_eq!(accepted.effect, ResultEffect::BindArtifact(named));
    let upper = announce(3, &id.to_uppercase());
    assert!(matches!(
        validator.validate(upper.as_bytes(), NOW),
        Verdict::Reject(_)
    ));
    assert_eq!(announced_artifact(upper.as_bytes()), None);
}

#[test]
fn replay_ignores_time_and_limits() {
    let snapshot = snapshot();
    let small = ResultLimits {
        run_events: 1,
        run_bytes: 1,
        event_bytes: 400,
        ..LIMITS
    };
    let question = |sequence: u64| {
        let data = json!({"action": "interaction.requested", "payload": {
            "interaction_id": "q", "kind": "form", "title": "t", "fallback_text": "f", "expires_at": NOW + 60,
            "fields": [{"id": "a", "label": "A", "type": "text"}]}});
        result("action.requested", &data, &json!(sequence))
    };
    let results = [
        delta("one ", 1),
        question(2),
        result(
            "artifact.created",
            &json!({"artifact_id": Uuid::nil()}),
            &json!(3),
        ),
        delta("refused then", 4),
        delta("two", 5),
    ];
    let recalled = |limits| {
        let mut validator = ResultValidator::new(
            &snapshot,
            limits,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        )
        .with_uploaded_artifacts();
        for (line, number) in results.iter().zip(1..) {
            let verdict = match number {
                4 => EarlierVerdict::Rejected,
                _ => EarlierVerdict::Accepted,
            };
            ResultReplay(&mut validator).sent(number, line.as_bytes(), verdict);
        }
        validator
    };
    assert_eq!(recalled(small).tally().rejected, 1);
    let mut validator = recalled(LIMITS);
    // The replayed results contain the same question.
    assert_eq!(
        name(validator.validate(question(6).as_bytes(), NOW)),
        "invalid_payload"
    );
    let late = NOW + 1_000_000;
    let again = result(
        "message.delta",
        &json!({"chunk": {"role": "assistant", "content": "!"}}),
        &json!(7),
    );
    assert_eq!(name(validator.validate(again.as_bytes(), late)), "ok");
    let end = result(
        "run.completed",
        &json!({"finish_reason": "stop"}),
        &json!(8),
    );
    let Verdict::Accept(accepted) = validator.validate(end.as_bytes(), late) else {
        panic!("it ends");
    };
    let ResultEffect::End(ending) = accepted.effect else {
        panic!("it ends");
    };
    assert_eq!(
        ending.completed_messages.last().unwrap().plain_text(),
        "one two!"
    );
    assert_eq!(validator.tally().rejected, 2);
}

#[test]
fn replaces_reserved_codes_and_those_after_cancel() {
    let ended = |code: &str, was_cancelled: bool| {
        let data = json!({"code": code, "message": "m", "details": {"try": 2}});
        let line = result("run.failed", &data, &json!(1));
        let snapshot = snapshot();
        let mut validator = ResultValidator::new(
            &snapshot,
            LIMITS,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        );
        if was_cancelled {
            validator.note_cancelled();
        }
        match validator.validate(line.as_bytes(), NOW) {
            Verdict::Accept(AcceptedResult {
                data,
                effect: ResultEffect::End(ending),
                ..
            }) => {
                let client_data: Value = serde_json::from_str(data.get()).unwrap();
                (client_data, *ending)
            }
            other => panic!("{other:?}"),
        }
    };
    for code in [
        "host.orphaned",
        "timeout",
        "runner.no_output",
        "HOST.budget",
        "runner.llm_error",
        "quota",
    ] {
        let is_own = ["runner.llm_error", "quota"].contains(&code);
        let after = [(true, "cancelled", RunStatus::Cancelled)];
        let alone = (!is_own).then_some((false, "runner.error", RunStatus::Failed));
        for (was_cancelled, expected, status) in after.into_iter().chain(alone) {
            let (client_data, ending) = ended(code, was_cancelled);
            assert_eq!(client_data["code"], expected, "{code}");
            assert_eq!(client_data["details"], json!({"try": 2, "code": code}));
            assert_eq!((ending.status, ending.reason.as_str()), (status, expected));
            assert_eq!(ending.error["code"], expected);
            assert_eq!(ending.error["details"]["code"], code);
        }
    }
    let (client_data, ending) = ended("quota", false);
    assert_eq!(
        (&client_data["code"], &client_data["details"]),
        (&json!("quota"), &json!({"try": 2}))
    );
    assert_eq!(ending.error.get("details"), None);
    let (_, ending) = ended("cancelled", false);
    assert_eq!(
        (ending.status, ending.reason.as_str()),
        (RunStatus::Failed, "runner.error")
    );
    let (client_data, ending) = ended("cancelled", true);
    assert_eq!(client_data["code"], "cancelled");
    assert_eq!(
        (ending.status, ending.reason.as_str()),
        (RunStatus::Cancelled, "cancelled")
    );
}

#[test]
fn replaces_reserved_finish_reasons_by_stop() {
    let ended = |reason: &str, was_cancelled: bool| {
        let data = json!({"finish_reason": reason, "details": {"try": 2},
            "message": {"role": "assistant", "content": "hi"}});
        let line = result("run.completed", &data, &json!(1));
        let snapshot = snapshot();
        let mut validator = ResultValidator::new(
            &snapshot,
            LIMITS,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        );
        if was_cancelled {
            validator.note_cancelled();
        }
        match validator.validate(line.as_bytes(), NOW) {
            Verdict::Accept(AcceptedResult {
                data,
                effect: ResultEffect::End(ending),
                ..
            }) => {
                let client_data: Value = serde_json::from_str(data.get()).unwrap();
                (client_data, ending.status, ending.reason)
            }
            other => panic!("{other:?}"),
        }
    };
    for reason in [
        "host.orphaned",
        "timeout",
        "runner.denied_calls",
        "cancelled",
    ] {
        let (client_data, status, stored_reason) = ended(reason, false);
        assert_eq!(client_data["finish_reason"], "stop");
        assert_eq!(
            client_data["details"],
            json!({"try": 2, "finish_reason": reason})
        );
        assert_eq!(client_data["message"]["content"], "hi");
        assert_eq!(
            (status, stored_reason.as_str()),
            (RunStatus::Completed, "stop")
        );
    }
    for (reason, was_cancelled) in [("length", false), ("cancelled", true)] {
        let (client_data, _, stored_reason) = ended(reason, was_cancelled);
        assert_eq!(
            (&client_data["finish_reason"], stored_reason.as_str()),
            (&json!(reason), reason)
        );
    }
}

/// Validates lines of bytes. Returns the verdicts and the texts that clients see.
fn judged(lines: &[&[u8]], mode: DeltaMode) -> (Vec<String>, Vec<Value>) {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(&snapshot, LIMITS, mode, ExpectedOutput::Message);
    let mut shown = Vec::new();
    let outcomes = lines.iter().map(|line| {
        let verdict = validator.validate(line, NOW);
        if let Verdict::Accept(accepted) = &verdict {
            shown.push(serde_json::from_str(accepted.data.get()).unwrap());
            if let ResultEffect::End(ending) = &accepted.effect
                && let Some(message) = ending.completed_messages.last()
            {
                shown.push(json!({"output": message.plain_text()}));
            }
        }
        name(verdict)
    });
    (outcomes.collect(), shown)
}

fn bare(kind: &str, data: &str) -> Vec<u8> {
    let run = Uuid::nil();
    format!(r#"{{"run_id":"{run}","type":"{kind}","data":{data}}}"#).into_bytes()
}

#[test]
fn repairs_invalid_characters_in_strings() {
    let check = |content: &[u8], expected: &str| {
        let quoted = [b"\"", content, b"\""].concat();
        let message = |kind: &str, before: &str, after: &str| {
            let line = bare(
                kind,
                &format!(r#"{{{before}"role":"assistant","content":@}}{after}"#),
            );
            let at = line.iter().position(|byte| *byte == b'@').unwrap();
            [&line[..at], &quoted, &line[at + 1..]].concat()
        };
        let complete = message("message.completed", r#""message":{"#, "}");
        let done = bare("run.completed", "{}");
        let (outcomes, shown) = judged(&[&complete, &done], DeltaMode::Increment);
        assert_eq!(outcomes, ["ok", "end stop"], "{content:?}");
        assert_eq!(shown[0]["message"]["content"], expected);
        assert_eq!(shown[2]["output"], expected);
        let last = message("run.completed", r#""message":{"#, "}");
        let (outcomes, shown) = judged(&[&last], DeltaMode::Increment);
        assert_eq!(outcomes, ["end stop"]);
        assert_eq!(shown[1]["output"], expected);
    };
    check(br"a\ud83d", "a\u{FFFD}");
    check(br"\ude00b", "\u{FFFD}b");
    check(br"a\u0000b", "a\u{FFFD}b");
    check(b"a\xFFb", "a\u{FFFD}b");
    check(b"a\nb", "a\nb");
    let failed = bare("run.failed", r#"{"code":"quota","message":"\ud83d"}"#);
    let (outcomes, _) = judged(&[&failed], DeltaMode::Increment);
    assert_eq!(outcomes, ["end quota"]);
}

#[test]
fn joins_surrogate_halves_of_consecutive_deltas() {
    let check = |mode: DeltaMode, pieces: &[&str], expected: &[&str], output: &str| {
        let delta = |piece: &&str| {
            let chunk = format!(r#"{{"chunk":{{"role":"assistant","content":{piece}}}}}"#);
            bare("message.delta", &chunk)
        };
        let mut lines: Vec<_> = pieces.iter().map(delta).collect();
        lines.insert(1, bare("processor.log", r#"{"text":"between"}"#));
        lines.push(bare("run.completed", "{}"));
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        let (_, shown) = judged(&lines, mode);
        let texts = shown
            .iter()
            .filter_map(|data| data["chunk"]["content"].as_str());
        assert_eq!(texts.collect::<Vec<_>>(), expected, "{pieces:?}");
        assert_eq!(shown.last().unwrap()["output"], output);
    };
    let joins = |pieces: &[&str], expected: &[&str], output: &str| {
        check(DeltaMode::Increment, pieces, expected, output);
    };
    joins(&[r#""a\ud83d""#, r#""\ude00b""#], &["a", "😀b"], "a😀b");
    joins(&[r#""\ud83d""#, r#""x""#], &["", "\u{FFFD}x"], "\u{FFFD}x");
    joins(&[r#""x""#, r#""\ud83d""#], &["x", ""], "x\u{FFFD}");
    let snapshots = [r#""a\ud83d""#, r#""a\ud83d\ude00""#];
    let replaced = &["a\u{FFFD}", "a😀"];
    check(DeltaMode::Snapshot, &snapshots, replaced, "a😀");
}

#[test]
fn fails_runs_whose_message_cannot_be_read() {
    let delta = bare(
        "message.delta",
        r#"{"chunk":{"role":"assistant","content":"a"}}"#,
    );
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    let data = format!(r#"{{"message":{{"role":"assistant","content":"b"}},"x":{deep}}}"#);
    let lost = bare("message.completed", &data);
    let complete = bare(
        "message.completed",
        r#"{"message":{"role":"assistant","content":"c"}}"#,
    );
    let done = bare("run.completed", "{}");
    let (outcomes, _) = judged(&[&delta, &lost, &done], DeltaMode::Increment);
    assert_eq!(
        outcomes,
        ["ok", "invalid_json", "fail runner.protocol_violation"]
    );
    let cut = &lost[..lost.len() - 2];
    let (outcomes, _) = judged(&[&delta, cut, &done], DeltaMode::Increment);
    assert_eq!(outcomes[2], "fail runner.protocol_violation");
    let (outcomes, _) = judged(&[&lost, &complete, &done], DeltaMode::Increment);
    assert_eq!(outcomes, ["invalid_json", "ok", "end stop"]);
}

#[test]
fn keeps_complete_messages_in_order() {
    let complete = |text: &str| {
        let data = json!({"message": {"role": "assistant", "content": text}});
        bare("message.completed", &data.to_string())
    };
    let messages_of = |lines: &[Vec<u8>]| {
        let snapshot = snapshot();
        let wide = ResultLimits {
            run_bytes: 1_000_000,
            run_events: 1000,
            ..LIMITS
        };
        let mut validator = ResultValidator::new(
            &snapshot,
            wide,
            DeltaMode::Increment,
            ExpectedOutput::Message,
        );
        for line in lines {
            validator.validate(line, NOW);
        }
        let stored = validator.completed_messages();
        let texts = stored.messages.iter().map(Message::plain_text);
        (texts.collect::<Vec<_>>(), stored.count)
    };
    assert_eq!(messages_of(&[]), (vec![], 0));
    let three = ["one", "two", "two"].map(complete);
    assert_eq!(
        messages_of(&three),
        (vec!["one".into(), "two".into(), "two".into()], 3)
    );
    let many: Vec<_> = (1..=150).map(|n| complete(&n.to_string())).collect();
    let (texts, count) = messages_of(&many);
    assert_eq!((texts.len(), count), (100, 150));
    assert_eq!((texts[98].as_str(), texts[99].as_str()), ("99", "150"));
}

fn numbered(snapshot: &AuthorizationSnapshot) -> ResultValidator<'_> {
    let validator = ResultValidator::new(
        snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    validator.with_numbers()
}

#[test]
fn resumable_runner_must_number_without_gaps() {
    let unnumbered = json!({"run_id": Uuid::nil(), "type": "run.progress", "data": {}}).to_string();
    let failed = "fail runner.protocol_violation";
    for (lines, expected) in [
        (vec![delta("a", 1), delta("a", 1)], vec!["ok", "duplicate"]),
        (vec![delta("a", 1), delta("b", 1)], vec!["ok", failed]),
        (vec![delta("a", 1), delta("b", 3)], vec!["ok", failed]),
        (vec![delta("a", 2)], vec![failed]),
        (vec![unnumbered], vec![failed]),
        // The number of an unreadable result is missing.
        (
            vec![delta("a", 1), "{".to_owned(), delta("b", 3)],
            vec!["ok", "invalid_json", "gap"],
        ),
    ] {
        let snapshot = snapshot();
        let mut validator = numbered(&snapshot);
        let found: Vec<_> = lines
            .iter()
            .map(|line| name(validator.validate(line.as_bytes(), NOW)))
            .collect();
        assert_eq!(found, expected, "{lines:?}");
    }
}

#[test]
fn stored_results_restore_text_and_numbers() {
    let snapshot = snapshot();
    let mut validator = numbered(&snapshot);
    let raw = |value: Value| RawValue::from_string(value.to_string()).unwrap();
    let chunk = |text: &str| raw(json!({"chunk": {"role": "assistant", "content": text}}));
    let mut store = |number, text, is_changed| {
        ResultReplay(&mut validator).stored(StoredResult {
            number,
            kind: "message.delta",
            data: &chunk(text),
            usage: None,
            is_changed,
        })
    };
    store(1, "one ", false);
    store(3, "three ", true);
    ResultReplay(&mut validator).rejected(Some(4));
    let mut judge = |line: String| name(validator.validate(line.as_bytes(), NOW));
    assert_eq!(judge(delta("one ", 1)), "duplicate");
    // The ledger has other bytes, or none, so only the number counts.
    assert_eq!(judge(delta("other", 3)), "duplicate");
    assert_eq!(judge(delta("other", 4)), "duplicate");
    assert_eq!(judge(delta("five", 5)), "ok");
    let done = result("run.completed", &json!({}), &json!(6));
    let Verdict::Accept(accepted) = validator.validate(done.as_bytes(), NOW) else {
        panic!("the run ends");
    };
    let ResultEffect::End(ending) = accepted.effect else {
        panic!("the run ends");
    };
    let text = ending.completed_messages.last().unwrap().plain_text();
    assert_eq!(text, "one three five");
    assert_eq!(validator.tally().gaps, 1);
    assert_eq!(validator.tally().rejected, 1);
    let mut other = numbered(&snapshot);
    ResultReplay(&mut other).stored(StoredResult {
        number: 1,
        kind: "message.delta",
        data: &chunk("one "),
        usage: None,
        is_changed: false,
    });
    let changed = delta("two ", 1);
    let verdict = other.validate(changed.as_bytes(), NOW);
    assert_eq!(name(verdict), "fail runner.protocol_violation");
}

#[test]
fn new_start_replaces_results_after_its_point() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    )
    .with_numbers();
    let stored = |validator: &mut ResultValidator<'_>, number, text: &str| {
        let data = json!({"chunk": {"role": "assistant", "content": text}});
        let data = RawValue::from_string(data.to_string()).unwrap();
        ResultReplay(validator).stored(StoredResult {
            number,
            kind: "message.delta",
            data: &data,
            usage: None,
            is_changed: false,
        });
    };
    stored(&mut validator, 1, "first ");
    assert_eq!(open_text(&validator), "first ");
    ResultReplay(&mut validator).rejected(Some(2));
    let question = json!({"action": "interaction.requested", "payload": {
        "interaction_id": "q", "title": "t", "fallback_text": "f"}});
    let data = RawValue::from_string(question.to_string()).unwrap();
    ResultReplay(&mut validator).superseded("action.requested", &data);
    ResultReplay(&mut validator).restarted();

    let mut verdict = |line: String| name(validator.validate(line.as_bytes(), NOW));
    // Its question is open already.
    assert_eq!(
        verdict(result("action.requested", &question, &json!(1))),
        "ok"
    );
    assert_eq!(verdict(delta("new", 2)), "ok");
    assert_eq!(verdict(delta("jump", 4)), "fail runner.protocol_violation");
    let message = validator.final_messages(None).unwrap();
    assert_eq!(message.last().unwrap().plain_text(), "first new");
}

#[test]
fn runners_cannot_write_events_of_the_gateway() {
    for kind in ["run.restarted", "run.amended"] {
        let forged = result(kind, &json!({"after": 0}), &json!(2));
        let verdicts = verdicts(&[delta("a", 1), forged, delta("b", 2)]);
        assert_eq!(verdicts, ["ok", "invalid_envelope", "ok"], "{kind}");
    }
}

#[test]
fn open_text_begins_after_the_last_complete_message() {
    let snapshot = snapshot();
    let mut validator = ResultValidator::new(
        &snapshot,
        LIMITS,
        DeltaMode::Increment,
        ExpectedOutput::Message,
    );
    let message = json!({"message": {"role": "assistant", "content": "one"}});
    let full = json!({"chunk": {"role": "assistant", "content": "", "all_content": "all"}});
    for (line, expected) in [
        (delta("one", 1), "one"),
        (result("message.completed", &message, &json!(2)), ""),
        (delta("two", 3), "two"),
        (result("message.delta", &full, &json!(4)), "all"),
    ] {
        validator.validate(line.as_bytes(), NOW);
        assert_eq!(open_text(&validator), expected, "{line}");
    }
}
