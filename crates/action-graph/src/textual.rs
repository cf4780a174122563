//! Calls that a model wrote as text: XML invokes, and blocks with a JSON call, outside of code.

use serde_json::{Map, Value};

use crate::fence;

/// A call written as text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextCall {
    /// The tool, when it is explicit.
    pub name: Option<String>,
    /// Its arguments, when they are a JSON object.
    pub arguments: Option<Map<String, Value>>,
}

/// Opening and closing marks of blocks that hold a JSON call.
const BLOCKS: [(&str, &str); 2] = [
    ("[TOOL_CALL]", "[/TOOL_CALL]"),
    ("<tool_call>", "</tool_call>"),
];
/// Calls that are listed.
const MAX_CALLS: usize = 16;

/// Calls written in a text, outside of fenced code; at most 16.
pub fn find(text: &str) -> Vec<TextCall> {
    // Cheap test first: most answers have no such mark.
    if !text.contains(['<', '[']) {
        return Vec::new();
    }
    // Code blocks show calls as examples.
    let open = fence::lines(text).filter(|(_, _, inside)| !inside);
    let open: String = open.map(|(_, line, _)| line).collect();
    let mut calls = Vec::new();
    for (begin, end) in BLOCKS {
        calls.extend(between(&open, begin, end).map(block_call));
    }
    calls.extend(tagged(&open, "<invoke name=", "</invoke>"));
    calls.truncate(MAX_CALLS);
    calls
}

/// Texts between two marks; to the end where the second is missing.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    let parts = text.split(begin).skip(1);
    // Without an end the call may be cut, so it has no arguments.
    parts.map(move |part| part.split_once(end).map_or("", |(body, _)| body))
}

/// `{"name": …, "arguments": {…}}`.
fn block_call(body: &str) -> TextCall {
    let value = serde_json::from_str::<Value>(fence::unwrap(body)).unwrap_or_default();
    let name = value.get("name").or_else(|| value.get("tool"));
    let arguments = ["arguments", "parameters", "input", "args"];
    let arguments = arguments.iter().find_map(|key| value.get(key));
    TextCall {
        name: name.and_then(Value::as_str).map(str::to_owned),
        arguments: arguments.and_then(Value::as_object).cloned(),
    }
}

/// `<invoke name="x">{…}</invoke>`.
fn tagged<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = TextCall> {
    between(text, begin, end).map(|part| {
        let (name, body) = part.split_once('>').unwrap_or_default();
        let name = name.trim().trim_matches(['"', '\'']);
        let arguments = serde_json::from_str(body.trim()).ok();
        TextCall {
            name: (!name.is_empty()).then(|| name.to_owned()),
            arguments,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_explicit_calls_outside_code() {
        for (text, name, has_arguments) in [
            (
                r#"<invoke name="read">{"path":"a"}</invoke>"#,
                Some("read"),
                true,
            ),
            (
                r#"[TOOL_CALL]{"name":"read","arguments":{}}[/TOOL_CALL]"#,
                Some("read"),
                true,
            ),
            ("<tool_call>read a</tool_call>", None, false),
            (
                "<invoke name=\"read\"><path>a</path></invoke>",
                Some("read"),
                false,
            ),
        ] {
            let calls = find(text);
            assert_eq!(calls.len(), 1, "{text}");
            assert_eq!(calls[0].name.as_deref(), name, "{text}");
            assert_eq!(calls[0].arguments.is_some(), has_arguments, "{text}");
        }
        assert!(find("```\n<invoke name=\"a\">{}</invoke>\n```\n").is_empty());
        assert!(find("a < b [c]").is_empty());
    }
}
