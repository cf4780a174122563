//! Every operation of the gateway, as listed in its OpenAPI document.

use reqwest::Method;
use serde_json::Value;

use super::client::{Client, send};

/// The API of an operation, by the credential that it requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    Client,
    Admin,
    Owner,
    Host,
    /// Requires a capability link, or the signature of a source.
    Link,
    /// Requires a credential of its own. Absent (404) unless the operator enables it.
    Shared,
    /// Requires no credential.
    Open,
}

/// Operation ids that require a capability link, or the signature of a source.
const LINK_OPERATIONS: [&str; 7] = [
    "stream_by_link",
    "submit_interaction_by_link",
    "show_interaction_page",
    "submit_interaction_page",
    "receive_source_event",
    "answer_source_check",
    "receive_secret_event",
];

/// Operation ids that a setting opens.
const OPTIONAL_OPERATIONS: [&str; 3] = ["speak_shared_mcp", "get_sign_in", "create_session"];

#[derive(Clone, Debug)]
pub struct Operation {
    pub id: String,
    pub method: Method,
    /// Full path, with parameters in braces.
    pub path: String,
    pub face: Face,
    /// Media type of the request body, if any.
    pub body: Option<String>,
}

impl Operation {
    /// The path with each parameter replaced. Values are not escaped.
    pub fn path_with(&self, value: impl Fn(&str) -> String) -> String {
        let mut path = String::new();
        let mut rest = self.path.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').unwrap();
            path = format!("{path}{before}{}", value(name));
            rest = after;
        }
        path + rest
    }
}

/// All operations in the document that this gateway serves.
pub async fn operations(client: &Client) -> Vec<Operation> {
    let document = send(client.anonymous(Method::GET, "/openapi.json")).await;
    let document = document.unwrap().body;
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations.push(Operation {
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                face: face_of(operation),
                body: media_type_of(operation),
            });
        }
    }
    operations
}

fn media_type_of(operation: &Value) -> Option<String> {
    let types = operation.pointer("/requestBody/content")?.as_object()?;
    types.keys().next().cloned()
}

fn face_of(operation: &Value) -> Face {
    let has = |scheme: &str| {
        operation
            .pointer(&format!("/security/0/{scheme}"))
            .is_some()
    };
    match (has("run_token"), has("api_key")) {
        (true, false) => Face::Host,
        (false, true) if operation["tags"][0] == "admin" => Face::Admin,
        (false, true) if operation["tags"][0] == "owner" => Face::Owner,
        (false, true) => Face::Client,
        _ if LINK_OPERATIONS
            .iter()
            .any(|id| operation["operationId"] == *id) =>
        {
            Face::Link
        }
        _ if OPTIONAL_OPERATIONS
            .iter()
            .any(|id| operation["operationId"] == *id) =>
        {
            Face::Shared
        }
        _ => {
            assert_eq!(operation["security"], Value::Null, "{operation}");
            Face::Open
        }
    }
}
