//! Unified diffs for questions and results.

use serde_json::Value;
use similar::TextDiff;

/// Maximum bytes of either text for a diff: the comparison takes quadratic time in the worst case.
const MAX_BYTES: usize = 256 * 1024;

/// Unified diff of an ACP content part of type `diff`.
pub(crate) fn of_acp(part: &Value) -> String {
    let path = part["path"].as_str().unwrap_or("file");
    let text = |name: &str| part[name].as_str().unwrap_or_default();
    unified(path, text("oldText"), text("newText"))
}

/// Unified diff of two texts.
pub(crate) fn unified(path: &str, old: &str, new: &str) -> String {
    // Both full texts stay visible: a permission may only allow what its question shows.
    if old.len() > MAX_BYTES || new.len() > MAX_BYTES {
        let (before, after) = (old.len(), new.len());
        return format!("{path}: {before} bytes become {after} bytes\n{old}\n{new}");
    }
    TextDiff::from_lines(old, new)
        .unified_diff()
        .header(path, path)
        .to_string()
}
