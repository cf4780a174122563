//! Prices of cached tokens, and models without a price.

use serde_json::json;

use super::{audit, chat_request, remote};
use crate::support::until;
use crate::support::upstream::UpstreamReply;

const CHAT: &str = "/openai/v1/chat/completions";
const PRICED: &str = "[[models]]\nmodel_id = \"free\"\nprovider = \"anthropic\"\n\
    input_price = 3.0\noutput_price = 15.0\n\
    [[budgets]]\nname = \"run-cost\"\nscope = \"run\"\ncost = 10.0\n";

#[tokio::test]
async fn cached_tokens_cost_less_and_unpriced_calls_fail() {
    let (stage, run, upstream) = remote(PRICED).await;
    let completion = json!({"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {
        "input_tokens": 200, "cache_read_input_tokens": 40_000, "cache_creation_input_tokens": 1000,
        "output_tokens": 9}});
    upstream.reply(UpstreamReply::Json(200, completion));
    let mut body = chat_request("hello");
    body["model"] = json!("free");
    let answered = run.call(CHAT, &body).await.expect(200);
    let usage = &answered.body["usage"];
    assert_eq!(usage["prompt_tokens"], 41_200, "{usage}");
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 40_000);

    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("the usage", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 1
    })
    .await;
    let total = &stage.client.get(&path).await.body["total"];
    let tokens = json!({"input": 200, "cache_read": 40_000, "cache_write_5m": 1000, "cache_write_1h": 0,
        "output": 9, "reasoning": 0});
    assert_eq!(total["tokens"], tokens);
    // $3 of input, $0.30 of the cache, $3.75 for stored tokens, $15 of output.
    assert_eq!(total["cost"], 0.016_485, "{total}");
    let audited = audit(&stage, &run).await;
    assert!(
        audited.iter().any(|entry| entry["tokens"] == tokens),
        "{audited:?}"
    );

    body["model"] = json!("claude");
    let refused = run.call(CHAT, &body).await.expect(403);
    assert_eq!(refused.error("details")["reason"], "unpriced");
    assert_eq!(refused.error("details")["budget"], "run-cost");
    assert_eq!(upstream.requests().len(), 1, "the provider gets no request");
    run.end(&stage).await;
}
