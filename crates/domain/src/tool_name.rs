//! Reserved names of tools.

/// Built-in tools. They need no URL.
pub const GATEWAY_TOOLS: [&str; 1] = ["get_current_time"];

/// Names of built-in MCP and skill tools. No other tool may use them.
pub const RESERVED_TOOLS: [&str; 9] = [
    "list_assets",
    "get_current_event",
    "history_page",
    "retrieve_knowledge",
    "child_run",
    "list_skills",
    "activate",
    "read_skill_file",
    "register_skill",
];
