//! The configuration of an application on Model Studio.

use secrecy::SecretString;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::Mapped;

const BASE_URL: &str = "https://dashscope.aliyuncs.com/api/v1";
const REFERENCES: &str = "参考资料来自:";

/// The kind of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DashScopeAppType {
    Agent,
    Workflow,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) app_id: String,
    pub(super) app: DashScopeAppType,
    /// The heading of the citations.
    pub(super) references: String,
    /// The parameter for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        let apps = [
            ("agent", DashScopeAppType::Agent),
            ("workflow", DashScopeAppType::Workflow),
        ];
        Ok(Self {
            base: reader.base_url("base-url", BASE_URL)?,
            key: reader.required_secret("api-key")?,
            app_id: reader.required("app-id")?,
            app: reader.choice("app-type", &apps)?,
            references: reader.text_or("references_quote", REFERENCES)?,
            host_tools: reader.host_tools()?,
        })
    }
}
