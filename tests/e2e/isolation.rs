//! Tenant isolation: every operation of the gateway with credentials and ids of other workspaces and runs.
//!
//! An operation without a row here fails the first test.

use std::collections::{BTreeMap, BTreeSet};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::client::{Client, body_of, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::routes::{Face, Operation, operations};
use crate::support::runner::{SECRET, StubRunner};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until, within};

/// The resource of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResourceKind {
    /// The caller's own workspace or run; no id is sent.
    Own,
    Run,
    Event,
    Job,
    Source,
    Approval,
    Webhook,
    Schedule,
    Agent,
    Workspace,
    Endpoint,
    Key,
    /// Document of a knowledge base that both workspaces have.
    Document,
    Artifact,
    Budget,
    Interaction,
    PlatformAction,
    /// Clients choose conversation ids; an unknown id is an empty conversation.
    Conversation,
    /// In the run's own scope or area, under a key of its own.
    Entry,
    /// Installation-wide configuration of the operator.
    Installation,
}

/// Each operation, its resource, and for the host API the status that a run without grants gets.
const ROWS: &[(&str, ResourceKind, u16)] = &[
    ("list_events", ResourceKind::Own, 0),
    ("post_event", ResourceKind::Own, 0),
    ("stream_event", ResourceKind::Own, 0),
    ("post_event_batch", ResourceKind::Own, 0),
    ("dry_run_event", ResourceKind::Own, 0),
    ("dry_run_agent", ResourceKind::Agent, 0),
    ("advise_agent", ResourceKind::Agent, 0),
    ("check_policy", ResourceKind::Agent, 0),
    ("get_raw_payload", ResourceKind::Event, 0),
    ("get_event", ResourceKind::Event, 0),
    ("post_pipeline_query", ResourceKind::Own, 0),
    ("stream_pipeline_query", ResourceKind::Own, 0),
    ("list_runs", ResourceKind::Own, 0),
    ("count_runs", ResourceKind::Own, 0),
    ("stream_workspace_feed", ResourceKind::Own, 0),
    ("list_feed_messages", ResourceKind::Own, 0),
    ("get_own_key", ResourceKind::Own, 0),
    ("get_sign_in", ResourceKind::Own, 404),
    ("create_session", ResourceKind::Own, 404),
    ("get_run", ResourceKind::Run, 0),
    ("list_run_events", ResourceKind::Run, 0),
    ("stream_run_events", ResourceKind::Run, 0),
    ("list_run_rejections", ResourceKind::Run, 0),
    ("get_run_authorization", ResourceKind::Run, 0),
    ("list_run_audit", ResourceKind::Run, 0),
    ("get_run_usage", ResourceKind::Run, 0),
    ("report_usage", ResourceKind::Own, 0),
    ("list_conversations", ResourceKind::Own, 0),
    ("list_budgets", ResourceKind::Own, 0),
    ("get_budget", ResourceKind::Budget, 0),
    ("put_budget", ResourceKind::Own, 0),
    ("delete_budget", ResourceKind::Budget, 0),
    ("create_approval", ResourceKind::Own, 0),
    ("list_approvals", ResourceKind::Own, 0),
    ("get_approval", ResourceKind::Approval, 0),
    ("revoke_approval", ResourceKind::Approval, 0),
    ("create_source", ResourceKind::Own, 0),
    ("list_sources", ResourceKind::Own, 0),
    ("get_source", ResourceKind::Source, 0),
    ("delete_source", ResourceKind::Source, 0),
    ("rotate_source_secret", ResourceKind::Source, 0),
    ("try_source", ResourceKind::Source, 0),
    ("receive_source_event", ResourceKind::Source, 0),
    ("answer_source_check", ResourceKind::Source, 0),
    ("receive_secret_event", ResourceKind::Source, 0),
    ("create_webhook", ResourceKind::Own, 0),
    ("list_webhooks", ResourceKind::Own, 0),
    ("create_schedule", ResourceKind::Own, 0),
    ("list_schedules", ResourceKind::Own, 0),
    ("get_schedule", ResourceKind::Schedule, 0),
    ("update_schedule", ResourceKind::Schedule, 0),
    ("delete_schedule", ResourceKind::Schedule, 0),
    ("pause_schedule", ResourceKind::Schedule, 0),
    ("resume_schedule", ResourceKind::Schedule, 0),
    ("run_schedule", ResourceKind::Schedule, 0),
    ("list_schedule_occurrences", ResourceKind::Schedule, 0),
    ("get_webhook", ResourceKind::Webhook, 0),
    ("update_webhook", ResourceKind::Webhook, 0),
    ("delete_webhook", ResourceKind::Webhook, 0),
    ("rotate_webhook_secret", ResourceKind::Webhook, 0),
    ("test_webhook", ResourceKind::Webhook, 0),
    ("list_webhook_deliveries", ResourceKind::Webhook, 0),
    ("redeliver_webhook", ResourceKind::Webhook, 0),
    ("redeliver_webhook_message", ResourceKind::Webhook, 0),
    ("list_pauses", ResourceKind::Own, 0),
    ("pause_agent", ResourceKind::Agent, 0),
    ("resume_agent", ResourceKind::Agent, 0),
    ("pause_workspace", ResourceKind::Workspace, 0),
    ("resume_workspace", ResourceKind::Workspace, 0),
    ("pause_all", ResourceKind::Installation, 0),
    ("resume_all", ResourceKind::Installation, 0),
    ("cancel_run", ResourceKind::Run, 0),
    ("retry_run", ResourceKind::Run, 0),
    ("cancel_runs", ResourceKind::Own, 0),
    ("retry_runs", ResourceKind::Own, 0),
    ("list_jobs", ResourceKind::Own, 0),
    ("get_job", ResourceKind::Job, 0),
    ("cancel_job", ResourceKind::Job, 0),
    ("link_run_stream", ResourceKind::Run, 0),
    ("stream_by_link", ResourceKind::Interaction, 0),
    ("get_conversation_history", ResourceKind::Conversation, 0),
    ("search_conversation_history", ResourceKind::Conversation, 0),
    ("list_interactions", ResourceKind::Own, 0),
    ("get_interaction", ResourceKind::Interaction, 0),
    ("link_interaction", ResourceKind::Interaction, 0),
    ("submit_interaction", ResourceKind::Interaction, 0),
    ("submit_interaction_by_link", ResourceKind::Interaction, 0),
    ("show_interaction_page", ResourceKind::Interaction, 0),
    ("submit_interaction_page", ResourceKind::Interaction, 0),
    ("list_platform_actions", ResourceKind::Own, 0),
    ("get_platform_action", ResourceKind::PlatformAction, 0),
    ("claim_platform_action", ResourceKind::PlatformAction, 0),
    ("report_action_result", ResourceKind::PlatformAction, 0),
    ("complete_agent_chat", ResourceKind::Own, 0),
    ("create_agent_response", ResourceKind::Own, 0),
    ("get_agent_response", ResourceKind::Run, 0),
    ("cancel_agent_response", ResourceKind::Run, 0),
    ("list_agent_models", ResourceKind::Own, 0),
    ("get_agent_model", ResourceKind::Agent, 0),
    ("run_ag_ui_agent", ResourceKind::Agent, 0),
    ("call_a2a_agent", ResourceKind::Agent, 0),
    ("speak_agent_mcp", ResourceKind::Agent, 0),
    ("send_a2a_message", ResourceKind::Agent, 0),
    ("stream_a2a_message", ResourceKind::Agent, 0),
    ("get_a2a_task", ResourceKind::Agent, 0),
    ("act_on_a2a_task", ResourceKind::Agent, 0),
    ("get_agent_card", ResourceKind::Agent, 0),
    ("upload_artifact", ResourceKind::Own, 0),
    ("get_artifact", ResourceKind::Artifact, 0),
    ("delete_artifact", ResourceKind::Artifact, 0),
    ("get_artifact_content", ResourceKind::Artifact, 0),
    ("register_runner_endpoint", ResourceKind::Own, 0),
    ("list_runner_endpoints", ResourceKind::Own, 0),
    ("get_runner_endpoint", ResourceKind::Endpoint, 0),
    ("delete_runner_endpoint", ResourceKind::Endpoint, 0),
    ("refresh_runner_endpoint", ResourceKind::Endpoint, 0),
    ("list_endpoint_health", ResourceKind::Endpoint, 0),
    ("list_runners", ResourceKind::Own, 0),
    ("create_agent", ResourceKind::Own, 0),
    ("list_agents", ResourceKind::Own, 0),
    ("get_agent", ResourceKind::Agent, 0),
    ("restore_agent", ResourceKind::Agent, 0),
    ("list_changes", ResourceKind::Own, 0),
    ("update_agent", ResourceKind::Agent, 0),
    ("delete_agent", ResourceKind::Agent, 0),
    ("list_agent_skills", ResourceKind::Agent, 0),
    ("get_agent_skill", ResourceKind::Agent, 0),
    ("delete_agent_skill", ResourceKind::Agent, 0),
    ("create_api_key", ResourceKind::Own, 0),
    ("list_api_keys", ResourceKind::Own, 0),
    ("get_api_key", ResourceKind::Key, 0),
    ("revoke_api_key", ResourceKind::Key, 0),
    ("create_workspace", ResourceKind::Installation, 0),
    ("list_workspaces", ResourceKind::Installation, 0),
    ("list_models", ResourceKind::Installation, 0),
    ("list_tools", ResourceKind::Installation, 0),
    ("list_mcp_servers", ResourceKind::Installation, 0),
    ("list_model_providers", ResourceKind::Installation, 0),
    ("list_limits", ResourceKind::Own, 0),
    ("list_knowledge_bases", ResourceKind::Installation, 0),
    ("list_skills", ResourceKind::Installation, 0),
    ("list_documents", ResourceKind::Own, 0),
    ("get_document", ResourceKind::Document, 0),
    ("put_document", ResourceKind::Own, 0),
    ("delete_document", ResourceKind::Document, 0),
    ("reindex_knowledge_base", ResourceKind::Own, 0),
    ("search_knowledge_base", ResourceKind::Own, 0),
    ("get_own_context", ResourceKind::Own, 200),
    ("get_prompt", ResourceKind::Own, 404),
    ("get_own_run", ResourceKind::Own, 200),
    ("page_own_run_events", ResourceKind::Own, 200),
    ("cancel_own_run", ResourceKind::Own, 400),
    ("list_scope_runs", ResourceKind::Own, 200),
    ("get_scope_run", ResourceKind::Run, 404),
    ("page_scope_run_events", ResourceKind::Run, 404),
    ("cancel_scope_run", ResourceKind::Run, 404),
    ("renew_token", ResourceKind::Own, 200),
    ("get_checkpoint", ResourceKind::Own, 403),
    ("put_checkpoint", ResourceKind::Own, 403),
    ("list_state", ResourceKind::Entry, 403),
    ("get_state", ResourceKind::Entry, 403),
    ("get_state_body", ResourceKind::Entry, 403),
    ("put_state", ResourceKind::Entry, 403),
    ("delete_state", ResourceKind::Entry, 403),
    ("page_history", ResourceKind::Own, 403),
    ("search_history", ResourceKind::Own, 403),
    ("page_own_events", ResourceKind::Own, 403),
    ("get_own_event", ResourceKind::Event, 403),
    ("list_blobs", ResourceKind::Entry, 403),
    ("get_blob", ResourceKind::Entry, 403),
    ("put_blob", ResourceKind::Entry, 403),
    ("delete_blob", ResourceKind::Entry, 403),
    ("pull_steering", ResourceKind::Own, 403),
    ("await_interaction", ResourceKind::Entry, 403),
    ("request_platform_action", ResourceKind::Own, 403),
    ("request_wake", ResourceKind::Own, 403),
    ("cancel_wake", ResourceKind::Entry, 403),
    ("await_platform_action", ResourceKind::PlatformAction, 404),
    ("start_child_run", ResourceKind::Own, 403),
    ("get_child_run", ResourceKind::Run, 404),
    ("page_child_run_events", ResourceKind::Run, 404),
    ("cancel_child_run", ResourceKind::Run, 404),
    ("list_granted_models", ResourceKind::Own, 200),
    ("invoke_model", ResourceKind::Entry, 403),
    ("stream_model", ResourceKind::Entry, 403),
    ("count_model_tokens", ResourceKind::Entry, 403),
    ("rerank_documents", ResourceKind::Entry, 403),
    ("embed_texts", ResourceKind::Entry, 403),
    ("create_chat_completion", ResourceKind::Own, 403),
    ("create_embeddings", ResourceKind::Own, 403),
    ("list_openai_models", ResourceKind::Own, 200),
    ("get_openai_model", ResourceKind::Entry, 404),
    ("create_response", ResourceKind::Own, 403),
    ("count_response_tokens", ResourceKind::Own, 403),
    ("get_response", ResourceKind::Entry, 400),
    ("create_message", ResourceKind::Own, 403),
    ("count_message_tokens", ResourceKind::Own, 403),
    ("list_anthropic_models", ResourceKind::Own, 200),
    ("get_anthropic_model", ResourceKind::Entry, 404),
    ("call_gemini_model", ResourceKind::Entry, 403),
    ("list_gemini_models", ResourceKind::Own, 200),
    ("get_gemini_model", ResourceKind::Entry, 404),
    ("list_granted_tools", ResourceKind::Own, 200),
    ("get_tool", ResourceKind::Entry, 403),
    ("call_tool", ResourceKind::Entry, 403),
    ("speak_mcp", ResourceKind::Own, 200),
    ("speak_shared_mcp", ResourceKind::Own, 404),
    ("list_granted_knowledge_bases", ResourceKind::Own, 403),
    ("retrieve_knowledge", ResourceKind::Own, 403),
    ("append_results", ResourceKind::Own, 400),
    ("run_heartbeat", ResourceKind::Own, 409),
    ("create_artifact", ResourceKind::Own, 403),
    ("get_artifact_metadata", ResourceKind::Artifact, 403),
    ("read_artifact", ResourceKind::Artifact, 403),
    ("healthz", ResourceKind::Installation, 0),
    ("readyz", ResourceKind::Installation, 0),
    ("jwks", ResourceKind::Installation, 0),
    ("openapi_json", ResourceKind::Installation, 0),
    ("runner_json", ResourceKind::Installation, 0),
];

