//! The configuration of an application on Tbox.

use secrecy::SecretString;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::Mapped;

const BASE_URL: &str = "https://api.tbox.cn";

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) app_id: String,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        Ok(Self {
            base: reader.base_url("base-url", BASE_URL)?,
            key: reader.required_secret("api-key")?,
            app_id: reader.required("app-id")?,
        })
    }
}
