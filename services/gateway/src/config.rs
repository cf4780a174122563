//! Settings: all of them are read and validated before anything opens.

mod agent;
mod artifacts;
mod audit;
mod budgets;
mod builtin_runners;
mod bus;
mod catalog;
mod dev_layers;
mod endpoint;
mod event_source;
mod fault;
mod hook;
mod host_api;
mod knowledge;
mod limits;
mod locations;
mod mcp_server;
mod models;
mod oidc;
mod on_behalf_of;
mod paths;
mod prices;
mod provider_limits;
mod reachable;
mod reconcile;
mod routes;
mod schedule;
mod secret_ref;
mod sections;
mod source;
mod spec;
mod suggestion;
mod table;
mod telemetry;
mod toml_fault;
mod tool;
mod webhook;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use domain::budget::Budget;
use protocol::admin::AgentSpec;
use protocol::schedule::ScheduleSpec;
use serde_json::{Value, json};

pub use self::audit::ChangeExportEntry;
pub use self::knowledge::{KnowledgeBaseEntry, KnowledgeLocation};
pub use self::models::{ModelEntry, ProviderEntry};
pub use self::prices::{ModelPrices, PriceEntry, PriceTierEntry};
pub use self::provider_limits::ProviderLimitsEntry;
pub use self::routes::RouteEntry;
pub use self::telemetry::TelemetryConfig;
pub use artifacts::{ArtifactUrl, ArtifactsConfig, FileEntry};
pub use builtin_runners::BuiltinRunner;
pub use bus::{BusConfig, BusKind};
pub use catalog::{SkillDirectoryEntry, SkillEntry, check_skill_name};
pub use dev_layers::DevLayers;
pub use endpoint::EndpointEntry;
pub use event_source::SourceEntry;
pub use fault::{ConfigErrors, ConfigFault};
pub use hook::HookEntry;
pub use host_api::HostApiConfig;
pub use limits::LimitsConfig;
pub use locations::Locations;
pub use mcp_server::{McpServerEntry, McpTransportEntry};
pub use on_behalf_of::OnBehalfOfEntry;
pub(crate) use reachable::reachable;
pub use secret_ref::{SecretError, SecretRef, SecretRefError};
pub use sections::{
    AuthConfig, DatabaseConfig, EgressConfig, LedgerConfig, MetricsConfig, RunsConfig, ServerConfig,
};
pub use source::{OpenAiVariables, inherited_variable};
pub(crate) use suggestion::closest;
pub use tool::{HttpToolEntry, ToolEntry};
pub use webhook::WebhookEntry;

use source::{MergedSources, Variables};
use table::{Reported, Table};

/// Sections on which no other section depends.
const INDEPENDENT: [&str; 12] = [
    "server",
    "bus",
    "metrics",
    "limits",
    "ledger",
    "runs",
    "budgets",
    "agents",
    "sources",
    "webhooks",
    "hooks",
    "schedules",
];

const DEFAULT_TOML: &str = include_str!("config/default.toml");

/// All settings, validated. `Debug` shows no secret.
#[derive(Clone)]
pub struct Config {
    pub server: ServerConfig,
    pub auth: AuthConfig,
    pub database: DatabaseConfig,
    pub bus: BusConfig,
    pub metrics: MetricsConfig,
    pub telemetry: TelemetryConfig,
    /// `[audit.export]`. `None`: administrative changes are not exported.
    pub audit_export: Option<ChangeExportEntry>,
    pub egress: EgressConfig,
    pub host_api: HostApiConfig,
    pub limits: LimitsConfig,
    pub ledger: LedgerConfig,
    pub runs: RunsConfig,
    pub budgets: Vec<Budget>,
    pub model_providers: Vec<ProviderEntry>,
    pub artifacts: ArtifactsConfig,
    pub files: Vec<FileEntry>,
    pub models: Vec<ModelEntry>,
    pub tools: Vec<ToolEntry>,
    pub mcp_servers: Vec<McpServerEntry>,
    pub knowledge_bases: Vec<KnowledgeBaseEntry>,
    pub skills: Vec<SkillEntry>,
    pub skill_directories: Vec<SkillDirectoryEntry>,
    /// Servers in this process.
    pub builtin_runners: Vec<BuiltinRunner>,
    pub runner_endpoints: Vec<EndpointEntry>,
    /// In the shape of the API, with unique names.
    pub agents: Vec<AgentSpec>,
    pub sources: Vec<SourceEntry>,
    pub webhooks: Vec<WebhookEntry>,
    /// In the order in which they are called.
    pub hooks: Vec<HookEntry>,
    /// In the shape of the API, with unique names.
    pub schedules: Vec<ScheduleSpec>,
    /// Position of each setting in its source, for messages about faults.
    pub locations: Locations,
}

