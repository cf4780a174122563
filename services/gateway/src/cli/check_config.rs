//! `runnel check-config`.

mod probe_table;
mod providers;
mod runners;
mod storage;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anstyle::Style;
use arc_swap::ArcSwap;
use domain::authorization::ResourceCatalog;
use probe_table::{ProbeRow, ProbeState};
use protocol::tool::{McpServer, McpServerState};
use runners::Runners;
use serde_json::{Value, json};
use storage::StorageProbe;

use crate::app::{
    BuiltinServers, Declared, DeclaredNames, DerivedPrices, PolicyWarning, declared,
    derived_prices, ungranted_choices, unknown_policy_names, unpriced_models,
};
use crate::cli::config_argument::ConfigArgument;
use crate::cli::serve::master_key;
use crate::config::{BuiltinRunner, Config, ConfigErrors, ConfigFault};
use cli::output::{self, OutputFormat, OutputPart};
use clock::Clock;
use egress::Egress;
use models::ProviderProbe;
use runner_client::RunnerClient;
use secrets::seal::MasterKey;
use tools::Tools;

#[derive(clap::Args)]
pub(super) struct CheckConfigArguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// Also reach the database, the artifact store, model providers, MCP servers and runner endpoints, and check
    /// whether the agents fit their runners. Prints one table. A bucket gets a few bytes, which are deleted again.
    #[arg(long)]
    probe: bool,
    /// Fail on warnings as well.
    #[arg(long)]
    strict: bool,
}

