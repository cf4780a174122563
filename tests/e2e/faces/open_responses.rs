//! Responses of agents beside the schema and the compliance cases of Open Responses.

use serde_json::{Value, json};

use super::responses::{events, respond, streamed, texts};
use super::stage;
use crate::support::Sqlite;

/// Members that the `ResponseResource` of Open Responses requires.
const REQUIRED: [&str; 32] = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "user",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
];

/// The inputs of its compliance cases, without those for functions of the client: an agent calls its own tools.
fn compliance_inputs() -> [Value; 4] {
    let message =
        |role: &str, content: Value| json!({"type": "message", "role": role, "content": content});
    let image = json!([{"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]);
    let hello = message("user", json!("Say hello."));
    [
        json!([hello]),
        json!([message("system", json!("You are a pirate.")), hello]),
        json!([message("user", image)]),
        json!([hello, message("assistant", json!("Hello!")), hello]),
    ]
}

#[tokio::test]
async fn responses_satisfy_open_responses() {
    let stage = stage(Sqlite).await.unwrap();
    for input in compliance_inputs() {
        let body = json!({"model": "main", "input": input});
        let unary = respond(&stage.client, &body).await.expect(200).body;
        let mut events = events(streamed(&stage.client, &body), usize::MAX).await;
        let last = events.pop().unwrap();
        assert_eq!(last["type"], "response.completed");
        for response in [&unary, &last["response"]] {
            for name in REQUIRED {
                assert!(response.get(name).is_some(), "{name}: {response}");
            }
            for name in [
                "completed_at",
                "temperature",
                "top_p",
                "presence_penalty",
                "frequency_penalty",
            ] {
                assert!(response[name].is_number(), "{name}: {response}");
            }
            assert_members!(response, {"object": "response", "status": "completed", "service_tier": "default"});
            assert_eq!(texts(response), ["Two tables.", "Which one?"]);
        }
        // An unfinished response has no time of completion.
        assert_eq!(events[0]["response"]["completed_at"], Value::Null);
    }
}
