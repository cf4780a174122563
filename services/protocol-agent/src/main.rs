//! HTTP service of the protocol agent, to be registered as a runner endpoint.

use agent_core::program::{AgentProgram, AgentVariables};
use protocol_agent::ProtocolAgent;
use protocol_agent::manifest::RUNNER_ID;

fn main() -> anyhow::Result<()> {
    let program = AgentProgram {
        name: "protocol-agent",
        version: env!("CARGO_PKG_VERSION"),
        about: "The protocol agent: a runner whose model declares graphs of actions",
        listen: "127.0.0.1:9105",
        runner_id: RUNNER_ID,
        variables: AgentVariables {
            listen: "PROTOCOL_AGENT_LISTEN",
            secret: "PROTOCOL_AGENT_SECRET",
            secret_file: "PROTOCOL_AGENT_SECRET_FILE",
            runner_id: "PROTOCOL_AGENT_RUNNER_ID",
            log: "PROTOCOL_AGENT_LOG",
        },
        runner: ProtocolAgent::runner,
    };
    program.main()
}
