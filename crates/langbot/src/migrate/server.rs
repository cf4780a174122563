//! The servers that runners are behind.

use super::Target;
use super::families::Family;

/// The server of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// No pipeline names it: its endpoint is a stub.
    Unknown,
    /// The program `local-agent`.
    LocalAgent,
    /// The program `runnel-connectors`.
    Connectors,
    /// The program `langbot-bridge`.
    Bridge,
}

impl Server {
    /// The server of a family's runner, or of a runner of another plugin.
    pub(super) fn of(family: Option<&Family>, to: Target<'_>) -> Self {
        match family {
            Some(family) if family.is_runnel(to) => Self::LocalAgent,
            Some(family) if !family.uses_host && to.connectors.is_some() => Self::Connectors,
            _ if to.bridge.is_some() => Self::Bridge,
            _ => Self::Unknown,
        }
    }

    /// The beginning of the variables that it reads for its runners' settings, by default.
    pub(super) fn variables(self) -> &'static str {
        match self {
            Self::Unknown | Self::LocalAgent => "",
            Self::Connectors => "CONNECTOR_",
            Self::Bridge => "BRIDGE_",
        }
    }
}
