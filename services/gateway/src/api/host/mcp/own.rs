//! The tools that are no tools: what the run may read, called by MCP.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use protocol::JsonObject;
use protocol::resources::{AgentResources, HistoryOperation, KnowledgeOperation};
use rmcp::model::{Tool, ToolAnnotations};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{events, history, knowledge};
use crate::api::ApiState;
use crate::api::auth::{Call, RunCaller};
use crate::api::error::{ApiError, ApiResult};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnTool {
    ListAssets,
    GetCurrentEvent,
    HistoryPage,
    RetrieveKnowledge,
}

const ALL: [OwnTool; 4] = [
    OwnTool::ListAssets,
    OwnTool::GetCurrentEvent,
    OwnTool::HistoryPage,
    OwnTool::RetrieveKnowledge,
];

/// What `list_assets` is asked.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AssetQuery {
    asset_types: Vec<AssetType>,
    include_schemas: bool,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum AssetType {
    Models,
    Tools,
    KnowledgeBases,
    Skills,
}

impl Default for AssetQuery {
    fn default() -> Self {
        Self {
            asset_types: vec![
                AssetType::Models,
                AssetType::Tools,
                AssetType::KnowledgeBases,
                AssetType::Skills,
            ],
            include_schemas: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl OwnTool {
    /// Those that a run may call.
    pub(super) fn granted(snapshot: &AuthorizationSnapshot) -> impl Iterator<Item = Self> + '_ {
        ALL.into_iter().filter(|tool| match tool {
            Self::ListAssets => true,
            Self::GetCurrentEvent => snapshot.event_get().is_ok(),
            Self::HistoryPage => snapshot.history(HistoryOperation::Page).is_ok(),
            Self::RetrieveKnowledge => !retrievable(snapshot).is_empty(),
        })
    }

    /// The tool of that name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::ListAssets => "list_assets",
            Self::GetCurrentEvent => "get_current_event",
            Self::HistoryPage => "history_page",
            Self::RetrieveKnowledge => "retrieve_knowledge",
        }
    }

    /// How it is listed for a run.
    pub(super) fn described(self, snapshot: &AuthorizationSnapshot) -> Tool {
        let (description, properties) = match self {
            Self::ListAssets => (
                "Lists the models, tools, knowledge bases and skills that this run may use.",
                json!({
                    "asset_types": {"type": "array", "items": {"enum": ["models", "tools", "knowledge_bases", "skills"]},
                        "description": "Only these; all when absent."},
                    "include_schemas": {"type": "boolean", "description": "With the schemas of the tools."},
                }),
            ),
            Self::GetCurrentEvent => ("Reads the event that this run answers.", json!({})),
            Self::HistoryPage => (
                "Reads the transcript of this run's conversation, a page at a time.",
                json!({
                    "conversation_id": {"type": "string", "description": "This run's own, when it is given."},
                    "before_cursor": {"type": "string"},
                    "after_cursor": {"type": "string"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                    "direction": {"enum": ["backward", "forward"]},
                    "include_attachments": {"type": "boolean"},
                }),
            ),
            Self::RetrieveKnowledge => (
                "Finds the passages of a knowledge base that are closest to a query.",
                json!({
                    "kb_id": {"enum": retrievable(snapshot)},
                    "query_text": {"type": "string"},
                    "top_k": {"type": "integer", "minimum": 1, "maximum": 50},
                    "filters": {"type": "object", "description": "Values of metadata that must hold."},
                }),
            ),
        };
        let schema =
            json!({"type": "object", "properties": properties, "additionalProperties": false});
        let schema = schema.as_object().cloned().unwrap_or_default();
        Tool::new(self.name(), description, Arc::new(schema))
            .with_annotations(ToolAnnotations::new().read_only(true))
    }

    /// Reads it the way that its REST route does.
    pub(super) async fn call(
        self,
        caller: &RunCaller,
        state: &ApiState,
        arguments: JsonObject,
    ) -> ApiResult<Value> {
        match self {
            Self::ListAssets => {
                let query: AssetQuery = read(&arguments)?;
                let call = Call {
                    action: "list_assets",
                    resource: "run",
                    operation: "list",
                };
                caller.record(state, call, None).await?;
                assets(&caller.grant.snapshot.resources, &query)
            }
            Self::GetCurrentEvent => {
                let Nothing {} = read(&arguments)?;
                let event_id = caller.grant.run.event_id.clone();
                told(&events::read_event(caller, state, &event_id).await?)
            }
            Self::HistoryPage => told(&history::read_page(caller, state, read(&arguments)?).await?),
            Self::RetrieveKnowledge => {
                let mut query = arguments;
                let Some(Value::String(kb_id)) = query.remove("kb_id") else {
                    let message = "must be a knowledge base of this run";
                    return Err(ApiError::invalid("/kb_id", message));
                };
                told(&knowledge::retrieve(caller, state, &kb_id, &read(&query)?).await?)
            }
        }
    }
}

/// The knowledge bases that a run may ask.
fn retrievable(snapshot: &AuthorizationSnapshot) -> Vec<&str> {
    let bases = snapshot.resources.knowledge_bases.iter();
    bases
        .filter(|base| base.operations.contains(&KnowledgeOperation::Retrieve))
        .map(|base| base.kb_id.as_str())
        .collect()
}

fn assets(resources: &AgentResources, query: &AssetQuery) -> ApiResult<Value> {
    let mut assets = JsonObject::new();
    for kind in &query.asset_types {
        let (name, items) = match kind {
            AssetType::Models => ("models", told(&resources.models)?),
            AssetType::Tools => ("tools", tools(resources, query.include_schemas)?),
            AssetType::KnowledgeBases => ("knowledge_bases", told(&resources.knowledge_bases)?),
            AssetType::Skills => ("skills", told(&resources.skills)?),
        };
        assets.insert(name.to_owned(), items);
    }
    Ok(Value::Object(assets))
}

fn tools(resources: &AgentResources, with_schemas: bool) -> ApiResult<Value> {
    let mut tools = resources.tools.clone();
    if !with_schemas {
        for tool in &mut tools {
            tool.parameters = None;
        }
    }
    told(&tools)
}

fn told<T: Serialize>(value: &T) -> ApiResult<Value> {
    serde_json::to_value(value).map_err(|_| ApiError::panicked())
}

fn read<T: DeserializeOwned>(arguments: &JsonObject) -> ApiResult<T> {
    let text = serde_json::to_vec(arguments).map_err(|_| ApiError::panicked())?;
    crate::api::json::parse(&text)
}
