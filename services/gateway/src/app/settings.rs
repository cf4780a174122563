//! Converts settings into the inputs of the components. All faults are reported at once.

mod artifacts;
mod bus;
mod choices;
mod exports;
mod knowledge;
mod models;
mod prices;
mod secrets;
mod skills;
mod tools;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use domain::authorization::{ModelLimits, ResourceCatalog};
use domain::breaker::BreakerPolicy;
use domain::normalize::ResultLimits;
use protocol::admin::{AgentSpec, EndpointSpec, IdList, ToolPolicy};
use protocol::resources::{
    InputModality, KnowledgeBaseResource, KnowledgeOperation, ModelOperation, ModelResource,
    SkillResource,
};
use protocol::schedule::ScheduleSpec;
use protocol::source::SourceSpec;
use protocol::webhook::WebhookSpec;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

pub(crate) use self::artifacts::artifact_directory;
pub(crate) use self::choices::ungranted_choices;
pub(crate) use self::models::DeclaredModels;
pub(crate) use self::prices::{DerivedPrices, derived_prices, unpriced_models};

use crate::change_export::ChangeReceiver;
use crate::config::{
    Config, ConfigErrors, ConfigFault, EndpointEntry, HookEntry, LimitsConfig, ModelEntry,
    SecretRef, SourceEntry, WebhookEntry, closest,
};
use ::knowledge::Base;
use ::secrets::signature::SigningSecret;
use ::telemetry::otlp::Collector;
use ::tools::{Registration, SkillTool, ToolSpecs};
use blob_store::ArtifactLocation;
use egress::Egress;
use runs::RunLimits;
use runs::artifacts::ArtifactLimits;
use runs::bus::BusSettings;
use runs::discovery::{manifest_list, modes};
use runs::hooks::HookSpec;
use runs::rate::EventRate;
use runs::sources::source_faults;

/// Validated declarations of the configuration, ready to apply.
pub(crate) struct Declared {
    pub(crate) endpoints: Vec<EndpointSpec>,
    pub(crate) agents: Vec<AgentSpec>,
    /// With their secrets.
    pub(crate) sources: Vec<SourceSpec>,
    /// With their secrets.
    pub(crate) webhooks: Vec<WebhookSpec>,
    pub(crate) hooks: Vec<HookSpec>,
    pub(crate) schedules: Vec<ScheduleSpec>,
    /// Without tools: their sources publish them.
    pub(crate) catalog: ResourceCatalog,
    pub(crate) models: DeclaredModels,
    pub(crate) tools: ToolSpecs,
    pub(crate) bus: BusSettings,
    pub(crate) knowledge: BTreeMap<String, Base>,
    pub(crate) artifacts: ArtifactLocation,
    /// OTLP collector of traces.
    pub(crate) collector: Option<Collector>,
    /// Receiver of administrative changes.
    pub(crate) change_receiver: Option<Box<ChangeReceiver>>,
}

/// Reads endpoints, agents and the catalog of a configuration, including secrets.
pub(crate) fn declared(config: &Config) -> Result<Declared, ConfigErrors> {
    // Faults are collected rather than returned, so that one start reports all of them.
    let mut faults = Vec::new();
    let egress = Egress::new(config.egress.allow.clone(), config.limits.connect);
    if let Err(error) = &egress {
        faults.push(ConfigFault::new("egress", error));
    }
    // An invalid rule list is a fault already; URLs are not checked against it again.
    let egress = egress
        .ok()
        .map(|egress| egress.refusing_own(config.server.listen));
    if let Err(error) = store::check_database_url(&config.database.url) {
        faults.push(ConfigFault::new("database.url", error));
    }
    let mut endpoints = Vec::new();
    for (index, entry) in config.runner_endpoints.iter().enumerate() {
        let pointer = format!("runner_endpoints[{index}]");
        endpoints.extend(endpoint(entry, egress.as_ref(), &pointer, &mut faults));
    }
    let mut sources = Vec::new();
    for (index, entry) in config.sources.iter().enumerate() {
        let pointer = format!("sources[{index}]");
        sources.extend(source(entry, &pointer, &mut faults));
    }
    let mut webhooks = Vec::new();
    for (index, entry) in config.webhooks.iter().enumerate() {
        let pointer = format!("webhooks[{index}]");
        webhooks.extend(webhook(entry, egress.as_ref(), &pointer, &mut faults));
    }
    let mut hooks = Vec::new();
    for (index, entry) in config.hooks.iter().enumerate() {
        let pointer = format!("hooks[{index}]");
        hooks.extend(hook(entry, egress.as_ref(), &pointer, &mut faults));
    }
    let models = models::declared_models(config, egress.as_ref(), &mut faults);
    let mut tools = tools::tools(config, egress.as_ref(), &mut faults);
    let (skills, packages) = skills::skills(config, &mut faults);
    tools.skills = packages;
    let knowledge = knowledge::bases(config, egress.as_ref(), &mut faults);
    let artifacts = artifacts::location(config, egress.as_ref(), &mut faults);
    let collector = exports::collector(config, egress.as_ref(), &mut faults);
    let change_receiver = exports::change_receiver(config, egress.as_ref(), &mut faults);
    match bus::bus(config, &mut faults).zip(artifacts) {
        Some((bus, artifacts)) if faults.is_empty() => Ok(Declared {
            endpoints,
            agents: config.agents.clone(),
            sources,
            webhooks,
            hooks,
            schedules: config.schedules.clone(),
            catalog: catalog(config, skills),
            models,
            tools,
            bus,
            knowledge,
            artifacts,
            collector,
            change_receiver,
        }),
        _ => Err(ConfigErrors(faults).located(&config.locations)),
    }
}

