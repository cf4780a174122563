//! `[[runner_endpoints]]`: servers that run agents.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use url::Url;

use super::secret_ref::SecretRef;
use super::table::{Reported, Table, integer, name, one_of, parsed, text};
use egress::outgoing_header_name;
use egress::parse_plain_url;

const MAX_HEADERS: usize = 32;
const SINGLE_URL: &str = "single_url";

/// A runner server: its URL, modes and secret references. `Debug` omits the query of the URL.
#[derive(Clone)]
pub struct EndpointEntry {
    pub name: String,
    pub base_url: Url,
    /// `standard` or `single_url`.
    pub mode: String,
    /// `increment` or `snapshot`.
    pub delta_mode: String,
    pub secret: SecretRef,
    /// Headers added to every request, by lower-case name.
    pub headers: BTreeMap<String, SecretRef>,
    /// Manifests of a server that cannot list its own runners.
    pub manifests: Option<Value>,
    /// Maximum number of concurrent runs; 0: no limit.
    pub max_runs: u64,
}

impl EndpointEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", name);
        let base_url = table.required("base_url", base_url);
        let mode = table.optional("mode", one_of(&["standard", SINGLE_URL]));
        let mode = mode.map(|mode| mode.unwrap_or_else(|| "standard".to_owned()));
        let delta_mode = table.optional("delta_mode", one_of(&["increment", "snapshot"]));
        let secret = table.required("secret", parsed);
        let headers = read_headers(&mut table);
        let manifests = table.optional("manifests", manifests);
        let max_runs = table.optional("max_runs", integer(0..=1_000_000));
        let query = check_query(&mut table, &base_url, &mode);
        table.close()?;
        query?;
        Ok(Self {
            name: name?,
            base_url: base_url?,
            mode: mode?,
            delta_mode: delta_mode?.unwrap_or_else(|| "increment".to_owned()),
            secret: secret?,
            headers: headers?,
            manifests: manifests?,
            max_runs: max_runs?.unwrap_or(0),
        })
    }
}

fn base_url(value: Value) -> Result<Url, String> {
    parse_plain_url(&text(value)?).map_err(|error| error.to_string())
}

fn manifests(value: Value) -> Result<Value, &'static str> {
    if value.is_array() || value.is_object() {
        Ok(value)
    } else {
        Err("must be an array or a table")
    }
}

pub(super) fn read_headers(table: &mut Table<'_>) -> Result<BTreeMap<String, SecretRef>, Reported> {
    let headers = table.entries("headers", |name, value| {
        let name = outgoing_header_name(name).map_err(|error| error.to_string())?;
        Ok::<_, String>((name.as_str().to_owned(), parsed::<SecretRef>(value)?))
    })?;
    if headers.len() > MAX_HEADERS {
        return Err(table.fault("headers", "must be at most 32"));
    }
    let count = headers.len();
    // Header names are case-insensitive, so two spellings are one header.
    let headers: BTreeMap<_, _> = headers.into_iter().collect();
    if headers.len() < count {
        return Err(table.fault("headers", "names one header twice"));
    }
    Ok(headers)
}

// Paths are appended to the base URL of a standard endpoint, which would drop a query.
fn check_query(
    table: &mut Table<'_>,
    base_url: &Result<Url, Reported>,
    mode: &Result<String, Reported>,
) -> Result<(), Reported> {
    match (base_url, mode) {
        (Ok(url), Ok(mode)) if url.query().is_some() && mode != SINGLE_URL => {
            Err(table.fault("base_url", "may have a query only where mode is single_url"))
        }
        _ => Ok(()),
    }
}

impl fmt::Debug for EndpointEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut base_url = self.base_url.clone();
        // The query of a single URL may hold an access token.
        base_url.set_query(None);
        formatter
            .debug_struct("EndpointEntry")
            .field("name", &self.name)
            .field("base_url", &base_url.as_str())
            .field("mode", &self.mode)
            .field("delta_mode", &self.delta_mode)
            .field("secret", &self.secret)
            .field("headers", &self.headers)
            .field("max_runs", &self.max_runs)
            .finish_non_exhaustive()
    }
}
