//! `[[tools]]`: built-in tools and HTTP tools.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::header::AUTHORIZATION;
use serde_json::{Map, Value};

use super::endpoint::read_headers;
use super::on_behalf_of::{OnBehalfOfEntry, read_credential};
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, object, one_of, seconds, some_of, text};
use domain::tool_name::{GATEWAY_TOOLS, RESERVED_TOOLS};
use egress::UrlTemplate;

const METHODS: &[&str] = &["GET", "POST", "PUT", "PATCH", "DELETE"];
pub(super) const EFFECTS: &[&str] = &["read", "write", "irreversible"];
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// `[[tools]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolEntry {
    pub tool_name: String,
    pub tool_type: Option<String>,
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    pub parameters: Option<Map<String, Value>>,
    pub operations: Vec<String>,
    /// `read`, `write` or `irreversible`.
    pub effect: Option<String>,
    /// True if a repeated call with the same arguments has no further effect.
    pub idempotent: Option<bool>,
    /// The tool that knows what became of a call, by its name in `[[tools]]`.
    pub reconcile: Option<String>,
    /// `None`: a built-in tool.
    pub http: Option<HttpToolEntry>,
}

/// Request of an HTTP tool. `Debug` omits the query of the URL.
#[derive(Clone, PartialEq)]
pub struct HttpToolEntry {
    pub url: UrlTemplate,
    pub method: String,
    /// By lower-case name.
    pub headers: BTreeMap<String, SecretRef>,
    pub timeout: Duration,
    /// Path parameters whose values may hold slashes and control characters.
    pub path_slashes: Vec<String>,
    /// Set if each call has a token of its actor.
    pub on_behalf_of: Option<OnBehalfOfEntry>,
}

impl ToolEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let tool_name = table.required("tool_name", tool_name);
        let tool_type = table.optional("tool_type", name);
        let description = table.optional("description", text);
        let parameters = table.optional("parameters", object);
        let operations = table.optional("operations", some_of(&["detail", "call"]));
        let effect = table.optional("effect", one_of(EFFECTS));
        let idempotent = table.optional("idempotent", |value| {
            value.as_bool().ok_or("must be true or false")
        });
        let reconcile = table.optional("reconcile", name);
        let http = read_http(&mut table);
        let kind_check = check_kind(&mut table, &tool_name, &http, &parameters);
        table.close()?;
        kind_check?;
        let operations = operations?;
        Ok(Self {
            tool_name: tool_name?,
            tool_type: tool_type?,
            description: description?,
            parameters: parameters?,
            operations: operations
                .unwrap_or_else(|| ["detail", "call"].map(str::to_owned).to_vec()),
            effect: effect?,
            idempotent: idempotent?,
            reconcile: reconcile?,
            http: http?,
        })
    }
}

fn tool_name(value: Value) -> Result<String, &'static str> {
    let name = name(value)?;
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"_-".contains(&letter);
    if name.len() > 64 || !name.bytes().all(is_plain) {
        return Err(
            "must be at most 64 letters, digits, `_` and `-`: models take no other names of tools",
        );
    }
    if RESERVED_TOOLS.contains(&name.as_str()) {
        return Err("is a name that the MCP face of the gateway has already; choose another");
    }
    Ok(name)
}

