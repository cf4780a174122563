//! Permissions and version of a manifest after its registration.

use reqwest::header::RETRY_AFTER;
use serde_json::{Value, json};

use crate::support::Stage;
use crate::support::client::{Client, message};
use crate::support::runner::{RUNNER_ID, manifest};
use crate::support::script::sse;

const OTHER: &str = "plugin:test/other/default";
const ENDPOINTS: &str = "/v1/runner-endpoints";

const OPERATIONS: [(&str, &[&str]); 10] = [
    ("models", &["invoke", "stream", "rerank", "count_tokens"]),
    ("tools", &["detail", "call"]),
    ("knowledge_bases", &["list", "retrieve"]),
    ("history", &["page", "search"]),
    ("events", &["get", "page"]),
    ("artifacts", &["metadata", "read", "create"]),
    ("storage", &["plugin", "workspace", "binding"]),
    (
        "state",
        &["conversation", "actor", "subject", "runner", "binding"],
    ),
    ("files", &["config", "knowledge"]),
    ("interactions", &["request"]),
];

#[tokio::test]
async fn drops_unknown_operations_of_permissions() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let mut asking = manifest(OTHER);
    let mut expected = json!({"platform_api": ["shop.refund", "anything at all"]});
    asking["permissions"] = expected.clone();
    // Free names: they are stored, and a warning tells that they have no effect.
    let mut dropped = [0, 1]
        .map(|index| format!("/permissions/platform_api/{index}"))
        .to_vec();
    for (kind, operations) in OPERATIONS {
        expected[kind] = json!(operations);
        asking["permissions"][kind] = json!([operations, &["fly"]].concat());
        dropped.push(format!("/permissions/{kind}/{}", operations.len()));
    }
    // Members of older manifests are accepted and ignored.
    let older = [
        "bootstrap",
        "max_inline_bytes",
        "max_inline_events",
        "ownership",
    ];
    for name in older {
        asking["context"][name] = json!(1);
        dropped.push(format!("/context/{name}"));
    }
    // Flags of the stub that disagree with these permissions.
    dropped.extend(
        [
            "/capabilities/tool_calling",
            "/capabilities/knowledge_retrieval",
        ]
        .map(str::to_owned),
    );
    let spec = json!({"name": "other", "base_url": stage.runner.url, "manifests": [asking]});
    let registered = admin.create(ENDPOINTS, &spec).await.body;
    assert_eq!(registered["rejected"], json!([]), "{registered}");
    let warnings = registered["accepted"][0]["warnings"].as_array().unwrap();
    let mut warned: Vec<_> = warnings.iter().map(|one| one["pointer"].clone()).collect();
    warned.sort_by_key(Value::to_string);
    dropped.sort_unstable();
    assert_eq!(json!(warned), json!(dropped), "{registered}");

    let stored = listed(&admin, OTHER).await["manifest"].clone();
    assert_eq!(stored["permissions"], expected);
    for name in older {
        assert_eq!(stored["context"][name], Value::Null, "{name}");
    }
}

async fn listed(admin: &Client, id: &str) -> Value {
    let list = admin.get(&format!("/v1/runners?id={id}")).await.body;
    list["items"][0].clone()
}

#[tokio::test]
async fn rejects_events_while_runner_version_is_incompatible() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let endpoints = admin.get(ENDPOINTS).await.body;
    let endpoint = endpoints["items"][0]["id"].as_str().unwrap();
    let refresh = format!("{ENDPOINTS}/{endpoint}/refresh");
    let speaks = async |version: &str| {
        let mut manifest = manifest(RUNNER_ID);
        manifest["protocol_version"] = json!(version);
        stage.runner.list(json!([manifest]));
        admin.create(&refresh, &json!({})).await.expect(200);
    };
    speaks("2").await;
    assert_eq!(listed(&admin, RUNNER_ID).await["status"], "incompatible");
    let refused = stage.client.post(&message("m-1")).await;
    refused.assert_error(503, "code", "runtime_error");
    assert_eq!(refused.error("retryable"), true);
    assert_eq!(refused.detail("reason"), "runner_unavailable");
    assert!(refused.headers.contains_key(RETRY_AFTER));

    speaks("1").await;
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");
}
