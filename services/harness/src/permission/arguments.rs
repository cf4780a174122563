//! Arguments of a tool call in the text of its question.

use serde_json::Value;

/// The text, and a line for each other argument. `shown`: arguments that the text contains or that have no effect.
pub(crate) fn with_members(text: String, arguments: &Value, shown: &[&str]) -> String {
    let members = arguments.as_object().into_iter().flatten();
    let others =
        members.filter(|(name, value)| !shown.contains(&name.as_str()) && !value.is_null());
    let others = others.map(|(name, value)| format!("{name}: {value}"));
    std::iter::once(text)
        .chain(others)
        .collect::<Vec<_>>()
        .join("\n")
}
