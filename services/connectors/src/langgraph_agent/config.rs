//! The configuration of a LangGraph server, and of DeerFlow.

use protocol::JsonObject;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use url::Url;

use crate::request::{Credential, below};
use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;

const DEERFLOW_BASE: &str = "http://127.0.0.1:2026";
const MAX_STEPS: u64 = 100_000;

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LangGraphServer {
    LangGraph,
    DeerFlow,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) server: LangGraphServer,
    pub(super) base: Url,
    /// The header with the credential, and its complete value.
    pub(super) credential: Option<Credential>,
    pub(super) assistant: String,
    pub(super) context: JsonObject,
    pub(super) configurable: JsonObject,
    /// Maximum steps of one run; 0 for the server's default.
    pub(super) recursion_limit: u64,
    /// The member of the context for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn langgraph(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        let key = reader.secret("api-key")?;
        Ok(Self {
            server: LangGraphServer::LangGraph,
            base: reader.base_url("base-url", "")?,
            credential: verbatim(reader)?.or(key.map(|key| ("x-api-key", key))),
            assistant: reader.text_or("assistant-id", "agent")?,
            context: reader.object_with_secrets("context")?,
            configurable: reader.object_with_secrets("configurable")?,
            recursion_limit: reader.integer("recursion-limit", 0, 0..=MAX_STEPS)?,
            host_tools: reader.host_tools()?,
        })
    }

    /// DeerFlow reads its settings from the context or from the configurable members, by version.
    pub(super) fn deerflow(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        let key = reader.secret("api-key")?;
        let bearer = key.map(|key| SecretString::from(format!("Bearer {}", key.expose_secret())));
        let settings = settings(reader)?;
        Ok(Self {
            server: LangGraphServer::DeerFlow,
            base: below(
                &reader.base_url("api-base", DEERFLOW_BASE)?,
                &["api", "langgraph"],
            ),
            credential: verbatim(reader)?.or(bearer.map(|bearer| ("authorization", bearer))),
            assistant: reader.text_or("assistant-id", "lead_agent")?,
            context: settings.clone(),
            configurable: settings,
            recursion_limit: reader.integer("recursion-limit", 1_000, 1..=MAX_STEPS)?,
            host_tools: None,
        })
    }
}

fn verbatim(reader: &mut ConfigReader<'_>) -> Mapped<Option<Credential>> {
    let header = reader.secret("auth-header")?;
    Ok(header.map(|value| ("authorization", value)))
}

fn settings(reader: &mut ConfigReader<'_>) -> Mapped<JsonObject> {
    let has_subagents = reader.flag("subagent-enabled")?.unwrap_or_default();
    let subagents = reader.integer("max-concurrent-subagents", 3, 1..=100)?;
    let model = reader.text("model-name")?;
    let mut settings = object(json!({
        "thinking_enabled": reader.flag("thinking-enabled")?.unwrap_or_default(),
        "is_plan_mode": reader.flag("plan-mode")?.unwrap_or_default(),
        "subagent_enabled": has_subagents,
    }));
    if has_subagents {
        settings.insert("max_concurrent_subagents".to_owned(), json!(subagents));
    }
    if !model.is_empty() {
        settings.insert("model_name".to_owned(), json!(model));
    }
    Ok(settings)
}
