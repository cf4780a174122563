//! Target runners of a migration, chosen by its options.

/// Format of the runner ids of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerIds {
    /// `plugin:langbot-team/DifyAgent/default`.
    #[default]
    Newer,
    /// `plugin:langbot/dify-agent/default`.
    Older,
}

/// Replacement of LangBot's local agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalAgentTarget {
    /// LangBot's plugin.
    #[default]
    Langbot,
    /// Runnel's Local Agent, `plugin:runnel/local-agent/default`.
    Runnel,
}

/// Target runners of a migration, and their servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationTarget<'a> {
    pub ids: RunnerIds,
    pub local_agent: LocalAgentTarget,
    /// URL of `runnel-connectors`, for runners that call other services.
    pub connectors: Option<&'a str>,
    /// URL of `langbot-bridge`, for all other plugins' runners.
    pub bridge: Option<&'a str>,
}

impl From<RunnerIds> for MigrationTarget<'_> {
    fn from(ids: RunnerIds) -> Self {
        Self {
            ids,
            ..Self::default()
        }
    }
}