/// Operations of role `admin` that are open to role `owner`, too.
const OWNERS_TOO: [&str; 3] = ["list_pauses", "pause_workspace", "resume_workspace"];

fn row(id: &str) -> (ResourceKind, u16) {
    let found = ROWS.iter().find(|(row, ..)| *row == id);
    let (_, about, bare) = found.unwrap_or_else(|| panic!("{id} has no row in this file"));
    (*about, *bare)
}

#[tokio::test]
async fn every_operation_has_an_isolation_row() {
    let stage = OwnStage::new().await;
    let served: BTreeSet<_> = operations(&stage.client)
        .await
        .into_iter()
        .map(|operation| operation.id)
        .collect();
    let rows: BTreeSet<_> = ROWS.iter().map(|(id, ..)| (*id).to_owned()).collect();
    assert_eq!(served, rows);
    assert_eq!(rows.len(), ROWS.len());
}

/// The parts of a response that are visible to its caller.
#[derive(Debug, PartialEq)]
pub struct VisibleResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// Sends the request, with retries while the run exceeds its call rate limit.
pub async fn visible_response(request: reqwest::RequestBuilder) -> VisibleResponse {
    let mut last = None;
    until("an answer within the rate", async || {
        let answer = visible_response_once(request.try_clone().unwrap()).await;
        let is_refused = answer.status == 429 && answer.body.contains("calls too often");
        last = Some(answer);
        !is_refused
    })
    .await;
    last.unwrap()
}

