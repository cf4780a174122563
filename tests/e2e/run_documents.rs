//! Run documents: state entries with a summary, a lease and bodies.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, message, send};
use crate::support::held::HeldRun;
use crate::support::script::sse;
use crate::support::{Engine, Postgres, Sqlite, Stage, until};

const GRAPH: &str = "/state/conversation/graph";
const BODIES: &str = "/state-bodies/conversation";

async fn put(run: &HeldRun, document: &Value) -> ApiResponse {
    let request = run.request(Method::PUT, GRAPH).json(document);
    send(request).await.unwrap()
}

async fn put_at(run: &HeldRun, version: i64, document: &Value) -> ApiResponse {
    let request = run.request(Method::PUT, GRAPH).json(document);
    send(request.header("if-match", version)).await.unwrap()
}

/// Asserts a conflict with this reason.
fn assert_conflict(refused: &ApiResponse, reason: &str) {
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(refused.detail("reason"), reason, "{}", refused.body);
}

#[rstest]
#[tokio::test]
async fn lists_show_summaries_and_leases(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    run.put("/state/conversation/plain", &json!(1)).await;
    let summary = json!({"title": "größer"});
    let document = json!({"value": {"nodes": [1, null]}, "summary": summary, "lease_seconds": 60});
    assert_eq!(put(&run, &document).await.status, 200);
    let read = run.get(GRAPH).await.body;
    assert_eq!(read["value"], document["value"]);
    assert_eq!(read["lease"]["run_id"], run.run_id.as_str());
    let listed = run.get("/state/conversation").await.body;
    assert_eq!(listed["keys"], json!(["graph", "plain"]));
    let shown = json!([{"key": "graph", "version": 1, "summary": summary, "lease": read["lease"]}]);
    assert_eq!(listed["documents"], shown);

    run.put(GRAPH, &json!("plain")).await;
    let plain = json!({"value": "plain", "version": 2});
    assert_eq!(run.get(GRAPH).await.body, plain, "no summary, no lease");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn lease_excludes_other_runs_until_end(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let owner = HeldRun::start(&stage, &message("m-1")).await;
    let other = HeldRun::start(&stage, &message("m-2")).await;
    let leased = json!({"value": "mine", "lease_seconds": 3600});
    // Repeatable: a lost response needs no read.
    for version in [1, 2] {
        let written = put(&owner, &leased).await;
        assert_eq!(written.body, json!({"version": version}));
    }

    let refused = put_at(&other, 2, &leased).await;
    assert_conflict(&refused, "leased");
    assert_eq!(refused.detail("lease")["run_id"], owner.run_id.as_str());
    assert_conflict(&other.put(GRAPH, &json!("plain")).await, "leased");
    assert_conflict(&other.delete(GRAPH).await, "leased");
    assert_eq!(other.get(GRAPH).await.body["value"], "mine");

    owner.end(&stage).await;
    assert_eq!(other.get(GRAPH).await.body.get("lease"), None);
    assert_conflict(&put(&other, &leased).await, "not_leased");
    assert_eq!(put_at(&other, 2, &leased).await.status, 200);
    assert_eq!(put(&owner, &leased).await.status, 401);

    // Without `lease_seconds`, a write releases the lease.
    let next = HeldRun::start(&stage, &message("m-3")).await;
    assert_eq!(put(&other, &json!({"value": "done"})).await.status, 200);
    assert_eq!(put_at(&next, 4, &leased).await.status, 200);
    other.end(&stage).await;
    next.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn expired_lease_admits_next_writer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let slow = HeldRun::start(&stage, &message("m-1")).await;
    let other = HeldRun::start(&stage, &message("m-2")).await;
    put(&slow, &json!({"value": 1, "lease_seconds": 1})).await;
    let taken = json!({"value": 2, "lease_seconds": 3600});
    until("the lease to expire", async || {
        put_at(&other, 1, &taken).await.status == 200
    })
    .await;
    let late = json!({"value": 3, "lease_seconds": 3600});
    assert_conflict(&put(&slow, &late).await, "leased");
    assert_eq!(slow.get(GRAPH).await.body["value"], 2);
    slow.end(&stage).await;
    other.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn results_respect_leases_of_other_runs(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let owner = HeldRun::start(&stage, &message("m-1")).await;
    put(&owner, &json!({"value": "mine", "lease_seconds": 3600})).await;
    stage.runner.answer("m-2", |run| {
        let update = r#"{"scope": "conversation", "key": "graph", "value": "theirs"}"#;
        sse([run.result(1, "state.updated", update), run.completed(2)].concat())
    });
    let other = stage.client.post(&message("m-2")).await.run_id();
    stage.outcome(&other).await;
    assert_eq!(owner.get(GRAPH).await.body["value"], "mine");
    let audit = stage.client.get(&format!("/v1/runs/{other}/audit")).await;
    assert!(audit.body.to_string().contains("another run has the lease"));
    owner.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn bodies_change_with_their_entry(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let other = HeldRun::start(&stage, &message("m-2")).await;
    let large = "ä".repeat(700_000);
    let bodies = json!({"in": {"a": 1}, "out/1": large});
    let first = json!({"value": 1, "lease_seconds": 60, "bodies": bodies});
    assert_eq!(put(&run, &first).await.status, 200);
    let (of_in, of_out) = (
        format!("{BODIES}/in/graph"),
        format!("{BODIES}/out%2F1/graph"),
    );
    assert_eq!(run.get(&of_out).await.body, json!(large));

    // A refused write changes neither the entry nor its bodies.
    let refused = put_at(&other, 1, &json!({"value": 2, "bodies": {"in": 2}})).await;
    assert_conflict(&refused, "leased");
    let dangling = json!({"value": 2, "bodies": {"in": 2}, "body_ids": ["in", "gone"]});
    let refused = put(&run, &dangling).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert_eq!(refused.detail("pointer"), "/body_ids/1");
    assert_eq!(run.get(&of_in).await.body, json!({"a": 1}));
    assert_eq!(run.get(GRAPH).await.body["version"], 1);

    let next = json!({"value": 2, "lease_seconds": 60, "bodies": {"new": 3}, "body_ids": ["in"]});
    assert_eq!(put(&run, &next).await.status, 200);
    assert_eq!(run.get(&of_out).await.status, 404);
    assert_eq!(run.get(&of_in).await.body, json!({"a": 1}));
    assert_eq!(run.get(&format!("{BODIES}/new/graph")).await.body, 3);
    run.put(GRAPH, &json!(3)).await;
    assert_eq!(run.get(&of_in).await.status, 200);

    assert_eq!(run.delete(GRAPH).await.status, 204);
    run.put(GRAPH, &json!(4)).await;
    assert_eq!(run.get(&of_in).await.status, 404);
    run.end(&stage).await;
    other.end(&stage).await;
}

#[tokio::test]
async fn document_faults_have_pointers() {
    let stage = Stage::with(|_| {}).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (pointer, fault) in [
        ("/lease_seconds", json!({"value": 1, "lease_seconds": 0})),
        (
            "/lease_seconds",
            json!({"value": 1, "lease_seconds": 86_401}),
        ),
        ("/summary", json!({"value": 1, "summary": "s".repeat(2047)})),
        ("/bodies/a~1?", json!({"value": 1, "bodies": {"a/?": 1}})),
        (
            "/body_ids",
            json!({"value": 1, "body_ids": vec!["a"; 4097]}),
        ),
        ("/body_ids/0", json!({"value": 1, "body_ids": ["a"]})),
    ] {
        let refused = put(&run, &fault).await;
        assert_eq!(refused.status, 400, "{fault} {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
    let bodies: serde_json::Map<_, _> = (0..4097).map(|at| (format!("b{at}"), json!(1))).collect();
    let refused = put(&run, &json!({"value": 1, "bodies": bodies})).await;
    assert_eq!(refused.error("code"), "payload_too_large");
    assert_eq!(run.get(GRAPH).await.status, 404);
    run.end(&stage).await;
}
