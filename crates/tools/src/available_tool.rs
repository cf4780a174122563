//! Tools of the catalog with their schemas, and the component that executes each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::resources::ToolResource;
use serde_json::Value;

use super::gateway::GatewayTool;
use super::http;
use super::mcp::ManagedServer;
use super::on_behalf_of::{OnBehalfOf, without_token};
use super::result_size::{SizedResult, size_result};
use super::schema::Schema;
use super::skill::{Registration, SkillPackage, SkillTool};
use super::specs::{HttpToolSpec, ToolCallSpec, ToolSpec};
use egress::discovery::PROVIDER_TIMEOUT;
use egress::upstream::UpstreamError;

/// A tool of the current catalog, with its compiled schema.
pub struct AvailableTool {
    pub resource: ToolResource,
    /// `None`: any arguments.
    pub(super) schema: Option<Schema>,
    pub(super) callee: Callee,
    /// Tool of the same source that knows what became of a call, by its own name there.
    pub(super) reconcile: Option<String>,
}

pub(super) enum Callee {
    Gateway(GatewayTool),
    Http(Box<HttpToolSpec>),
    Mcp {
        server: Arc<ManagedServer>,
        name: String,
    },
    Skill(SkillTool),
    RegisterSkill(Registration),
}

/// An unusable schema in the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadSchema(String);

/// Validates a schema of the configuration.
pub fn check_schema(schema: &JsonObject) -> Result<(), BadSchema> {
    Schema::compile(schema).map(|_| ()).map_err(BadSchema)
}

impl AvailableTool {
    /// Validates the arguments of a call. Pointers are relative to the arguments.
    pub async fn check(&self, parameters: &JsonObject) -> Result<(), Vec<Fault>> {
        if let Some(schema) = &self.schema {
            schema.check(parameters).await?;
        }
        match &self.callee {
            Callee::RegisterSkill(registration) => registration.check(parameters),
            Callee::Http(spec) => http::check(spec, parameters),
            _ => Ok(()),
        }
    }

    /// Set if each call has a token of its actor.
    pub(super) fn on_behalf_of(&self) -> Option<&OnBehalfOf> {
        match &self.callee {
            Callee::Http(spec) => spec.on_behalf_of.as_ref(),
            Callee::Mcp { server, .. } => server.on_behalf_of(),
            Callee::Gateway(_) | Callee::Skill(_) | Callee::RegisterSkill(_) => None,
        }
    }

    /// Refuses a call without the token of an actor, if the tool requires one.
    pub fn check_without_actor(&self) -> Result<(), UpstreamError> {
        match self.on_behalf_of() {
            Some(_) => Err(without_token()),
            None => Ok(()),
        }
    }

    /// Maximum duration of one call, with the exchange of a token.
    pub fn timeout(&self) -> Duration {
        let exchange = self.on_behalf_of().map(|_| 2 * PROVIDER_TIMEOUT);
        let called = match &self.callee {
            Callee::Gateway(_) | Callee::Skill(_) => Duration::from_secs(1),
            // Allows for a slow database.
            Callee::RegisterSkill(_) => Duration::from_secs(30),
            Callee::Http(spec) => spec.timeout,
            Callee::Mcp { server, .. } => server.timeout(),
        };
        called + exchange.unwrap_or_default()
    }

    /// The result in the form for the runner. Skill results have their own bounds.
    pub fn sized_result(&self, result: Value) -> SizedResult {
        match self.callee {
            Callee::Skill(_) => SizedResult::Inline(result),
            _ => size_result(result),
        }
    }

    /// Name of the skill that a call with these parameters activates.
    pub fn activates<'a>(&self, parameters: &'a JsonObject) -> Option<&'a str> {
        let is_it = matches!(self.callee, Callee::Skill(SkillTool::Activate));
        self.reads_skill(parameters).filter(|_| is_it)
    }

    /// Name of the skill that a call with these parameters reads.
    pub fn reads_skill<'a>(&self, parameters: &'a JsonObject) -> Option<&'a str> {
        let is_it = matches!(self.callee, Callee::Skill(_));
        let name = parameters.get("skill_name").and_then(Value::as_str);
        name.filter(|_| is_it)
    }

    /// True for MCP servers: results have MCP's format.
    pub fn returns_mcp_results(&self) -> bool {
        matches!(self.callee, Callee::Mcp { .. })
    }
}

impl Callee {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Gateway(_) | Self::Skill(_) | Self::RegisterSkill(_) => "gateway",
            Self::Http(_) => "http",
            Self::Mcp { .. } => "mcp",
        }
    }
}

/// Skill tools exist even without configured skills, because runs may have registered some.
pub(super) fn skill_tools(
    skills: &BTreeMap<String, SkillPackage>,
) -> Result<Vec<Arc<AvailableTool>>, BadSchema> {
    let reading = SkillTool::ALL.map(|tool| (tool.resource(), Callee::Skill(tool)));
    let registration = Registration {
        taken: skills.keys().cloned().collect(),
    };
    let registering = (
        Registration::resource(),
        Callee::RegisterSkill(registration),
    );
    let tools = reading.into_iter().chain([registering]);
    let compiled = tools.map(|(resource, callee)| {
        let schema = resource.parameters.as_ref().map(Schema::compile);
        Ok(Arc::new(AvailableTool {
            schema: schema.transpose().map_err(BadSchema)?,
            resource,
            callee,
            reconcile: None,
        }))
    });
    compiled.collect()
}

pub(super) fn declared_tool(spec: ToolSpec) -> Result<Arc<AvailableTool>, BadSchema> {
    let parameters = spec.resource.parameters.as_ref();
    let schema = parameters.map(Schema::compile).transpose();
    Ok(Arc::new(AvailableTool {
        schema: schema.map_err(BadSchema)?,
        resource: spec.resource,
        callee: match spec.call {
            ToolCallSpec::Gateway(ours) => Callee::Gateway(ours),
            ToolCallSpec::Http(spec) => Callee::Http(spec),
        },
        reconcile: spec.reconcile,
    }))
}
