//! Examples of request bodies, by operation. The page of the API fills them into its forms.

use serde_json::{Value, json};
use utoipa::openapi::{OpenApi, RefOr};

use super::general::operations_of;

/// Sets the examples of JSON bodies that have none.
pub(super) fn add_examples(document: &mut OpenApi) {
    let operations = document.paths.paths.values_mut().flat_map(operations_of);
    for operation in operations {
        let id = operation.operation_id.as_deref().unwrap_or_default();
        let Some(example) = example_of(id) else {
            continue;
        };
        let Some(RefOr::T(body)) = &mut operation.request_body else {
            continue;
        };
        for content in body.content.values_mut() {
            if let RefOr::T(content) = content {
                content.example.get_or_insert_with(|| example.clone());
            }
        }
    }
}

fn example_of(operation_id: &str) -> Option<Value> {
    let example = match operation_id {
        "post_event" | "stream_event" | "dry_run_event" | "dry_run_agent" => json!({
            "event_type": "message.received",
            "conversation": {"conversation_id": "c-7"},
            "input": {"text": "What is Runnel?"},
        }),
        "post_pipeline_query" | "stream_pipeline_query" => json!({
            "query_id": "q-1",
            "launcher_type": "person",
            "launcher_id": "u-1",
            "sender_id": "u-1",
            "pipeline_uuid": "p-1",
            "message_chain": [{"type": "Plain", "text": "What is Runnel?"}],
            "variables": {"city": "Rome"},
        }),
        "submit_interaction" | "submit_interaction_by_link" => json!({
            "interaction_id": "room",
            "action_id": "book",
            "values": {"guests": 2},
        }),
        "claim_platform_action" => json!({"lease_seconds": 30}),
        "report_action_result" => json!({
            "claim_token": "the token of the claim",
            "status": "done",
            "output": {"message_id": "m-12"},
        }),
        "request_platform_action" => json!({
            "action": "message.edit",
            "target": {"message_id": "m-12"},
            "payload": {"text": "Your table is booked."},
            "idempotency_key": "booked",
        }),
        "register_runner_endpoint" => json!({
            "name": "my-runner",
            "base_url": "https://runner.example.com",
            "max_runs": 100,
        }),
        "create_agent" | "update_agent" => agent(),
        "check_policy" => json!({
            "resource_policy": {"models": ["assistant"], "history": ["page"]},
        }),
        "create_api_key" => json!({
            "name": "shop",
            "role": "client",
            "agents": ["support"],
        }),
        "cancel_runs" | "retry_runs" => json!({"dry_run": true}),
        "retry_run" => json!({"from": 12}),
        "pause_agent" | "pause_workspace" | "pause_all" => json!({
            "mode": "hold",
            "reason": "wrong prices",
        }),
        "resume_agent" | "resume_workspace" | "resume_all" => json!({"runs_per_second": 5}),
        "put_budget" => json!({
            "scope": "agent",
            "window": "day",
            "cost": 8,
            "on_reached": "pause",
        }),
        "create_workspace" => json!({"id": "shop", "name": "The shop"}),
        "search_knowledge_base" => json!({
            "query_text": "How long may a customer return a book?",
            "top_k": 5,
            "filters": {"mime_type": "text/markdown"},
        }),
        _ => return face_example(operation_id).or_else(|| automation_example(operation_id)),
    };
    Some(example)
}

/// Requests in the form of another protocol.
fn face_example(operation_id: &str) -> Option<Value> {
    Some(match operation_id {
        "complete_agent_chat" => json!({
            "model": "support",
            "messages": [{"role": "user", "content": "What is Runnel?"}],
            "metadata": {"conversation_id": "c-7"},
        }),
        "create_agent_response" => json!({
            "model": "support",
            "input": "What is Runnel?",
            "stream": true,
        }),
        "run_ag_ui_agent" => json!({
            "threadId": "order-7",
            "runId": "r-1",
            "messages": [{"id": "m-1", "role": "user", "content": "What is Runnel?"}],
        }),
        "send_a2a_message" | "stream_a2a_message" => json!({"message": {
            "messageId": "m-7",
            "role": "ROLE_USER",
            "parts": [{"text": "What is Runnel?"}],
        }}),
        "speak_agent_mcp" => json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "ask", "arguments": {"message": "What is Runnel?"}},
        }),
        "call_a2a_agent" => json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": {"message": {
                "messageId": "m-7",
                "role": "ROLE_USER",
                "parts": [{"text": "What is Runnel?"}],
            }},
        }),
        _ => return None,
    })
}

/// Webhooks, schedules and sources.
fn automation_example(operation_id: &str) -> Option<Value> {
    Some(match operation_id {
        "create_webhook" | "update_webhook" => json!({
            "name": "crm",
            "url": "https://crm.example.com/hooks/runnel",
            "events": ["run.completed", "run.failed"],
            "agents": ["support"],
        }),
        "create_schedule" | "update_schedule" => json!({
            "name": "nightly-digest",
            "agent": "support",
            "cron": "0 2 * * *",
            "timezone": "Europe/Berlin",
            "jitter": "5m",
            "event": {"input": {"text": "Write the digest of yesterday."}},
        }),
        "request_wake" => json!({
            "key": "reminder-7",
            "after_seconds": 3600,
            "data": {"step": "remind"},
        }),
        "create_approval" => json!({
            "tool": "fs_*",
            "arguments": {"/path": {"prefix": "/srv/shop/src/"}, "/text": {"any": true}},
            "count": 200,
            "agent": "coder",
        }),
        "create_source" => json!({
            "name": "github",
            "scheme": "github",
            "filter": "select(.headers[\"x-github-event\"] == \"push\") | {event_type: \"push\", data: {ref: .body.ref}}",
            "agents": ["support"],
        }),
        "try_source" => json!({
            "body": "{\"ref\": \"refs/heads/main\"}",
            "headers": {"x-github-event": "push"},
        }),
        "receive_source_event" | "receive_secret_event" => json!({"ref": "refs/heads/main"}),
        "rotate_webhook_secret" | "rotate_source_secret" => json!({}),
        "restore_agent" => json!({"change_id": "019c1f0e-5f00-7000-8000-00000000000a"}),
        "redeliver_webhook" => json!({"since": 1_796_054_400, "status": "dead"}),
        _ => return None,
    })
}

fn agent() -> Value {
    json!({
        "name": "support",
        "description": "Answers questions of customers.",
        "enabled": true,
        "event_types": ["message.received"],
        "scope": {"kind": "global"},
        "filters": {"source": ["api"]},
        "runner_id": "plugin:runnel/local-agent/default",
        "config": {
            "model": {"primary": "assistant", "fallbacks": []},
            "prompt": [{"role": "system", "content": "You are a helpful assistant."}],
        },
        "resource_policy": {
            "models": ["assistant"],
            "knowledge_bases": ["handbook"],
            "history": ["page"],
        },
        "state_policy": {"enabled": true, "scopes": ["conversation"]},
        "concurrency": "enqueue",
    })
}
