//! Output limits of a request: the provider's parameter, and the reservation in budgets.

use serde_json::{Value, json};

use super::{chat_request, remote};
use crate::support::held::HeldRun;
use crate::support::upstream::{Upstream, UpstreamReply};

const CHAT: &str = "/openai/v1/chat/completions";

/// The provider's request for a run's call with these members.
async fn provider_request(run: &HeldRun, upstream: &Upstream, model: &str, more: &Value) -> Value {
    let completion = json!({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]});
    upstream.reply(UpstreamReply::Json(200, completion));
    let answered = run.call(CHAT, &asking(model, more)).await;
    assert_eq!(answered.status, 200, "{more}: {}", answered.body);
    upstream.requests().pop().unwrap().body
}

fn asking(model: &str, more: &Value) -> Value {
    let mut body = chat_request("hello");
    let members = body.as_object_mut().unwrap();
    members.insert("model".to_owned(), json!(model));
    members.extend(more.as_object().unwrap().clone());
    body
}

/// A limit under a name that the provider ignores would have no effect.
#[tokio::test]
async fn sends_output_limit_under_configured_name() {
    let [of_openai, of_others] = ["max_completion_tokens", "max_tokens"];
    for (read, other) in [(of_openai, of_others), (of_others, of_openai)] {
        let (stage, run, upstream) = remote(&format!("max_tokens_name = \"{read}\"")).await;
        for (more, bound) in [
            (json!({other: 16}), 16),
            (json!({other: 16, read: 40}), 16),
            (json!({other: 40, read: 16}), 16),
            (json!({other: 4000}), 50),
            (json!({other: null}), 50),
        ] {
            let request = provider_request(&run, &upstream, "remote", &more).await;
            assert_eq!(request[read], bound, "{more}: {request}");
            assert_eq!(request.get(other), None, "{more}: {request}");
        }
        run.end(&stage).await;
    }
}

/// Reasoning tokens and minimum output, in each form, with the output limit.
fn reasoning_parameters(tokens: u64) -> [(&'static str, Value); 4] {
    let thinking = json!({"type": "enabled", "budget_tokens": tokens});
    [
        ("/thinking_budget", json!({"thinking_budget": tokens})),
        (
            "/reasoning/max_tokens",
            json!({"reasoning": {"max_tokens": tokens}}),
        ),
        ("/thinking/budget_tokens", json!({"thinking": thinking})),
        ("/min_tokens", json!({"min_tokens": tokens})),
    ]
}

fn bounded(mut more: Value, limit: u64) -> Value {
    more["max_tokens"] = json!(limit);
    more
}

#[tokio::test]
async fn bounds_reasoning_and_minimum_output() {
    let more = "[[models]]\nmodel_id = \"free\"\nprovider = \"openai\"\n\
        [[budgets]]\nname = \"run-tokens\"\nscope = \"run\"\ntokens = 2000\n";
    let (stage, run, upstream) = remote(more).await;
    for (pointer, more) in reasoning_parameters(38_000) {
        let body = asking("free", &bounded(more.clone(), 16));
        let over = run.call(CHAT, &body).await;
        assert_eq!(over.status, 429, "{pointer}: {}", over.body);
        assert_eq!(over.error("details")["budget"], "run-tokens", "{pointer}");
        let mut native = chat_request("hello");
        native["extra_args"] = bounded(more, 16);
        let over = run.call("/models/free/invoke", &native).await;
        assert_eq!(over.status, 429, "{pointer}: {}", over.body);
    }
    assert!(
        upstream.requests().is_empty(),
        "the provider gets no request"
    );
    for (pointer, more) in reasoning_parameters(38_000) {
        let request = provider_request(&run, &upstream, "remote", &bounded(more, 16)).await;
        assert_eq!(request.pointer(pointer), Some(&json!(50)), "{request}");
        assert_eq!(request["max_tokens"], 16, "{request}");
    }
    for (pointer, more) in reasoning_parameters(40) {
        let request = provider_request(&run, &upstream, "free", &bounded(more, 16)).await;
        assert_eq!(request.pointer(pointer), Some(&json!(40)), "{request}");
    }
    for pointer in ["/thinking_budget", "/min_tokens"] {
        let more = json!({&pointer[1..]: "38000"});
        let refused = run.call(CHAT, &asking("free", &more)).await;
        assert_eq!(refused.status, 400, "{pointer}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer);
    }
    run.end(&stage).await;
}

/// Anthropic counts reasoning within `max_tokens`, and does not receive the request's own members for it.
#[tokio::test]
async fn reserves_reasoning_only_once_within_limit() {
    let budget = "[[budgets]]\nname = \"run-tokens\"\nscope = \"run\"\ntokens = 2000\n";
    let (stage, run, upstream) = remote(budget).await;
    // All four fit at once, because a reservation may be released after the next call begins.
    for (pointer, more) in reasoning_parameters(38_000) {
        let completion = json!({"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 5, "output_tokens": 2}});
        upstream.reply(UpstreamReply::Json(200, completion));
        let mut more = bounded(more, 300);
        more["max_completion_tokens"] = json!(400);
        let answered = run.call(CHAT, &asking("claude", &more)).await;
        assert_eq!(answered.status, 200, "{pointer}: {}", answered.body);
        let request = upstream.requests().pop().unwrap().body;
        assert_eq!(request["max_tokens"], 300, "{request}");
        assert_eq!(request.pointer(pointer), None, "{request}");
    }
    run.end(&stage).await;
}
