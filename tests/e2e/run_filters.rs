//! Filters of the list of runs, and counts by status.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::database::rows;
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite};

async fn ids(client: &Client, query: &str) -> Vec<String> {
    let answer = client.get(&format!("/v1/runs?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.body);
    let items = answer.body["items"].as_array().unwrap();
    let id = |run: &Value| run["run_id"].as_str().unwrap().to_owned();
    items.iter().map(id).collect()
}

#[rstest]
#[tokio::test]
async fn filters_select_runs(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    runner.answer("fails", |run| sse(run.failed(1)));
    let stage = or_skip!(OwnStage::of(engine, runner, |_| {}).await);
    let client = &stage.client;
    let posted = client
        .posting(&message("order-1"))
        .header("idempotency-key", "key-of-the-first");
    let first = send(posted).await.unwrap().run_id();
    client.finished(&first).await;
    let second = client.post(&message("order-2")).await.run_id();
    client.finished(&second).await;
    let failed = client.post(&message("fails")).await.run_id();
    client.finished(&failed).await;
    // Times and costs as a model would leave them.
    for (run, created, took, cost) in [
        (&first, 1_000_000, 100, 1_500_000),
        (&second, 2_000_000, 5_000, 20_000),
        (&failed, 3_000_000, 60_000, 0),
    ] {
        let sql = format!(
            "UPDATE runs SET created_at = {created}, started_at = {created}, finished_at = {created} + {took} \
             WHERE id = '{run}'"
        );
        rows(&stage.gateway.database_url(), &sql).await;
        for half in [1, 2] {
            let sql = format!(
                "INSERT INTO usage_calls (id, workspace_id, run_id, kind, resource, outcome, prompt_tokens, \
                 completion_tokens, is_estimate, cost_micros, wall_ms, at) VALUES \
                 ('u{half}{run}', 'default', '{run}', 'model', 'm', 'ok', 1, 1, 0, {cost} / 2, 1, 1)"
            );
            rows(&stage.gateway.database_url(), &sql).await;
        }
    }
    let endpoint = stage.admin.get("/v1/runner-endpoints").await.body["items"][0]["id"].clone();
    let endpoint = endpoint.as_str().unwrap();
    let (first, second, failed) = (first.as_str(), second.as_str(), failed.as_str());
    let all = [failed, second, first];
    let endpoint_query = format!("endpoint_id={endpoint}");
    let key = client.run(first).await["posted_by"].clone();
    let key_query = format!("posted_by={}", key.as_str().unwrap());
    let (by_id, by_begin) = (format!("text={first}"), format!("text={}", &first[..24]));
    for (query, expected) in [
        ("", &all[..]),
        ("created_after=2000", &[failed, second]),
        ("created_before=2000", &[first]),
        ("created_after=1000&created_before=3000", &[second, first]),
        ("idempotency_key=key-of-the-first", &[first]),
        ("idempotency_key=key-of", &[]),
        ("text=key-of", &[first]),
        ("text=order-", &[second, first]),
        ("text=ORDER-", &[]),
        ("text=order-1&statuses=failed", &[]),
        (&by_id, &[first]),
        (&by_begin, &[first]),
        ("error_code=boom", &[failed]),
        ("error_code=cancelled", &[]),
        ("status_reason=boom", &[failed]),
        ("status_reason=absent", &[]),
        (&key_query, &all),
        ("posted_by=00000000-0000-7000-8000-000000000001", &[]),
        ("min_duration_ms=5000", &[failed, second]),
        ("max_duration_ms=5000", &[second, first]),
        ("min_duration_ms=101&max_duration_ms=59999", &[second]),
        ("min_cost=0.02", &[second, first]),
        ("max_cost=0.02", &[failed, second]),
        ("min_cost=0.5&max_cost=1.5", &[first]),
        (&endpoint_query, &all),
        ("endpoint_id=00000000-0000-7000-8000-000000000001", &[]),
    ] {
        assert_eq!(ids(client, query).await, expected, "{query}");
    }
    counts_follow_the_filters(client).await;
    rejects_filters_that_are_not_valid(client).await;
}

async fn counts_follow_the_filters(client: &Client) {
    for (query, expected) in [
        ("", json!({"completed": 2, "failed": 1})),
        ("statuses=failed,running", json!({"failed": 1})),
        ("min_duration_ms=5000", json!({"completed": 1, "failed": 1})),
        ("idempotency_key=absent", json!({})),
        ("status_reason=boom", json!({"failed": 1})),
    ] {
        let counts = client.get(&format!("/v1/runs/counts?{query}")).await;
        assert_eq!(counts.status, 200, "{}", counts.body);
        assert_eq!(counts.body["since"], Value::Null);
        let items = counts.body["items"].as_array().unwrap();
        assert!(items.iter().all(|item| item["exact"] == true));
        let counted = items.iter().filter(|item| item["count"] != 0);
        let counted = counted.map(|item| {
            let status = item["status"].as_str().unwrap().to_owned();
            (status, item["count"].clone())
        });
        assert_eq!(Value::Object(counted.collect()), expected, "{query}");
    }
}

async fn rejects_filters_that_are_not_valid(client: &Client) {
    let long = format!("text={}", "a".repeat(256));
    for (query, pointer) in [
        ("created_after=2&created_before=1", "/created_after"),
        ("min_duration_ms=2&max_duration_ms=1", "/min_duration_ms"),
        ("min_cost=-1", "/min_cost"),
        ("max_cost=NaN", "/max_cost"),
        ("min_cost=2&max_cost=1", "/min_cost"),
        (&long, "/text"),
    ] {
        for path in ["/v1/runs", "/v1/runs/counts"] {
            let answer = client.get(&format!("{path}?{query}")).await;
            assert_eq!(answer.status, 400, "{query}: {}", answer.body);
            assert_eq!(answer.detail("pointer"), pointer, "{query}");
        }
    }
    for query in ["created_after=x", "limit=1", "other="] {
        let answer = client.get(&format!("/v1/runs/counts?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
}

#[tokio::test]
async fn cursors_belong_to_their_filters() {
    let stage = OwnStage::new().await;
    for event_id in ["m-1", "m-2", "m-3"] {
        let run_id = stage.client.post(&message(event_id)).await.run_id();
        stage.client.finished(&run_id).await;
    }
    let filter = "text=m-&min_duration_ms=0&limit=2";
    let page = stage.client.get(&format!("/v1/runs?{filter}")).await.body;
    let cursor = page["next_cursor"].as_str().unwrap();
    let next = ids(&stage.client, &format!("{filter}&cursor={cursor}")).await;
    assert_eq!(next.len(), 1);
    let other = format!("/v1/runs?text=m&min_duration_ms=0&cursor={cursor}");
    assert_eq!(stage.client.get(&other).await.status, 400);
}
