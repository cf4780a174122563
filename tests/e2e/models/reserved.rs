//! What was reserved for a call whose gateway died.

use rstest::rstest;
use serde_json::{Value, json};

use super::{says, scripted_in};
use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::{Directory, Engine, Postgres, Sqlite, until};

const BUDGETS: &str = "[[budgets]]\nname = \"month\"\nscope = \"workspace\"\nwindow = \"month\"\n\
    calls = 2\ntokens = 1000\n";

/// What the workspace has used and reserved, in calls and tokens.
async fn used(admin: &Client) -> (u64, u64) {
    let budgets = admin.get("/v1/budgets").await.body;
    let used = &budgets["items"][0]["used"][0];
    let number = |of: &Value| of.as_u64().unwrap_or_default();
    (number(&used["calls"]), number(&used["tokens"]))
}

#[rstest]
#[tokio::test]
async fn what_a_killed_gateway_had_reserved_ends_with_the_run(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let directory = Directory::new();
    let staged = scripted_in(&directory, engine, |config| config.rest += BUDGETS);
    let Some((mut stage, run)) = staged.await else {
        return;
    };
    let admin = stage.gateway.admin().await;
    let spent = run.call("/models/talker/invoke", &says("hello")).await;
    assert_eq!(spent.status, 200, "{}", spent.body);
    let tokens = spent.body["usage"]["total_tokens"].as_u64().unwrap();
    until("the first call to be settled", async || {
        used(&admin).await == (1, tokens)
    })
    .await;

    let body = says("slow");
    let slow = run.request(reqwest::Method::POST, "/models/talker/invoke");
    let slow = tokio::spawn(slow.json(&body).send());
    until("the second call to be reserved", async || {
        let (calls, reserved) = used(&admin).await;
        calls == 2 && reserved > tokens + 100
    })
    .await;
    stage.gateway.kill().await;
    assert!(slow.await.unwrap().is_err(), "the call was answered");
    stage.gateway.start_again().await;

    until("the budget to be whole again", async || {
        used(&admin).await == (1, tokens)
    })
    .await;
    let run = HeldRun::start(&stage, &message("m-2")).await;
    let last = run.call("/models/talker/invoke", &says("hello")).await;
    assert_eq!(last.status, 200, "{}", last.body);
    let over = run.call("/models/talker/invoke", &says("hello")).await;
    assert_eq!(
        (over.status, over.error("details")["budget"].clone()),
        (429, json!("month"))
    );
    run.end(&stage).await;
}
