use super::super::ask::{ProviderApi, read_request};
use super::*;

fn object(value: &Value) -> JsonObject {
    value.as_object().unwrap().clone()
}

fn writer(more: &Value) -> ResponseEventWriter {
    let mut request = json!({"model": "m", "input": "hi", "tools": [
        {"type": "function", "name": "f"}, {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}]});
    request.as_object_mut().unwrap().extend(object(more));
    let request = object(&request);
    let responses_request = read_request(&request, "m", ProviderApi::Chat, &[]).unwrap();
    let head = ResponseHead {
        key: "k".to_owned(),
        created_at: 7,
        model: "m".to_owned(),
        previous: None,
    };
    ResponseEventWriter::new(head, &request, &responses_request)
}

fn chunk(delta: &Value) -> JsonObject {
    object(&json!({"choices": [{"index": 0, "delta": delta}]}))
}

fn ending(reason: &str) -> JsonObject {
    object(
        &json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 1}}}),
    )
}

fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
}

/// Returns all events of an answer with these deltas.
fn events(more: &Value, deltas: &[Value], reason: &str) -> Vec<Value> {
    let mut writer = writer(more);
    let mut events = writer.begin();
    for delta in deltas {
        events.extend(writer.read(&chunk(delta)).unwrap());
    }
    events.extend(writer.read(&ending(reason)).unwrap());
    events.extend(writer.finish());
    check_event_order(&events);
    events
}

/// Checks the invariants of all answers.
fn check_event_order(events: &[Value]) {
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let last = events.last().unwrap();
    let mut done: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| {
            (
                event["output_index"].as_u64().unwrap(),
                event["item"].clone(),
            )
        })
        .collect();
    done.sort_by_key(|(index, _)| *index);
    let done: Vec<_> = done.into_iter().map(|(_, item)| item).collect();
    assert_eq!(
        last["response"]["output"],
        Value::Array(done),
        "output is the sum of the items"
    );
    for event in events {
        let Some(of) = event["type"].as_str().unwrap().strip_suffix(".done") else {
            continue;
        };
        let kind = format!("{of}.delta");
        let of_same = |other: &&Value| {
            other["type"] == kind.as_str()
                && other["item_id"] == event["item_id"]
                && other["content_index"] == event["content_index"]
        };
        let text: String = events
            .iter()
            .filter(of_same)
            .filter_map(|one| one["delta"].as_str())
            .collect();
        for member in ["text", "refusal", "arguments", "input"] {
            if let Some(full_text) = event.get(member) {
                assert_eq!(full_text, text.as_str(), "{event}");
            }
        }
    }
}

fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    names
        .map(|name| name.strip_prefix("response.").unwrap())
        .collect()
}

#[test]
fn text_streams_in_the_order_of_the_api() {
    let events = events(
        &json!({}),
        &[
            json!({"role": "assistant", "content": ""}),
            json!({"content": "a"}),
            json!({"content": "b"}),
        ],
        "stop",
    );
    assert_eq!(
        names(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let response = &events[9]["response"];
    assert_eq!(
        response["output"],
        json!([{"id": "msg_k0", "type": "message", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}]}])
    );
    assert_eq!(
        response["usage"],
        json!({"input_tokens": 5, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 7})
    );
    for (member, value) in [
        ("id", json!("resp_k")),
        ("model", json!("m")),
        ("created_at", json!(7)),
        ("store", json!(false)),
        ("status", json!("completed")),
    ] {
        assert_eq!(response[member], value);
    }
}

