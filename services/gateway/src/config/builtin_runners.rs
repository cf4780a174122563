//! `[builtin_runners]`: runners and a tool server in the gateway's own process.

use super::table::{Reported, Table};

/// A server in the gateway's process, on a loopback port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltinRunner {
    LocalAgent,
    ProtocolAgent,
    Echo,
    /// An MCP server with two tools.
    Clock,
}

impl BuiltinRunner {
    const ALL: [Self; 4] = [
        Self::LocalAgent,
        Self::ProtocolAgent,
        Self::Echo,
        Self::Clock,
    ];

    /// False if this build leaves it out.
    fn is_built(self) -> bool {
        cfg!(feature = "graph") || self != Self::ProtocolAgent
    }

    /// Its key in `[builtin_runners]`.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::LocalAgent => "local_agent",
            Self::ProtocolAgent => "protocol_agent",
            Self::Echo => "echo",
            Self::Clock => "clock",
        }
    }

    /// Name of its runner endpoint, or of its MCP server.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalAgent => "local-agent",
            Self::ProtocolAgent => "protocol-agent",
            Self::Echo => "echo",
            Self::Clock => "clock",
        }
    }
}

pub(super) fn read(mut table: Table<'_>) -> Result<Vec<BuiltinRunner>, Reported> {
    let mut enabled = Vec::new();
    let mut result = Ok(());
    for runner in BuiltinRunner::ALL {
        let flag = table.required(runner.key(), |value| match value.as_bool() {
            Some(true) if !runner.is_built() => {
                Err("must be false: this build has no such runner; add the feature `graph`")
            }
            Some(is_enabled) => Ok(is_enabled),
            None => Err("must be true or false"),
        });
        match flag {
            Ok(true) => enabled.push(runner),
            Ok(false) => {}
            Err(Reported) => result = Err(Reported),
        }
    }
    table.close()?;
    result.map(|()| enabled)
}
