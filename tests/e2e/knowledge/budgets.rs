//! Searches count as calls in budgets, on every API.

use rstest::rstest;
use serde_json::{Value, json};

use super::{BASES, stage_with};
use crate::support::client::{ApiResponse, message};
use crate::support::held::HeldRun;
use crate::support::{Engine, Postgres, Sqlite, until};

async fn by_rest(run: &HeldRun) -> ApiResponse {
    let query = json!({"query_text": "vacation"});
    run.call("/knowledge-bases/handbook/retrieve", &query).await
}

async fn by_mcp(run: &HeldRun) -> Value {
    let arguments = json!({"kb_id": "handbook", "query_text": "vacation"});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "retrieve_knowledge", "arguments": arguments}});
    run.call("/mcp", &call).await.body["result"].clone()
}

#[rstest]
#[case::run("scope = \"run\"")]
#[case::agent("scope = \"agent\"\nwindow = \"month\"")]
#[case::endpoint("scope = \"endpoint\"\nwindow = \"month\"")]
#[case::workspace("scope = \"workspace\"\nwindow = \"month\"")]
#[tokio::test]
async fn searches_count_as_budget_calls(
    #[case] scope: &str,
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let staged = stage_with(engine, |config| {
        config.rest = format!("{BASES}[[budgets]]\nname = \"few\"\n{scope}\ncalls = 2\n");
    });
    let Some(stage) = staged.await else { return };
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(by_rest(&run).await.status, 200);
    assert_eq!(by_mcp(&run).await["isError"], false);

    let refused = by_rest(&run).await;
    refused.assert_error(429, "code", "rate_limited");
    let details = refused.error("details");
    assert_eq!(details["budget"], "few", "{details}");
    assert_members!(details, {"limit": "calls", "most": 2});
    let refused = by_mcp(&run).await;
    assert_eq!(refused["isError"], true, "{refused}");
    let error = &refused["structuredContent"]["error"];
    assert_eq!(error["code"], "rate_limited", "{refused}");
    assert_eq!(error["details"]["budget"], "few", "{refused}");

    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("the usage", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 2
    })
    .await;
    let usage = stage.client.get(&path).await.body;
    let item = &usage["items"][0];
    assert_members!(item, {"kind": "knowledge", "resource": "handbook", "calls": 2});
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn vector_searches_use_budget_tokens(#[values(Sqlite, Postgres)] engine: Engine) {
    let staged = stage_with(engine, |config| {
        let bases = BASES.replacen(
            "chunk_chars",
            "embedding_model = \"embedder\"\nchunk_chars",
            1,
        );
        config.rest = format!(
            "[[model_providers]]\nname = \"script\"\nkind = \"scripted\"\n\
             [[models]]\nmodel_id = \"embedder\"\nprovider = \"script\"\noperations = [\"invoke\"]\n\
             input_price = 1000.0\n{bases}\
             [[budgets]]\nname = \"few\"\nscope = \"run\"\ntokens = 14\n"
        );
    });
    let Some(stage) = staged.await else { return };
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let query = json!({"query_text": "vacation days for every employee"});
    let search = async || run.call("/knowledge-bases/handbook/retrieve", &query).await;
    let path = format!("/v1/runs/{}/usage", run.run_id);
    for (calls, tokens) in [(1, 5), (2, 10)] {
        search().await.expect(200);
        until("the usage", async || {
            let total = &stage.client.get(&path).await.body["total"];
            total["calls"] == calls && total["prompt_tokens"] == tokens
        })
        .await;
    }
    let refused = search().await;
    refused.assert_error(429, "code", "rate_limited");
    assert_eq!(refused.error("details")["limit"], "tokens");
    let usage = stage.client.get(&path).await.body;
    assert_eq!(usage["total"]["cost"], 0.01, "{usage}");
    run.end(&stage).await;
}
