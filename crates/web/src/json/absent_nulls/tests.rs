use std::collections::BTreeMap;

use protocol::admin::{AgentSpec, EndpointSpec, PolicyCheck};
use protocol::api_key::ApiKeySpec;
use protocol::approval::ApprovalSpec;
use protocol::budget::BudgetDefinition;
use protocol::change::RestoreAgentRequest;
use protocol::child_run::ChildRunRequest;
use protocol::event::EventEnvelope;
use protocol::history::HistorySearch;
use protocol::host_api::{CheckpointPut, RunCancel, StatePut, SteeringPull};
use protocol::interaction::InteractionSubmission;
use protocol::job::BulkRequest;
use protocol::knowledge::RetrievalQuery;
use protocol::model::{CountTokens, Embed, LlmRequest, Rerank};
use protocol::pause::{PauseRequest, ResumePauseRequest};
use protocol::pipeline::PipelineQuery;
use protocol::platform_action::{ActionResultRequest, ClaimActionRequest, PlatformActionRequest};
use protocol::schedule::{ScheduleSpec, WakeRequest};
use protocol::source::{SourceSpec, TrySource};
use protocol::tool::CallTool;
use protocol::webhook::{RedeliverRequest, RotateSecretRequest, WebhookSpec};
use protocol::workspace::WorkspaceSpec;
use serde_json::json;

use super::*;
use crate::json::parse_part;

/// Bodies without a fixed type: their handlers read the members one by one.
const UNTYPED: [&str; 15] = [
    "A2aRequest",
    "A2aSendRequest",
    "AgUiRunInput",
    "AgentChatRequest",
    "AgentResponseRequest",
    "ChatCompletionRequest",
    "EmbeddingRequest",
    "GenerateContentRequest",
    "MessageRequest",
    "MessageCountRequest",
    "ResponseRequest",
    "McpMessage",
    // Stored as text, and read by the relay.
    "RunResults",
    // A form, not JSON.
    "AnswerForm",
    // A list of structured events, read one by one as envelopes.
    "CloudEvent",
];
/// Maximum depth of a sample.
const DEPTH: usize = 6;

/// Samples from the API document.
struct Samples<'a> {
    schemas: &'a JsonObject,
}

impl Samples<'_> {
    fn resolved<'s>(&'s self, schema: &'s Value) -> &'s Value {
        let name = schema["$ref"]
            .as_str()
            .and_then(|path| path.rsplit('/').next());
        name.map_or(schema, |name| self.resolved(&self.schemas[name]))
    }

    /// Samples in which each optional member is null, except one at a time.
    fn of(&self, schema: &Value, depth: usize) -> Vec<Value> {
        let schema = self.resolved(schema);
        let first = |name: &str| schema[name].as_array().and_then(|list| list.first());
        if let Some(value) = first("enum").or_else(|| first("examples")) {
            return vec![value.clone()];
        }
        let alternatives = ["oneOf", "anyOf", "allOf"].iter();
        let alternatives = alternatives
            .filter_map(|name| schema[*name].as_array())
            .flatten();
        let alternatives: Vec<_> = alternatives.filter(|one| one["type"] != "null").collect();
        if !alternatives.is_empty() {
            let samples = alternatives.iter().map(|one| self.of(one, depth));
            return samples.flatten().collect();
        }
        let kinds = schema["type"].as_array();
        let kind = kinds.and_then(|kinds| kinds.iter().find(|kind| **kind != "null"));
        match kind.unwrap_or(&schema["type"]).as_str() {
            Some("object") => self.objects(schema, depth),
            Some("array") => match depth.checked_sub(1) {
                Some(depth) if schema["items"].is_object() => {
                    let items = self.of(&schema["items"], depth).into_iter();
                    items.map(|item| json!([item])).collect()
                }
                _ => vec![json!([])],
            },
            Some("integer" | "number") => vec![schema.get("minimum").cloned().unwrap_or(json!(1))],
            Some("boolean") => vec![json!(true)],
            Some("string") if schema["format"] == "uuid" => {
                vec![json!("0190a7e4-5b3c-7000-8000-000000000000")]
            }
            Some("string") if schema["format"] == "uri" => vec![json!("https://example.org/a")],
            Some("string") => vec![json!("message.received")],
            _ => vec![json!({})],
        }
    }

    fn objects(&self, schema: &Value, depth: usize) -> Vec<Value> {
        let required = schema["required"].as_array();
        let is_required =
            |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
        let Some(depth) = depth.checked_sub(1) else {
            return Vec::new();
        };
        let members = schema["properties"].as_object().into_iter().flatten();
        let members: Vec<_> = members.collect();
        let nulls = members.iter().map(|(name, member)| {
            let value = if is_required(name) {
                self.of(member, depth).into_iter().next()?
            } else {
                Value::Null
            };
            Some(((*name).clone(), value))
        });
        let Some(nulls) = nulls.collect::<Option<JsonObject>>() else {
            return Vec::new();
        };
        let mut samples = vec![Value::Object(nulls.clone())];
        for (name, member) in members {
            let kind = &self.resolved(member)["type"];
            if kind == "object" || kind == "array" || member.get("oneOf").is_some() {
                samples.extend(self.of(member, depth).into_iter().map(|sample| {
                    let mut object = nulls.clone();
                    object.insert(name.clone(), sample);
                    Value::Object(object)
                }));
            }
        }
        samples
    }
}