fn endpoint(
    entry: &EndpointEntry,
    egress: Option<&Egress>,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<EndpointSpec> {
    let before = faults.len();
    check_egress(
        egress,
        &entry.base_url,
        &format!("{pointer}.base_url"),
        faults,
    );
    let at = format!("{pointer}.secret");
    let secret = signing_secret(&entry.secret, &at, faults);
    let headers = secrets::headers(&entry.headers, pointer, faults);
    let shown = |(name, value): (String, SecretString)| (name, value.expose_secret().to_owned());
    let (mode, delta_mode) = modes(&entry.mode, &entry.delta_mode);
    (faults.len() == before).then(|| EndpointSpec {
        name: entry.name.clone(),
        base_url: entry.base_url.to_string(),
        mode,
        delta_mode,
        secret: Some(secret.expose_secret().to_owned()),
        headers: headers.into_iter().map(shown).collect(),
        manifests: entry.manifests.clone().and_then(manifest_list),
        max_runs: Some(entry.max_runs),
        replaces: None,
    })
}

fn signing_secret(reference: &SecretRef, at: &str, faults: &mut Vec<ConfigFault>) -> SecretString {
    // An unreadable secret is a fault already; its empty text must not cause a second one.
    let unread = faults.len();
    let secret = secrets::secret(reference, at, faults);
    if faults.len() == unread && SigningSecret::parse(&secret).is_err() {
        let message = "must hold whsec_ and the base64 of 24 to 64 bytes";
        faults.push(ConfigFault::new(at.to_owned(), message));
    }
    secret
}

fn source(entry: &SourceEntry, pointer: &str, faults: &mut Vec<ConfigFault>) -> Option<SourceSpec> {
    let before = faults.len();
    let secret = secrets::secret(&entry.secret, &format!("{pointer}.secret"), faults);
    // An unreadable secret is a fault already; its empty text must not cause a second one.
    let is_read = faults.len() == before;
    let spec = SourceSpec {
        secret: is_read.then(|| secret.expose_secret().to_owned()),
        ..entry.spec.clone()
    };
    for fault in source_faults(&spec) {
        let at = fault.pointer.replace('/', ".");
        faults.push(ConfigFault::new(format!("{pointer}{at}"), fault.message));
    }
    (faults.len() == before).then_some(spec)
}

fn webhook(
    entry: &WebhookEntry,
    egress: Option<&Egress>,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<WebhookSpec> {
    let before = faults.len();
    if let Some(url) = &entry.url {
        check_egress(egress, url, &format!("{pointer}.url"), faults);
    }
    let at = format!("{pointer}.secret");
    let secret = entry.secret.as_ref();
    let secret = secret.map(|secret| signing_secret(secret, &at, faults));
    (faults.len() == before).then(|| WebhookSpec {
        name: entry.name.clone(),
        url: entry.url.as_ref().map(ToString::to_string),
        events: entry.events.clone(),
        agents: entry.agents.clone(),
        payload: entry.payload,
        enabled: entry.enabled,
        secret: secret.map(|secret| secret.expose_secret().to_owned()),
    })
}

fn hook(
    entry: &HookEntry,
    egress: Option<&Egress>,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<HookSpec> {
    check_egress(egress, &entry.url, &format!("{pointer}.url"), faults);
    let secret = signing_secret(&entry.secret, &format!("{pointer}.secret"), faults);
    Some(HookSpec {
        name: entry.name.clone(),
        url: entry.url.clone(),
        // A secret that cannot be parsed is a fault already.
        secret: SigningSecret::parse(&secret).ok()?,
        on: entry.on.clone(),
        agents: entry.agents.clone(),
        timeout: entry.timeout,
        on_failure: entry.on_failure,
    })
}

/// Checks that the egress rules permit `url`.
fn check_egress(egress: Option<&Egress>, url: &Url, pointer: &str, faults: &mut Vec<ConfigFault>) {
    if let Some(Err(error)) = egress.map(|egress| egress.check_url(url.as_str())) {
        faults.push(ConfigFault::new(pointer.to_owned(), error));
    }
}

fn catalog(config: &Config, skills: Vec<SkillResource>) -> ResourceCatalog {
    let limits = |entry: &ModelEntry| {
        // A prompt of a route must fit any of its models.
        let least = |of: fn(&ModelEntry) -> Option<u64>| {
            let candidates = entry.candidates(&config.models);
            candidates.filter_map(of).min()
        };
        let limits = ModelLimits {
            context_window_tokens: least(|one| one.context_window_tokens),
            max_output_tokens: least(|one| one.max_output_tokens),
        };
        (entry.model_id.clone(), limits)
    };
    ResourceCatalog {
        model_limits: config.models.iter().map(limits).collect(),
        // Filled in after the artifact store is open.
        files: Vec::new(),
        models: config
            .models
            .iter()
            .map(|entry| ModelResource {
                model_id: entry.model_id.clone(),
                model_type: Some(entry.model_type.clone()),
                provider: entry.provider.clone(),
                operations: parsed(&entry.operations, ModelOperation::parse),
                input_modalities: input_modalities(entry, &config.models),
            })
            .collect(),
        tools: Vec::new(),
        knowledge_bases: config
            .knowledge_bases
            .iter()
            .map(|entry| KnowledgeBaseResource {
                kb_id: entry.kb_id.clone(),
                kb_name: entry.kb_name.clone(),
                kb_type: Some(entry.location.kind().to_owned()),
                operations: parsed(&entry.operations, KnowledgeOperation::parse),
            })
            .collect(),
        skills,
        skill_tools: Vec::from(SkillTool::ALL.map(SkillTool::resource)),
        register_skill: Some(Registration::resource()),
    }
}

/// Kinds of input that all models of an entry accept. Empty: unknown.
fn input_modalities(entry: &ModelEntry, models: &[ModelEntry]) -> Vec<InputModality> {
    let candidates: Vec<_> = entry.candidates(models).collect();
    // A model of unknown kinds accepts all, see `ModelResource::accepts_images`.
    let mut described = candidates
        .iter()
        .map(|one| &one.input_modalities)
        .filter(|kinds| !kinds.is_empty());
    let mut shared = described.next().cloned().unwrap_or_default();
    for kinds in described {
        shared.retain(|kind| kinds.contains(kind));
    }
    parsed(&shared, InputModality::parse)
}

// The configuration check refuses unknown names.
fn parsed<T>(names: &[String], parse: fn(&str) -> Option<T>) -> Vec<T> {
    names.iter().filter_map(|name| parse(name)).collect()
}

pub(crate) fn run_limits(config: &Config) -> RunLimits {
    let limits = &config.limits;
    RunLimits {
        line_bytes: limits.line_bytes,
        results: ResultLimits {
            event_bytes: limits.event_bytes,
            run_bytes: usize::try_from(limits.run_bytes).unwrap_or(usize::MAX),
            run_events: limits.run_events,
            state_value_bytes: limits.state_value_bytes,
        },
        storage_blob_bytes: limits.storage_blob_bytes,
        storage_area_bytes: limits.storage_area_bytes,
        first_byte: limits.first_byte,
        silence: limits.silence,
        cancel_grace: config.runs.cancel_grace,
        shutdown_grace: config.runs.shutdown_grace,
        lease: config.runs.lease,
        append_lease: config.runs.append_lease,
        max_deadline: config.runs.max_deadline,
        retention: config.ledger.retention,
        audit_retention: config.ledger.audit_retention,
        change_retention: config.ledger.change_retention,
        artifacts: ArtifactLimits {
            max_bytes: config.artifacts.max_bytes,
            workspace_bytes: config.artifacts.workspace_bytes,
            shares: artifacts::shares(&config.artifacts),
            expires: config.artifacts.expires,
            mime_types: config.artifacts.mime_types.clone(),
        },
        poll: config.bus.poll,
        discovery_ttl: config.runs.discovery_ttl,
        discovery_retry: config.runs.discovery_retry,
        run_denied_calls: limits.run_denied_calls,
        // 0 means no limit in the configuration.
        workspace_runs: (limits.workspace_runs > 0).then_some(limits.workspace_runs),
        workspace_events: event_rate(limits),
        breaker: BreakerPolicy {
            failures: config.runs.breaker_failures,
            wait_ms: millis(config.runs.breaker_wait),
            max_wait_ms: millis(config.runs.breaker_longest_wait),
        },
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// `None`: no rate limit. The default burst is the number of events of one second.
fn event_rate(limits: &LimitsConfig) -> Option<EventRate> {
    let per_second = NonZeroU32::new(limits.workspace_events_per_second)?;
    Some(EventRate {
        per_second,
        burst: NonZeroU32::new(limits.workspace_event_burst).unwrap_or(per_second),
    })
}

/// Names that agent policies may use.
pub(crate) struct DeclaredNames<'a> {
    pub(crate) catalog: &'a ResourceCatalog,
    /// Names of the configured files.
    pub(crate) files: &'a [&'a str],
    /// `None`: further tools may still come from MCP servers.
    pub(crate) tools: Option<&'a [String]>,
}

/// A name in an agent's policy that matches nothing.
pub(crate) struct PolicyWarning<'a> {
    pub(crate) agent: &'a str,
    pub(crate) pointer: String,
    pub(crate) text: String,
}

/// The names of a policy. A pattern may match tools that come later.
fn named_tools(policy: &ToolPolicy) -> IdList {
    match policy {
        ToolPolicy::List(listed) => listed.clone(),
        ToolPolicy::Rules(rules) => {
            let names = rules.keys().filter(|name| !name.contains('*'));
            IdList::Ids(names.cloned().collect())
        }
    }
}

/// Names in agent policies that match nothing. Skills may still come from runs.
pub(crate) fn unknown_policy_names<'a>(
    agents: &'a [AgentSpec],
    declared: &DeclaredNames<'_>,
) -> Vec<PolicyWarning<'a>> {
    let models = declared.catalog.models.iter();
    let models: Vec<_> = models.map(|model| model.model_id.as_str()).collect();
    let bases = declared.catalog.knowledge_bases.iter();
    let bases: Vec<_> = bases.map(|base| base.kb_id.as_str()).collect();
    let tools = declared
        .tools
        .map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut found = Vec::new();
    for (index, agent) in agents.iter().enumerate() {
        let policy = &agent.resource_policy;
        for (kind, key, listed, declared) in [
            ("model", "models", &policy.models, Some(models.as_slice())),
            (
                "tool",
                "tools",
                &named_tools(&policy.tools),
                tools.as_deref(),
            ),
            (
                "knowledge base",
                "knowledge_bases",
                &policy.knowledge_bases,
                Some(bases.as_slice()),
            ),
            ("file", "files", &policy.files, Some(declared.files)),
        ] {
            // `"*"` names nothing that could be misspelled.
            let (IdList::Ids(ids), Some(declared)) = (listed, declared) else {
                continue;
            };
            for id in ids.iter().filter(|id| !declared.contains(&id.as_str())) {
                let meant = closest(id, declared.iter().copied());
                let meant = meant.map(|name| format!("; did you mean {name}?"));
                let source = if kind == "tool" {
                    "nothing offers"
                } else {
                    "the configuration does not declare"
                };
                let text = format!(
                    "agent {} may have the {kind} {id}, which {source}{}",
                    agent.name,
                    meant.unwrap_or_default()
                );
                found.push(PolicyWarning {
                    agent: &agent.name,
                    pointer: format!("agents[{index}].resource_policy.{key}"),
                    text,
                });
            }
        }
    }
    found
}
