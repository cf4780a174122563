//! Serves the Local Agent as an HTTP service, to be registered as a runner endpoint.

use agent_core::program::{AgentProgram, AgentVariables};
use local_agent::LocalAgent;
use local_agent::manifest::RUNNER_ID;

fn main() -> anyhow::Result<()> {
    let program = AgentProgram {
        name: "local-agent",
        version: env!("CARGO_PKG_VERSION"),
        about: "The Local Agent: an agent loop that serves the runner API of Runnel",
        listen: "127.0.0.1:9101",
        runner_id: RUNNER_ID,
        variables: AgentVariables {
            listen: "LOCAL_AGENT_LISTEN",
            secret: "LOCAL_AGENT_SECRET",
            secret_file: "LOCAL_AGENT_SECRET_FILE",
            runner_id: "LOCAL_AGENT_RUNNER_ID",
            log: "LOCAL_AGENT_LOG",
        },
        runner: LocalAgent::runner,
    };
    program.main()
}
