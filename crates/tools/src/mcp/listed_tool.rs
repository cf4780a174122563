//! Parses each entry of a tool list separately, so that a bad entry does not affect others.

use rmcp::model::Tool;
use serde_json::Value;

/// Optional members. A tool is callable without them.
const SPARE: [&str; 7] = [
    "description",
    "annotations",
    "title",
    "icons",
    "outputSchema",
    "execution",
    "_meta",
];
const NAME_CHARS: usize = 40;

/// A tool, and its members that were dropped as unreadable.
pub(super) struct ListedTool {
    pub(super) tool: Tool,
    pub(super) dropped: Vec<&'static str>,
}

/// Parses an entry. `index` counts from the start of the list. The error names the tool and the cause.
pub(super) fn read(entry: Value, index: usize) -> Result<ListedTool, String> {
    let Value::Object(mut entry) = entry else {
        return Err(format!("tool {}: is no object", index + 1));
    };
    let name = match entry.get("name") {
        Some(Value::String(name)) if !name.is_empty() => name.clone(),
        Some(Value::String(_)) | None => return Err(format!("tool {}: has no name", index + 1)),
        Some(_) => return Err(format!("tool {}: its name is no text", index + 1)),
    };
    let shown: String = name.escape_debug().take(NAME_CHARS).collect();
    match entry.get("inputSchema") {
        Some(Value::Object(_)) => {}
        None => return Err(format!("{shown}: has no `inputSchema`")),
        Some(other) => {
            return Err(format!(
                "{shown}: its `inputSchema` is {}, not an object",
                kind(other)
            ));
        }
    }
    // Most entries are valid; the slow search for bad members runs only for others.
    if let Ok(tool) = serde_json::from_value(Value::Object(entry.clone())) {
        return Ok(ListedTool {
            tool,
            dropped: Vec::new(),
        });
    }
    let mut dropped = Vec::new();
    for member in SPARE {
        let Some(value) = entry.remove(member) else {
            continue;
        };
        let mut single = serde_json::Map::new();
        single.insert("name".to_owned(), Value::String(name.clone()));
        single.insert(
            "inputSchema".to_owned(),
            Value::Object(serde_json::Map::new()),
        );
        single.insert(member.to_owned(), value.clone());
        // Each member is parsed on its own, since the SDK does not report which one failed.
        if serde_json::from_value::<Tool>(Value::Object(single)).is_ok() {
            entry.insert(member.to_owned(), value);
        } else {
            dropped.push(member);
        }
    }
    serde_json::from_value(Value::Object(entry))
        .map(|tool| ListedTool { tool, dropped })
        .map_err(|error| format!("{shown}: {error}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_bad_entries_and_reasons() {
        for (entry, reason) in [
            (json!({"name": "a"}), "a: has no `inputSchema`"),
            (
                json!({"name": "a", "inputSchema": null}),
                "a: its `inputSchema` is null, not an object",
            ),
            (
                json!({"name": "a", "inputSchema": []}),
                "a: its `inputSchema` is a list, not an object",
            ),
            (
                json!({"name": "a", "inputSchema": "{}"}),
                "a: its `inputSchema` is a text, not an object",
            ),
            (json!({"inputSchema": {}}), "tool 3: has no name"),
            (
                json!({"name": "", "inputSchema": {}}),
                "tool 3: has no name",
            ),
            (
                json!({"name": 5, "inputSchema": {}}),
                "tool 3: its name is no text",
            ),
            (json!(null), "tool 3: is no object"),
        ] {
            assert_eq!(read(entry, 2).err().unwrap(), reason);
        }
    }

    #[test]
    fn drops_unreadable_hints_and_keeps_the_tool() {
        let entry = json!({"name": "a", "inputSchema": {}, "description": 5, "title": "t", "icons": "x",
            "annotations": {"readOnlyHint": "yes"}, "outputSchema": [], "_meta": 1});
        let listed = read(entry, 0).ok().unwrap();
        assert_eq!(listed.tool.title.as_deref(), Some("t"));
        assert!(listed.tool.description.is_none() && listed.tool.annotations.is_none());
        assert_eq!(
            listed.dropped,
            [
                "description",
                "annotations",
                "icons",
                "outputSchema",
                "_meta"
            ]
        );
    }
}
