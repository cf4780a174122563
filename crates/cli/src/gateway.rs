//! HTTP client of commands for a running gateway.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::header::AUTHORIZATION;
use http::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use crate::dev_file::{DEV_FILE, DevFile};
use crate::output;
use crate::session_file::SessionFile;
use egress::{Egress, EgressError, RequestBuilder, Response};

/// Maximum number of items per page of the API.
const MAX_PAGE: usize = 100;
/// Maximum number of pages of a list. A filtered page may be empty.
const MAX_PAGES: usize = 200;
/// Maximum size of a JSON response.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// URL and API key of the gateway.
#[derive(clap::Args)]
pub struct GatewayArguments {
    /// The gateway. Default: the variable `RUNNEL_URL`, else the playground with its `runnel-data` in the working
    /// directory or a parent, else that of `runnel login`.
    #[arg(long)]
    url: Option<String>,
    /// The API key. Default: the variable `RUNNEL_API_KEY`, else the key of the playground or of `runnel login`.
    #[arg(long)]
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
    /// The gateway of a sign-in, without a key. `None`, with a remark, if none is named.
    pub(super) fn to_sign_in(url: Option<String>) -> anyhow::Result<Option<Gateway>> {
        let Some(url) = url.or_else(|| environment("RUNNEL_URL")) else {
            output::fault("no gateway is named; give --url (RUNNEL_URL)");
            return Ok(None);
        };
        Gateway::new(&url, SecretString::default(), None).map(Some)
    }

    /// The gateway of the arguments, the environment or the playground's file. `None`, with a remark, if there
    /// is none.
    pub(super) fn find(&self) -> anyhow::Result<Option<Gateway>> {
        let url = self.url.clone().or_else(|| environment("RUNNEL_URL"));
        let key = self.key.clone().map(|key| key.0);
        let key = key.or_else(|| environment("RUNNEL_API_KEY").map(SecretString::from));
        // With both given, the playground's file does not matter and need not be readable.
        if let (Some(url), Some(key)) = (&url, &key) {
            return Gateway::new(url, key.clone(), None).map(Some);
        }
        let session = SessionFile::read()?;
        let is_for = |session: &SessionFile, url: &String| is_same_gateway(&session.url, url);
        if let (Some(url), Some(session)) = (&url, &session)
            && is_for(session, url)
        {
            let key = key.unwrap_or_else(|| SecretString::from(session.api_key.clone()));
            return Gateway::new(url, key, None).map(Some);
        }
        let Some(file) = find_dev_file()? else {
            if let (None, Some(session)) = (&url, session) {
                let key = key.unwrap_or_else(|| SecretString::from(session.api_key));
                return Gateway::new(&session.url, key, None).map(Some);
            }
            output::fault(
                "no gateway is known here; start `runnel dev`, run `runnel login`, or give --url and --key \
                 (RUNNEL_URL, RUNNEL_API_KEY)",
            );
            return Ok(None);
        };
        let text =
            std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let dev: DevFile = serde_json::from_slice(&text)
            .with_context(|| format!("{} is malformed", file.display()))?;
        // With another URL, files of the playground do not belong to the gateway.
        let home = url.is_none().then(|| file.parent()).flatten();
        let url = url.unwrap_or(dev.url);
        let key = key.unwrap_or_else(|| SecretString::from(dev.api_key));
        Gateway::new(&url, key, home).map(Some)
    }
}

/// True if two URLs name one gateway.
fn is_same_gateway(one: &str, other: &str) -> bool {
    let origins = [one, other].map(|url| Url::parse(url).ok().map(|url| url.origin()));
    origins[0].is_some() && origins[0] == origins[1]
}

