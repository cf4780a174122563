//! `runnel check-config`.

mod providers;
mod runners;

use std::process::ExitCode;
use std::sync::Arc;

use arc_swap::ArcSwap;
use protocol::tool::{McpServer, McpServerState};
use runners::Runners;
use serde_json::json;

use crate::app::{BuiltinServers, Declared, declared, unknown_policy_names};
use crate::cli::serve::master_key;
use crate::cli::{ConfigArgument, output};
use crate::config::{Config, ConfigErrors, ConfigFault};
use base::clock::Clock;
use egress::Egress;
use models::ProviderProbe;
use runner_client::RunnerClient;
use tools::Tools;

#[derive(clap::Args)]
pub(super) struct CheckConfigArguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// Also connect to model providers, MCP servers and runner endpoints. Reports their states, and whether the
    /// agents fit their runners.
    #[arg(long)]
    probe: bool,
}

/// Reports everything that `serve` would refuse. Changes nothing.
pub(super) async fn check_config(
    arguments: &CheckConfigArguments,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let path = arguments.config.path();
    let (mut faults, mut reached) = (Vec::new(), ProbeResults::default());
    let mut remarks = Vec::new();
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
                Ok(declared) => {
                    let files: Vec<_> =
                        config.files.iter().map(|file| file.name.as_str()).collect();
                    let found = unknown_policy_names(&declared.agents, &declared.catalog, &files);
                    remarks = found.into_iter().map(|(_, line)| line).collect();
                    if arguments.probe && faults.is_empty() {
                        reached = probe(&config, declared).await?;
                    }
                }
            }
        }
    }
    let is_good = faults.is_empty() && reached.is_good();
    show(&faults, &remarks, arguments.probe.then_some(&reached), json);
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Results of `--probe`.
#[derive(Default)]
struct ProbeResults {
    providers: Vec<ProviderProbe>,
    servers: Vec<McpServer>,
    runners: Runners,
}

impl ProbeResults {
    fn is_good(&self) -> bool {
        let is_ready = |server: &McpServer| server.state == McpServerState::Ready;
        self.servers.iter().all(is_ready)
            && self.providers.iter().all(providers::is_good)
            && self.runners.is_good()
    }
}

async fn probe(config: &Config, mut declared: Declared) -> anyhow::Result<ProbeResults> {
    let builtin = BuiltinServers::start(&config.builtin_runners, &mut declared).await?;
    let rules = config.egress.allow.iter().cloned().chain(builtin.rules());
    let egress = Egress::new(rules.collect(), config.limits.connect)?;
    let egress = egress.refusing_own(config.server.listen);
    let catalog = Arc::new(ArcSwap::default());
    let models = declared.models.open(&egress, Clock::system());
    let client = RunnerClient::new(egress.clone(), Clock::system());
    let tools = Tools::new(declared.tools, egress, Clock::system(), catalog)?;
    let (providers, servers, runners) = tokio::join!(
        models.probe(),
        tools.probe(),
        Runners::probe(&client, &declared.endpoints, &declared.agents)
    );
    builtin.end().await;
    Ok(ProbeResults {
        providers,
        servers,
        runners,
    })
}

/// `remarks`: valid settings that are probably mistakes.
fn show(faults: &[ConfigFault], remarks: &[String], reached: Option<&ProbeResults>, json: bool) {
    if json {
        let shown: Vec<_> = faults
            .iter()
            .map(|f| json!({"pointer": f.pointer, "message": f.message}))
            .collect();
        let mut answer = json!({"valid": faults.is_empty(), "faults": shown, "remarks": remarks});
        if let Some(reached) = reached {
            let providers = reached.providers.iter().map(providers::to_json);
            answer["model_providers"] = providers.collect();
            answer["mcp_servers"] = json!(reached.servers);
            answer["runner_endpoints"] = reached.runners.endpoints_json();
            answer["agents"] = reached.runners.agents_json();
        }
        output::document(&answer);
        return;
    }
    if faults.is_empty() {
        output::line("the configuration is valid");
    } else {
        output::remark(&ConfigErrors(faults.to_vec()).to_string());
    }
    for remark in remarks {
        output::remark(remark);
    }
    let Some(reached) = reached else { return };
    reached.providers.iter().for_each(providers::show);
    for server in &reached.servers {
        let name = &server.name;
        match &server.last_error {
            None => output::line(&format!("{name}: {}", server.tools.join(", "))),
            Some(error) => output::remark(&format!("{name} is away: {error}")),
        }
        for left_out in &server.left_out {
            output::remark(&format!("{name} leaves out {left_out}"));
        }
        for note in &server.notes {
            output::remark(&format!("{name}: {note}"));
        }
    }
    reached.runners.show();
}
