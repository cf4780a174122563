//! `[host_api]`: optional routes for runs.

use super::table::{Reported, Table};

/// `[host_api]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostApiConfig {
    /// Enables the MCP endpoint whose tools take the run token as an argument.
    pub shared_mcp: bool,
}

impl HostApiConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let shared_mcp = table.required("shared_mcp", |value| {
            value.as_bool().ok_or("must be true or false")
        });
        table.close()?;
        Ok(Self {
            shared_mcp: shared_mcp?,
        })
    }
}
