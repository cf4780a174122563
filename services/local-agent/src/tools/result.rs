//! Tool results for the model and the user: bounded, with complete references.

use std::borrow::Cow;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::media::{self, without_bytes};

/// Fields that are searched for references.
const HOLDERS: [&str; 5] = ["file_refs", "files", "attachments", "items", "result"];
const MAX_REFERENCES: usize = 20;
const DEPTH: usize = 6;
const NEXT_STEP: &str =
    "The files stay where their paths say. Read them with a tool that takes such a path.";

/// Outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolOutcome {
    /// Text for the model.
    pub(super) text: String,
    /// Value for the user, when the tool answered.
    pub(super) shown: Option<JsonObject>,
    /// Error, when it did not.
    pub(super) error: Option<String>,
    /// The result is final for the user; the model adds nothing.
    pub(super) terminates: bool,
}

impl ToolOutcome {
    /// Outcome of a call that failed or was not made.
    pub(super) fn error(error: &str, limit: usize) -> Self {
        let error = cut(error, limit);
        Self {
            text: format!("Error: {error}"),
            shown: None,
            error: Some(error),
            terminates: false,
        }
    }

    /// Outcome of a result; shows at most `limit` characters.
    pub(super) fn of(mut result: Value, limit: usize) -> Self {
        // The hint is for this agent; the model and the user must not see it.
        let hint = result
            .as_object_mut()
            .and_then(|result| result.remove("terminate"));
        let without_media = without_bytes(&result);
        let text = text_of(without_media.as_ref().unwrap_or(&result));
        // MCP reports tool failures inside a successful response.
        if result.get("is_error") == Some(&Value::Bool(true)) {
            return Self::error(&text, limit);
        }
        let references = references(&result);
        // References survive a cut: a path that is missing cannot be guessed by the model.
        let (text, shown) = if !references.is_empty() {
            let shown = with_references(without_media.unwrap_or(result), &text, &references, limit);
            (json!(shown).to_string(), shown)
        } else if text.chars().count() > limit {
            let shown = preview(&text, limit);
            (cut(&text, limit), shown)
        } else {
            // The user may see a short picture that the model cannot read.
            let shown = match without_media {
                Some(without_media) if result.to_string().chars().count() > limit => without_media,
                _ => result,
            };
            (text, as_object(shown))
        };
        Self {
            text,
            shown: Some(shown),
            error: None,
            terminates: hint == Some(Value::Bool(true)),
        }
    }
}

/// Result as the model reads it: texts verbatim, binary content as a note, the rest as JSON.
fn text_of(result: &Value) -> String {
    let blocks = match result {
        Value::String(text) => return text.clone(),
        Value::Array(blocks) => Some(blocks),
        // MCP result with text blocks only; structured content is passed on as JSON.
        Value::Object(result) if !result.contains_key("structured_content") => {
            result.get("content").and_then(Value::as_array)
        }
        _ => None,
    };
    // One block of another kind makes the result JSON, so that no block is lost.
    let texts = blocks.and_then(|blocks| blocks.iter().map(text_block).collect::<Option<Vec<_>>>());
    match texts {
        Some(texts) if !texts.is_empty() => texts.join("\n"),
        _ => result.to_string(),
    }
}

fn text_block(block: &Value) -> Option<Cow<'_, str>> {
    let is_text = block.get("type").and_then(Value::as_str) == Some("text");
    let text = block.get("text").and_then(Value::as_str);
    let text = text.filter(|_| is_text).map(Cow::Borrowed);
    text.or_else(|| media::note(block).map(Cow::Owned))
}

fn as_object(result: Value) -> JsonObject {
    match result {
        Value::Object(result) => result,
        other => JsonObject::from_iter([("value".to_owned(), other)]),
    }
}

