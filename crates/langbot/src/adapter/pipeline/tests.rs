use serde_json::{Value, json};

use super::*;

fn query(changes: &Value) -> PipelineQuery {
    let mut body = json!({
        "query_id": 7, "launcher_type": "group", "launcher_id": 42, "sender_id": "u-1",
        "bot_uuid": "b-1", "pipeline_uuid": "p-1",
        "message_event": {
            "type": "GroupMessage", "time": 1_795_291_200_123.0, "_raw": 1, "platform": "qq",
            "sender": {"id": "u-9", "member_name": "Ada", "group": {"id": 42}},
            "long": "x".repeat(513), "access_token": "t", "source_platform_object": {"a": 1},
        },
        "message_chain": [
            {"type": "Source", "id": "m-1", "timestamp": 1},
            {"type": "Plain", "text": "look, "},
        ],
    });
    let members = body.as_object_mut().unwrap();
    members.extend(changes.as_object().unwrap().clone());
    members.retain(|_, value| !value.is_null());
    serde_json::from_value(body).unwrap()
}

fn event(changes: &Value) -> Value {
    let query = query(changes);
    let event = to_event(&query, "e-1".to_owned());
    assert_eq!(check_query(&query, &event), []);
    json!(event)
}

#[test]
fn converts_query_to_event_of_its_conversation() {
    let event = event(&json!({}));
    for (pointer, expected) in [
        ("/event_type", json!("message.received")),
        ("/event_id", json!("e-1")),
        ("/source", json!("host_adapter")),
        ("/source_event_type", json!("GroupMessage")),
        ("/event_time", json!(1_795_291_200)),
        ("/bot_id", json!("b-1")),
        (
            "/conversation",
            json!({"conversation_id": "group_42", "launcher_type": "group", "launcher_id": "42"}),
        ),
        (
            "/actor",
            json!({"actor_type": "user", "actor_id": "u-9", "actor_name": "Ada"}),
        ),
        ("/subject/subject_id", json!("m-1")),
        ("/subject/data/sender_id", json!("u-1")),
        ("/input/text", json!("look, ")),
        ("/delivery/surface", json!("platform")),
        ("/delivery/automatic_reply", json!(true)),
        (
            "/delivery/reply_target",
            json!({"target_type": "group", "target_id": "42", "message_id": "m-1"}),
        ),
        (
            "/data",
            json!({"type": "GroupMessage", "time": 1_795_291_200_123.0, "platform": "qq"}),
        ),
        ("/adapter/pipeline_id", json!("p-1")),
        (
            "/adapter/extra",
            json!({"params": {}, "query_id": 7, "pipeline_uuid": "p-1"}),
        ),
    ] {
        assert_eq!(event.pointer(pointer), Some(&expected), "{pointer}");
    }
}

#[test]
fn conversation_comes_from_session_variable_or_launcher() {
    let named = |changes: Value| event(&changes)["conversation"]["conversation_id"].clone();
    let session = json!({"using_conversation": {"uuid": "c-1", "messages": [1]}});
    let variables = json!({"conversation_id": "c-2"});
    assert_eq!(
        named(json!({"session": session, "variables": variables})),
        "c-1"
    );
    assert_eq!(
        named(json!({"session": {"using_conversation": {"uuid": ""}}, "variables": variables})),
        "c-2"
    );
    assert_eq!(named(json!({"session": {}})), "group_42");
}

#[test]
fn removes_private_variables_at_every_depth() {
    let variables = json!({
        "city": "Rome", "_internal": 1, "api_key": "k", "ApiKey": "k", "userPassword": "p",
        "access_token": "t", "my_secret": 1, "credentials": {}, "keyword": "in vain",
        "nested": {"a": [1, {"token": "t", "b": null}], "_c": 2},
    });
    let event = event(&json!({"variables": variables}));
    assert_eq!(
        event["adapter"]["extra"]["params"],
        json!({"city": "Rome", "nested": {"a": [1, {"b": null}]}})
    );
}

