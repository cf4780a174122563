//! Parameters that a run may pass to a provider, and token counts of images.

use serde_json::{Value, json};

use super::{chat_request, remote, remote_of};
use crate::support::held::HeldRun;
use crate::support::until;
use crate::support::upstream::{Upstream, UpstreamReply};

const CHAT: &str = "/openai/v1/chat/completions";

fn with(mut body: Value, more: &Value) -> Value {
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    body
}

/// Both APIs reject the member at its own pointer, and the provider gets no request.
async fn check_refused(run: &HeldRun, upstream: &Upstream, more: &Value, pointer: &str) {
    let of_openai = with(
        with(chat_request("hello"), more),
        &json!({"model": "remote"}),
    );
    let refused = run.call(CHAT, &of_openai).await;
    assert_eq!(refused.status, 400, "{more}: {}", refused.body);
    assert_eq!(refused.detail("pointer"), pointer, "{more}");
    let (native, pointer) = if more.get("messages").is_some() {
        (more.clone(), pointer.to_owned())
    } else {
        (
            with(chat_request("hello"), &json!({"extra_args": more})),
            format!("/extra_args{pointer}"),
        )
    };
    for path in ["/models/remote/invoke", "/models/remote/stream"] {
        let refused = run.call(path, &native).await;
        assert_eq!(refused.status, 400, "{more}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer.as_str(), "{more}");
    }
    assert!(upstream.requests().is_empty(), "{more}");
}

#[tokio::test]
async fn passes_only_allowed_parameters_to_providers() {
    let (stage, run, upstream) = remote("extra_members = [\"guided_json\"]").await;
    for name in [
        "models",
        "fallbacks",
        "plugins",
        "provider",
        "service_tier",
        "store",
        "web_search_options",
        "api_base",
        "extra_body",
    ] {
        let more = json!({name: ["x"]});
        check_refused(&run, &upstream, &more, &format!("/{name}")).await;
    }
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/a.png",
        "file:///etc/passwd",
    ] {
        let image = json!({"type": "image_url", "image_url": {"url": url}});
        let more = json!({"messages": [{"role": "user", "content": [image]}]});
        let pointer = "/messages/0/content/0/image_url/url";
        check_refused(&run, &upstream, &more, pointer).await;
    }
    let search = json!({"model": "remote", "tools": [{"type": "web_search"}]});
    let refused = run.call(CHAT, &with(chat_request("hello"), &search)).await;
    refused.assert_detail(400, "pointer", "/tools/0/type");

    let completion = json!({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]});
    upstream.reply(UpstreamReply::Json(200, completion));
    let more = json!({"model": "remote", "guided_json": {"type": "object"}, "temperature": 0.5, "store": null});
    let answered = run.call(CHAT, &with(chat_request("hello"), &more)).await;
    assert_eq!(answered.status, 200, "{}", answered.body);
    let request = upstream.requests().pop().unwrap().body;
    assert_eq!(request["guided_json"], json!({"type": "object"}));
    assert_eq!(request["temperature"], 0.5);
    run.end(&stage).await;
}

#[tokio::test]
async fn counts_image_tokens_equally_on_every_api() {
    let budget = "[[budgets]]\nname = \"run-tokens\"\nscope = \"run\"\ntokens = 4000\n";
    let (stage, run, upstream) = remote_of(budget, |_| {}).await;
    let data = format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(30_000));
    let image = json!({"type": "image_url", "image_url": {"url": data}});
    let body = json!({"model": "remote", "messages": [{"role": "user", "content": [image]}]});
    let native = json!({"messages": body["messages"]});
    for (path, body) in [(CHAT, &body), ("/models/remote/invoke", &native)] {
        let completion = json!({"choices": [{"message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}]});
        upstream.reply(UpstreamReply::Json(200, completion));
        let answered = run.call(path, body).await;
        assert_eq!(answered.status, 200, "{path}: {}", answered.body);
        let request = upstream.requests().pop().unwrap().body;
        assert!(
            request["messages"] == body["messages"],
            "{path}: it is sent"
        );
    }
    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("both to be counted", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 2
    })
    .await;
    let used = stage.client.get(&path).await.body["total"].clone();
    let prompts = used["prompt_tokens"].as_u64().unwrap();
    assert!((2210..2400).contains(&prompts), "{used}");
    run.end(&stage).await;
}

#[tokio::test]
async fn redacts_provider_keys_in_answers() {
    let (stage, run, upstream) = remote("").await;
    let text = "your key is first-secret-key";
    let completion = json!({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]});
    let chunk =
        json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]});
    let body = with(chat_request("hello"), &json!({"model": "remote"}));
    for (path, body, reply) in [
        (CHAT, &body, UpstreamReply::Json(200, completion.clone())),
        (
            "/models/remote/invoke",
            &chat_request("hello"),
            UpstreamReply::Json(200, completion),
        ),
        (
            "/models/remote/stream",
            &chat_request("hello"),
            UpstreamReply::Events(vec![format!("data: {chunk}"), "data: [DONE]".to_owned()]),
        ),
    ] {
        upstream.reply(reply);
        let request = run.request(reqwest::Method::POST, path).json(body);
        let (status, text) = super::text_of(request).await;
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains("your key is [redacted]"), "{path}: {text}");
        assert!(!text.contains("first-secret-key"), "{path}: {text}");
    }
    run.end(&stage).await;
}