fn read_http(table: &mut Table<'_>) -> Result<Option<HttpToolEntry>, Reported> {
    let url = table.optional("url", |value| {
        UrlTemplate::parse(&text(value)?).map_err(|error| error.to_string())
    });
    let method = table.optional("method", one_of(METHODS));
    let headers = read_headers(table);
    let timeout = table.optional("timeout_seconds", seconds(0.1..=3600.0));
    let path_slashes = table.optional("path_slashes", names);
    let credential = read_credential(table);
    let (url, method, headers, timeout) = (url?, method?, headers?, timeout?);
    let (path_slashes, on_behalf_of) = (path_slashes?, credential?);
    if on_behalf_of.is_some() && headers.contains_key(AUTHORIZATION.as_str()) {
        let message = "is set by `credential`; leave one of them out";
        return Err(table.fault("headers.authorization", message));
    }
    let Some(url) = url else {
        let unused = [
            ("method", method.is_some()),
            ("headers", !headers.is_empty()),
            ("timeout_seconds", timeout.is_some()),
            ("path_slashes", path_slashes.is_some()),
            ("credential", on_behalf_of.is_some()),
        ];
        let unused = unused.iter().find(|(_, is_set)| *is_set);
        return match unused {
            Some((key, _)) => Err(table.fault(key, "has no effect without `url`; set both")),
            None => Ok(None),
        };
    };
    let path_slashes = path_slashes.unwrap_or_default();
    if let Some(unknown) = path_slashes
        .iter()
        .find(|name| url.names().all(|parameter| parameter != name.as_str()))
    {
        let message = format!("names {unknown:?}, which the path of `url` does not contain");
        return Err(table.fault("path_slashes", message));
    }
    Ok(Some(HttpToolEntry {
        path_slashes,
        url,
        method: method.unwrap_or_else(|| "POST".to_owned()),
        headers,
        timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
        on_behalf_of,
    }))
}

fn names(value: Value) -> Result<Vec<String>, &'static str> {
    serde_json::from_value(value).map_err(|_| "must be a list of names in the path of `url`")
}

/// A tool is built in or has a URL.
fn check_kind(
    table: &mut Table<'_>,
    name: &Result<String, Reported>,
    http: &Result<Option<HttpToolEntry>, Reported>,
    parameters: &Result<Option<Map<String, Value>>, Reported>,
) -> Result<(), Reported> {
    // A fault of a part is reported already.
    let (Ok(name), Ok(http), Ok(parameters)) = (name, http, parameters) else {
        return Ok(());
    };
    let is_ours = GATEWAY_TOOLS.contains(&name.as_str());
    match http {
        None if !is_ours => {
            let ours = GATEWAY_TOOLS.join(", ");
            let message = format!(
                "is required: `url = \"https://…\"` is the address of the tool; without one, only the \
                 gateway's own tools can be named: {ours}. Tools of an MCP server come by [[mcp_servers]]"
            );
            Err(table.fault("url", message))
        }
        None if parameters.is_some() => {
            Err(table.fault("parameters", "is the gateway's own business for this tool"))
        }
        Some(_) if is_ours => {
            let message =
                "is the name of a tool of the gateway's own; choose another, or drop `url`";
            Err(table.fault("tool_name", message))
        }
        _ => match (http, parameters) {
            (Some(http), parameters) => check_path_parameters(table, http, parameters.as_ref()),
            (None, _) => Ok(()),
        },
    }
}

/// Path parameters must be declared and required.
fn check_path_parameters(
    table: &mut Table<'_>,
    http: &HttpToolEntry,
    parameters: Option<&Map<String, Value>>,
) -> Result<(), Reported> {
    // An optional path parameter would leave an empty segment.
    let required = parameters.and_then(|schema| schema.get("required")?.as_array());
    let is_required =
        |name: &&str| required.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(*name)));
    let missing = http.url.names().find(|name| !is_required(name));
    match missing.map(str::to_owned) {
        Some(name) => {
            let message = format!("has `{{{name}}}`, which `parameters.required` must list");
            Err(table.fault("url", message))
        }
        None => Ok(()),
    }
}

impl fmt::Debug for HttpToolEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HttpToolEntry")
            .field("url", &self.url)
            .field("method", &self.method)
            .field("headers", &self.headers)
            .field("timeout", &self.timeout)
            .field("path_slashes", &self.path_slashes)
            .field("on_behalf_of", &self.on_behalf_of)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_names_that_models_reject() {
        for name in ["get-sum_2", &"x".repeat(64)] {
            assert_eq!(tool_name(Value::from(name)).as_deref(), Ok(name));
        }
        for (name, reason) in [
            ("a b", "models take no other names"),
            ("a.b", "models take no other names"),
            (&*"x".repeat(65), "models take no other names"),
            ("register_skill", "the MCP face of the gateway has already"),
        ] {
            let refused = tool_name(Value::from(name)).unwrap_err();
            assert!(refused.contains(reason), "{name}: {refused}");
        }
    }
}