impl Config {
    /// Reads defaults, file and environment; later sources take precedence. Reports all faults at once. Relative
    /// paths in the file are relative to its directory.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigErrors> {
        Self::load_with(path, None)
    }

    /// The settings without the keys or sections of these faults, so that the rest can be checked further. `None`
    /// if a required setting is among them.
    pub fn load_rest(path: Option<&Path>, faults: &[ConfigFault]) -> Option<Self> {
        let MergedSources {
            mut tree,
            locations,
        } = source::merge(path, None).ok()?;
        let defaults = parse_toml(Path::new("default.toml"), DEFAULT_TOML).ok()?;
        for fault in faults {
            let section = fault.pointer.split(['.', '[']).next()?;
            // Every address depends on its rules.
            // Faults elsewhere may be a consequence of a missing rule.
            if section == "egress" {
                return None;
            }
            // Other sections lose only the faulty key, so that references to them stay valid.
            let pointer = if INDEPENDENT.contains(&section) {
                section
            } else {
                &fault.pointer
            };
            reset(&mut tree, &defaults, pointer)?;
        }
        let rest = Self::validate(tree).ok()?;
        Some(Self { locations, ..rest })
    }

    /// The defaults with a database in `data_dir`, without a file and without the environment.
    pub fn for_dev(data_dir: &Path, listen: SocketAddr) -> Self {
        let mut merged = source::merge(None, Some(Variables::default()))
            .expect("the embedded defaults are valid TOML");
        merged.tree["server"]["listen"] = json!(listen.to_string());
        merged.tree["database"]["url"] = json!(sqlite_url(data_dir));
        Self::validate(merged.tree).expect("the embedded defaults are valid settings")
    }

    fn load_with(path: Option<&Path>, variables: Option<Variables>) -> Result<Self, ConfigErrors> {
        let MergedSources { tree, locations } = source::merge(path, variables)?;
        match Self::validate(tree) {
            Ok(config) => Ok(Self {
                locations,
                ..config
            }),
            Err(faults) => Err(faults.located(&locations)),
        }
    }

    fn validate(tree: Value) -> Result<Self, ConfigErrors> {
        let mut faults = Vec::new();
        match Table::open(String::new(), tree, &mut faults).and_then(Self::read) {
            Ok(config) => Ok(config),
            Err(Reported) => Err(ConfigErrors(faults)),
        }
    }

    fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let server = table.section("server", ServerConfig::read);
        let auth = table.section("auth", AuthConfig::read);
        let database = table.section("database", DatabaseConfig::read);
        let bus = table.section("bus", BusConfig::read);
        let metrics = table.section("metrics", MetricsConfig::read);
        let telemetry = table.section("telemetry", TelemetryConfig::read);
        let audit_export = table.section_if_any("audit", audit::read);
        let egress = table.section("egress", EgressConfig::read);
        let host_api = table.section("host_api", HostApiConfig::read);
        let limits = table.section("limits", LimitsConfig::read);
        let ledger = table.section("ledger", LedgerConfig::read);
        let runs = table.section("runs", RunsConfig::read);
        let budgets = table.tables("budgets", "name", budgets::read);
        let model_providers = table.tables("model_providers", "name", ProviderEntry::read);
        let artifacts = table.section("artifacts", ArtifactsConfig::read);
        let files = table.tables("files", "name", FileEntry::read);
        let models = table.tables("models", "model_id", ModelEntry::read);
        let tools = table.tables("tools", "tool_name", ToolEntry::read);
        let mcp_servers = table.tables("mcp_servers", "name", McpServerEntry::read);
        let knowledge_bases = table.tables("knowledge_bases", "kb_id", KnowledgeBaseEntry::read);
        let skills = table.tables("skills", "skill_name", SkillEntry::read);
        let skill_directories =
            table.tables("skill_directories", "directory", SkillDirectoryEntry::read);
        let builtin_runners = table.section("builtin_runners", builtin_runners::read);
        let runner_endpoints = table.tables("runner_endpoints", "name", EndpointEntry::read);
        let agents = table.tables("agents", "name", agent::read);
        let sources = table.tables("sources", "name", SourceEntry::read);
        let webhooks = table.tables("webhooks", "name", WebhookEntry::read);
        let hooks = table.tables("hooks", "name", HookEntry::read);
        let schedules = table.tables("schedules", "name", schedule::read);
        let listeners = check_listeners(&server, &metrics, &mut table);
        let routes = routes::check_routes(&models, &mut table);
        let few_hooks = hook::check_hooks(&hooks, &mut table);
        let embedding = check_embedding_models(&models, &knowledge_bases, &mut table);
        let reconcile = reconcile::check_reconcile(&tools, &mcp_servers, &mut table);
        let builtin = check_builtin_runners(
            &builtin_runners,
            &database,
            &runner_endpoints,
            &mcp_servers,
            &mut table,
        );
        table.close()?;
        listeners
            .and(routes)
            .and(few_hooks)
            .and(embedding)
            .and(reconcile)
            .and(builtin)?;
        Ok(Self {
            server: server?,
            auth: auth?,
            database: database?,
            bus: bus?,
            metrics: metrics?,
            telemetry: telemetry?,
            audit_export: audit_export?.flatten(),
            egress: egress?,
            host_api: host_api?,
            limits: limits?,
            ledger: ledger?,
            runs: runs?,
            budgets: budgets?,
            model_providers: model_providers?,
            artifacts: artifacts?,
            files: files?,
            models: models?,
            tools: tools?,
            mcp_servers: mcp_servers?,
            knowledge_bases: knowledge_bases?,
            skills: skills?,
            skill_directories: skill_directories?,
            builtin_runners: builtin_runners?,
            runner_endpoints: runner_endpoints?,
            agents: agents?,
            sources: sources?,
            webhooks: webhooks?,
            hooks: hooks?,
            schedules: schedules?,
            locations: Locations::default(),
        })
    }
}

