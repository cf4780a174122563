//! Budget reservations of calls: while a call is in progress, and after its gateway has died.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use super::{chat_request, scripted_in, stage_in};
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, TempDirectory, until};

const BUDGETS: &str = "[[budgets]]\nname = \"month\"\nscope = \"workspace\"\nwindow = \"month\"\n\
    calls = 2\ntokens = 1000\n";

/// Calls and tokens that the workspace has used and reserved.
async fn used(admin: &Client) -> (u64, u64) {
    let budgets = admin.get("/v1/budgets").await.body;
    let used = &budgets["items"][0]["used"][0];
    let number = |of: &Value| of.as_u64().unwrap_or_default();
    (number(&used["calls"]), number(&used["tokens"]))
}

async fn invoke(host: &Client, text: &str) -> ApiResponse {
    let request = host.request(Method::POST, "/models/talker/invoke");
    send(request.json(&chat_request(text))).await.unwrap()
}

/// Makes a completed call and an endless one. Returns the tokens of the first, and whether the second gets a
/// response.
async fn call_and_endless_call(host: &Client, admin: &Client) -> (u64, JoinHandle<bool>) {
    let spent = invoke(host, "hello").await.expect(200);
    let tokens = spent.body["usage"]["total_tokens"].as_u64().unwrap();
    until("the first call to be settled", async || {
        used(admin).await == (1, tokens)
    })
    .await;
    let request = host.request(Method::POST, "/models/talker/invoke");
    let call = request.json(&chat_request("slow")).send();
    let call = tokio::spawn(async { call.await.is_ok() });
    until("the second call to be reserved", async || {
        let (calls, reserved) = used(admin).await;
        calls == 2 && reserved > tokens + 100
    })
    .await;
    (tokens, call)
}

/// Sets short leases.
/// Kills the gateway during a call, and waits until the next start has released its reservation.
async fn lose_a_call(stage: &mut OwnStage, host: &Client) {
    let admin = stage.admin.clone();
    let (tokens, slow) = call_and_endless_call(host, &admin).await;
    stage.gateway.kill().await;
    assert!(!slow.await.unwrap(), "the call was answered");
    stage.gateway.restart().await;
    until("the reservation to be released", async || {
        used(&admin).await == (1, tokens)
    })
    .await;
}

fn with_short_leases(config: &mut Config) {
    config.runs = "lease_seconds = 4".into();
    config.rest += BUDGETS;
}

#[rstest]
#[tokio::test]
async fn run_end_releases_reservations_of_killed_gateway(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let directory = TempDirectory::new();
    let staged = scripted_in(&directory, engine, |config| config.rest += BUDGETS);
    let (mut stage, run) = or_skip!(staged.await);
    lose_a_call(&mut stage, &run.host).await;
    let run = HeldRun::start(&stage, &message("m-2")).await;
    invoke(&run.host, "hello").await.expect(200);
    let over = invoke(&run.host, "hello").await;
    assert_eq!(
        (over.status, over.error("details")["budget"].clone()),
        (429, json!("month"))
    );
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn deferred_run_regains_reservations_of_killed_gateway(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let directory = TempDirectory::new();
    let mut stage = or_skip!(stage_in(&directory, engine, with_short_leases).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    lose_a_call(&mut stage, &run.host).await;
    assert_eq!(stage.client.run(&run.run_id).await["status"], "running");
    assert_eq!(invoke(&run.host, "hello").await.status, 200);
    run.accepted(&[run.delta(1, "done"), run.completed(2)], 2)
        .await;
    assert_eq!(stage.outcome(&run.run_id).await.ending(), "completed");
}

#[tokio::test]
async fn renews_reservations_during_long_calls() {
    let directory = TempDirectory::new();
    let staged = scripted_in(&directory, Postgres, with_short_leases).await;
    let (stage, run) = or_skip!(staged);
    let admin = stage.admin.clone();
    let (_, slow) = call_and_endless_call(&run.host, &admin).await;
    let url = stage.gateway.database_url();
    let mut database = PgConnection::connect(&url).await.unwrap();
    let mut lease = async || -> i64 {
        let lease = "SELECT lease_expires_at FROM budget_reservations";
        let expiry = sqlx::query_scalar(lease).fetch_one(&mut database);
        expiry.await.unwrap()
    };
    let first = lease().await;
    // Past the first lease's expiry, when a lapsed reservation would be released.
    until("the lease to be renewed", async || {
        lease().await > first + 6_000
    })
    .await;
    assert_eq!(used(&admin).await.0, 2);
    run.end(&stage).await;
    slow.await.unwrap();
    until("the call to be settled", async || {
        let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM budget_reservations")
            .fetch_one(&mut database)
            .await
            .unwrap();
        left == 0
    })
    .await;
}
