//! A provider of kind `gemini`, called through the chat completions API and the others.

use serde_json::{Value, json};

use super::{
    Agent, Config, HeldRun, OwnStage, Sqlite, StubRunner, Upstream, UpstreamReply, all_models,
    asks, message, parts, path, stream_events, used,
};

const CHAT: &str = "/openai/v1/chat/completions";

/// A stage whose model `gem` is of a fake Gemini server. `more`: settings of the provider.
pub(super) async fn gemini_stage(more: &str) -> (OwnStage, HeldRun, Upstream) {
    let upstream = Upstream::start().await;
    let runner = StubRunner::start_as(all_models()).await;
    let configure = |config: &mut Config| {
        config.agents = vec![Agent {
            resources: r#"models = ["gem"]"#,
            ..Agent::default()
        }];
        let keys = [
            ("FIRST_KEY", "first-secret-key"),
            ("SECOND_KEY", "second-secret-key"),
        ];
        let keys = keys.map(|(name, key)| (name, key.to_owned()));
        config.environment.extend(keys);
        config.rest = format!(
            "[[model_providers]]\nname = \"google\"\nkind = \"gemini\"\nbase_url = \"{url}/v1beta\"\n\
             api_keys = [\"env:FIRST_KEY\", \"env:SECOND_KEY\"]\n{more}\n\
             [[models]]\nmodel_id = \"gem\"\nprovider = \"google\"\nupstream_model = \"gemini-2.5-flash\"\n\
             max_output_tokens = 50\n",
            url = upstream.url
        );
    };
    let stage = OwnStage::of(Sqlite, runner, configure).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    (stage, run, upstream)
}

/// An answer or chunk of Google's API.
pub(super) fn candidate(parts: &Value, reason: Option<&str>) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    if let Some(reason) = reason {
        candidate["finishReason"] = json!(reason);
    }
    json!({"candidates": [candidate], "responseId": "r", "modelVersion": "gemini-2.5-flash",
        "usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 4, "candidatesTokenCount": 3,
            "thoughtsTokenCount": 2, "totalTokenCount": 14}})
}

pub(super) fn event(data: &Value) -> String {
    format!("data: {data}")
}

fn chat(text: &str) -> Value {
    json!({"model": "gem", "messages": [{"role": "user", "content": text}]})
}

/// An error in Google's form.
fn error(code: u16, status: &str, details: &Value) -> UpstreamReply {
    let error = json!({"code": code, "message": "no", "status": status, "details": details});
    UpstreamReply::Json(code, json!({"error": error}))
}

#[tokio::test]
async fn translates_requests_and_answers() {
    let (stage, run, upstream) = gemini_stage("").await;
    let call = json!({"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "S"});
    let answer = candidate(
        &json!([{"text": "hm", "thought": true}, {"text": "ok"}, call]),
        Some("STOP"),
    );
    upstream.reply(UpstreamReply::Json(200, answer));
    let mut body = chat("hello");
    body["max_tokens"] = json!(1000);
    body["reasoning_effort"] = json!("low");
    body["messages"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"role": "system", "content": "be kind"}));
    let answer = run.call(CHAT, &body).await.expect(200).body;
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("ok"), &json!("hm"))
    );
    let call = &message["tool_calls"][0];
    assert_eq!(
        call["function"],
        json!({"name": "f", "arguments": "{\"a\":1}"})
    );
    assert_eq!(call["id"], "call_0");
    assert_eq!(
        call["extra_content"],
        json!({"google": {"thought_signature": "S"}})
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 4);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 2);

    let request = upstream.requests().remove(0);
    assert_eq!(
        request.path,
        "/v1beta/models/gemini-2.5-flash:generateContent"
    );
    assert_eq!(request.headers["x-goog-api-key"], "first-secret-key");
    assert!(!request.headers.contains_key("authorization"));
    assert_eq!(
        request.body,
        json!({"systemInstruction": {"parts": [{"text": "be kind"}]},
            "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
            "generationConfig": {"maxOutputTokens": 50,
                "thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": true}}})
    );
    let used = used(&stage, &run, 1).await;
    assert_eq!([&used["prompt_tokens"], &used["completion_tokens"]], [9, 5]);
    run.end(&stage).await;
}