/// Reports everything that `serve` would refuse. Changes nothing.
pub(super) async fn check_config(
    arguments: &CheckConfigArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let checked = check(arguments).await?;
    if format.is_json() {
        output::document(&checked.to_json());
    } else {
        checked.show();
    }
    Ok(if checked.is_good(arguments) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn check(arguments: &CheckConfigArguments) -> anyhow::Result<CheckedConfig> {
    let mut checked = CheckedConfig::default();
    let path = arguments.config.path();
    let config = match Config::load(path.as_deref()) {
        Ok(config) => config,
        Err(errors) => {
            let ConfigErrors(found) = with_further_faults(path.as_deref(), errors);
            checked.faults = found;
            return Ok(checked);
        }
    };
    let declared = match check_references(&config) {
        Ok((declared, _)) => declared,
        Err(ConfigErrors(found)) => {
            checked.faults = found;
            return Ok(checked);
        }
    };
    let (agents, catalog) = (declared.agents.clone(), declared.catalog.clone());
    // Their tools are known only after a connection.
    let has_servers =
        !config.mcp_servers.is_empty() || config.builtin_runners.contains(&BuiltinRunner::Clock);
    let mut tools = (!has_servers)
        .then(|| tool_names(&catalog, config.tools.iter().map(|tool| &tool.tool_name)));
    // A probe with faulty settings would report the same faults once more.
    if arguments.probe && checked.faults.is_empty() {
        let probed = probe(&config, declared).await?;
        tools.clone_from(&probed.tools);
        checked.probed = Some(probed);
    }
    let files: Vec<_> = config.files.iter().map(|file| file.name.as_str()).collect();
    let declared_names = DeclaredNames {
        catalog: &catalog,
        files: &files,
        tools: tools.as_deref(),
    };
    let found = unknown_policy_names(&agents, &declared_names).into_iter();
    checked.warnings = found
        .chain(ungranted_choices(&agents, &catalog))
        .map(|PolicyWarning { pointer, text, .. }| ConfigFault::new(pointer, text))
        .chain(unpriced_models(&config))
        .map(|warning| {
            // Located one by one: the order of the warnings is by kind, not by line.
            let ConfigErrors(located) = ConfigErrors(vec![warning]).located(&config.locations);
            located
        })
        .collect::<Vec<_>>()
        .concat();
    checked.prices = derived_prices(&config);
    Ok(checked)
}

/// Adds the faults of secrets, addresses and references to those of the form.
pub(super) fn with_further_faults(path: Option<&Path>, found: ConfigErrors) -> ConfigErrors {
    let ConfigErrors(mut faults) = found;
    let Some(rest) = Config::load_rest(path, &faults) else {
        return ConfigErrors(faults);
    };
    if let Err(ConfigErrors(further)) = check_references(&rest) {
        // A reset key may miss.
        let is_new = |fault: &ConfigFault| faults.iter().all(|one| one.pointer != fault.pointer);
        let further: Vec<_> = further.into_iter().filter(is_new).collect();
        faults.extend(further);
    }
    ConfigErrors(faults).located(&rest.locations)
}

/// The declared objects and the master key, or the faults of both in the order of the file.
pub(super) fn check_references(config: &Config) -> Result<(Declared, MasterKey), ConfigErrors> {
    match (declared(config), master_key(config)) {
        (Ok(declared), Ok(master_key)) => Ok((declared, master_key)),
        (declared, master_key) => {
            let errors = declared.err().into_iter().chain(master_key.err());
            let faults = errors.flat_map(|ConfigErrors(faults)| faults).collect();
            Err(ConfigErrors(faults).located(&config.locations))
        }
    }
}

/// Names of tools that agents may be granted: these, and those that come with skills.
fn tool_names<'a>(
    catalog: &ResourceCatalog,
    names: impl Iterator<Item = &'a String>,
) -> Vec<String> {
    let skills = catalog.skill_tools.iter().chain(&catalog.register_skill);
    let skills = skills.map(|tool| tool.tool_name.clone());
    names.cloned().chain(skills).collect()
}

/// Everything that was found.
#[derive(Default)]
struct CheckedConfig {
    faults: Vec<ConfigFault>,
    /// Valid settings that are probably mistakes.
    warnings: Vec<ConfigFault>,
    prices: Vec<DerivedPrices>,
    probed: Option<ProbeResults>,
}

impl CheckedConfig {
    fn is_good(&self, arguments: &CheckConfigArguments) -> bool {
        let has_warning = || {
            let mut rows = self.probed.iter().flat_map(ProbeResults::rows);
            !self.warnings.is_empty() || rows.any(|row| row.state == ProbeState::Warning)
        };
        let reached = self.probed.as_ref().is_none_or(ProbeResults::is_good);
        self.faults.is_empty() && reached && !(arguments.strict && has_warning())
    }

    fn to_json(&self) -> Value {
        let fault = |fault: &ConfigFault| json!({"pointer": fault.pointer, "message": fault.message, "place": fault.location});
        let faults: Vec<_> = self.faults.iter().map(fault).collect();
        let remarks: Vec<_> = self.warnings.iter().map(|one| &one.message).collect();
        let mut answer =
            json!({"valid": self.faults.is_empty(), "faults": faults, "remarks": remarks});
        if !self.prices.is_empty() {
            let prices = self.prices.iter();
            answer["derived_prices"] = prices
                .map(|of| json!({"model_id": of.model, "prices": of.text}))
                .collect();
        }
        if let Some(probed) = &self.probed {
            let result = |result: &Result<String, String>| match result {
                Ok(detail) => json!({"ok": true, "detail": detail}),
                Err(error) => json!({"ok": false, "error": error}),
            };
            let providers = probed.providers.iter().map(providers::to_json);
            answer["database"] = result(&probed.storage.database);
            if let Some(master_key) = &probed.storage.master_key {
                answer["master_key"] = result(master_key);
            }
            answer["artifacts"] = result(&probed.storage.artifacts);
            answer["model_providers"] = providers.collect();
            answer["mcp_servers"] = json!(probed.servers);
            answer["runner_endpoints"] = probed.runners.endpoints_json();
            answer["agents"] = probed.runners.agents_json();
        }
        answer
    }

    fn show(&self) {
        if self.faults.is_empty() {
            output::styled_line(output::GREEN, "the configuration is valid");
        }
        for fault in &self.faults {
            print_fault(output::RED, &fault.pointer, fault);
        }
        for warning in &self.warnings {
            print_fault(output::YELLOW, "warning", warning);
        }
        for DerivedPrices { model, text } in &self.prices {
            output::line(&format!(
                "model {model} has no own price for these, so it counts {text}"
            ));
        }
        if let Some(probed) = &self.probed {
            probe_table::print(&probed.rows());
        }
    }
}

/// Prints a fault and its place, after `head` in a style.
fn print_fault(style: Style, head: &str, fault: &ConfigFault) {
    let head = (!head.is_empty()).then(|| format!("{head}:"));
    let space = head.as_ref().map_or("", |_| " ");
    let location = fault.location.as_ref();
    let location = location.map_or(String::new(), |location| format!("\n  --> {location}"));
    output::styled(&[
        OutputPart::Styled(style.bold(), &head.unwrap_or_default()),
        OutputPart::Text(space),
        OutputPart::Text(&fault.message),
        OutputPart::Text(&location),
        OutputPart::Text("\n"),
    ]);
}

struct ProbeResults {
    storage: StorageProbe,
    providers: Vec<ProviderProbe>,
    servers: Vec<McpServer>,
    runners: Runners,
    /// Names of all tools; `None` if a server is away, which may offer more.
    tools: Option<Vec<String>>,
}

impl ProbeResults {
    fn is_good(&self) -> bool {
        self.storage.is_good()
            && self.servers.iter().all(is_ready)
            && self.providers.iter().all(providers::is_good)
            && self.runners.is_good()
    }

    fn rows(&self) -> Vec<ProbeRow> {
        let mut rows = self.storage.rows();
        rows.extend(self.providers.iter().flat_map(providers::rows));
        rows.extend(self.servers.iter().flat_map(server_rows));
        rows.extend(self.runners.rows());
        rows
    }
}

fn is_ready(server: &McpServer) -> bool {
    server.state == McpServerState::Ready
}

fn server_rows(server: &McpServer) -> Vec<ProbeRow> {
    const KIND: &str = "MCP server";
    let result = match &server.last_error {
        None => Ok(server.tools.join(", ")),
        Some(error) => Err(error.clone()),
    };
    let left_out = server.left_out.iter();
    let left_out = left_out.map(|one| format!("leaves out {one}"));
    let warnings = left_out
        .chain(server.notes.iter().cloned())
        .map(|detail| ProbeRow::new(KIND, &server.name, ProbeState::Warning, detail));
    std::iter::once(ProbeRow::of(KIND, &server.name, &result))
        .chain(warnings)
        .collect()
}

async fn probe(config: &Config, mut declared: Declared) -> anyhow::Result<ProbeResults> {
    let master_key = master_key(config)?;
    let builtin = BuiltinServers::start(&config.builtin_runners, &mut declared).await?;
    let rules = config.egress.allow.iter().cloned().chain(builtin.rules());
    let egress = Egress::new(rules.collect(), config.limits.connect)?;
    let egress = egress.refusing_own(config.server.listen);
    let catalog = Arc::new(ArcSwap::default());
    let models = declared.models.open(&egress, Clock::system());
    let client = RunnerClient::new(egress.clone(), Clock::system());
    let published = Arc::clone(&catalog);
    let tools = Tools::new(declared.tools, egress.clone(), Clock::system(), published)?;
    let (storage, providers, servers, runners) = tokio::join!(
        StorageProbe::run(config, &master_key, &declared.artifacts, &egress),
        models.probe(),
        tools.probe(),
        Runners::probe(&client, &declared.endpoints, &declared.agents)
    );
    let listed = catalog.load_full();
    let names = listed.tools.iter().map(|tool| &tool.tool_name);
    let tools = servers
        .iter()
        .all(is_ready)
        .then(|| tool_names(&declared.catalog, names));
    // After the probes, which use the built-in servers.
    builtin.end().await;
    Ok(ProbeResults {
        storage,
        providers,
        servers,
        runners,
        tools,
    })
}