#[test]
fn converts_chain_and_lists_omitted_elements() {
    let event = event(&json!({"message_chain": [
        {"type": "Source", "id": -1, "timestamp": 1},
        {"type": "Quote", "id": 5, "sender_id": 6, "origin": [{"type": "Plain", "text": "before"}]},
        {"type": "At", "target": 9, "display": "Bob"},
        {"type": "Plain", "text": " see"},
        {"type": "Image", "image_id": "i", "url": "https://x.test/a.png", "path": "", "base64": ""},
        {"type": "Image", "base64": "data:image/png;base64,AAAA"},
        {"type": "File", "id": "f", "name": "a.pdf", "size": 3, "url": "https://x.test/a.pdf"},
        {"type": "Voice", "voice_id": "v", "path": "/tmp/v.amr", "length": 3},
        {"type": "Face", "face_id": 3}, {"type": "Face"},
    ]}));
    let input = &event["input"];
    assert_eq!(input["text"], "@Bob see");
    let kinds: Vec<_> = input["contents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| &part["type"])
        .collect();
    assert_eq!(
        kinds,
        ["text", "text", "image_url", "image_base64", "file_url"]
    );
    assert_eq!(
        input["attachments"],
        json!([
            {"type": "image", "source": "url", "url": "https://x.test/a.png"},
            {"type": "image", "source": "base64", "mime_type": "image/png", "content": "data:image/png;base64,AAAA"},
            {"type": "file", "source": "url", "url": "https://x.test/a.pdf", "name": "a.pdf"},
            {"type": "voice", "source": "message_chain", "id": "v", "path": "/tmp/v.amr"},
        ])
    );
    let extra = &event["adapter"]["extra"];
    assert_eq!(
        extra["quote"],
        json!({"message_id": "5", "sender_id": "6", "text": "before"})
    );
    assert_eq!(extra["omitted_elements"], json!(["Face"]));
    // Without a message id, the event is its own subject, and "-1" does not occur.
    assert_eq!(event["subject"]["subject_id"], "e-1");
}

#[test]
fn preprocessed_message_overrides_chain_without_duplicate_files() {
    let event = event(&json!({
        "user_message": {"role": "user", "content": [
            {"type": "text", "text": "clean"},
            {"type": "image_base64", "image_base64": "AAAA"},
        ]},
        "message_chain": [{"type": "Plain", "text": "raw"}, {"type": "Image", "base64": "AAAA", "image_id": "i"}],
    }));
    assert_eq!(event["input"]["text"], "clean");
    assert_eq!(event["input"]["attachments"].as_array().unwrap().len(), 1);
    let plain = super::tests::event(&json!({"user_message": {"role": "user", "content": "hi"}}));
    assert_eq!(
        plain["input"]["contents"],
        json!([{"type": "text", "text": "hi"}])
    );
}

#[test]
fn stores_prompt_separately_from_extra() {
    let prompt =
        json!({"name": "default", "messages": [{"role": "system", "content": "Be brief."}]});
    let event = event(
        &json!({"prompt": prompt, "pipeline_config": {"ai": {}}, "messages": [1], "use_funcs": [{}]}),
    );
    assert_eq!(
        event["adapter"]["prompt"],
        json!([{"role": "system", "content": "Be brief."}])
    );
    let extra: Vec<_> = event["adapter"]["extra"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(extra, ["params", "pipeline_uuid", "query_id"]);
}

#[test]
fn scopes_counter_ids_and_keeps_unique_ids() {
    let own = |id: &str| QueryIdentity::Own(id.to_owned());
    assert_eq!(identity(&query(&json!({"query_id": "q-1"}))), own("q-1"));
    assert_eq!(identity(&query(&json!({"query_uuid": "u-1"}))), own("u-1"));
    let counted = identity(&query(&json!({})));
    assert_eq!(identity(&query(&json!({"variables": {"a": 1}}))), counted);
    for other in [
        json!({"query_id": 8}),
        json!({"pipeline_uuid": "p-2"}),
        json!({"launcher_id": 43}),
        json!({"message_event": {"time": 5}}),
        json!({"message_chain": [{"type": "Source", "id": "m-2"}]}),
    ] {
        assert_ne!(identity(&query(&other)), counted, "{other}");
    }
}

#[test]
fn maps_faults_to_query_pointers() {
    let long = "x".repeat(256);
    for (changes, pointer) in [
        (json!({"launcher_type": ""}), "/launcher_type"),
        (json!({"launcher_id": ""}), "/launcher_id"),
        (json!({"launcher_id": long}), "/launcher_id"),
        (json!({"bot_uuid": long}), "/bot_uuid"),
        (
            json!({"session": {"using_conversation": {"uuid": long}}}),
            "/session/using_conversation/uuid",
        ),
        (
            json!({"variables": {"conversation_id": long}}),
            "/variables/conversation_id",
        ),
        (
            json!({"sender_id": long, "message_event": null}),
            "/sender_id",
        ),
        (
            json!({"message_event": {"sender": {"id": long}}}),
            "/message_event/sender/id",
        ),
        (
            json!({"message_event": {"time": "now"}}),
            "/message_event/time",
        ),
        (json!({"message_chain": []}), "/message_chain"),
        (
            json!({"variables": {"a": "x".repeat(PARAMS_BYTES)}}),
            "/variables",
        ),
        (
            json!({"prompt": {"messages": [{"role": "system", "content": "x".repeat(PROMPT_BYTES)}]}}),
            "/prompt/messages",
        ),
        (json!({"variables": {"a": "\u{0}"}}), ""),
    ] {
        let query = query(&changes);
        let found = check_query(&query, &to_event(&query, "e".to_owned()));
        assert_eq!(
            found.first().map(|fault| fault.pointer.as_str()),
            Some(pointer),
            "{found:?}"
        );
    }
    let malformed = query(&json!({"query_id": "é"}));
    assert_eq!(
        check_query(&malformed, &to_event(&malformed, "é".to_owned()))[0].pointer,
        "/query_id"
    );
}