async fn visible_response_once(request: reqwest::RequestBuilder) -> VisibleResponse {
    let response = within("an answer", request.send()).await.unwrap();
    let status = response.status().as_u16();
    let shown = |headers: &HeaderMap| {
        let mut shown: Vec<_> = headers
            .iter()
            .filter(|(name, _)| *name != "date" && *name != "request-id")
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        shown.sort();
        shown
    };
    let headers = shown(response.headers());
    let body = within("a body", body_of(response)).await.unwrap();
    VisibleResponse {
        status,
        headers,
        body: without_request_id(String::from_utf8_lossy(&body).into_owned()),
    }
}

/// Removes the request id that the Anthropic API adds to error bodies.
fn without_request_id(body: String) -> String {
    const ID: &str = "\"req_";
    const LENGTH: usize = 38;
    match body.find(ID) {
        Some(at) if body.len() >= at + LENGTH => body[..at].to_owned() + &body[at + LENGTH..],
        _ => body,
    }
}

pub type ResourceIds = BTreeMap<&'static str, String>;

/// Replaces the ids of the request, which a 404 repeats.
pub fn without_ids(mut response: VisibleResponse, ids: &ResourceIds) -> VisibleResponse {
    for id in ids.values() {
        response.body = response.body.replace(id.as_str(), "ID");
    }
    response
        .headers
        .retain(|(name, _)| name != "content-length");
    response
}

/// A part of a path: an id, or another valid value.
fn named_part(ids: &ResourceIds, name: &str) -> String {
    match (ids.get(name), name) {
        (Some(id), _) => id.clone(),
        (None, "scope") => "conversation".to_owned(),
        (None, "area") => "plugin".to_owned(),
        (None, "key" | "body_id") => "k".to_owned(),
        (None, "model_id" | "message_id") => "m".to_owned(),
        (None, "version") => "v1beta".to_owned(),
        (None, "name") => "search".to_owned(),
        (None, "kb_id") => "handbook".to_owned(),
        (None, "response_id") => response_id(ids),
        (None, "skill_name") => "brief".to_owned(),
        (None, "interaction_id") => "q".to_owned(),
        (None, "action_id") => Uuid::nil().to_string(),
        (None, "agent") => ids
            .get("agent_id")
            .map_or("absent", String::as_str)
            .to_owned(),
        (None, "task") => ids
            .get("run_id")
            .map_or("absent", String::as_str)
            .to_owned(),
        (None, "token" | "secret") => "t".to_owned(),
        _ => panic!("{name}"),
    }
}

/// The end of a path that names an action.
fn action_of(operation: &Operation) -> &'static str {
    match operation.id.as_str() {
        "act_on_a2a_task" => ":cancel",
        "call_gemini_model" => ":generateContent",
        _ => "",
    }
}

/// A message of MCP.
fn list_of_tools() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
}

