//! Content blocks that the SDK rejects. One such block would make the SDK reject the complete result, so each is
//! wrapped in a text block for the SDK, and restored afterwards.

use std::borrow::Cow;

use protocol::JsonObject;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use telemetry::tolerance::{Peer, tolerated};

/// Member of `_meta` that holds the block of the server.
const AS_SENT: &str = "runnel/block";
/// The `resultType` of a final result.
const COMPLETE: &str = "complete";

/// Makes the result of a tool call readable for the SDK. Other messages stay as they are.
pub(super) fn readable<'a>(message: &'a [u8], server: &str) -> Cow<'a, [u8]> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        result: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Content<'a> {
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }
    let unread = serde_json::from_slice(message).ok().filter(|response| {
        let Response { result } = response;
        let content = serde_json::from_str::<Content<'_>>(result.get());
        content.is_ok_and(|content| content.content.is_some())
            && serde_json::from_str::<CallToolResult>(result.get()).is_err()
    });
    if unread.is_none() {
        return message.into();
    }
    let Ok(mut message_value) = serde_json::from_slice::<Value>(message) else {
        return message.into();
    };
    match message_value.get_mut("result") {
        Some(Value::Object(result)) if is_complete(result) => rewrite(result),
        _ => return message.into(),
    }
    tolerated(Peer::ToolServer, "unknown_content", server);
    message_value.to_string().into_bytes().into()
}

fn is_complete(result: &JsonObject) -> bool {
    let kind = result.get("resultType").and_then(Value::as_str);
    kind.is_none_or(|kind| kind == COMPLETE)
}

fn rewrite(result: &mut JsonObject) {
    let blocks = match result.remove("content") {
        Some(Value::Array(blocks)) => blocks,
        Some(Value::Null) | None => Vec::new(),
        Some(block) => vec![block],
    };
    let blocks = blocks.into_iter().map(readable_block).collect();
    result.insert("content".to_owned(), Value::Array(blocks));
    // The text of the result contains the error.
    if !matches!(result.get("isError"), Some(Value::Bool(_))) {
        result.remove("isError");
    }
    result.remove("_meta");
}

fn readable_block(block: Value) -> Value {
    if serde_json::from_value::<ContentBlock>(block.clone()).is_ok() {
        return block;
    }
    let kind = block.get("type").and_then(Value::as_str);
    let text = match &block {
        Value::String(text) => Some(text),
        Value::Object(members) if kind == Some("text") => match members.get("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    match text {
        Some(text) => json!({"type": "text", "text": text}),
        None => json!({"type": "text", "text": "", "_meta": {AS_SENT: block}}),
    }
}

/// The block of the server, if the SDK could not read it.
pub(super) fn as_sent(block: &ContentBlock) -> Option<&Value> {
    let ContentBlock::Text(text) = block else {
        return None;
    };
    text.meta.as_ref()?.0.get(AS_SENT)
}

#[cfg(test)]
mod tests {
    use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage, ServerResult};

    use super::super::outcome;
    use super::*;

    /// The result of a call as the runner gets it.
    fn called(result: &Value) -> Option<Value> {
        let message = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
        let message = readable(message.as_bytes(), "s");
        let message: ServerJsonRpcMessage = serde_json::from_slice(&message).unwrap();
        match message {
            JsonRpcMessage::Response(response) => match response.result {
                ServerResult::CallToolResult(result) => outcome::result(&result).ok(),
                _ => None,
            },
            _ => None,
        }
    }

    #[test]
    fn unknown_blocks_pass_beside_texts() {
        let text = json!({"type": "text", "text": "3 rows"});
        let card = json!({"type": "ui_card", "title": "x"});
        let image = json!({"type": "image", "data": "AAAA"});
        for (result, expected) in [
            (
                json!({"content": [text, card]}),
                json!({"content": [text, card]}),
            ),
            (
                json!({"content": [text, card], "resultType": "complete", "isError": true}),
                json!({"content": [text, card], "is_error": true}),
            ),
            (json!({"content": [card]}), json!({"content": [card]})),
            // A block of a known type that lacks a member.
            (
                json!({"content": [image, 7]}),
                json!({"content": [image, 7]}),
            ),
            (
                json!({"content": [{"type": "text", "text": "3 rows", "annotations": {"audience": ["all"]}}]}),
                json!("3 rows"),
            ),
            (json!({"content": ["3 rows"]}), json!("3 rows")),
            (json!({"content": "3 rows"}), json!("3 rows")),
            (json!({"content": text, "_meta": 1}), json!("3 rows")),
            (
                json!({"content": [], "isError": "no", "structuredContent": {"n": 1}}),
                json!({"content": [], "structured_content": {"n": 1}}),
            ),
        ] {
            assert_eq!(called(&result), Some(expected), "{result}");
        }
    }

    #[test]
    fn other_messages_stay_as_they_are() {
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"x"}],"resultType":"input_required"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"content":[{"type":"x"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"content"}}"#,
            "{",
        ] {
            let read = readable(message.as_bytes(), "s");
            assert!(matches!(read, Cow::Borrowed(_)), "{message}");
        }
    }
}
