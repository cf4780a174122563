//! Granted models through Google's Gemini API, and providers with this API.

#[path = "gemini/clients.rs"]
mod clients;
#[path = "gemini/provider.rs"]
mod provider;

use reqwest::Method;
use serde_json::{Value, json};

use super::{all_models, audit, remote, scripted, scripted_with, text_of, used};
use crate::support::client::{Client, message, send};
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{OwnStage, Sqlite, until};
use clients::EXPECTED_TEXT;

/// A request with one text.
fn asks(text: &str) -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": text}]}]})
}

fn path(model: &str, method: &str) -> String {
    format!("/gemini/v1beta/models/{model}:{method}")
}

/// A request with one part.
fn of(part: &Value) -> Value {
    json!({"contents": [{"role": "user", "parts": [part]}]})
}

/// Answers of a stream of server-sent events.
async fn stream_events(run: &HeldRun, model: &str, body: &Value) -> Vec<Value> {
    let path = path(model, "streamGenerateContent?alt=sse");
    let response = run.request(Method::POST, &path).json(body).send().await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.unwrap();
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    let data = events.map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn parts(answer: &Value) -> &Vec<Value> {
    let parts = &answer["candidates"][0]["content"]["parts"];
    parts.as_array().unwrap_or_else(|| panic!("{answer}"))
}

/// The joined text of all answers.
fn text(answers: &[Value]) -> String {
    let parts = answers.iter().flat_map(parts);
    parts.filter_map(|part| part["text"].as_str()).collect()
}

#[tokio::test]
async fn answers_complete_streamed_and_as_array() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let answer = run
        .call(&path("talker", "generateContent"), &asks("hello"))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.headers["x-runnel-model"], "talker");
    let candidate = &answer.body["candidates"][0];
    assert_eq!(
        candidate["content"],
        json!({"role": "model", "parts": [{"text": EXPECTED_TEXT}]})
    );
    assert_eq!(
        (&candidate["finishReason"], &answer.body["modelVersion"]),
        (&json!("STOP"), &json!("talker"))
    );
    let usage = &answer.body["usageMetadata"];
    assert!(usage["promptTokenCount"].as_u64().unwrap() > 0, "{usage}");

    let events = stream_events(&run, "talker", &asks("hello")).await;
    assert_eq!(text(&events), EXPECTED_TEXT);
    let last = events.last().unwrap();
    assert_eq!(last["candidates"][0]["finishReason"], "STOP");
    assert_eq!(last["usageMetadata"], *usage);
    assert!(events.len() > 1, "{events:?}");

    let request = run.request(Method::POST, &path("talker", "streamGenerateContent"));
    let response = request.json(&asks("hello")).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let array: Vec<Value> = response.json().await.unwrap();
    assert_eq!((text(&array), array.len()), (text(&events), events.len()));

    until("the outcomes", async || {
        let rows = audit(&stage, &run).await;
        let of = |action: &str| rows.iter().filter(|row| row["action"] == action).count();
        (of("models_invoke"), of("models_stream")) == (1, 2)
            && rows
                .iter()
                .filter(|row| row["resource"] == "talker")
                .all(|row| row["outcome"] == "ok")
    })
    .await;
    let used = used(&stage, &run, 3).await;
    assert_eq!(
        used["prompt_tokens"],
        3 * usage["promptTokenCount"].as_u64().unwrap()
    );
    run.end(&stage).await;
}

#[tokio::test]
async fn streams_calls_and_reads_their_results() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let mut body = asks("the weather");
    body["tools"] = json!([{"function_declarations": [{"name": "get_weather"}]}]);
    body["generation_config"] = json!({"thinking_config": {"include_thoughts": true}});
    let events = stream_events(&run, "talker", &body).await;
    assert_eq!(
        parts(&events[0])[0],
        json!({"text": "which city?", "thought": true})
    );
    let last = events.last().unwrap();
    let call = &parts(last)[0];
    assert_eq!(call["functionCall"]["name"], "get_weather");
    assert_eq!(call["functionCall"]["args"], json!({"city": "Oslo"}));
    assert_eq!(last["candidates"][0]["finishReason"], "STOP");
    // As JavaScript's client keeps its history: a content for each chunk.
    let contents = body["contents"].as_array_mut().unwrap();
    contents.extend(
        events
            .iter()
            .map(|event| event["candidates"][0]["content"].clone()),
    );
    contents.push(json!({"role": "user", "parts": [
        {"functionResponse": {"name": "get_weather", "response": {"output": "cold"}}}]}));
    let answer = run
        .call(&path("talker", "generateContent"), &body)
        .await
        .expect(200);
    assert_eq!(text(&[answer.body]), "It is cold.");
}