/// A request of the operation for these ids; everything else in it is valid.
pub fn request(
    client: &Client,
    operation: &Operation,
    ids: &ResourceIds,
) -> reqwest::RequestBuilder {
    let named = |name: &str| named_part(ids, name);
    let path = operation.path_with(named) + action_of(operation);
    let query = match operation.id.as_str() {
        "search_conversation_history" => "?query=hello",
        "refresh_runner_endpoint" => "?dry_run=true",
        "list_feed_messages" => "?after=0",
        _ => "",
    };
    let request = client.request(operation.method.clone(), &format!("{path}{query}"));
    // Only A2A reads it.
    let request = request.header("a2a-version", "1.0");
    let body = match operation.id.as_str() {
        "dry_run_event" | "dry_run_agent" => message("dry"),
        "update_agent" => spec("renamed"),
        "check_policy" => json!({"resource_policy": {}}),
        // No change has the id of an agent.
        "restore_agent" => json!({"change_id": named("agent_id")}),
        "update_webhook" => json!({"name": "renamed", "events": ["run.failed"]}),
        "update_schedule" => json!({"name": "renamed", "every": "1d", "event": {}}),
        "redeliver_webhook" => json!({"since": 0}),
        "try_source" => json!({"body": "{}"}),
        "pause_agent" | "pause_workspace" => json!({"mode": "hold"}),
        "cancel_runs" | "retry_runs" => json!({"dry_run": true}),
        // Invalid on purpose: its effect is not under test.
        "post_event"
        | "stream_event"
        | "post_event_batch"
        | "post_pipeline_query"
        | "stream_pipeline_query"
        | "register_runner_endpoint"
        | "create_agent"
        | "create_approval"
        | "create_source"
        | "create_webhook"
        | "create_schedule"
        | "pause_schedule"
        | "resume_schedule"
        | "run_schedule"
        | "pause_all"
        | "resume_all"
        | "create_api_key"
        | "put_budget" => {
            json!({"unknown": 1})
        }
        "cancel_own_run" | "call_a2a_agent" | "send_a2a_message" | "stream_a2a_message" => {
            json!({"reason": ""})
        }
        "run_ag_ui_agent" => {
            json!({"threadId": "c-8", "runId": "r", "messages": [{"role": "user", "content": "hi"}]})
        }
        "cancel_scope_run" | "cancel_child_run" => json!({"reason": "mine"}),
        "start_child_run" => {
            json!({"agent_id": "helper", "input": {"text": "hi"}, "idempotency_key": "k"})
        }
        "put_checkpoint" => json!({"value": 1}),
        "put_state" => json!({"value": 1, "bodies": {"k": 1}}),
        "search_history" => json!({"query": "hello"}),
        "invoke_model" | "stream_model" | "count_model_tokens" => {
            json!({"messages": [{"role": "user", "content": "hi"}]})
        }
        "create_message" | "count_message_tokens" => {
            let messages = json!([{"role": "user", "content": "hi"}]);
            let mut body = json!({"model": named("model_id"), "messages": messages});
            if operation.id == "create_message" {
                body["max_tokens"] = json!(9);
            }
            body
        }
        "call_gemini_model" => json!({"contents": [{"parts": [{"text": "hi"}]}]}),
        "create_chat_completion" => {
            json!({"model": named("model_id"), "messages": [{"role": "user", "content": "hi"}]})
        }
        "complete_agent_chat" => {
            json!({"model": named("agent"), "messages": [{"role": "user", "content": "hi"}]})
        }
        "create_agent_response" => json!({"model": named("agent"), "input": "hi"}),
        "create_response" | "count_response_tokens" => {
            json!({"model": named("model_id"), "input": "hi"})
        }
        "rerank_documents" => json!({"query": "q", "documents": ["d"]}),
        "embed_texts" => json!({"texts": ["t"]}),
        "create_embeddings" => json!({"model": named("model_id"), "input": "t"}),
        "pull_steering"
        | "call_tool"
        | "resume_agent"
        | "resume_workspace"
        | "rotate_source_secret"
        | "rotate_webhook_secret" => json!({}),
        "submit_interaction" | "submit_interaction_by_link" => json!({"interaction_id": "q"}),
        "claim_platform_action" => json!({"claim_token": "none"}),
        "report_action_result" => json!({"claim_token": "none", "status": "done"}),
        "request_wake" => json!({"key": "k", "after_seconds": 60}),
        "request_platform_action" => json!({"action": "group.leave"}),
        "speak_mcp" | "speak_agent_mcp" => list_of_tools(),
        "search_knowledge_base" | "retrieve_knowledge" => json!({"query_text": "hello"}),
        "submit_interaction_page" => {
            let form = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            return form.body("field-0=a");
        }
        "put_blob" | "create_artifact" | "upload_artifact" => return request.body("bytes"),
        _ => return request,
    };
    request.json(&body)
}

/// The id of the run's response.
fn response_id(ids: &ResourceIds) -> String {
    let run = ids.get("run_id");
    run.map_or("resp_1".to_owned(), |run| {
        format!("resp_{}", run.replace('-', ""))
    })
}

fn spec(name: &str) -> Value {
    json!({
        "name": name, "event_types": ["message.received"], "scope": {"kind": "global"},
        "runner_id": crate::support::runner::RUNNER_ID, "config": {"timeout": 50},
        "resource_policy": {"history": ["page", "search"]},
    })
}

/// Ids without a resource.
pub fn absent_ids() -> ResourceIds {
    let id = || Uuid::now_v7().to_string();
    [
        "run_id",
        "event_id",
        "agent_id",
        "workspace_id",
        "job_id",
        "source",
        "source_id",
        "approval_id",
        "webhook_id",
        "schedule_id",
        "endpoint_id",
        "api_key_id",
        "artifact_id",
        "budget",
        "conversation_id",
        "document_id",
        "interaction",
        "action_id",
    ]
    .map(|name| (name, id()))
    .into()
}

/// A workspace with one resource of each kind. Texts, names and ids are unique; ids that clients choose are the
/// same in both workspaces.
pub struct Tenant {
    pub admin: Client,
    pub ids: ResourceIds,
    mark: String,
}

const ONLY: &str = "c-only";