/// Sets what `pointer` names, such as `models[0].kind`, to its default, or removes it.
fn reset(tree: &mut Value, defaults: &Value, pointer: &str) -> Option<()> {
    let (parent, key) = pointer.rsplit_once('.').unwrap_or(("", pointer));
    let segments = parent
        .split(['.', '['])
        .filter(|segment| !segment.is_empty());
    let (mut table, mut default) = (tree, Some(defaults));
    for segment in segments {
        if let Some(index) = segment.strip_suffix(']') {
            table = table.get_mut(index.parse::<usize>().ok()?)?;
            default = None;
        } else {
            table = table.get_mut(segment)?;
            default = default.and_then(|default| default.get(segment));
        }
    }
    let table = table.as_object_mut()?;
    match default.and_then(|default| default.get(key)) {
        Some(default) => table.insert(key.to_owned(), default.clone()),
        None => table.remove(key),
    };
    Some(())
}

/// Two listeners need different addresses, unless the port is 0.
fn check_listeners(
    server: &Result<ServerConfig, Reported>,
    metrics: &Result<MetricsConfig, Reported>,
    table: &mut Table<'_>,
) -> Result<(), Reported> {
    let (Ok(server), Ok(metrics)) = (server, metrics) else {
        return Err(Reported);
    };
    let differ = server.listen.port() == 0 || metrics.listen != Some(server.listen);
    let message = "must be another address than server.listen";
    table.demand("metrics.listen", differ, message)
}

/// The embedding model of a knowledge base must be in the catalog.
fn check_embedding_models(
    models: &Result<Vec<ModelEntry>, Reported>,
    bases: &Result<Vec<KnowledgeBaseEntry>, Reported>,
    table: &mut Table<'_>,
) -> Result<(), Reported> {
    let (Ok(models), Ok(bases)) = (models, bases) else {
        return Err(Reported);
    };
    let mut result = Ok(());
    for (index, base) in bases.iter().enumerate() {
        if let KnowledgeLocation::Embedded {
            embedding_model: Some(model),
            ..
        } = &base.location
        {
            let key = format!("knowledge_bases[{index}].embedding_model");
            match models.iter().find(|entry| entry.model_id == *model) {
                None => result = Err(table.fault(&key, "names no model_id of [[models]]")),
                // Vectors of different models do not compare.
                Some(entry) if entry.provider.is_none() => {
                    result = Err(table.fault(&key, "names a route; name one of its models"));
                }
                Some(_) => {}
            }
        }
    }
    result
}

/// Built-in servers need a database of their own and free names: replicas share their endpoints, and cannot reach each
/// other's loopback ports.
fn check_builtin_runners(
    builtin: &Result<Vec<BuiltinRunner>, Reported>,
    database: &Result<DatabaseConfig, Reported>,
    endpoints: &Result<Vec<EndpointEntry>, Reported>,
    servers: &Result<Vec<McpServerEntry>, Reported>,
    table: &mut Table<'_>,
) -> Result<(), Reported> {
    let (Ok(builtin), Ok(database), Ok(endpoints), Ok(servers)) =
        (builtin, database, endpoints, servers)
    else {
        return Err(Reported);
    };
    let is_alone = builtin.is_empty() || database.url.starts_with("sqlite:");
    let message = "needs SQLite: replicas of one PostgreSQL database cannot reach each other's built-in runners; run \
                   them as services and list them in [[runner_endpoints]]";
    let mut result = table.demand("builtin_runners", is_alone, message);
    for runner in builtin {
        let name = runner.name();
        let (kind, is_taken) = match runner {
            BuiltinRunner::Clock => (
                "[[mcp_servers]]",
                servers.iter().any(|one| one.name == name),
            ),
            _ => (
                "[[runner_endpoints]]",
                endpoints.iter().any(|one| one.name == name),
            ),
        };
        let key = format!("builtin_runners.{}", runner.key());
        let message = format!("adds `{name}`, which {kind} has as well; rename that one");
        result = table.demand(&key, !is_taken, message).and(result);
    }
    result
}

// An agent's configuration is opaque and may hold secrets: print names only.
impl fmt::Debug for Config {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agents: Vec<_> = self.agents.iter().map(|agent| &agent.name).collect();
        formatter
            .debug_struct("Config")
            .field("server", &self.server)
            .field("auth", &self.auth)
            .field("database", &self.database)
            .field("bus", &self.bus)
            .field("metrics", &self.metrics)
            .field("telemetry", &self.telemetry)
            .field("audit_export", &self.audit_export)
            .field("egress", &self.egress)
            .field("host_api", &self.host_api)
            .field("limits", &self.limits)
            .field("ledger", &self.ledger)
            .field("runs", &self.runs)
            .field("budgets", &self.budgets)
            .field("model_providers", &self.model_providers)
            .field("artifacts", &self.artifacts)
            .field("files", &self.files)
            .field("models", &self.models)
            .field("tools", &self.tools)
            .field("mcp_servers", &self.mcp_servers)
            .field("knowledge_bases", &self.knowledge_bases)
            .field("skills", &self.skills)
            .field("skill_directories", &self.skill_directories)
            .field("builtin_runners", &self.builtin_runners)
            .field("runner_endpoints", &self.runner_endpoints)
            .field("agents", &agents)
            .field("sources", &self.sources)
            .field("webhooks", &self.webhooks)
            .field("hooks", &self.hooks)
            .field("schedules", &self.schedules.len())
            .finish_non_exhaustive()
    }
}

