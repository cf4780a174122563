//! Roles `viewer` and `operator`: each operation of the document with a key of each role.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use crate::isolation::{Tenant, absent_ids, request, visible_response};
use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::routes::{Face, operations};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite};

/// Access of the roles viewer and operator to a writing operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteAccess {
    /// Neither role.
    Others,
    Operator,
}
use WriteAccess::{Operator, Others};

/// All client and admin operations that viewers must not call.
const WRITES: &[(&str, WriteAccess)] = &[
    ("post_event", Others),
    ("stream_event", Others),
    ("post_event_batch", Others),
    ("post_pipeline_query", Others),
    ("stream_pipeline_query", Others),
    ("cancel_run", Operator),
    ("retry_run", Operator),
    ("cancel_runs", Operator),
    ("retry_runs", Operator),
    ("cancel_job", Operator),
    ("link_run_stream", Others),
    ("link_interaction", Others),
    ("submit_interaction", Operator),
    ("claim_platform_action", Others),
    ("report_action_result", Others),
    ("complete_agent_chat", Others),
    ("call_a2a_agent", Others),
    ("create_agent_response", Others),
    ("cancel_agent_response", Others),
    ("upload_artifact", Others),
    ("delete_artifact", Others),
    ("register_runner_endpoint", Others),
    ("delete_runner_endpoint", Others),
    ("refresh_runner_endpoint", Others),
    ("create_agent", Others),
    ("update_agent", Others),
    ("delete_agent", Others),
    ("delete_agent_skill", Others),
    ("create_api_key", Others),
    ("revoke_api_key", Others),
    ("put_document", Others),
    ("delete_document", Others),
    ("reindex_knowledge_base", Others),
    ("put_budget", Others),
    ("delete_budget", Others),
    ("create_source", Others),
    ("delete_source", Others),
    ("rotate_source_secret", Others),
    ("create_webhook", Others),
    ("create_schedule", Others),
    ("update_schedule", Others),
    ("delete_schedule", Others),
    ("pause_schedule", Others),
    ("resume_schedule", Others),
    ("run_schedule", Others),
    ("update_webhook", Others),
    ("delete_webhook", Others),
    ("rotate_webhook_secret", Others),
    ("test_webhook", Others),
    ("redeliver_webhook", Others),
    ("redeliver_webhook_message", Others),
    ("pause_agent", Others),
    ("resume_agent", Others),
    ("pause_workspace", Others),
    ("resume_workspace", Others),
];

async fn key_of(stage: &OwnStage, role: &str) -> Client {
    let spec = json!({"name": role, "role": role});
    let made = stage.admin.create("/v1/api-keys", &spec).await;
    assert_eq!(made.status, 201, "{}", made.body);
    Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
}

#[rstest]
#[tokio::test]
async fn viewers_and_operators_open_listed_operations(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let configure = |config: &mut crate::support::gateway::Config| {
        "[[knowledge_bases]]\nkb_id = \"handbook\"".clone_into(&mut config.rest);
    };
    let stage = or_skip!(OwnStage::of(engine, runner, configure).await);
    let ids = Tenant::new(&stage, "default").await.ids;
    let (viewer, operator) = (
        key_of(&stage, "viewer").await,
        key_of(&stage, "operator").await,
    );
    let served = operations(&stage.client).await;
    let named: BTreeSet<_> = served.iter().map(|one| one.id.as_str()).collect();
    for (id, _) in WRITES {
        assert!(named.contains(id), "{id} is no operation");
    }
    // Reads first: an operator's answer changes what they show.
    for operation in &served {
        let id = operation.id.as_str();
        let statuses = [&viewer, &operator].map(|key| {
            let request = request(key, operation, &ids);
            async move { visible_response(request).await }
        });
        let statuses = futures_util::future::join_all(statuses).await;
        let writer = WRITES.iter().find(|(write, _)| *write == id);
        for (answer, role) in statuses.iter().zip(["viewer", "operator"]) {
            let (status, body) = (answer.status, &answer.body);
            match (operation.face, writer) {
                (Face::Host | Face::Link, _) => assert_eq!(status, 401, "{id} {role}"),
                (Face::Shared, _) => assert_eq!(status, 404, "{id} {role}"),
                (Face::Open, _) => assert_eq!(status, 200, "{id} {role}"),
                (Face::Owner, _) => assert_eq!(status, 403, "{id} {role}"),
                (Face::Client | Face::Admin, Some((_, writer)))
                    if role == "viewer" || *writer == Others =>
                {
                    assert_eq!(status, 403, "{id} {role}: {body}");
                    assert!(
                        body.contains(&format!("keys of role {role}")),
                        "{id}: {body}"
                    );
                }
                (Face::Client | Face::Admin, _) => {
                    assert!(
                        !matches!(status, 401 | 403 | 500..),
                        "{id} {role}: {status} {body}"
                    );
                }
            }
        }
        let is_read = matches!(operation.face, Face::Client | Face::Admin) && writer.is_none();
        if is_read && operation.method == reqwest::Method::GET {
            let full = visible_response(request(&stage.admin, operation, &ids)).await;
            assert_eq!(
                statuses[0].status, full.status,
                "{id}: viewers read what admins read"
            );
        }
    }
    // A refused write leaves no trace: the objects of these ids exist.
    assert_eq!(
        viewer
            .get(&format!("/v1/agents/{}", ids["agent_id"]))
            .await
            .status,
        200
    );
    let absent = absent_ids();
    assert_eq!(
        viewer
            .get(&format!("/v1/runs/{}", absent["run_id"]))
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn operators_cancel_and_viewers_do_not() {
    let stage = OwnStage::new().await;
    let (viewer, operator) = (
        key_of(&stage, "viewer").await,
        key_of(&stage, "operator").await,
    );
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(viewer.cancel(&run.run_id).await.status, 403);
    assert_eq!(
        viewer.run(&run.run_id).await["cancel_requested_at"],
        Value::Null
    );
    assert_eq!(operator.cancel(&run.run_id).await.status, 202);
    run.release();
    assert_eq!(operator.finished(&run.run_id).await["status"], "cancelled");
    let retried = operator
        .create(&format!("/v1/runs/{}/retry", run.run_id), &json!({}))
        .await;
    assert_eq!(retried.status, 202, "{}", retried.body);
}

/// An agent's configuration may hold secrets, which only admins read.
#[tokio::test]
async fn viewers_read_no_secret_of_an_agent() {
    let stage = OwnStage::new().await;
    let viewer = key_of(&stage, "viewer").await;
    let spec = json!({
        "name": "keyed", "event_types": ["test.keyed"], "runner_id": crate::support::runner::RUNNER_ID,
        "enabled": false, "config": {"api_key": "hidden-7f3", "prompt": "shown"},
    });
    let made = stage.admin.create("/v1/agents", &spec).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let path = format!("/v1/agents/{}", made.body["id"].as_str().unwrap());
    for path in [path.as_str(), "/v1/agents"] {
        let text = viewer.get(path).await.body.to_string();
        assert!(
            text.contains("shown") && !text.contains("hidden-7f3"),
            "{text}"
        );
        let text = stage.admin.get(path).await.body.to_string();
        assert!(text.contains("hidden-7f3"), "{text}");
    }
}