impl Tenant {
    /// The workspace `default`, which the configuration fills, or a new one.
    pub async fn new(stage: &OwnStage, workspace: &str) -> Self {
        let mark = format!("mark-of-{workspace}");
        let url = &stage.client.url;
        let admin = if workspace == "default" {
            stage.admin.clone()
        } else {
            let admin = Client::new(url, &admin_key_of(stage, workspace).await);
            let endpoint = json!({
                "name": format!("stub-{mark}"), "base_url": stage.runner.url, "secret": SECRET,
            });
            let made = admin.create("/v1/runner-endpoints", &endpoint).await;
            assert_eq!(made.status, 201, "{}", made.body);
            admin
                .create("/v1/agents", &spec(&format!("agent-{mark}")))
                .await
                .expect(201);
            admin
        };
        let key = json!({"name": format!("key-{mark}"), "role": "client"});
        let key = admin.create("/v1/api-keys", &key).await.body;
        let mut event = message("m-1");
        event["input"]["text"] = json!(format!("hello {mark}"));
        event["raw"] = json!({"mark": mark});
        let large = BASE64_STANDARD.encode(mark.repeat(10_000));
        event["input"]["attachments"] = json!([{"name": "large.txt", "content": large}]);
        let run_id = admin.post(&event).await.run_id();
        admin.finished(&run_id).await;
        let document_id = format!("document-{workspace}");
        let path = format!("/v1/knowledge-bases/handbook/documents/{document_id}");
        let put = admin
            .request(Method::PUT, &path)
            .header(CONTENT_TYPE, "text/plain");
        let put = visible_response(put.body(format!("hello {mark}"))).await;
        assert!(put.status == 201 || put.status == 404, "{}", put.body);
        let sql = format!("SELECT id FROM artifacts WHERE workspace_id = '{workspace}'");
        let artifact = rows(&stage.gateway.database_url(), &sql).await[0].clone();
        let interaction = ask(stage, workspace, &run_id, &mark).await;
        let action = act(stage, workspace, &run_id, &mark).await;
        let budget = format!("budget-{workspace}");
        let spec = json!({"scope": "workspace", "window": "month", "calls": 1_000_000});
        let path = format!("/v1/budgets/{budget}");
        admin.call(Method::PUT, &path, &spec).await.expect(200);
        let first = |page: Value| page["items"][0].clone();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let endpoint = first(admin.get("/v1/runner-endpoints").await.body);
        let agent = first(admin.get("/v1/agents").await.body);
        register(stage, workspace, &text(&agent["id"]), &mark).await;
        let source = source_of(&admin, &mark).await;
        let ids = [
            ("run_id", run_id),
            ("event_id", "m-1".to_owned()),
            ("agent_id", text(&agent["id"])),
            ("workspace_id", workspace.to_owned()),
            ("job_id", job_of(&admin).await),
            ("source", source.clone()),
            ("source_id", source),
            (
                "approval_id",
                approval_of(&admin, &text(&agent["id"]), &mark).await,
            ),
            ("webhook_id", webhook_of(&admin, &mark).await),
            ("schedule_id", schedule_of(&admin, &mark).await),
            ("endpoint_id", text(&endpoint["id"])),
            ("api_key_id", text(&key["id"])),
            ("artifact_id", artifact),
            ("budget", budget),
            ("conversation_id", "c-7".to_owned()),
            ("document_id", document_id),
            ("interaction", interaction),
            ("action_id", action),
        ];
        Self {
            admin,
            ids: ids.into(),
            mark,
        }
    }
}

/// Inserts an interaction of a run, as the gateway writes it.
pub async fn ask(stage: &OwnStage, workspace: &str, run_id: &str, mark: &str) -> String {
    let id = Uuid::now_v7().to_string();
    let request = json!({
        "interaction_id": "q", "kind": "form", "title": mark, "fields": [], "actions": [],
        "fallback_text": mark,
    });
    let sql = format!(
        "INSERT INTO interactions (id, workspace_id, run_id, sequence, interaction_id, request, \
         expires_at, asked_at) VALUES ('{id}', '{workspace}', '{run_id}', 1, 'q', '{request}', \
         9000000000000, 0)"
    );
    rows(&stage.gateway.database_url(), &sql).await;
    id
}

/// Inserts a platform action of a run, as the gateway writes it.
pub async fn act(stage: &OwnStage, workspace: &str, run_id: &str, mark: &str) -> String {
    let id = Uuid::now_v7().to_string();
    let request = json!({"target": {}, "payload": {"text": mark}});
    let sql = format!(
        "INSERT INTO platform_actions (id, workspace_id, run_id, idempotency_key, action, request, request_sha256, \
         status, timeout_ms, expires_at, created_at) VALUES ('{id}', '{workspace}', '{run_id}', 'k', \
         'message.send', '{request}', '00', 'open', 1000, 9000000000000, 0)"
    );
    rows(&stage.gateway.database_url(), &sql).await;
    id
}

/// Id of a job that changes no run.
async fn job_of(admin: &Client) -> String {
    let none = "/v1/runs/cancel?status_reason=none";
    let job = admin.create(none, &json!({"expect": 0})).await.expect(202);
    job.body["id"].as_str().unwrap().to_owned()
}

/// Id of a schedule that is not due.
async fn schedule_of(admin: &Client, mark: &str) -> String {
    let spec = json!({"name": format!("schedule-{mark}"), "every": "366d", "event": {}});
    let schedule = admin.create("/v1/schedules", &spec).await.expect(201);
    schedule.body["id"].as_str().unwrap().to_owned()
}

/// Id of a source.
async fn source_of(admin: &Client, mark: &str) -> String {
    let name = format!("source-{}", mark.to_lowercase());
    let filter = "{event_type: \"message.received\", input: {text: \"hi\"}}";
    let spec = json!({"name": name, "scheme": "github", "filter": filter});
    let source = admin.create("/v1/sources", &spec).await.expect(201);
    source.body["id"].as_str().unwrap().to_owned()
}

/// Id of an approval of a tool that no run has.
async fn approval_of(admin: &Client, agent: &str, mark: &str) -> String {
    let spec = json!({"tool": format!("tool-{mark}"), "agent": agent});
    let approval = admin.create("/v1/approvals", &spec).await.expect(201);
    approval.body["id"].as_str().unwrap().to_owned()
}

/// Id of a webhook without a URL.
async fn webhook_of(admin: &Client, mark: &str) -> String {
    let spec = json!({"name": format!("webhook-{mark}"), "events": ["run.failed"]});
    let webhook = admin.create("/v1/webhooks", &spec).await.expect(201);
    webhook.body["id"].as_str().unwrap().to_owned()
}

/// Inserts a skill of a run, as the gateway writes it.
async fn register(stage: &OwnStage, workspace: &str, agent_id: &str, mark: &str) {
    let sql = format!(
        "INSERT INTO agent_skills (agent_id, skill_name, workspace_id, description, content, files, \
         sha256, version, run_id, registered_at) VALUES ('{agent_id}', 'brief', '{workspace}', '{mark}', \
         '{mark}', '[]', '00', 1, '{}', 0)",
        Uuid::now_v7()
    );
    rows(&stage.gateway.database_url(), &sql).await;
}

/// An admin key of a new workspace.
pub async fn admin_key_of(stage: &OwnStage, workspace: &str) -> String {
    let owner = stage.gateway.owner();
    let made = owner
        .create("/v1/workspaces", &json!({"id": workspace}))
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.body["api_key"]["key"].as_str().unwrap().to_owned()
}

async fn two_tenants(engine: Engine) -> Option<(OwnStage, Tenant, Tenant)> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = OwnStage::of(engine, runner, |config: &mut Config| {
        config.agents[0].resources = r#"history = ["page", "search"]"#;
        "[[knowledge_bases]]\nkb_id = \"handbook\"".clone_into(&mut config.rest);
    })
    .await?;
    let ours = Tenant::new(&stage, "default").await;
    let theirs = Tenant::new(&stage, "other").await;
    Some((stage, ours, theirs))
}