/// A variable with a value. Clap would print variables that are set as arguments of the usage.
#[expect(
    clippy::disallowed_methods,
    reason = "commands for a running gateway have no configuration"
)]
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
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

    /// URL of the gateway.
    pub(super) fn base(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Data directory of the playground, if the gateway is one.
    pub(super) fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// A request with the key, if there is one.
    pub(super) fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let request = self.egress.request(method, &self.url(path)?)?;
        if self.key.expose_secret().is_empty() {
            return Ok(request);
        }
        let bearer = format!("Bearer {}", self.key.expose_secret());
        Ok(request.header(AUTHORIZATION, bearer))
    }

    /// An id of dots would lead to another route, even encoded.
    fn url(&self, path: &str) -> anyhow::Result<Url> {
        let url = self.base.join(path)?;
        // `join` removes dot segments, so a changed path shows an id that is none.
        if path.split('?').next() != Some(url.path()) {
            bail!("{path} names a path segment that is no id; list the ids first");
        }
        Ok(url)
    }

    /// Sends a request. Fails without a response.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Unreachable> {
        let sent = self.egress.send(request).await;
        sent.map_err(|error| Unreachable::new(&self.base, &error))
    }

    /// JSON of a response. An error response fails with its message.
    pub(super) async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let response = self.send(request).await?;
        let status = response.status();
        let body = read_json(response).await?;
        if !status.is_success() {
            bail!(refusal(status, &body));
        }
        Ok(body)
    }

    /// JSON at a path.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(self.request(Method::GET, path)?).await
    }

    /// Items of a list with its query, over several pages, at most `max_items`. `cursor`: parameter of the next
    /// page.
    pub(super) async fn list(
        &self,
        path: &str,
        cursor: &str,
        max_items: usize,
    ) -> anyhow::Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut next = String::new();
        for _ in 0..MAX_PAGES {
            // A filter may be part of the path already.
            let separator = if path.contains('?') { '&' } else { '?' };
            let limit = MAX_PAGE.min(max_items - items.len());
            let page = self
                .get(&format!("{path}{separator}limit={limit}{next}"))
                .await?;
            items.extend(page["items"].as_array().into_iter().flatten().cloned());
            // A page may hold more items than requested.
            items.truncate(max_items);
            match next_cursor(&page) {
                Some(at) if items.len() < max_items && page["has_more"] != false => {
                    next = format!("&{cursor}={}", encoded(at));
                }
                _ => break,
            }
        }
        Ok(items)
    }
}

/// Encodes a text for a path segment or a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Reads the JSON of a response.
pub(super) async fn read_json(mut response: Response) -> anyhow::Result<Value> {
    let status = response.status();
    let mut bytes = Vec::new();
    // Read in chunks, so that the limit applies before the body is in memory.
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
    // A deletion has no body.
    let empty = status == StatusCode::NO_CONTENT;
    serde_json::from_slice(if empty { b"null" } else { &bytes })
        .with_context(|| format!("the gateway answered HTTP {status} without JSON"))
}

/// Text of an error response.
pub(super) fn refusal(status: StatusCode, body: &Value) -> String {
    if status == StatusCode::UNAUTHORIZED {
        return "the key was rejected; check --key or RUNNEL_API_KEY".to_owned();
    }
    match body["error"]["message"].as_str() {
        Some(message) => format!("{message} (HTTP {})", status.as_u16()),
        None => format!("the gateway answered HTTP {status}"),
    }
}

/// The gateway sent no response.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreachable(String);

impl Unreachable {
    /// One sentence from the chain of causes.
    fn new(base: &Url, error: &EgressError) -> Self {
        let base = base.as_str().trim_end_matches('/');
        let cause = match error {
            EgressError::Connect(cause) | EgressError::Io(cause) => Some(cause),
            EgressError::Blocked { .. } | EgressError::Timeout => None,
        };
        let deepest = match error {
            EgressError::Blocked { reason } => reason.to_string(),
            _ => cause.map(ToString::to_string).unwrap_or_default(),
        };
        Self(match (error, cause.and_then(|cause| cause.kind)) {
            (_, Some(ErrorKind::ConnectionRefused)) => {
                format!("connection refused at {base}: is the gateway running?")
            }
            (EgressError::Timeout, _) | (_, Some(ErrorKind::TimedOut)) => {
                format!("{base} does not answer in time: check the address, or try again")
            }
            (EgressError::Connect(_), _) => {
                format!("cannot connect to {base}: {deepest}; check --url or RUNNEL_URL")
            }
            (EgressError::Blocked { .. }, _) => format!("{base} cannot be used: {deepest}"),
            (EgressError::Io(_), _) => {
                format!("the connection to {base} broke: {deepest}; try again")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refuses_ids_that_lead_to_other_routes() {
        let key = SecretString::from("key");
        let gateway = Gateway::new("http://127.0.0.1:8700", key, None).unwrap();
        let path = |id: &str| format!("/v1/runs/{}/events?limit=1", encoded(id));
        for id in [".", "..", "../conversations"] {
            assert_eq!(gateway.url(&path(id)).is_ok(), id.contains('/'), "{id}");
        }
        let resolved = gateway.url(&path("a/../b?c")).unwrap();
        assert_eq!(resolved.path(), "/v1/runs/a%2F%2E%2E%2Fb%3Fc/events");
    }

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
