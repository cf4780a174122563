//! `runnel check-config`.

use std::process::ExitCode;
use std::sync::Arc;

use arc_swap::ArcSwap;
use protocol::tool::{McpServer, McpServerState};
use serde_json::json;

use crate::app::declared;
use crate::cli::serve::master_key;
use crate::cli::{ConfigArgument, output};
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors, ConfigFault};
use crate::outbound::egress::Egress;
use crate::outbound::tool::{ToolSpecs, Tools};

#[derive(clap::Args)]
pub(super) struct CheckConfigArguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// Connect to the MCP servers, too, and say how each stands.
    #[arg(long)]
    probe: bool,
}

/// Reports everything that `serve` would refuse, and changes nothing.
pub(super) async fn check_config(
    arguments: &CheckConfigArguments,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let path = arguments.config.path();
    let (mut faults, mut servers) = (Vec::new(), Vec::new());
    match Config::load(path.as_deref()) {
        Err(ConfigErrors(found)) => faults = found,
        Ok(config) => {
            let declared = declared(&config);
            if let Err(error) = master_key(&config) {
                faults.push(ConfigFault::new("auth.master_key", format!("{error:#}")));
            }
            match declared {
                Err(ConfigErrors(found)) => {
                    faults.splice(0..0, found);
                }
                Ok(declared) if arguments.probe && faults.is_empty() => {
                    servers = probe(&config, declared.tools).await?;
                }
                Ok(_) => {}
            }
        }
    }
    let is_away = |server: &McpServer| server.state != McpServerState::Ready;
    let is_good = faults.is_empty() && !servers.iter().any(is_away);
    show(&faults, arguments.probe.then_some(&servers), json);
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn probe(config: &Config, specs: ToolSpecs) -> anyhow::Result<Vec<McpServer>> {
    let egress = Egress::new(config.egress.allow.clone(), config.limits.connect)?;
    let egress = egress.refusing_own(config.server.listen);
    let catalog = Arc::new(ArcSwap::default());
    let tools = Tools::new(specs, egress, Clock::system(), catalog)?;
    Ok(tools.probe().await)
}

fn show(faults: &[ConfigFault], servers: Option<&Vec<McpServer>>, json: bool) {
    if json {
        let shown: Vec<_> = faults
            .iter()
            .map(|f| json!({"pointer": f.pointer, "message": f.message}))
            .collect();
        let mut answer = json!({"valid": faults.is_empty(), "faults": shown});
        if let Some(servers) = servers {
            answer["mcp_servers"] = json!(servers);
        }
        output::line(&answer.to_string());
        return;
    }
    if faults.is_empty() {
        output::line("the configuration is valid");
    } else {
        output::remark(&ConfigErrors(faults.to_vec()).to_string());
    }
    for server in servers.into_iter().flatten() {
        let name = &server.name;
        match &server.last_error {
            None => output::line(&format!("{name}: {}", server.tools.join(", "))),
            Some(error) => output::remark(&format!("{name} is away: {error}")),
        }
        for left_out in &server.left_out {
            output::remark(&format!("{name} leaves out {left_out}"));
        }
    }
}