#[tokio::test]
async fn streams_through_every_api() {
    let (stage, run, upstream) = gemini_stage("").await;
    let reply = || {
        UpstreamReply::Events(vec![
            event(&candidate(&json!([{"text": "hm", "thought": true}]), None)),
            event(&candidate(&json!([{"text": "You "}]), None)),
            event(&candidate(&json!([{"text": "there"}]), Some("STOP"))),
        ])
    };
    let mut body = chat("hello");
    body["stream"] = json!(true);
    body["max_tokens"] = json!(9);
    body["input"] = json!("hello");
    for (path, words) in [
        (CHAT, ["\"content\":\"You \"", "data: [DONE]"]),
        (
            "/anthropic/v1/messages",
            ["\"text\":\"You \"", "message_stop"],
        ),
        (
            "/openai/v1/responses",
            ["\"delta\":\"You \"", "response.completed"],
        ),
    ] {
        upstream.reply(reply());
        let mut body = body.clone();
        let members = body.as_object_mut().unwrap();
        if path.ends_with("responses") {
            members.retain(|name, _| ["model", "input", "stream"].contains(&name.as_str()));
        } else {
            members.remove("input");
        }
        let (status, text) =
            super::text_of(run.request(super::Method::POST, path).json(&body)).await;
        assert_eq!(status, 200, "{text}");
        assert!(
            words.iter().all(|word| text.contains(word)),
            "{path}: {text}"
        );
        let request = upstream.requests().pop().unwrap();
        assert_eq!(
            request.path,
            "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
        );
        assert_eq!(request.query.as_deref(), Some("alt=sse"));
    }
    let used = used(&stage, &run, 3).await;
    assert_eq!(
        [&used["prompt_tokens"], &used["completion_tokens"]],
        [27, 15]
    );
    run.end(&stage).await;
}

#[tokio::test]
async fn reports_errors_of_the_provider() {
    let (_stage, run, upstream) = gemini_stage("").await;
    let retry =
        json!([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.2s"}]);
    let key =
        json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]);
    let none = json!([]);
    for (replies, status, reason) in [
        (
            vec![error(400, "INVALID_ARGUMENT", &none)],
            400,
            "upstream_refused",
        ),
        (
            vec![error(503, "UNAVAILABLE", &none)],
            503,
            "upstream_failing",
        ),
        // Each key is used once.
        (
            vec![
                error(400, "INVALID_ARGUMENT", &key),
                error(400, "INVALID_ARGUMENT", &key),
            ],
            502,
            "upstream_credential",
        ),
        (
            vec![
                error(429, "RESOURCE_EXHAUSTED", &retry),
                error(429, "RESOURCE_EXHAUSTED", &retry),
            ],
            429,
            "upstream_rate_limited",
        ),
    ] {
        let count = replies.len();
        let before = upstream.requests().len();
        for reply in replies {
            upstream.reply(reply);
        }
        let refused = run.call(CHAT, &chat("hello")).await;
        assert_eq!(refused.status, status, "{}", refused.body);
        assert_eq!(refused.error("details")["reason"], reason);
        assert_eq!(upstream.requests().len() - before, count, "{reason}");
        assert!(!refused.body.to_string().contains("secret-key"));
        if status == 429 {
            assert_eq!(refused.headers["retry-after"], "4");
        }
    }
}

#[tokio::test]
async fn faulty_answers_end_with_an_error() {
    let (stage, run, upstream) = gemini_stage("idle_seconds = 0.5").await;
    let half = || event(&candidate(&json!([{"text": "half"}]), None));
    let failed = json!({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}});
    let malformed = candidate(&json!([]), Some("MALFORMED_FUNCTION_CALL"));
    for (reply, status) in [
        (UpstreamReply::Cut(vec![half()]), 502),
        // A clean end without a finish reason.
        (UpstreamReply::Events(vec![half()]), 502),
        (UpstreamReply::Events(vec![half(), event(&failed)]), 503),
        (UpstreamReply::Events(vec![half(), event(&malformed)]), 502),
        (
            UpstreamReply::Events(vec![half(), "data: {\"candidates\":".to_owned()]),
            502,
        ),
        (UpstreamReply::Hold(vec![half()]), 504),
    ] {
        upstream.reply(reply);
        let events = stream_events(&run, "gem", &asks("hello")).await;
        assert_eq!(parts(&events[0])[0]["text"], "half");
        let error = &events.last().unwrap()["error"];
        assert_eq!(error["code"], status, "{events:?}");
    }
    for (answer, status) in [
        (malformed, 502),
        (json!({"responseId": "r"}), 502),
        (
            json!([candidate(&json!([{"text": "hi"}]), Some("STOP"))]),
            200,
        ),
    ] {
        upstream.reply(UpstreamReply::Json(200, answer));
        let answer = run
            .call(&path("gem", "generateContent"), &asks("hello"))
            .await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn blocked_prompts_and_answers_are_refusals() {
    let (_stage, run, upstream) = gemini_stage("").await;
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}});
    let cut = candidate(&json!([{"text": "I "}]), Some("SAFETY"));
    for (answer, text) in [
        (blocked, "The provider blocked the prompt: SAFETY"),
        (cut, "I "),
    ] {
        upstream.reply(UpstreamReply::Json(200, answer.clone()));
        let generated = run
            .call(&path("gem", "generateContent"), &asks("hello"))
            .await
            .expect(200);
        assert_eq!(generated.body["candidates"][0]["finishReason"], "SAFETY");
        assert_eq!(parts(&generated.body)[0]["text"], text);
        upstream.reply(UpstreamReply::Json(200, answer));
        let completed = run.call(CHAT, &chat("hello")).await.expect(200).body;
        assert_eq!(completed["choices"][0]["finish_reason"], "content_filter");
    }
}
