//! Arguments of a call in the text of its question.

use serde_json::Value;

/// The text, and a line for each other member of the arguments. `shown`: members that the text holds already, or that change
/// nothing of the call.
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