#[test]
fn calls_keep_ids_and_arguments() {
    let deltas = [
        call(0, "c1", "f", "{\"a\""),
        call(0, "", "", ":1}"),
        call(1, "c2", "n__g", "{}"),
    ];
    let events = events(&json!({}), &deltas, "tool_calls");
    assert_eq!(
        names(&events)[2..],
        [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    assert_eq!(
        events.last().unwrap()["response"]["output"],
        json!([{"id": "fc_k0", "type": "function_call", "status": "completed", "call_id": "c1", "name": "f",
            "arguments": "{\"a\":1}"},
            {"id": "fc_k1", "type": "function_call", "status": "completed", "call_id": "c2", "name": "g",
            "namespace": "n", "arguments": "{}"}])
    );
}

#[test]
fn custom_calls_give_their_input() {
    let deltas = [
        json!({"content": "so"}),
        call(0, "c", "patch", "{\"input\":\"*** "),
        call(0, "", "", "Begin\"}"),
    ];
    let events = events(&json!({}), &deltas, "tool_calls");
    assert_eq!(
        names(&events)[7..],
        [
            "output_item.done",
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "completed"
        ]
    );
    let item = &events[11]["item"];
    assert_eq!(
        (&item["type"], &item["input"], &item["call_id"]),
        (&json!("custom_tool_call"), &json!("*** Begin"), &json!("c"))
    );
}

#[test]
fn reasoning_is_separate_item() {
    let deltas = [
        json!({"reasoning_content": "hm"}),
        json!({"content": "a"}),
        json!({"refusal": "no"}),
        json!({"content": "b"}),
    ];
    let events = events(&json!({}), &deltas, "stop");
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(output[0]["type"], "reasoning");
    assert_eq!(
        output[0]["content"],
        json!([{"type": "reasoning_text", "text": "hm"}])
    );
    let parts: Vec<_> = output[1]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| &part["type"])
        .collect();
    assert_eq!(parts, ["output_text", "refusal", "output_text"]);
}

#[test]
fn stored_reasoning_returns_in_next_request() {
    let mut signed = call(0, "c", "f", "{}");
    signed["tool_calls"][0]["signature"] = json!("S");
    signed["tool_calls"][0]["function"]["seal"] = json!("F");
    signed["extra_content"] = json!({"of": "message"});
    let include = json!({"include": ["reasoning.encrypted_content"]});
    let events = events(
        &include,
        &[json!({"reasoning_content": "T"}), signed],
        "tool_calls",
    );
    let output = events.last().unwrap()["response"]["output"].clone();
    let sealed = output[2]["encrypted_content"].as_str().unwrap();
    assert!(!sealed.is_empty());
    let next = object(&json!({"model": "m", "input": output}));
    let responses_request = read_request(&next, "m", ProviderApi::Chat, &[]).unwrap();
    let message = &responses_request.chat["messages"][0];
    assert_eq!(message["reasoning_content"], "T");
    assert_eq!(message["extra_content"]["of"], "message");
    assert_eq!(message["tool_calls"][0]["signature"], "S");
    assert_eq!(message["tool_calls"][0]["function"]["seal"], "F");
    let other = read_request(&next, "other", ProviderApi::Chat, &[]).unwrap();
    assert!(other.chat["messages"][0].get("reasoning_content").is_none());
}

#[test]
fn truncated_answers_are_incomplete_with_reason() {
    for (reason, expected) in [
        ("length", "max_output_tokens"),
        ("content_filter", "content_filter"),
    ] {
        let events = events(
            &json!({}),
            &[json!({"reasoning": "t"}), json!({"content": "a"})],
            reason,
        );
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["incomplete_details"]["reason"], expected);
        assert_eq!(last["response"]["output"][1]["status"], "incomplete");
    }
}

#[test]
fn failed_answers_omit_unfinished_items() {
    let mut writer = writer(&json!({}));
    let mut events = writer.begin();
    for delta in [json!({"content": "a"}), call(0, "c", "f", "{\"a\":")] {
        events.extend(writer.read(&chunk(&delta)).unwrap());
    }
    events.push(writer.fail("server_error", "it broke"));
    check_event_order(&events);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(
        last["response"]["error"],
        json!({"code": "server_error", "message": "it broke"})
    );
    assert_eq!(
        last["response"]["output"].as_array().unwrap().len(),
        1,
        "the call was cut off"
    );
}

#[test]
fn accepts_name_after_first_arguments() {
    let events = events(
        &json!({}),
        &[call(0, "c", "", "{\"a\""), call(0, "", "f", ":1}")],
        "tool_calls",
    );
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(
        (&item["name"], &item["arguments"]),
        (&json!("f"), &json!("{\"a\":1}"))
    );
}

#[test]
fn complete_completions_become_responses() {
    let completion = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "content": "so", "tool_calls": [{"id": "c", "function": {"name": "patch", "arguments": "{\"input\":\"x\"}"}},
            {"id": "d", "function": {"name": "f", "arguments": "{}"}}]}}]});
    let (response, unsent) = writer(&json!({"max_output_tokens": 9}))
        .complete(&object(&completion))
        .unwrap();
    assert_eq!(unsent, None, "there is no reasoning");
    let kinds: Vec<_> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["type"])
        .collect();
    assert_eq!(kinds, ["message", "custom_tool_call", "function_call"]);
    assert_eq!(response["usage"], Value::Null, "unknown is not 0");
    assert_eq!(response["max_output_tokens"], 9);
    assert_eq!(response["tools"].as_array().unwrap().len(), 3);
}

#[test]
fn long_members_are_not_repeated() {
    let response = writer(&json!({"instructions": "x".repeat(9000), "user": "u"}))
        .begin()
        .remove(0);
    let response = &response["response"];
    assert_eq!(
        (&response["instructions"], &response["user"]),
        (&Value::Null, &json!("u"))
    );
}

#[test]
fn rejects_answers_above_size_limit() {
    let mut writer = writer(&json!({}));
    let piece = chunk(&json!({"content": "x".repeat(1024 * 1024)}));
    let refused = (0..17).find_map(|_| writer.read(&piece).err());
    assert_eq!(refused, Some(AnswerTooLarge));
}
