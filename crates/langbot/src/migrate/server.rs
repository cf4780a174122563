//! Servers of runners.

use super::families::Family;
use super::target::MigrationTarget;

/// Server of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunnerServer {
    /// Unknown: its endpoint is a stub.
    Unknown,
    /// The program `local-agent`.
    LocalAgent,
    /// The program `runnel-connectors`.
    Connectors,
    /// The program `langbot-bridge`.
    Bridge,
}

impl RunnerServer {
    /// Returns the server of a family's runner, or of another plugin's runner.
    pub(super) fn of(family: Option<&Family>, to: MigrationTarget<'_>) -> Self {
        match family {
            Some(family) if family.is_runnel(to) => Self::LocalAgent,
            Some(family) if !family.uses_host && to.connectors.is_some() => Self::Connectors,
            _ if to.bridge.is_some() => Self::Bridge,
            _ => Self::Unknown,
        }
    }

    /// Returns the default prefix of the variables that it reads for its runners' settings.
    pub(super) fn variables(self) -> &'static str {
        match self {
            Self::Unknown | Self::LocalAgent => "",
            Self::Connectors => "CONNECTOR_",
            Self::Bridge => "BRIDGE_",
        }
    }
}
