use protocol::id::RunId;
use uuid::Uuid;

use super::*;

const KEY: &str = "01a1ffb1ba007c3a9b1e5f0c2a7d4e61";

fn facts() -> ResponseFacts {
    ResponseFacts {
        id: ResponseId::parse(&format!("resp_{KEY}")).unwrap(),
        created_at: 7,
        model: "main".to_owned(),
        conversation: Some("c-1".to_owned()),
        request: serde_json::from_value(json!({"metadata": {"a": "b"}})).unwrap(),
    }
}

fn event(sequence: u64, kind: &str, data: Value) -> AgentRunEvent {
    let run_id = RunId(Uuid::try_parse(KEY).unwrap());
    let mut event = json!({"run_id": run_id, "sequence": sequence, "type": kind, "created_at": 0,
        "source": "runner", "metadata": {"interaction": {"id": "i-1"}}});
    event["data"] = data;
    serde_json::from_value(event).unwrap()
}

fn delta(sequence: u64, text: &str) -> AgentRunEvent {
    let chunk = json!({"role": "assistant", "content": text});
    event(sequence, "message.delta", json!({"chunk": chunk}))
}

/// A run with each kind of item.
fn run() -> Vec<AgentRunEvent> {
    let call = |more: Value| {
        let mut call = json!({"tool_call_id": "t", "tool_name": "search"});
        call.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        call
    };
    let question = json!({"interaction_id": "q", "title": "Which?"});
    vec![
        delta(1, "Two "),
        event(
            2,
            "tool.call.started",
            call(json!({"parameters": {"q": 1}})),
        ),
        event(
            3,
            "tool.call.started",
            json!({"tool_call_id": "u", "tool_name": "read"}),
        ),
        event(
            4,
            "tool.call.completed",
            call(json!({"result": {"found": 2}})),
        ),
        delta(5, "tables"),
        event(6, "artifact.created", json!({"artifact_id": "a-1"})),
        event(
            7,
            "message.completed",
            json!({"message": {"role": "assistant", "content": "Two tables."}}),
        ),
        event(
            8,
            "action.requested",
            json!({"action": "interaction.requested", "payload": question}),
        ),
        event(9, "run.completed", json!({})),
    ]
}

fn frames(shown: EventsShown, events: &[AgentRunEvent]) -> Vec<Value> {
    let mut writer = ResponseWriter::new(facts(), shown);
    let mut text = writer.begin();
    for event in events {
        assert!(!writer.has_ended());
        text += &writer.write(event);
    }
    text += &writer.finish(None);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[test]
fn streams_resume_after_each_event() {
    let all = frames(EventsShown::All, &run());
    for (at, event) in all.iter().enumerate() {
        let number = event["sequence_number"].as_u64().unwrap();
        assert_eq!(usize::try_from(number), Ok(at));
        let rest = frames(EventsShown::After(number), &run());
        assert_eq!(rest, all[at + 1..]);
    }
    assert!(frames(EventsShown::Nothing, &run()).is_empty());
}

#[test]
fn items_are_messages_calls_and_questions() {
    let all = frames(EventsShown::All, &run());
    let last = all.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let response = &last["response"];
    assert_eq!(response["id"], format!("resp_{KEY}"));
    assert_eq!(response["metadata"], json!({"a": "b"}));
    assert_eq!(
        (&response["store"], &response["conversation"]),
        (&json!(true), &json!({"id": "c-1"}))
    );
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<_> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["message", "mcp_call", "mcp_call", "function_call"]);
    assert_eq!(output[0]["content"][0]["text"], "Two tables.");
    let annotation = json!({"type": "file_path", "file_id": "a-1", "index": 10});
    assert_eq!(output[0]["content"][0]["annotations"], json!([annotation]));
    assert_eq!(output[1]["output"], r#"{"found":2}"#);
    assert_eq!(
        (&output[1]["status"], &output[2]["status"]),
        (&json!("completed"), &json!("incomplete"))
    );
    assert_eq!(output[3]["call_id"], "i-1");
    // Each item that begins also ends.
    let count = |kind: &str| all.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(count("response.output_item.added"), 4);
    assert_eq!(count("response.output_item.done"), 4);
}

#[test]
fn responses_end_at_awaited_questions() {
    let question = json!({"interaction_id": "q", "title": "Which?", "await": true});
    let mut writer = ResponseWriter::new(facts(), EventsShown::All);
    writer.begin();
    writer.write(&delta(1, "one"));
    assert_eq!(
        writer.response(RunStatus::Running, None)["status"],
        "in_progress"
    );
    writer.write(&event(
        2,
        "action.requested",
        json!({"action": "interaction.requested", "payload": question}),
    ));
    assert!(writer.has_ended());
    let response = writer.response(RunStatus::Running, None);
    assert_eq!(response["status"], "completed");
    assert_eq!(response["output"][0]["status"], "completed");
}

#[test]
fn ends_have_the_status_of_the_run() {
    for (kind, data, status, last) in [
        (
            "run.completed",
            json!({"finish_reason": "length"}),
            "incomplete",
            "response.incomplete",
        ),
        (
            "run.failed",
            json!({"code": "boom", "message": "it broke"}),
            "failed",
            "response.failed",
        ),
        (
            "run.failed",
            json!({"code": "cancelled", "message": "m"}),
            "cancelled",
            "response.failed",
        ),
    ] {
        let all = frames(EventsShown::All, &[event(1, kind, data)]);
        let end = all.last().unwrap();
        assert_eq!(
            (&end["type"], &end["response"]["status"]),
            (&json!(last), &json!(status))
        );
    }
    let writer = ResponseWriter::new(facts(), EventsShown::All);
    assert_eq!(writer.response(RunStatus::Queued, None)["status"], "queued");
}

#[test]
fn withdrawn_text_stays_as_an_incomplete_message() {
    let snapshot = json!({"chunk": {"role": "assistant", "all_content": "other"}});
    let events = [
        delta(1, "one"),
        event(2, "message.delta", snapshot),
        event(3, "run.completed", json!({})),
    ];
    let all = frames(EventsShown::All, &events);
    let output = &all.last().unwrap()["response"]["output"];
    assert_eq!(
        (&output[0]["status"], &output[1]["status"]),
        (&json!("incomplete"), &json!("completed"))
    );
    assert_eq!(output[1]["content"][0]["text"], "other");
}
