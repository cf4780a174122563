//! The configuration of a WeKnora application.

use secrecy::SecretString;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::Mapped;

const BASE_URL: &str = "http://localhost:8080/api/v1";
const BASE_PROMPT: &str = "请回答用户的问题。";

/// The kind of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeKnoraAppType {
    Agent,
    Chat,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) app: WeKnoraAppType,
    pub(super) agent: String,
    pub(super) knowledge_bases: Vec<String>,
    pub(super) searches_web: bool,
    pub(super) base_prompt: String,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        let apps = [
            ("agent", WeKnoraAppType::Agent),
            ("chat", WeKnoraAppType::Chat),
        ];
        let app = reader.choice("app-type", &apps)?;
        let agent = match app {
            WeKnoraAppType::Agent => "builtin-smart-reasoning",
            WeKnoraAppType::Chat => "builtin-quick-answer",
        };
        Ok(Self {
            base: reader.base_url("base-url", BASE_URL)?,
            key: reader.required_secret("api-key")?,
            app,
            agent: reader.text_or("agent-id", agent)?,
            knowledge_bases: reader.texts("knowledge-base-ids")?,
            searches_web: reader.flag("web-search-enabled")?.unwrap_or_default(),
            base_prompt: reader.text_or("base-prompt", BASE_PROMPT)?,
        })
    }
}