#[tokio::test]
async fn reasoning_returns_to_its_model() {
    let (_stage, run, upstream) = remote("").await;
    let message = json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
        {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "signature": "S"}]});
    let completion = |message: &Value| json!({"id": "c", "choices": [{"message": message, "finish_reason": "tool_calls"}]});
    upstream.reply(UpstreamReply::Json(200, completion(&message)));
    let done = json!({"role": "assistant", "content": "done"});
    upstream.reply(UpstreamReply::Json(200, completion(&done)));
    let mut body = asks("go");
    body["tools"] = json!([{"functionDeclarations": [{"name": "f"}]}]);
    let generate = path("remote", "generateContent");
    let called = run.call(&generate, &body).await.expect(200).body;
    let contents = body["contents"].as_array_mut().unwrap();
    contents.push(called["candidates"][0]["content"].clone());
    let response = json!({"functionResponse": {"id": "c-1", "name": "f", "response": {}}});
    contents.push(json!({"role": "user", "parts": [response]}));
    run.call(&generate, &body).await.expect(200);
    let back = &upstream.requests()[1].body["messages"][1];
    assert_eq!(back["reasoning_content"], "hm");
    assert_eq!(back["tool_calls"][0]["signature"], "S");
    assert_eq!(back["tool_calls"][0]["id"], "c-1");
}