/// Parses TOML without validation. Faults call the file `name`.
pub fn parse_toml(name: &Path, text: &str) -> Result<Value, ConfigFault> {
    source::parse(name, text)
}

/// The defaults as a commented file, a template for operators.
pub fn default_toml() -> &'static str {
    DEFAULT_TOML
}

/// The SQLite URL for a data directory. Characters that are special in a URL are escaped.
pub fn sqlite_url(data_dir: &Path) -> String {
    let path = data_dir.join("runnel.db");
    format!("sqlite://{}", escaped_url_path(&path.to_string_lossy()))
}

/// Escapes the characters of a path that are special in a URL.
fn escaped_url_path(path: &str) -> String {
    path.replace('%', "%25")
        .replace('?', "%3F")
        .replace('#', "%23")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    /// A file that is deleted at the end of the test.
    struct TestFile(PathBuf);

    impl TestFile {
        fn with(text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("runnel-{}.toml", uuid::Uuid::new_v4()));
            std::fs::write(&path, text).unwrap();
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn load(toml: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
        let file = TestFile::with(toml);
        let variables = variables
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Config::load_with(Some(&file.0), Some(variables))
    }

    fn pointers(refused: &Result<Config, ConfigErrors>) -> Vec<&str> {
        let faults = &refused.as_ref().unwrap_err().0;
        faults.iter().map(|fault| fault.pointer.as_str()).collect()
    }

    /// The default file with its commented examples uncommented.
    fn with_examples() -> String {
        let uncommented = default_toml()
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(code) if code.starts_with('[') || code.contains(" = ") => code,
                _ => line,
            });
        uncommented
            .map(|line| line.replace("allow = []", r#"allow = ["127.0.0.1:9100"]"#))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn defaults_match_the_contract() {
        let config = load("", &[]).unwrap();
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:8700");
        assert_eq!(config.server.heartbeat, Duration::from_secs(15));
        assert!(config.server.public_url.is_none() && config.auth.master_key.is_none());
        assert_eq!(config.auth.signing_key_age, Duration::from_hours(30 * 24));
        assert_eq!(config.database.url, "sqlite://./runnel-data/runnel.db");
        assert_eq!(config.limits.line_bytes, 1_048_576);
        assert_eq!(config.limits.run_bytes, 67_108_864);
        assert_eq!(config.limits.first_byte, Duration::from_secs(30));
        assert_eq!(config.runs.max_deadline, Duration::from_hours(24));
        assert!(config.egress.allow.is_empty() && config.agents.is_empty());
    }

    #[test]
    fn commented_examples_are_valid_and_complete() {
        let config = load(&with_examples(), &[]).unwrap();
        assert_eq!(
            config.server.public_url.unwrap().as_str(),
            "https://runnel.example/"
        );
        assert_eq!(
            config.auth.master_key.unwrap().to_string(),
            "file:/run/secrets/runnel_master_key"
        );
        assert_eq!(config.egress.allow[0].to_string(), "127.0.0.1:9100");
        assert_eq!(
            config.models[0].operations,
            ["invoke", "stream", "count_tokens"]
        );
        assert_eq!(
            config.tools[0].parameters.as_ref().unwrap()["type"],
            "object"
        );
        let names: Vec<_> = config.tools.iter().map(|tool| &tool.tool_name).collect();
        assert_eq!(
            names,
            [
                "search",
                "book_room",
                "find_booking",
                "crm",
                "get_current_time"
            ]
        );
        assert_eq!(config.mcp_servers[0].effects["echo"], "read");
        let credential = config.mcp_servers[1].on_behalf_of.as_ref().unwrap();
        assert_eq!(
            (&*credential.audience, &credential.client_secret),
            ("desk", &None)
        );
        assert_eq!(config.mcp_servers[2].prefix, "files_");
        assert_eq!(
            config.knowledge_bases[0].kb_name.as_deref(),
            Some("The handbook")
        );
        assert_eq!(config.skills[0].display_name.as_deref(), Some("Summarise"));
        let directory = &config.skill_directories[0].directory;
        assert_eq!(directory, Path::new("/etc/runnel/skills"));
        assert_eq!(config.files[0].kind, "knowledge");
        assert!(config.artifacts.secret_access_key.is_some() && config.artifacts.url.is_some());
        assert_eq!(
            config.runner_endpoints[0].headers["x-api-key"].to_string(),
            "env:ECHO_API_KEY"
        );
        assert_eq!(config.runner_endpoints[0].max_runs, 20);
        assert_eq!(config.sources[0].spec.name, "github");
        assert_eq!(config.webhooks[0].agents, Some(vec!["hello".to_owned()]));
        assert_eq!(config.hooks[0].agents, Some(vec!["hello".to_owned()]));
        assert_eq!(config.schedules[0].agent.as_deref(), Some("hello"));
        let written = parse_toml(Path::new("examples"), &with_examples()).unwrap();
        let written = &written["agents"][0];
        assert_eq!(written["scope"], json!({"kind": "global"}));
        let agent = &config.agents[0];
        let all = serde_json::to_value(agent).unwrap();
        for (section, keys) in [("", &all), ("resource_policy", &all["resource_policy"])] {
            let named = if section.is_empty() {
                written
            } else {
                &written[section]
            };
            for key in keys.as_object().unwrap().keys() {
                assert!(named.get(key).is_some(), "{section} lacks {key}");
            }
        }
    }

    #[test]
    fn built_in_runners_need_sqlite_and_free_names() {
        let builtin = "[builtin_runners]\nlocal_agent = true\nclock = true\n";
        let check = |rest: &str, expected: &[&str]| {
            let loaded = load(&format!("{rest}\n{builtin}"), &[]);
            assert_eq!(pointers(&loaded), expected, "{rest}");
        };
        check("database.url = 'postgres://u:p@h/d'", &["builtin_runners"]);
        let taken = "[[runner_endpoints]]\nname = 'local-agent'\nbase_url = 'https://e.example'\nsecret = 'env:E'\n\
                     [[mcp_servers]]\nname = 'clock'\nurl = 'https://c.example'";
        check(
            taken,
            &["builtin_runners.local_agent", "builtin_runners.clock"],
        );
        let config = load(builtin, &[]).unwrap();
        assert_eq!(
            config.builtin_runners,
            [BuiltinRunner::LocalAgent, BuiltinRunner::Clock]
        );
    }

    #[test]
    fn credentials_of_tools_have_pointers() {
        let check = |credential: &str, expected: &[&str]| {
            let of_url = format!("url = 'https://t.example'\ncredential = {credential}");
            let loaded = load(&format!("[[tools]]\ntool_name = 't'\n{of_url}"), &[]);
            let at = |root: &str| -> Vec<_> {
                let pointers = expected.iter();
                pointers.map(|key| format!("{root}.{key}")).collect()
            };
            assert_eq!(pointers(&loaded), at("tools[0]"), "{credential}");
            let loaded = load(&format!("[[mcp_servers]]\nname = 's'\n{of_url}"), &[]);
            assert_eq!(pointers(&loaded), at("mcp_servers[0]"), "{credential}");
        };
        let complete = "{ on_behalf_of = { issuer = 'https://id.example/a', audience = 'a', client_id = 'c' } }";
        let tool = "[[tools]]\ntool_name = 't'\nurl = 'https://t.example'";
        let config = load(&format!("{tool}\ncredential = {complete}"), &[]).unwrap();
        let http = config.tools[0].http.as_ref().unwrap();
        assert!(http.on_behalf_of.is_some());
        check("{}", &["credential.on_behalf_of"]);
        check(
            "{ on_behalf_of = { issuer = 'id', scopes = ['a b', 'c'], client_secret = 'literal', role = 'x' }, x = 1 }",
            &[
                "credential.on_behalf_of.issuer",
                "credential.on_behalf_of.audience",
                "credential.on_behalf_of.scopes[0]",
                "credential.on_behalf_of.client_id",
                "credential.on_behalf_of.client_secret",
                "credential.on_behalf_of.role",
                "credential.x",
            ],
        );
        for (rest, pointer) in [
            (
                "[[tools]]\ntool_name = 'get_current_time'",
                "tools[0].credential",
            ),
            (
                "[[tools]]\ntool_name = 't'\nurl = 'https://t.example'\nheaders = { Authorization = 'env:A' }",
                "tools[0].headers.authorization",
            ),
            (
                "[[mcp_servers]]\nname = 's'\ncommand = ['a']",
                "mcp_servers[0].credential",
            ),
        ] {
            let loaded = load(&format!("{rest}\ncredential = {complete}"), &[]);
            assert_eq!(pointers(&loaded), [pointer], "{rest}");
        }
    }

    #[test]
    fn catalog_keys_have_documented_defaults() {
        let config = load(
            "[[models]]\nmodel_id = 'm'\nprovider = 'p'\n[[tools]]\ntool_name = 't'\nurl = 'https://t.example'\n\
             [[knowledge_bases]]\nkb_id = 'k'\n[[runner_endpoints]]\nname = 'e'\nbase_url = 'https://e.example'\nsecret = 'env:E'",
            &[],
        )
        .unwrap();
        assert_eq!(config.models[0].model_type, "llm");
        assert_eq!(
            config.models[0].operations,
            ["invoke", "stream", "count_tokens"]
        );
        assert_eq!(config.tools[0].operations, ["detail", "call"]);
        let http = config.tools[0].http.as_ref().unwrap();
        assert_eq!((http.method.as_str(), http.timeout.as_secs()), ("POST", 60));
        assert_eq!(config.knowledge_bases[0].operations, ["list", "retrieve"]);
        let endpoint = &config.runner_endpoints[0];
        assert_eq!(
            (endpoint.mode.as_str(), endpoint.delta_mode.as_str()),
            ("standard", "increment")
        );
        assert!(endpoint.headers.is_empty() && endpoint.manifests.is_none());
    }

    #[test]
    fn environment_overrides_file_and_file_overrides_defaults() {
        let file =
            "[server]\nlisten = '0.0.0.0:1'\nheartbeat_seconds = 2.5\n[limits]\nrun_events = 50";
        let config = load(
            file,
            &[
                ("RUNNEL__SERVER__LISTEN", "[::1]:9000"),
                ("RUNNEL__LIMITS__SILENCE_SECONDS", "7"),
                ("RUNNEL__EGRESS__ALLOW", "runner:80, 10.0.0.0/8"),
                ("RUNNEL__AUTH__MASTER_KEY", "env:KEY"),
                ("RUNNEL__DATABASE__URL", ""),
                ("RUNNEL_LOG", "debug"),
                ("PATH", "/bin"),
            ],
        )
        .unwrap();
        assert_eq!(config.server.listen.to_string(), "[::1]:9000");
        assert_eq!(config.server.heartbeat, Duration::from_millis(2500));
        assert_eq!(
            (config.limits.run_events, config.limits.silence.as_secs()),
            (50, 7)
        );
        assert_eq!(config.egress.allow.len(), 2);
        assert_eq!(config.auth.master_key.unwrap().to_string(), "env:KEY");
        assert_eq!(config.database.url, "sqlite://./runnel-data/runnel.db");
    }

    #[test]
    fn environment_sets_single_item_lists_and_ipv6() {
        let config = load("", &[("RUNNEL__EGRESS__ALLOW", "[fd00::1]:80")]).unwrap();
        assert_eq!(config.egress.allow, ["[fd00::1]:80".parse().unwrap()]);
    }

    #[test]
    fn reports_all_faults_with_their_pointers() {
        let refused = load(
            "bus = 1\n[server]\nlisten = 'here'\npublic_url = 'https://a.example/path'\nport = 1\n\
             [database]\nurl = 'mysql://x'\n[egress]\nallow = ['ok:1', 'bad', 7]\n[runs]\n\
             lease_seconds = 'x'\n[limits]\nline_bytes = 1\nevent_bytes = 1.5\nstate_value_bytes = 262145\n\
             [[models]]\nmodel_id = 'm'\nprovider = 'p'\n[[models]]\nmodel_id = 'm'\nprovider = 'p'\noperations = ['fly']\n\
             [[tools]]\ntool_name = ''\nparameters = 'x'\nsize = 1\n\
             [[runner_endpoints]]\nname = 'e'\nbase_url = 'https://u:p@e.example'\nmode = 'x'\n\
             headers = { host = 'env:A', x-a = 'literal' }\n\
             [[agents]]\nscope = 1\n[[agents]]\nname = 'a'\nanything = 1\n[[agents]]\nname = 'a'\n\
             [[webhooks]]\nname = 'w'\nurl = 'https://u:p@e.example'\nevents = ['run.ended']\nagents = [1]\n\
             payload = 'fat'\nenabled = 'yes'\nsecret = 'literal'\nretries = 1\n\
             [[webhooks]]\nname = 'x'\nurl = 'https://e.example'\nevents = ['run.failed']\n\
             [[schedules]]\nname = 's'\nagent = 'a'\ncron = '0 25 * * *'\njitter = 5\nmisfire = 'never'\n\
             event = { bot = 'b' }\nat = 1\n[[schedules]]\nname = 's'\nagent = 'a'\nevery = '1h'\n\
             [[sources]]\nname = 'A B'\nscheme = 'hmac'\nsecret = 'env:S'\nfilter = '.'\nagents = []\n\
             [[sources]]\nname = 's'\nscheme = 'md5'\nsecret = 'literal'\nencoding = 'hex'\nretries = 1",
            &[("RUNNEL__LIMITS__TYPO", "1"), ("RUNNEL__AGENTZ__X", "1")],
        );
        let mut found = pointers(&refused);
        found.sort_unstable();
        assert_eq!(
            found,
            [
                "agents[0].event_types",
                "agents[0].name",
                "agents[0].runner_id",
                "agents[0].scope",
                "agents[1].anything",
                "agents[1].event_types",
                "agents[1].runner_id",
                "agents[2].event_types",
                "agents[2].name",
                "agents[2].runner_id",
                "agentz",
                "bus",
                "database.url",
                "egress.allow[1]",
                "egress.allow[2]",
                "limits.event_bytes",
                "limits.line_bytes",
                "limits.state_value_bytes",
                "limits.typo",
                "models[1].model_id",
                "models[1].operations",
                "runner_endpoints[0].base_url",
                "runner_endpoints[0].headers.host",
                "runner_endpoints[0].headers.x-a",
                "runner_endpoints[0].mode",
                "runner_endpoints[0].secret",
                "runs.lease_seconds",
                "schedules[0].at",
                "schedules[0].cron",
                "schedules[0].event.bot",
                "schedules[0].jitter",
                "schedules[0].misfire",
                "schedules[1].name",
                "server.listen",
                "server.port",
                "server.public_url",
                "sources[0].agents",
                "sources[0].header",
                "sources[0].name",
                "sources[1].filter",
                "sources[1].retries",
                "sources[1].scheme",
                "sources[1].secret",
                "tools[0].parameters",
                "tools[0].size",
                "tools[0].tool_name",
                "webhooks[0].agents[0]",
                "webhooks[0].enabled",
                "webhooks[0].events",
                "webhooks[0].payload",
                "webhooks[0].retries",
                "webhooks[0].secret",
                "webhooks[0].url",
                "webhooks[1].secret",
            ]
        );
        let printed = refused.as_ref().unwrap_err().to_string();
        let (locations, faults): (Vec<_>, Vec<_>) =
            printed.lines().partition(|line| line.starts_with("  --> "));
        assert_eq!((locations.len(), faults.len()), (found.len(), found.len()));
        let fault = "limits.typo: is not known here; known are ";
        assert!(printed.contains(fault), "{printed}");
        assert!(
            printed.contains("  --> the variable RUNNEL__LIMITS__TYPO"),
            "{printed}"
        );
        let line = "limits.line_bytes: must be an integer from 4096 to 16777216";
        assert!(printed.contains(line), "{printed}");
        assert!(printed.contains("server.port: is not known here; known are listen, public_url"));
    }

    #[test]
    fn signing_key_age_is_1_to_365_days() {
        for (days, is_good) in [
            ("1", true),
            ("365", true),
            ("0", false),
            ("366", false),
            ("0.5", false),
            ("-1", false),
            ("'30'", false),
        ] {
            let loaded = load(&format!("[auth]\nsigning_key_days = {days}"), &[]);
            assert_eq!(loaded.is_ok(), is_good, "{days}");
            if !is_good {
                assert_eq!(pointers(&loaded), ["auth.signing_key_days"], "{days}");
            }
        }
    }

    #[test]
    fn refuses_parts_larger_than_their_total() {
        let refused = load("[limits]\nline_bytes = 100000\nevent_bytes = 90000", &[]);
        assert_eq!(pointers(&refused), ["limits.event_bytes"]);
        let refused = load("[limits]\nrun_bytes = 100000", &[]);
        assert_eq!(pointers(&refused), ["limits.run_bytes"]);
    }

    #[test]
    fn burst_requires_a_rate() {
        let burst = "[limits]\nworkspace_event_burst = 5\n";
        assert_eq!(
            pointers(&load(burst, &[])),
            ["limits.workspace_event_burst"]
        );
        let both = format!("{burst}workspace_events_per_second = 1");
        assert!(load(&both, &[]).is_ok());
    }

    #[test]
    fn refuses_sections_and_arrays_of_wrong_type() {
        let refused = load(
            "server = 1\nagents = 'x'\nmodels = [1]\n[limits]\nline_bytes = true",
            &[],
        );
        let mut found = pointers(&refused);
        found.sort_unstable();
        assert_eq!(
            found,
            ["agents", "limits.line_bytes", "models[0]", "server"]
        );
    }

    #[test]
    fn refuses_literal_secrets_without_repeating_them() {
        const SECRET: &str = "whsec_aHVudGVyMg";
        let endpoint = "[[runner_endpoints]]\nname = 'e'\nbase_url = 'https://e.example'\n";
        for (toml, pointer) in [
            (
                format!("{endpoint}secret = '{SECRET}'"),
                "runner_endpoints[0].secret",
            ),
            (
                format!("{endpoint}secret = ['{SECRET}']"),
                "runner_endpoints[0].secret",
            ),
            (
                format!("[auth]\nmaster_key = '{SECRET}'"),
                "auth.master_key",
            ),
            (
                format!("[limits]\nline_bytes = '{SECRET}'"),
                "limits.line_bytes",
            ),
            (format!("[database]\nurl = '{SECRET}'"), "database.url"),
            (format!("[auth]\nmaster_key = {SECRET}"), ""),
            (format!("[auth]\nmaster_key = \"{SECRET}"), ""),
        ] {
            let refused = load(&toml, &[]);
            assert_eq!(pointers(&refused), [pointer], "{toml}");
            let printed = format!("{0} {0:?}", refused.unwrap_err());
            assert!(!printed.contains("aHVudGVyMg"), "{printed}");
        }
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let config = load(
            "[[runner_endpoints]]\nname = 'e'\nbase_url = 'https://e.example/x?key=hunter2'\n\
             mode = 'single_url'\nsecret = 'env:E'\n\
             [[agents]]\nname = 'a'\nevent_types = ['*']\nrunner_id = 'plugin:a/b/c'\nconfig = { key = 'hunter2' }",
            &[(
                "RUNNEL__DATABASE__URL",
                "postgres://runnel:hunter2@db/runnel?password=hunter2",
            )],
        )
        .unwrap();
        let printed = format!("{config:?}");
        assert!(
            printed.contains("postgres://db/runnel") && printed.contains("env:E"),
            "{printed}"
        );
        assert!(!printed.contains("hunter2"), "{printed}");
    }

    #[test]
    fn refuses_non_finite_numbers() {
        for (toml, pointer) in [
            ("[telemetry]\nsample_ratio = nan", "telemetry.sample_ratio"),
            ("[runs]\nlease_seconds = inf", "runs.lease_seconds"),
            (
                "[[models]]\nmodel_id = 'm'\ninput_price = -inf",
                "models[0].input_price",
            ),
        ] {
            assert_eq!(pointers(&load(toml, &[])), [pointer]);
        }
    }

    #[test]
    fn database_url_may_be_a_secret_reference() {
        let file = std::env::temp_dir().join(format!("runnel-url-{}", uuid::Uuid::new_v4()));
        let toml = format!("[database]\nurl = 'file:{}'", file.display());
        let refused = load(&toml, &[]);
        assert_eq!(pointers(&refused), ["database.url"]);
        std::fs::write(&file, "mysql://runnel:hunter2@db/runnel").unwrap();
        let refused = load(&toml, &[]);
        assert_eq!(pointers(&refused), ["database.url"]);
        assert!(!refused.unwrap_err().to_string().contains("hunter2"));
        std::fs::write(&file, "postgres://runnel:hunter2@db/runnel\n").unwrap();
        let config = load(&toml, &[]).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(config.database.url, "postgres://runnel:hunter2@db/runnel");
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn metrics_need_a_separate_address() {
        let both = "[server]\nlisten = '127.0.0.1:8700'\n[metrics]\nlisten = '127.0.0.1:8700'";
        assert_eq!(pointers(&load(both, &[])), ["metrics.listen"]);
        let config = load("[metrics]\nlisten = '127.0.0.1:9464'", &[]).unwrap();
        assert_eq!(config.metrics.listen.unwrap().port(), 9464);
        assert_eq!(load("", &[]).unwrap().metrics.listen, None);
    }

    #[test]
    fn refuses_export_keys_without_a_collector() {
        let endpoint = "[telemetry]\notlp_endpoint = 'https://otlp.example/base'\n";
        let how = "headers = { authorization = 'env:OTLP' }\nsample_ratio = 0.5\nservice_name = 's'\n\
             metrics_interval_seconds = 30.0";
        let config = load(&format!("{endpoint}{how}"), &[]).unwrap().telemetry;
        assert_eq!(
            (config.sample_ratio, config.service_name.as_str()),
            (0.5, "s")
        );
        assert_eq!(config.headers["authorization"].to_string(), "env:OTLP");
        assert_eq!(config.metrics_interval.unwrap().as_secs(), 30);
        let config = load(endpoint, &[]).unwrap().telemetry;
        assert_eq!(
            (config.sample_ratio, config.service_name.as_str()),
            (1.0, "runnel")
        );
        assert!(load("", &[]).unwrap().telemetry.otlp_endpoint.is_none());
        let all = [
            "telemetry.headers",
            "telemetry.sample_ratio",
            "telemetry.service_name",
            "telemetry.metrics_interval_seconds",
        ];
        assert_eq!(pointers(&load(&format!("[telemetry]\n{how}"), &[])), all);
        for (bad, pointer) in [
            ("otlp_endpoint = 'otlp.example:4317'", "otlp_endpoint"),
            (
                "otlp_endpoint = 'https://otlp.example/v1/traces'",
                "otlp_endpoint",
            ),
            (
                "otlp_endpoint = 'https://otlp.example?key=x'",
                "otlp_endpoint",
            ),
            (
                "otlp_endpoint = 'https://o.example'\nsample_ratio = 1.5",
                "sample_ratio",
            ),
            (
                "otlp_endpoint = 'https://o.example'\nheaders = { a = 'hunter2' }",
                "headers.a",
            ),
            (
                "otlp_endpoint = 'https://o.example'\nprotocol = 'grpc'",
                "protocol",
            ),
        ] {
            let refused = load(&format!("[telemetry]\n{bad}"), &[]);
            assert_eq!(
                pointers(&refused),
                [format!("telemetry.{pointer}")],
                "{bad}"
            );
        }
    }

    #[test]
    fn exports_changes_to_one_receiver() {
        let config = load("[audit]\nexport = { file = '/var/changes' }", &[]).unwrap();
        let ChangeExportEntry::File(file) = config.audit_export.unwrap() else {
            panic!("a file");
        };
        assert_eq!(file, Path::new("/var/changes"));
        assert!(load("[audit]", &[]).unwrap().audit_export.is_none());
        for (bad, pointer) in [
            ("", "file"),
            ("file = '/f', url = 'https://siem.example'", "file"),
            ("file = '/f', headers = { a = 'env:A' }", "headers"),
            ("url = 'siem.example'", "url"),
            (
                "url = 'https://siem.example', headers = { a = 'hunter2' }",
                "headers.a",
            ),
        ] {
            let refused = load(&format!("[audit]\nexport = {{ {bad} }}"), &[]);
            assert_eq!(
                pointers(&refused),
                [format!("audit.export.{pointer}")],
                "{bad}"
            );
        }
    }

    #[test]
    fn preserves_agent_configuration_keys() {
        let agent = "[[agents]]\nname = 'a'\nevent_types = ['*']\nrunner_id = 'plugin:a/b/c'\n";
        let written = "[agents.config]\n\"Some.Key\" = 1\nmodelId = [1.5, true, 'x']";
        let config = load(&format!("{agent}{written}"), &[]).unwrap();
        let expected = json!({"Some.Key": 1, "modelId": [1.5, true, "x"]});
        assert_eq!(json!(config.agents[0].config), expected);
    }

    #[test]
    fn names_missing_and_malformed_files() {
        let missing = Path::new("/nowhere/runnel.toml");
        let refused = Config::load_with(Some(missing), Some(Variables::default())).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("/nowhere/runnel.toml cannot be read: ")
        );

        let refused = load("[server\n", &[]).unwrap_err().to_string();
        assert!(
            refused.contains(".toml:1:8 is not valid TOML: "),
            "{refused}"
        );
    }

    #[test]
    fn dev_ignores_file_and_environment() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = Config::for_dev(Path::new("/tmp/a b%?#"), listen);
        assert_eq!(config.server.listen, listen);
        assert_eq!(config.database.url, "sqlite:///tmp/a b%25%3F%23/runnel.db");
    }
}
