//! The tool catalog: available tools, their sources and their calls.
//!
//! Configured tools are always available. Tools of MCP servers appear and disappear with their servers. Each
//! change replaces the catalog that agents grant from.

mod available_tool;
mod call_slots;
mod gateway;
mod http;
mod mcp;
mod names;
mod on_behalf_of;
mod reconcile;
mod result_size;
mod schema;
mod skill;
mod specs;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::authorization::ResourceCatalog;
use protocol::JsonObject;
use protocol::id::EndpointId;
use protocol::tool::{McpServer, McpServerState};
use serde_json::Value;
use tokio::task::JoinSet;

use self::http::HttpToolCall;
use available_tool::{Callee, declared_tool, skill_tools};
use call_slots::{CallSlots, CallSource};
use clock::Clock;
use domain::tool_name::RESERVED_TOOLS;
use egress::Egress;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use mcp::{ManagedServer, McpToolCall};
use names::NameOwners;
use on_behalf_of::{Bearer, FORGET_INTERVAL, TokenExchange};
use telemetry::metrics;

pub use available_tool::{AvailableTool, BadSchema, check_schema};
pub use gateway::GatewayTool;
pub use on_behalf_of::{Behalf, OnBehalfOf};
pub use result_size::{OversizedResult, SizedResult};
pub use schema::SCHEMA_BYTES;
pub use skill::{
    RegisteredPackage, Registrar, Registration, SkillPackage, SkillTool, SkillsOfRun, packages_in,
};
pub use specs::{
    HttpToolSpec, McpServerSpec, McpTransport, ToolCallSpec, ToolEffects, ToolSpec, ToolSpecs,
};

/// Maximum number of concurrent HTTP tool calls. One endpoint and one tool get at most three quarters each.
/// Further calls wait within their own timeout.
const HTTP_CALLS: usize = 256;
/// Interval at which a probe checks for responses of all servers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The run that calls a tool.
#[derive(Clone, Copy)]
pub struct CallOrigin<'a> {
    pub endpoint: EndpointId,
    pub skills: &'a SkillsOfRun<'a>,
    /// Idempotency key of the call, unique among all runs. HTTP tools and MCP servers receive it.
    pub key: Option<&'a str>,
    /// The actor for whom the run calls tools. `None`: tools that require one are not called.
    pub behalf: Option<Behalf<'a>>,
}

/// All tools of this process. Cheap to clone.
#[derive(Clone)]
pub struct Tools(Arc<ToolsInner>);

struct ToolsInner {
    egress: Egress,
    clock: Clock,
    redactor: Redactor,
    catalog: Arc<ArcSwap<ResourceCatalog>>,
    declared: Vec<Arc<AvailableTool>>,
    skills: BTreeMap<String, SkillPackage>,
    skill_tools: Vec<Arc<AvailableTool>>,
    servers: Vec<Arc<ManagedServer>>,
    available: ArcSwap<BTreeMap<String, Arc<AvailableTool>>>,
    http_slots: CallSlots,
    exchange: TokenExchange,
    /// Serializes updates of the catalog.
    publishing: Mutex<()>,
}

impl Tools {
    /// Creates the tools of a configuration and publishes them in `catalog`. Schemas must be validated before.
    pub fn new(
        specs: ToolSpecs,
        egress: Egress,
        clock: Clock,
        catalog: Arc<ArcSwap<ResourceCatalog>>,
    ) -> Result<Self, BadSchema> {
        let declared: Result<Vec<_>, _> = specs.tools.into_iter().map(declared_tool).collect();
        let servers = specs.servers.into_iter();
        let tools = Self(Arc::new(ToolsInner {
            exchange: TokenExchange::new(egress.clone(), clock),
            egress,
            clock,
            redactor: Redactor::new(specs.secrets),
            catalog,
            declared: declared?,
            skill_tools: skill_tools(&specs.skills)?,
            skills: specs.skills,
            servers: servers
                .map(|spec| Arc::new(ManagedServer::new(spec, clock)))
                .collect(),
            available: ArcSwap::default(),
            http_slots: CallSlots::new(HTTP_CALLS),
            publishing: Mutex::default(),
        }));
        tools.publish();
        Ok(tools)
    }

    /// Maintains the connections to MCP servers. Never returns, except after a panic. Drop it to stop the child
    /// processes.
    pub async fn keep(&self) {
        let mut keeping = JoinSet::new();
        let tools = self.clone();
        keeping.spawn(async move {
            loop {
                tokio::time::sleep(FORGET_INTERVAL).await;
                tools.0.exchange.forget_idle();
            }
        });
        for server in &self.0.servers {
            let (server, tools) = (Arc::clone(server), self.clone());
            keeping.spawn(async move { mcp::connection::keep(&server, &tools).await });
        }
        while let Some(ended) = keeping.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
        std::future::pending::<()>().await;
    }

    /// Connects to the MCP servers once and returns their states.
    pub async fn probe(&self) -> Vec<McpServer> {
        let is_pending = |server: &McpServer| server.state == McpServerState::Connecting;
        let settled = async {
            while self.servers().iter().any(is_pending) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = self.keep() => {}
            () = settled => {}
        }
        self.servers()
    }

    /// The tool of that name.
    pub fn find(&self, name: &str) -> Option<Arc<AvailableTool>> {
        self.0.available.load().get(name).cloned()
    }

