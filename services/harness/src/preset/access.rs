//! Models and tools of a run for its harness, and the additions of a preset to a launch.

use std::path::Path;
use std::time::Duration;

use crate::config::{Config, PermissionMode};

/// Timeout of an MCP tool call, without the wait for a permission.
const TOOL_TIME: Duration = Duration::from_mins(10);

/// Addresses and credentials for the models and tools of a run.
pub(crate) struct Access<'a> {
    /// Base URL of the OpenAI faces.
    pub(crate) openai: String,
    /// Base URL of the Anthropic face.
    pub(crate) anthropic: String,
    /// URL of the MCP server.
    pub(crate) mcp: String,
    /// Relay key for all of these URLs.
    pub(crate) key: &'a str,
    pub(crate) config: &'a Config,
    pub(crate) home: &'a Path,
    pub(crate) directory: &'a Path,
    /// Loopback port for a harness that [serves itself](super::Preset::serves_itself).
    pub(crate) port: Option<u16>,
}

/// Additions of a preset to a launch.
#[derive(Debug, Default)]
pub(crate) struct PresetAdditions {
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) args: Vec<String>,
    /// Additional members of the request that opens a session.
    pub(crate) session: serde_json::Map<String, serde_json::Value>,
    /// Files below the home directory, written with mode 0600 and removed at the end of the run.
    pub(crate) files: Vec<(&'static str, String)>,
}

impl Access<'_> {
    /// Timeout of one MCP tool call, including the wait for a permission.
    pub(crate) fn tool_time(&self) -> Duration {
        self.config.approval + TOOL_TIME
    }

    /// True if the harness has to disable its own writing tools, as far as it can be configured.
    pub(crate) fn is_read_only(&self) -> bool {
        self.config.mode == PermissionMode::ReadOnly
    }
}