type Check = fn(&str) -> Result<(), String>;

fn parses<T: DeserializeOwned>(text: &str) -> Result<(), String> {
    let parsed = parse_part::<T>(text.as_bytes());
    parsed
        .map(drop)
        .map_err(|fault| format!("{} {}", fault.pointer, fault.message))
}

#[test]
fn null_is_absent_in_every_request_body() {
    let checks: BTreeMap<&str, Check> = BTreeMap::from([
        (
            "ActionResultRequest",
            parses::<ActionResultRequest> as Check,
        ),
        ("AgentSpec", parses::<AgentSpec>),
        ("PolicyCheck", parses::<PolicyCheck>),
        ("ApiKeySpec", parses::<ApiKeySpec>),
        ("ApprovalSpec", parses::<ApprovalSpec>),
        ("RedeliverRequest", parses::<RedeliverRequest>),
        ("RotateSecretRequest", parses::<RotateSecretRequest>),
        ("SourceSpec", parses::<SourceSpec>),
        ("TrySource", parses::<TrySource>),
        ("WebhookSpec", parses::<WebhookSpec>),
        ("ScheduleSpec", parses::<ScheduleSpec>),
        ("WakeRequest", parses::<WakeRequest>),
        ("BudgetDefinition", parses::<BudgetDefinition>),
        ("BulkRequest", parses::<BulkRequest>),
        ("CallTool", parses::<CallTool>),
        ("CheckpointPut", parses::<CheckpointPut>),
        ("ChildRunRequest", parses::<ChildRunRequest>),
        ("ClaimActionRequest", parses::<ClaimActionRequest>),
        ("CountTokens", parses::<CountTokens>),
        ("Embed", parses::<Embed>),
        ("EndpointSpec", parses::<EndpointSpec>),
        ("EventEnvelope", parses::<EventEnvelope>),
        ("HistorySearch", parses::<HistorySearch>),
        ("InteractionSubmission", parses::<InteractionSubmission>),
        ("LlmRequest", parses::<LlmRequest>),
        ("PauseRequest", parses::<PauseRequest>),
        ("PipelineQuery", parses::<PipelineQuery>),
        ("PlatformActionRequest", parses::<PlatformActionRequest>),
        ("Rerank", parses::<Rerank>),
        ("RestoreAgentRequest", parses::<RestoreAgentRequest>),
        ("ResumePauseRequest", parses::<ResumePauseRequest>),
        ("RetrievalQuery", parses::<RetrievalQuery>),
        ("RunCancel", parses::<RunCancel>),
        ("StatePut", parses::<StatePut>),
        ("SteeringPull", parses::<SteeringPull>),
        ("WorkspaceSpec", parses::<WorkspaceSpec>),
    ]);
    let document = include_str!("../../../../../openapi/gateway.json");
    let document: Value = serde_json::from_str(document).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let samples = Samples { schemas };
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let bodies = operations.filter_map(|operation| operation["requestBody"]["content"].as_object());
    let mut faults = Vec::new();
    for body in bodies.flat_map(|content| content.values()) {
        let schema = &body["schema"];
        let named = schema.get("$ref").or_else(|| schema["items"].get("$ref"));
        let Some(name) = named.and_then(Value::as_str) else {
            continue;
        };
        let name = name.rsplit('/').next().unwrap();
        if UNTYPED.contains(&name) {
            continue;
        }
        let check = checks
            .get(name)
            .unwrap_or_else(|| panic!("{name} needs a check"));
        for sample in samples.of(&schemas[name], DEPTH) {
            if let Err(fault) = check(&sample.to_string()) {
                faults.push(format!("{name}: {fault}: {sample:.300}"));
            }
        }
    }
    faults.sort();
    faults.dedup();
    assert!(faults.is_empty(), "{}: {}", faults.len(), faults.join("\n"));
}

#[test]
fn nulls_of_free_values_stay() {
    let body = json!({"messages": [], "tools": null, "extra_args": {"stop": null, "seed": 1}});
    let request: LlmRequest = parse_part(body.to_string().as_bytes()).unwrap();
    assert_eq!(request.extra_args["stop"], Value::Null);
    let put: StatePut = parse_part(br#"{"value":null}"#).unwrap();
    assert_eq!(put.value, Value::Null);
}

#[test]
fn other_faults_keep_their_pointer() {
    for (body, pointer) in [
        (r#"{"messages":[],"nope":1,"tools":null}"#, "/nope"),
        (
            r#"{"messages":[],"tools":null,"remove_think":"x"}"#,
            "/remove_think",
        ),
        (r#"{"messages":[],"tools":null,"tools":[]}"#, "/tools"),
    ] {
        let fault = parse_part::<LlmRequest>(body.as_bytes()).unwrap_err();
        assert_eq!(fault.pointer, pointer, "{body}: {}", fault.message);
    }
}