    /// Calls a tool with validated parameters. Dropping the future cancels the call if the tool's protocol supports
    /// it.
    pub async fn call(
        &self,
        tool: &AvailableTool,
        parameters: &JsonObject,
        origin: CallOrigin<'_>,
    ) -> Result<Value, UpstreamError> {
        let Some(spec) = tool.on_behalf_of() else {
            return self.send(tool, parameters, origin, None).await;
        };
        let (exchange, redactor) = (&self.0.exchange, &self.0.redactor);
        let bearer = exchange.bearer(spec, origin.behalf, redactor).await?;
        let called = self.send(tool, parameters, origin, Some(&bearer)).await;
        called.map_err(|error| match error {
            UpstreamError::Credential { status } => {
                exchange.forget(&bearer);
                UpstreamError::Actor {
                    reason: "actor_token_refused",
                    message: format!(
                        "the tool refuses the token that {} issued for the actor (HTTP {status}); the actor must have \
                         access there, and the audience and scopes of credential.on_behalf_of must fit",
                        spec.issuer
                    ),
                }
            }
            error => error,
        })
    }

    /// True if a call of the tool, or of its `reconcile` tool, has a token of the actor.
    pub fn calls_on_behalf(&self, tool: &AvailableTool) -> bool {
        let reconciler = tool.reconcile.as_deref();
        let reconciler = reconciler.and_then(|name| self.same_source(tool, name));
        tool.on_behalf_of().is_some() || reconciler.is_some_and(|one| one.on_behalf_of().is_some())
    }

    /// Sends a call, with `bearer` as its credential.
    async fn send(
        &self,
        tool: &AvailableTool,
        parameters: &JsonObject,
        origin: CallOrigin<'_>,
        bearer: Option<&Bearer>,
    ) -> Result<Value, UpstreamError> {
        let CallOrigin {
            endpoint,
            skills,
            key,
            ..
        } = origin;
        // A tool may echo its headers.
        let redactor = match bearer {
            Some(bearer) => &self.0.redactor.with(bearer.secret.clone()),
            None => &self.0.redactor,
        };
        // Counts an aborted call, too: the timer records on drop.
        let counted = metrics::ToolCallTimer::begin(tool.callee.kind());
        let caller = || CallSource {
            endpoint,
            tool: tool.resource.tool_name.as_str().into(),
        };
        let called = match &tool.callee {
            Callee::Gateway(ours) => ours.call(self.0.clock, parameters),
            Callee::Http(spec) => {
                let request = HttpToolCall {
                    spec,
                    parameters,
                    key,
                    bearer,
                };
                let calling = http::call(&self.0.egress, redactor, request);
                let call_slots = &self.0.http_slots;
                call_slots
                    .run(caller(), spec.timeout, Box::pin(calling))
                    .await
            }
            Callee::Mcp { server, name } => {
                let request = McpToolCall {
                    name,
                    parameters: parameters.clone(),
                    key,
                    bearer,
                };
                server
                    .call(&self.0.egress, redactor, caller(), request)
                    .await
            }
            Callee::Skill(tool) => {
                let (packages, registered) = (&self.0.skills, skills.registered);
                tool.call(packages, skills.granted, registered, parameters)
                    .await
            }
            Callee::RegisterSkill(_) => skill::register(skills.registrar, parameters).await,
        };
        counted.end(called.as_ref().map_or_else(UpstreamError::reason, |_| "ok"));
        // Redacts the operator's credentials, since a tool may echo them.
        called.map(|mut value| {
            redactor.redact_registered_in(&mut value);
            value
        })
    }

    /// MCP servers in configuration order.
    pub fn servers(&self) -> Vec<McpServer> {
        let servers = self.0.servers.iter();
        servers.map(|server| server.view()).collect()
    }

    /// Merges the lists of all sources. Configured tools come first. A server keeps a name while it lists it.
    fn publish(&self) {
        // Two servers that publish at once would each overwrite the catalog of the other.
        let publishing = self.0.publishing.lock();
        let _publishing = publishing.unwrap_or_else(PoisonError::into_inner);
        let listed: Vec<_> = self
            .0
            .servers
            .iter()
            .map(|server| server.listed())
            .collect();
        let names = NameOwners::held(&self.0.available.load(), &self.0.servers, &listed);
        let mut available = BTreeMap::new();
        let mut order = Vec::new();
        let mut take = |tool: &Arc<AvailableTool>| {
            let name = &tool.resource.tool_name;
            if available.contains_key(name) || RESERVED_TOOLS.contains(&name.as_str()) {
                return false;
            }
            available.insert(name.clone(), Arc::clone(tool));
            order.push(tool.resource.clone());
            true
        };
        for tool in &self.0.declared {
            take(tool);
        }
        for (at, (server, listed)) in self.0.servers.iter().zip(&listed).enumerate() {
            let is_starting = server.is_starting();
            // The owner is decided before the name is taken, so that a later server cannot win by a faster reply.
            let mut serve = |tool: &Arc<AvailableTool>| {
                names.may_own(&tool.resource.tool_name, at, is_starting) && take(tool)
            };
            let (served, taken): (Vec<_>, Vec<_>) = listed.iter().partition(|tool| serve(tool));
            let names = |tools: Vec<&Arc<AvailableTool>>| {
                let names = tools.into_iter().map(|tool| &tool.resource.tool_name);
                names.cloned().collect()
            };
            server.note_published(names(served), names(taken));
        }
        // Skill tools are granted with skills, separately from the catalog.
        for tool in &self.0.skill_tools {
            available.insert(tool.resource.tool_name.clone(), Arc::clone(tool));
        }
        self.0.available.store(Arc::new(available));
        // Decisions are cached per catalog, so an unchanged catalog is not replaced.
        if self.0.catalog.load().tools == order {
            return;
        }
        // `rcu` keeps the models and knowledge bases that a concurrent reload stores in the same catalog.
        self.0.catalog.rcu(|catalog| ResourceCatalog {
            tools: order.clone(),
            ..ResourceCatalog::clone(catalog)
        });
    }
}
