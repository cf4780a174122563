//! Content block types that a run may send, by position.

/// A content block type.
pub(super) struct BlockRule {
    pub(super) kind: &'static str,
    /// Members other than `type` and `cache_control`.
    pub(super) members: &'static [&'static str],
    /// Members that must be texts.
    pub(super) texts: &'static [&'static str],
    pub(super) within: &'static [Within],
}

/// Container of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    System,
    User,
    Assistant,
    ToolResult,
    Document,
}

pub(super) const BLOCKS: [BlockRule; 9] = [
    BlockRule {
        kind: "text",
        members: &["text", "citations"],
        texts: &["text"],
        within: &[
            Within::System,
            Within::User,
            Within::Assistant,
            Within::ToolResult,
            Within::Document,
        ],
    },
    BlockRule {
        kind: "image",
        members: &["source"],
        texts: &[],
        within: &[Within::User, Within::ToolResult, Within::Document],
    },
    BlockRule {
        kind: "document",
        members: &["source", "title", "context", "citations"],
        texts: &[],
        within: &[Within::User, Within::ToolResult],
    },
    BlockRule {
        kind: "search_result",
        members: &["source", "title", "content", "citations"],
        texts: &["source", "title"],
        within: &[Within::User, Within::ToolResult],
    },
    BlockRule {
        kind: "tool_use",
        members: &["id", "name", "input", "caller", "toolset_name"],
        texts: &["id", "name"],
        within: &[Within::Assistant],
    },
    BlockRule {
        kind: "tool_result",
        members: &["tool_use_id", "content", "is_error"],
        texts: &["tool_use_id"],
        within: &[Within::User],
    },
    BlockRule {
        kind: "tool_reference",
        members: &["tool_name"],
        texts: &["tool_name"],
        within: &[Within::ToolResult],
    },
    BlockRule {
        kind: "thinking",
        members: &["thinking", "signature"],
        // Incomplete reasoning is left out and rejects no request.
        texts: &[],
        within: &[Within::Assistant],
    },
    BlockRule {
        kind: "redacted_thinking",
        members: &["data"],
        texts: &[],
        within: &[Within::Assistant],
    },
];