#[rstest]
#[tokio::test]
async fn foreign_ids_answer_like_absent_ids(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, ours, theirs) = or_skip!(two_tenants(engine).await);
    let mut only = message("m-only");
    only["conversation"]["conversation_id"] = json!(ONLY);
    only["input"]["text"] = json!(format!("hello {}", ours.mark));
    let run_id = ours.admin.post(&only).await.run_id();
    ours.admin.finished(&run_id).await;

    let mut foreign = ours.ids.clone();
    // Ids that exist only in the other workspace; same-named resources would be the caller's own.
    foreign.insert("event_id", "m-only".to_owned());
    foreign.insert("conversation_id", ONLY.to_owned());
    let absent_ids = absent_ids();
    for operation in operations(&stage.client).await {
        if !matches!(operation.face, Face::Client | Face::Admin) {
            continue;
        }
        let (about, _) = row(&operation.id);
        let their = |ids: &ResourceIds| request(&theirs.admin, &operation, ids);
        let answer = without_ids(visible_response(their(&foreign)).await, &foreign);
        for text in [
            &ours.mark,
            &ours.ids["run_id"],
            &ours.ids["agent_id"],
            &ours.ids["endpoint_id"],
            &ours.ids["api_key_id"],
        ] {
            assert!(
                !answer.body.contains(text.as_str()),
                "{}: {}",
                operation.id,
                answer.body
            );
        }
        let nothing = without_ids(visible_response(their(&absent_ids)).await, &absent_ids);
        match about {
            ResourceKind::Own | ResourceKind::Installation => {}
            ResourceKind::Conversation => assert_eq!(answer, nothing, "{}", operation.id),
            _ => {
                assert_eq!(
                    (answer.status, &answer),
                    (404, &nothing),
                    "{}",
                    operation.id
                );
                let streamed = |ids| {
                    their(ids)
                        .header(ACCEPT, "text/event-stream")
                        .header("last-event-id", 1)
                };
                assert_eq!(
                    without_ids(visible_response(streamed(&foreign)).await, &foreign),
                    without_ids(visible_response(streamed(&absent_ids)).await, &absent_ids),
                    "{}",
                    operation.id
                );
            }
        }
        // The id is valid for its owner.
        if operation.method == Method::GET {
            let own = visible_response(request(&ours.admin, &operation, &foreign)).await;
            // `m-only` has no raw payload.
            let expected = match operation.id.as_str() {
                "get_raw_payload" => 404,
                _ => 200,
            };
            assert_eq!(own.status, expected, "{}: {}", operation.id, own.body);
        }
    }
    // Our resources are unchanged.
    for (operation, id) in [
        ("agents", "agent_id"),
        ("runner-endpoints", "endpoint_id"),
        ("api-keys", "api_key_id"),
    ] {
        let path = format!("/v1/{operation}/{}", ours.ids[id]);
        assert_eq!(ours.admin.get(&path).await.status, 200, "{path}");
    }
    assert_members!(ours.admin.run(&ours.ids["run_id"]).await, {"status": "completed"});
    // Each workspace reads its own resource of a shared name.
    for (tenant, other) in [(&ours, &theirs), (&theirs, &ours)] {
        for path in [
            "/v1/events/m-1",
            "/v1/conversations/c-7/history",
            "/v1/events",
            "/v1/raw-payloads/m-1",
            "/v1/conversations/c-7/history/search?query=hello",
        ] {
            let answer = visible_response(tenant.admin.request(Method::GET, path)).await;
            assert!(
                answer.body.contains(&tenant.mark),
                "{path}: {}",
                answer.body
            );
            assert!(
                !answer.body.contains(&other.mark),
                "{path}: {}",
                answer.body
            );
        }
    }
}

