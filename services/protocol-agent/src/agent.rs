//! One run from its start to its terminal.

use std::sync::Arc;

use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use runner_kit::{ResultStream, Run, RunError, Runner, stream};

use crate::config::Config;
use crate::manifest::manifest;

/// The agent. It keeps nothing between runs; any number of them go on at once.
#[derive(Debug)]
pub struct ProtocolAgent {
    id: RunnerId,
}

impl ProtocolAgent {
    /// The agent under that id.
    pub fn new(id: RunnerId) -> Self {
        Self { id }
    }

    /// The same, ready to be served.
    pub fn runner(id: RunnerId) -> Arc<dyn Runner> {
        Arc::new(Self::new(id))
    }
}

impl Runner for ProtocolAgent {
    fn manifest(&self) -> AgentRunnerManifest {
        manifest(self.id.clone())
    }

    fn run(&self, run: Run) -> ResultStream {
        stream(move |_out| async move {
            let read = Config::read(&run.context.config, &run.context.resources);
            read.map_err(|invalid| {
                RunError::new("protocol_agent.config_invalid", invalid.to_string())
            })?;
            Err(RunError::new(
                "protocol_agent.unfinished",
                "the turn loop follows",
            ))
        })
    }
}
