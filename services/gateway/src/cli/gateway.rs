//! HTTP client of commands for a running gateway.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::Method;
use http::header::AUTHORIZATION;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use crate::cli::output;
use crate::dev::{DEV_FILE, DevFile};
use egress::Egress;
use egress::{RequestBuilder, Response};

/// Maximum size of a JSON response.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// URL and API key of the gateway.
#[derive(clap::Args)]
pub(super) struct GatewayArguments {
    /// The gateway. Default: the playground with its `runnel-data` in the working directory or a parent.
    #[arg(long, env = "RUNNEL_URL")]
    url: Option<String>,
    /// The API key.
    #[arg(long, env = "RUNNEL_API_KEY", hide_env_values = true)]
    key: Option<SecretText>,
}

/// A secret argument. It is never printed.
#[derive(Clone)]
struct SecretText(SecretString);

impl std::str::FromStr for SecretText {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(SecretString::from(text.to_owned())))
    }
}

impl GatewayArguments {
    /// The gateway of the arguments, the environment or the playground's file. `None`, with a remark, if there
    /// is none.
    pub(super) fn find(&self) -> anyhow::Result<Option<Gateway>> {
        let key = self.key.clone().map(|key| key.0);
        if let (Some(url), Some(key)) = (&self.url, &key) {
            return Gateway::new(url, key.clone(), None).map(Some);
        }
        let Some(file) = find_dev_file()? else {
            output::remark(
                "error: no gateway is known here; start `runnel dev`, or give --url and --key \
                 (RUNNEL_URL, RUNNEL_API_KEY)",
            );
            return Ok(None);
        };
        let text =
            std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let dev: DevFile = serde_json::from_slice(&text)
            .with_context(|| format!("{} is malformed", file.display()))?;
        let home = self.url.is_none().then(|| file.parent()).flatten();
        let url = self.url.clone().unwrap_or(dev.url);
        let key = key.unwrap_or_else(|| SecretString::from(dev.api_key));
        Gateway::new(&url, key, home).map(Some)
    }
}

fn find_dev_file() -> anyhow::Result<Option<PathBuf>> {
    let here = std::env::current_dir().context("the current directory is gone")?;
    let file = |directory: &Path| directory.join("runnel-data").join(DEV_FILE);
    Ok(here.ancestors().map(file).find(|file| file.exists()))
}

/// The cursor of the next page. `None` at the end of the list; an empty cursor would restart the list.
pub(super) fn next_cursor(page: &Value) -> Option<&str> {
    let next = page["next_cursor"].as_str();
    next.filter(|next| !next.is_empty())
}

/// A gateway and its API key.
pub(super) struct Gateway {
    egress: Egress,
    base: Url,
    key: SecretString,
    home: Option<PathBuf>,
}

impl Gateway {
    fn new(url: &str, key: SecretString, home: Option<&Path>) -> anyhow::Result<Self> {
        let base = Url::parse(url).with_context(|| format!("{url} is no URL"))?;
        let (Some(host), Some(port)) = (base.host_str(), base.port_or_known_default()) else {
            bail!("{url} names no host");
        };
        // The operator named this address, so it is the only allowed destination.
        let allow = vec![format!("{host}:{port}").parse()?];
        let egress = Egress::new(allow, Duration::from_secs(5))?;
        Ok(Self {
            egress,
            base,
            key,
            home: home.map(Path::to_owned),
        })
    }

    /// Data directory of the playground, if the gateway is one.
    pub(super) fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// A request with the key.
    pub(super) fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let request = self.egress.request(method, &self.base.join(path)?)?;
        let bearer = format!("Bearer {}", self.key.expose_secret());
        Ok(request.header(AUTHORIZATION, bearer))
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        self.egress.send(request).await.with_context(|| {
            format!(
                "the gateway at {} does not answer; is it running?",
                self.base
            )
        })
    }

    /// JSON of a response. An error response fails with its message.
    pub(super) async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let mut response = self.send(request).await?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .context("the gateway's answer broke off")?
        {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_BYTES {
                bail!("the gateway's answer is larger than 64 MiB");
            }
        }
        let empty = status == http::StatusCode::NO_CONTENT;
        let body: Value = serde_json::from_slice(if empty { b"null" } else { &bytes })
            .with_context(|| format!("the gateway answered HTTP {status} without JSON"))?;
        if !status.is_success() {
            let message = body["error"]["message"].as_str();
            bail!(
                "{} (HTTP {status})",
                message.unwrap_or("the gateway refused")
            );
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_cursors_end_lists() {
        for page in [
            json!({}),
            json!({"next_cursor": null}),
            json!({"next_cursor": ""}),
        ] {
            assert_eq!(next_cursor(&page), None, "{page}");
        }
        assert_eq!(next_cursor(&json!({"next_cursor": "c"})), Some("c"));
    }
}