#[rstest]
#[tokio::test]
async fn credentials_open_only_their_own_api(#[values(Sqlite, Postgres)] engine: Engine) {
    // Each operation refuses several credentials of one address.
    let many = |config: &mut Config| "refused_credentials = 10000".clone_into(&mut config.limits);
    let stage = or_skip!(OwnStage::on(engine, many).await);
    let admin = stage.admin.clone();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let ended = HeldRun::start(&stage, &message("m-2")).await;
    ended.end(&stage).await;
    let made = admin
        .create("/v1/api-keys", &json!({"name": "gone", "role": "admin"}))
        .await
        .body;
    let path = format!("/v1/api-keys/{}", made["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    let as_who = |key: &str| Client::new(&stage.client.url, key);
    let owner = stage.gateway.owner();
    let (client, token) = (as_who(&stage.client.key), as_who(&run.token));
    let nobodies = [
        as_who(""),
        as_who("x"),
        as_who(&ended.token),
        as_who(made["key"].as_str().unwrap()),
    ];
    let absent_ids = absent_ids();
    let mut refusals = BTreeSet::new();
    for operation in operations(&stage.client).await {
        let ask =
            async |who: &Client| visible_response(request(who, &operation, &absent_ids)).await;
        let id = &operation.id;
        for nobody in &nobodies {
            let answer = ask(nobody).await;
            if operation.face == Face::Open {
                assert_eq!(answer.status, 200, "{id}");
            } else if operation.face == Face::Shared {
                assert_eq!(answer.status, 404, "{id}");
            } else {
                assert_eq!(answer.status, 401, "{id}: {}", answer.body);
                refusals.insert((form(&operation), format!("{answer:?}")));
            }
        }
        let statuses = [
            ask(&client).await.status,
            ask(&admin).await.status,
            ask(&token).await.status,
        ];
        let opens = |status: u16| !matches!(status, 401 | 500..);
        let owners = ask(&owner).await.status;
        match operation.face {
            Face::Owner => assert!(opens(owners) && owners != 403, "{id} {owners}"),
            // A key of any role reads itself.
            Face::Client if id == "get_own_key" => assert_eq!(owners, 200),
            Face::Admin if OWNERS_TOO.contains(&id.as_str()) => {
                assert!(opens(owners) && owners != 403, "{id} {owners}");
            }
            Face::Client | Face::Admin => assert_eq!(owners, 403, "{id}"),
            Face::Host | Face::Link => assert_eq!(owners, 401, "{id}"),
            Face::Open => assert_eq!(owners, 200, "{id}"),
            Face::Shared => assert_eq!(owners, 404, "{id}"),
        }
        match operation.face {
            Face::Open => assert_eq!(statuses, [200; 3], "{id}"),
            Face::Shared => assert_eq!(statuses, [404; 3], "{id}"),
            Face::Link => assert_eq!(statuses, [401; 3], "{id}"),
            Face::Client => {
                assert!(
                    opens(statuses[0]) && statuses[0] != 403,
                    "{id} {statuses:?}"
                );
                assert!(
                    opens(statuses[1]) && statuses[2] == 401,
                    "{id} {statuses:?}"
                );
            }
            Face::Admin => {
                assert_eq!((statuses[0], statuses[2]), (403, 401), "{id}");
                assert!(
                    opens(statuses[1]) && statuses[1] != 403,
                    "{id} {statuses:?}"
                );
            }
            Face::Owner => assert_eq!(statuses, [403, 403, 401], "{id}"),
            Face::Host => {
                assert_eq!(statuses[..2], [401, 401], "{id}");
                assert!(opens(statuses[2]), "{id} {statuses:?}");
            }
        }
    }
    let forms: Vec<_> = refusals.iter().map(|(form, _)| *form).collect();
    let expected = [
        "a2a",
        "a2a-http",
        "ag-ui",
        "anthropic",
        "gateway",
        "gemini",
        "link",
        "openai",
        "page",
        "responses",
        "source",
    ];
    assert_eq!(forms, expected, "one refusal for each form: {refusals:?}");
    run.end(&stage).await;
}

/// The error format of an operation. Links need no credential and answer as JSON or as a page; compatible APIs
/// use the format of their original.
fn form(operation: &Operation) -> &'static str {
    match operation.id.as_str() {
        id if operation.face == Face::Link && id.ends_with("_page") => "page",
        _ if operation.path.starts_with("/in/") => "source",
        _ if operation.face == Face::Link => "link",
        _ if operation.path.starts_with("/host/v1/anthropic/") => "anthropic",
        _ if operation.path.starts_with("/host/v1/gemini/") => "gemini",
        "create_response" | "count_response_tokens" | "get_response" => "responses",
        _ if operation.path.starts_with("/host/v1/openai/") => "openai",
        _ if operation.path.starts_with("/faces/openai/") => "openai",
        "call_a2a_agent" => "a2a",
        "run_ag_ui_agent" => "ag-ui",
        id if id.contains("_a2a_") => "a2a-http",
        _ => "gateway",
    }
}

/// Two runs on different sides of every isolation boundary of a run, each with a marker in everything it can
/// write.
#[rstest]
#[tokio::test]
async fn runs_access_only_own_and_granted_data(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start_as(generous()).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let staged = OwnStage::of(engine, runner, |config: &mut Config| {
        config.agents[0].resources = ALL;
        config.agents[0].state_scopes = r#""conversation", "actor", "subject", "runner""#;
        config.agents.push(Agent {
            name: "bare",
            event_types: "test.bare",
            resources: "",
            state_scopes: "",
            ..Agent::default()
        });
    });
    let stage = or_skip!(staged.await);
    let tenant = Tenant::new(&stage, "other").await;
    let mut event = message("m-other");
    event["input"]["text"] = json!(tenant.mark);
    let elsewhere = tenant.admin.post(&event).await.run_id();
    tenant.admin.finished(&elsewhere).await;
    let own = HeldRun::start(&stage, &message("m-1")).await;
    let mut event = message("m-2");
    event["conversation"]["conversation_id"] = json!("c-8");
    event["actor"]["actor_id"] = json!("u-2");
    let near = HeldRun::start(&stage, &event).await;
    event["event_id"] = json!("m-3");
    let far = stage.client.post(&event).await.run_id();
    stage.client.finished(&far).await;
    let routes = operations(&stage.client).await;
    let host: Vec<_> = routes
        .iter()
        .filter(|route| route.face == Face::Host)
        .collect();
    let as_run = |run: &HeldRun| Client::new(&stage.client.url, &run.token);

    // The other run writes first, wherever it may.
    for path in ["/state/conversation/k", "/state/actor/k"] {
        assert_eq!(near.put(path, &json!("mark-of-near")).await.status, 200);
    }
    let upload = near
        .request(Method::POST, "/artifacts")
        .body("mark-of-near");
    let artifact = send(upload).await.unwrap().body["artifact_id"].clone();
    let absent_ids = absent_ids();
    for operation in &host {
        let (about, _) = row(&operation.id);
        let ask = async |ids: &ResourceIds| {
            without_ids(
                visible_response(request(&as_run(&own), operation, ids)).await,
                ids,
            )
        };
        let nothing = ask(&absent_ids).await;
        for (run_id, event_id) in [
            (&near.run_id, "m-2"),
            (&far, "m-3"),
            (&tenant.ids["run_id"], "m-other"),
        ] {
            let mut foreign = absent_ids.clone();
            foreign.insert("run_id", run_id.clone());
            foreign.insert("event_id", event_id.to_owned());
            foreign.insert("artifact_id", artifact.as_str().unwrap().to_owned());
            let answer = ask(&foreign).await;
            assert!(
                !answer.body.contains("mark-of"),
                "{}: {}",
                operation.id,
                answer.body
            );
            if matches!(
                about,
                ResourceKind::Run | ResourceKind::Event | ResourceKind::Artifact
            ) {
                assert_eq!(
                    (answer.status, &answer),
                    (404, &nothing),
                    "{}",
                    operation.id
                );
            }
            // The host API identifies a run only by its token.
            let path = operation.path_with(|_| "x".to_owned());
            if operation.id == "get_own_run" {
                let elsewhere =
                    as_run(&own).request(Method::GET, &format!("{path}?run_id={run_id}"));
                let answer = visible_response(elsewhere.header("runnel-run-id", run_id)).await;
                assert!(answer.body.contains(&own.run_id), "{}", answer.body);
            }
        }
    }
    for path in ["/history", "/events", "/runs"] {
        let named = async |id: &str| {
            visible_response(own.request(Method::GET, &format!("{path}?conversation_id={id}")))
                .await
        };
        let (foreign, nothing) = (named("c-8").await, named("c-nobody").await);
        assert_eq!((foreign.status, &foreign), (403, &nothing), "{path}");
        assert_eq!(named("c-7").await.status, 200, "{path}");
    }
    assert_eq!(stage.client.run(&near.run_id).await["status"], "running");

    let mut event = message("m-4");
    event["event_type"] = json!("test.bare");
    event["conversation"]["conversation_id"] = json!("c-9");
    let bare = HeldRun::start(&stage, &event).await;
    let outcomes: Vec<_> = futures_util::future::join_all(host.iter().map(async |operation| {
        let answer = visible_response(request(&as_run(&bare), operation, &absent_ids)).await;
        (operation.id.clone(), answer.status)
    }))
    .await;
    let expected: Vec<_> = host
        .iter()
        .map(|route| (route.id.clone(), row(&route.id).1))
        .collect();
    assert_eq!(outcomes, expected);
    for run in [own, near, bare] {
        run.end(&stage).await;
    }
}

const ALL: &str = r#"history = ["page", "search"], events = ["get", "page"], storage = ["plugin", "workspace", "binding"], artifacts = ["metadata", "read", "create"]"#;

fn generous() -> Value {
    let mut manifest = crate::support::runner::manifest(crate::support::runner::RUNNER_ID);
    manifest["permissions"] = json!({
        "history": ["page", "search"], "events": ["get", "page"],
        "storage": ["plugin", "workspace", "binding"],
        "artifacts": ["metadata", "read", "create"],
    });
    manifest
}

/// Texts with a meaning for paths, query languages, patterns or search.
const HOSTILE: &[&str] = &[
    "' OR 1=1--",
    "'; DROP TABLE runs;--",
    "\" OR \"\"=\"",
    "`id`",
    "$(id)",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "%",
    "%%",
    "_",
    "a%",
    "\\",
    "\\'",
    "a\\%b",
    "[a-z]",
    "^",
    "*",
    "?",
    "NEAR(a b)",
    "a AND b",
    "a OR b",
    "NOT a",
    "a* b",
    "\"a",
    "\"a\" \"b",
    "col:a",
    "-a",
    "+a",
    "(a",
    "a)",
    "a & b",
    "a | !b",
    "a:*",
    "<->",
    "..",
    "../..",
    "../../etc/passwd",
    "..\\..\\windows",
    "/etc/passwd",
    "//x",
    "a//b",
    "a/./b",
    "a/../b",
    "%2e%2e/",
    "%252e",
    "~",
    "CON",
    "NUL",
    "aux.txt",
    "a:b",
    "a b",
    " a",
    "a ",
    "a\tb",
    "a\nb",
    "a\r\nx: y",
    "\u{1}",
    "\u{7f}",
    "\u{202e}a",
    "\u{feff}a",
    "e\u{301}",
    "é",
    "ﬁ",
    "Ⅷ",
    "\u{1f600}",
    "\u{10ffff}",
    "host.x",
    "HOST.X",
    ".",
    "-",
    "x",
];

fn encoded(text: &str) -> String {
    text.bytes()
        .fold(String::new(), |all, byte| format!("{all}%{byte:02X}"))
}

#[rstest]
#[tokio::test]
async fn hostile_text_is_no_code_pattern_or_path(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start_as(generous()).await;
    let staged = Stage::of(engine, runner, |config: &mut Config| {
        config.agents[0].resources = ALL;
    });
    let stage = or_skip!(staged.await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    run.put("/state/conversation/secret", &json!("hidden"))
        .await
        .expect(200);
    let mut covered = BTreeSet::from(["secret".to_owned()]);
    let mut long = HOSTILE
        .iter()
        .map(|text| (*text).to_owned())
        .collect::<Vec<_>>();
    long.extend([
        "a".repeat(256),
        "a".repeat(257),
        "é".repeat(129),
        "../".repeat(500),
    ]);
    for text in &long {
        // HTTP clients normalize a path segment of dots, so send dots only as a part of a segment.
        let dots = text.bytes().all(|byte| byte == b'.');
        let key = format!("{}{}", if dots { "x" } else { "" }, encoded(text));
        let state = format!("/state/conversation/{key}");
        let put = run.put(&state, &json!(text)).await.status;
        assert!([200, 400, 403].contains(&put), "{put} {text:?}");
        let got = run.get(&state).await;
        if put == 200 {
            assert_eq!(got.body["value"], json!(text));
            covered.insert(got.body["key"].as_str().unwrap_or(text).to_owned());
        } else {
            assert!(
                [400, 403, 404].contains(&got.status),
                "{} {text:?}",
                got.status
            );
        }
        let blob = format!("/storage/plugin/{key}");
        let put = visible_response(run.request(Method::PUT, &blob).body(text.clone()))
            .await
            .status;
        let got = visible_response(run.request(Method::GET, &blob)).await;
        if put < 300 {
            assert_eq!((got.status, &got.body), (200, text));
            let header = |name: &str| {
                got.headers
                    .iter()
                    .find(|(header, _)| header == name)
                    .map(|(_, value)| value.clone())
            };
            assert_eq!(header("content-disposition").as_deref(), Some("attachment"));
            assert_eq!(header("x-content-type-options").as_deref(), Some("nosniff"));
        } else {
            assert!([400, 403].contains(&put), "{put} {text:?}");
        }
        // Prefixes, ids and queries return nothing beyond the request, and no operation fails.
        for path in [
            format!("/state/conversation?prefix={key}"),
            format!("/storage/plugin?prefix={key}"),
            format!("/events/{key}"),
            format!("/runs/{key}"),
            format!("/artifacts/{key}"),
            format!("/artifacts/{key}/content"),
            format!("/tools/{key}"),
            format!("/openai/v1/models/{key}"),
            format!("/anthropic/v1/models/{key}"),
            format!("/gemini/v1beta/models/{key}"),
            format!("/history?before_cursor={key}"),
            format!("/events?event_types={key}"),
            format!("/runs?statuses={key}"),
        ] {
            let answer = visible_response(run.request(Method::GET, &path)).await;
            assert!(answer.status < 500, "{path}: {}", answer.body);
            let is_beginning = "secret".starts_with(text.as_str());
            assert!(
                is_beginning || !answer.body.contains("secret"),
                "{path}: {}",
                answer.body
            );
        }
        for path in [
            format!("/v1/events/{key}"),
            format!("/v1/runs/{key}"),
            format!("/v1/artifacts/{key}"),
            format!("/v1/artifacts/{key}/content"),
            format!("/v1/knowledge-bases/{key}/documents/{key}"),
            format!("/v1/runs?conversation_id={key}"),
            format!("/v1/runs?cursor={key}"),
            format!("/v1/events?event_types={key}"),
            format!("/v1/conversations/{key}/history"),
            format!("/v1/conversations/c-7/history?bot_id={key}"),
        ] {
            let answer = visible_response(stage.client.request(Method::GET, &path)).await;
            assert!(answer.status < 500, "{path}: {}", answer.body);
            assert!(
                !answer.body.contains("hello big"),
                "{path}: {}",
                answer.body
            );
        }
        let search = run.call("/history/search", &json!({"query": text})).await;
        assert!(
            [200, 400].contains(&search.status),
            "{text:?}: {}",
            search.body
        );
        if search.status == 200 {
            assert_eq!(search.body["items"], json!([]), "{text:?}");
        }
    }
    let listed = run.get("/state/conversation?limit=100").await.body;
    assert!(listed.to_string().contains("secret"), "{listed}");
    // All stored keys are printable ASCII, and the tables still exist.
    for key in &covered {
        assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key:?}");
    }
    assert_eq!(run.end(&stage).await.ending(), "completed");
}
