//! Names of tools that the gateway keeps for itself.

/// Tools that are a part of the gateway. They need no URL.
pub const GATEWAY_TOOLS: [&str; 1] = ["get_current_time"];

/// What the MCP face and the tools about skills are called: no other tool may have these names.
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