/// The first `limit` characters and the number of missing ones.
fn cut(text: &str, limit: usize) -> String {
    let all = text.chars().count();
    if all <= limit {
        return text.to_owned();
    }
    format!(
        "{}\n[tool result truncated: original_chars={all}, kept_chars={limit}]",
        head(text, limit)
    )
}

fn head(text: &str, limit: usize) -> &str {
    let end = text.char_indices().nth(limit);
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn preview(text: &str, limit: usize) -> JsonObject {
    as_object(json!({
        "type": "tool_result_preview", "truncated": true, "reason": "max-tool-result-chars",
        "original_chars": text.chars().count(), "original_bytes": text.len(),
        "kept_preview_chars": limit, "preview": head(text, limit),
    }))
}

/// References of a result, with the result or its prefix.
fn with_references(result: Value, text: &str, references: &[Value], limit: usize) -> JsonObject {
    let all = text.chars().count();
    let mut shown = as_object(json!({
        "type": "tool_result_references", "file_refs": references, "original_chars": all,
        "next_step": NEXT_STEP, "truncated": all > limit,
    }));
    if all > limit {
        shown.insert("preview".to_owned(), json!(head(text, limit)));
    } else {
        shown.insert("result".to_owned(), result);
    }
    shown
}

/// Objects with a `path`, each path once.
fn references(result: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    collect(result, DEPTH, &mut found);
    found
}

fn collect(value: &Value, depth: usize, found: &mut Vec<Value>) {
    // Tool output is untrusted: depth and count bound the search.
    if depth == 0 || found.len() >= MAX_REFERENCES {
        return;
    }
    match value {
        Value::Array(items) => {
            for item in items {
                collect(item, depth - 1, found);
            }
        }
        Value::Object(object) => {
            let path = object.get("path").and_then(Value::as_str);
            if let Some(path) = path.filter(|path| !path.is_empty()) {
                let reference = reference(path, object);
                if !found.contains(&reference) {
                    found.push(reference);
                }
            }
            for holder in HOLDERS.iter().filter_map(|holder| object.get(*holder)) {
                collect(holder, depth - 1, found);
            }
        }
        _ => {}
    }
}

/// Path with the short fields of the same object.
fn reference(path: &str, object: &JsonObject) -> Value {
    let mut reference = JsonObject::from_iter([("path".to_owned(), json!(path))]);
    for key in ["name", "type", "mime_type", "size", "size_bytes"] {
        match object.get(key) {
            // Longer fields are content, which the preview shows.
            Some(Value::String(text)) if text.len() <= 512 => {
                reference.insert(key.to_owned(), json!(text));
            }
            Some(Value::Number(number)) => {
                reference.insert(key.to_owned(), json!(number));
            }
            _ => {}
        }
    }
    Value::Object(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(result: Value, limit: usize, text: &str, shown: &Value) {
        let outcome = ToolOutcome::of(result, limit);
        assert_eq!(outcome.text, text);
        assert_eq!(json!(outcome.shown), *shown);
        assert_eq!(outcome.error, None);
    }

    #[test]
    fn keeps_short_results_unchanged() {
        check(json!("sunny"), 20, "sunny", &json!({"value": "sunny"}));
        check(
            json!({"degrees": 20}),
            20,
            "{\"degrees\":20}",
            &json!({"degrees": 20}),
        );
        check(json!(7), 20, "7", &json!({"value": 7}));
        check(json!([]), 20, "[]", &json!({"value": []}));
    }

    #[test]
    fn joins_mcp_text_parts() {
        let blocks = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        check(blocks.clone(), 20, "a\nb", &json!({"value": blocks}));
        let mcp = json!({"content": blocks});
        check(mcp.clone(), 20, "a\nb", &mcp);
        let mixed = json!([{"type": "text", "text": "a"}, {"type": "image"}]);
        check(
            mixed.clone(),
            99,
            &mixed.to_string(),
            &json!({"value": mixed}),
        );
    }

    #[test]
    fn mentions_images_without_their_bytes() {
        let picture = json!([
            {"type": "text", "text": "a cat:"},
            {"type": "image", "data": "QUJD", "mimeType": "image/png"},
        ]);
        let text = "a cat:\n[image image/png of 3 bytes, which are not shown here]";
        let expected = json!({"value": picture});
        check(picture.clone(), 200, text, &expected);
        let outcome = ToolOutcome::of(picture, 80);
        assert_eq!(outcome.text, text);
        let shown = json!(outcome.shown);
        assert_eq!(shown["value"][1]["omitted_bytes"], 3);
        assert_eq!(shown["value"][1].get("data"), None);
        let failed = json!({"is_error": true, "content": [{"type": "audio", "data": "QUJD"}]});
        let text = "Error: [audio of 3 bytes, which are not shown here]";
        assert_eq!(ToolOutcome::of(failed, 200).text, text);
    }

    #[test]
    fn truncates_long_results_with_note() {
        let note = |all, limit| {
            format!("\n[tool result truncated: original_chars={all}, kept_chars={limit}]")
        };
        let outcome = ToolOutcome::of(json!("äbcdefgh"), 3);
        assert_eq!(outcome.text, format!("äbc{}", note(8, 3)));
        let shown = json!(outcome.shown);
        assert_eq!(shown["preview"], "äbc");
        assert_eq!(
            (&shown["original_chars"], &shown["original_bytes"]),
            (&json!(8), &json!(9))
        );

        let outcome = ToolOutcome::of(json!({"key": "value"}), 5);
        assert_eq!(outcome.text, format!("{{\"key{}", note(15, 5)));
    }

    #[test]
    fn puts_error_marker_first() {
        let outcome = ToolOutcome::error("no such city", 7);
        assert!(outcome.text.starts_with("Error: no such"));
        assert!(outcome.text.contains("truncated"));
        assert_eq!(outcome.shown, None);
        let mcp = json!({"is_error": true, "content": [{"type": "text", "text": "broken"}]});
        let outcome = ToolOutcome::of(mcp, 99);
        assert_eq!(outcome.text, "Error: broken");
        assert_eq!(outcome.error.as_deref(), Some("broken"));
    }

    #[test]
    fn hides_finish_hint_from_model() {
        let outcome = ToolOutcome::of(json!({"terminate": true, "sent": 1}), 99);
        assert!(outcome.terminates);
        assert_eq!(outcome.text, "{\"sent\":1}");
        assert_eq!(json!(outcome.shown), json!({"sent": 1}));
        for hint in [json!("true"), json!(1), json!(false)] {
            assert!(!ToolOutcome::of(json!({"terminate": hint}), 99).terminates);
        }
    }

    #[test]
    fn keeps_full_paths_next_to_preview() {
        let files = json!({"files": [{"path": "/out/a.png", "size": 9, "body": "x".repeat(99)}],
            "result": {"path": "/out/b.txt"}, "other": {"path": "/hidden"}});
        let outcome = ToolOutcome::of(files, 30);
        let shown = json!(outcome.shown);
        assert_eq!(
            shown["file_refs"],
            json!([{"path": "/out/a.png", "size": 9}, {"path": "/out/b.txt"}])
        );
        assert_eq!(shown["truncated"], true);
        assert_eq!(shown["preview"].as_str().unwrap().len(), 30);
        assert_eq!(outcome.text, shown.to_string());

        let small = ToolOutcome::of(json!({"path": "/out/a.png"}), 99);
        assert_eq!(json!(small.shown)["result"], json!({"path": "/out/a.png"}));
        let many: Vec<_> = (0..50).map(|n| json!({"path": format!("/{n}")})).collect();
        let many = ToolOutcome::of(json!(many), 99);
        assert_eq!(
            json!(many.shown)["file_refs"].as_array().unwrap().len(),
            MAX_REFERENCES
        );
    }
}