#[tokio::test]
async fn counts_and_lists_models() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let count = path("talker", "countTokens");
    let counted = run.call(&count, &asks("hello")).await.expect(200).body;
    let tokens = counted["totalTokens"].as_u64().unwrap();
    assert!(tokens > 0, "{counted}");
    let mut request = asks("hello");
    request["tools"] = json!([{"functionDeclarations": [{"name": "f", "description": "does"}]}]);
    let wrapped = json!({"generateContentRequest": request});
    let larger = run.call(&count, &wrapped).await.expect(200).body;
    assert!(larger["totalTokens"].as_u64().unwrap() > tokens, "{larger}");
    let listed = run.get("/gemini/v1beta/models?pageSize=9").await.body;
    let talker = json!({"name": "models/talker", "displayName": "talker", "outputTokenLimit": 100,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"]});
    assert_eq!(listed["models"][0], talker);
    assert_eq!(
        run.get("/gemini/v1beta/models/talker").await.body,
        listed["models"][0]
    );
    // Google's client for Python names this version.
    assert_eq!(
        run.get("/gemini/v1/models/talker").await.body,
        listed["models"][0]
    );
    let absent = run.get("/gemini/v1beta/models/forbidden").await;
    assert_eq!(
        (absent.status, absent.error("status")),
        (404, &json!("NOT_FOUND"))
    );
}

#[tokio::test]
async fn accepts_run_token_as_api_key() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let url = format!("{}/gemini/v1beta/models", run.host.url);
    let bearer = format!("Bearer {}", run.token);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for (headers, status) in [
        (vec![("x-goog-api-key", run.token.as_str())], 200),
        (vec![("authorization", bearer.as_str())], 200),
        (
            vec![
                ("x-goog-api-key", run.token.as_str()),
                ("authorization", bearer.as_str()),
            ],
            200,
        ),
        (
            vec![
                ("x-goog-api-key", "other"),
                ("authorization", bearer.as_str()),
            ],
            401,
        ),
        // The header of another API.
        (vec![("x-api-key", run.token.as_str())], 401),
        (vec![], 401),
    ] {
        let mut request = http.get(&url);
        for (name, value) in headers.clone() {
            request = request.header(name, value);
        }
        let answer = send(request).await.unwrap();
        assert_eq!(answer.status, status, "{headers:?}");
        if status == 401 {
            assert_eq!(answer.error("status"), "UNAUTHENTICATED");
        }
    }
    // A key in the URL would reach logs.
    let in_query = Client::new(&run.host.url, "none");
    let path = format!("/gemini/v1beta/models?key={}", run.token);
    assert_eq!(in_query.get(&path).await.status, 401);
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_bad_requests_by_json_pointer() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let with = |name: &str, value: Value| {
        let mut body = asks("hello");
        body[name] = value;
        body
    };
    let inside = json!({"fileData": {"fileUri": "http://169.254.169.254/a.png"}});
    for (body, words) in [
        (json!({}), "/contents "),
        (
            with("cachedContent", json!("cachedContents/x")),
            "/cachedContent ",
        ),
        (
            with("tools", json!([{"googleSearch": {}}])),
            "/tools/0/googleSearch ",
        ),
        (
            with("generationConfig", json!({"maxOutputTokens": 0})),
            "/generationConfig/maxOutputTokens ",
        ),
        (
            with("generation_config", json!({"speech_config": {}})),
            "/generationConfig/speech_config ",
        ),
        (
            of(&json!({"executableCode": {}})),
            "/contents/0/parts/0/executableCode ",
        ),
        (of(&inside), "/contents/0/parts/0/fileData/fileUri "),
        (
            of(&json!({"fileData": {"fileUri": "files/x"}})),
            "/contents/0/parts/0/fileData/fileUri ",
        ),
    ] {
        let refused = run.call(&path("talker", "generateContent"), &body).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert_eq!(refused.error("status"), "INVALID_ARGUMENT");
        let message = refused.error("message").as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    let artifact = of(&json!({"fileData": {"fileUri": "artifact:x"}}));
    let refused = run
        .call(&path("talker", "generateContent"), &artifact)
        .await;
    assert_eq!(refused.status, 403);
    let message = refused.error("message").as_str().unwrap();
    assert!(
        message.contains("/contents/0/parts/0/fileData/fileUri"),
        "{message}"
    );
    let prefixed = json!({"generateContentRequest": {"contents": []}});
    let refused = run.call(&path("talker", "countTokens"), &prefixed).await;
    let message = refused.error("message").as_str().unwrap();
    assert!(
        message.starts_with("/generateContentRequest/contents "),
        "{message}"
    );
}

#[tokio::test]
async fn every_error_has_google_format() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let generate = |model: &str| path(model, "generateContent");
    for (path, text, status, name, reason) in [
        (
            generate("forbidden"),
            "hi",
            403,
            "PERMISSION_DENIED",
            "UNAUTHORIZED",
        ),
        (
            path("talker", "embedContent"),
            "hi",
            404,
            "NOT_FOUND",
            "NOT_FOUND",
        ),
        (
            generate("talker"),
            "too long",
            400,
            "INVALID_ARGUMENT",
            "CONTEXT_LENGTH_EXCEEDED",
        ),
        (
            generate("talker"),
            "busy",
            429,
            "RESOURCE_EXHAUSTED",
            "UPSTREAM_RATE_LIMITED",
        ),
        (
            "/gemini/v2/models/talker:generateContent".to_owned(),
            "hi",
            404,
            "NOT_FOUND",
            "NOT_FOUND",
        ),
        (
            "/gemini/v1beta/files".to_owned(),
            "hi",
            404,
            "NOT_FOUND",
            "NOT_FOUND",
        ),
    ] {
        let refused = run.call(&path, &asks(text)).await;
        assert_eq!(refused.status, status, "{path}: {}", refused.body);
        assert_eq!(refused.error("code"), status);
        assert_eq!(refused.error("status"), name);
        let details = refused.error("details");
        assert_eq!(details[0]["reason"], reason, "{details}");
        if status == 429 {
            assert_eq!(details[1]["retryDelay"], "7s");
            assert_eq!(refused.headers["retry-after"], "7");
        }
    }
    // A broken stream ends with the error, in both forms.
    let events = stream_events(&run, "talker", &asks("break")).await;
    assert_eq!(text(&events[..1]), "half");
    assert_eq!(events.last().unwrap()["error"]["status"], "UNAVAILABLE");
    let stream = path("talker", "streamGenerateContent");
    let (status, text) = text_of(run.request(Method::POST, &stream).json(&asks("break"))).await;
    assert_eq!(status, 200);
    let array: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(array.last().unwrap()["error"]["status"], "UNAVAILABLE");
}

#[tokio::test]
async fn spent_budget_refuses_calls() {
    let budget = "[[budgets]]\nname = \"few\"\nscope = \"run\"\ncalls = 1\n";
    let (_stage, run) = scripted_with(Sqlite, budget).await.unwrap();
    let generate = path("talker", "generateContent");
    run.call(&generate, &asks("hello")).await.expect(200);
    let refused = run.call(&generate, &asks("hello")).await;
    assert_eq!(
        (refused.status, refused.error("status")),
        (429, &json!("RESOURCE_EXHAUSTED"))
    );
    assert_eq!(refused.error("details")[0]["reason"], "BUDGET");
}
