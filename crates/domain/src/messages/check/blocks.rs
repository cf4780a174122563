//! Content block types that a run may send, by position.

/// A content block type.
pub(super) struct Block {
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

pub(super) const BLOCKS: [Block; 9] = [
    Block {
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
    Block {
        kind: "image",
        members: &["source"],
        texts: &[],
        within: &[Within::User, Within::ToolResult, Within::Document],
    },
    Block {
        kind: "document",
        members: &["source", "title", "context", "citations"],
        texts: &[],
        within: &[Within::User, Within::ToolResult],
    },
    Block {
        kind: "search_result",
        members: &["source", "title", "content", "citations"],
        texts: &["source", "title"],
        within: &[Within::User, Within::ToolResult],
    },
    Block {
        kind: "tool_use",
        members: &["id", "name", "input", "caller", "toolset_name"],
        texts: &["id", "name"],
        within: &[Within::Assistant],
    },
    Block {
        kind: "tool_result",
        members: &["tool_use_id", "content", "is_error"],
        texts: &["tool_use_id"],
        within: &[Within::User],
    },
    Block {
        kind: "tool_reference",
        members: &["tool_name"],
        texts: &["tool_name"],
        within: &[Within::ToolResult],
    },
    Block {
        kind: "thinking",
        members: &["thinking", "signature"],
        texts: &["thinking"],
        within: &[Within::Assistant],
    },
    Block {
        kind: "redacted_thinking",
        members: &["data"],
        texts: &["data"],
        within: &[Within::Assistant],
    },
];
