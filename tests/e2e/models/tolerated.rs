//! Tolerated deviations: complete provider responses that depart from the protocol, on both APIs.

use serde_json::{Value, json};

use super::{END, chat_request, chunk, events_in, remote, streamed_text, text_of};
use crate::support::OwnStage;
use crate::support::held::HeldRun;
use crate::support::upstream::{Upstream, UpstreamReply};
use reqwest::Method;

const DONE: &str = "data: [DONE]";

struct DeviationStage {
    stage: OwnStage,
    run: HeldRun,
    upstream: Upstream,
}

/// The outcome of one response on one API.
#[derive(Debug)]
struct ApiOutcome {
    text: String,
    reasoning: String,
    /// Id, name and arguments of each call.
    calls: Vec<(String, String, String)>,
    /// Code and details of the error.
    failed: Option<(String, String)>,
    usage: Value,
}

impl ApiOutcome {
    fn code(&self) -> &str {
        self.failed.as_ref().map_or("", |(code, _)| code)
    }
}

impl DeviationStage {
    async fn start() -> Self {
        let (stage, run, upstream) = remote("").await;
        Self {
            stage,
            run,
            upstream,
        }
    }

    async fn ask(&self, path: &str, body: &Value, reply: UpstreamReply) -> (u16, String) {
        self.upstream.reply(reply);
        let asking = self.run.request(Method::POST, path).json(body);
        text_of(asking).await
    }

    /// Reads the stream of the native API.
    async fn native(&self, model: &str, reply: UpstreamReply) -> ApiOutcome {
        let path = format!("/models/{model}/stream");
        let (status, text) = self.ask(&path, &chat_request("hi"), reply).await;
        let mut outcome = ApiOutcome::nothing();
        if status != 200 {
            outcome.fail(&serde_json::from_str(&text).unwrap());
            return outcome;
        }
        let events = events_in(&text);
        outcome.text = streamed_text(&events);
        for (name, data) in &events {
            match name.as_str() {
                "error" => outcome.fail(data),
                "usage" => outcome.usage = data["usage"].clone(),
                _ => outcome.add_calls(&data["chunk"]["tool_calls"], "id"),
            }
        }
        outcome
    }

    /// Reads the stream of the OpenAI API.
    async fn openai(&self, model: &str, reply: UpstreamReply) -> ApiOutcome {
        let mut body = chat_request("hi");
        (body["model"], body["stream"]) = (json!(model), json!(true));
        body["stream_options"] = json!({"include_usage": true});
        let (status, text) = self.ask("/openai/v1/chat/completions", &body, reply).await;
        let mut outcome = ApiOutcome::nothing();
        if status != 200 {
            outcome.fail(&serde_json::from_str(&text).unwrap());
            return outcome;
        }
        let frames: Vec<_> = text.split_terminator("\n\n").collect();
        for frame in &frames {
            let data = frame.strip_prefix("data: ").unwrap();
            if data == "[DONE]" {
                continue;
            }
            let data: Value = serde_json::from_str(data).unwrap();
            if !data["error"].is_null() {
                outcome.fail(&data);
                continue;
            }
            if !data["usage"].is_null() {
                outcome.usage = data["usage"].clone();
            }
            let delta = &data["choices"][0]["delta"];
            outcome.text += delta["content"].as_str().unwrap_or_default();
            outcome.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            outcome.add_calls(&delta["tool_calls"], "index");
        }
        assert_eq!(outcome.failed.is_none(), frames.contains(&DONE), "{text}");
        outcome
    }

    /// The outcomes on both APIs. `reply` makes the provider's response.
    async fn both(&self, model: &str, reply: impl Fn() -> UpstreamReply) -> [ApiOutcome; 2] {
        [
            self.native(model, reply()).await,
            self.openai(model, reply()).await,
        ]
    }

    async fn both_of(&self, events: &[String]) -> [ApiOutcome; 2] {
        let reply = || UpstreamReply::Events(events.to_vec());
        self.both("remote", reply).await
    }

    /// Checks on both APIs that these events are a complete response with the text `hi`.
    async fn accepts(&self, events: &[String]) {
        let reply = || UpstreamReply::Events(events.to_vec());
        self.check("remote", reply, "hi").await;
    }

    /// Checks on both APIs that the response is complete with this text. `reply` makes the provider's response.
    async fn check(&self, model: &str, reply: impl Fn() -> UpstreamReply, text: &str) {
        for outcome in self.both(model, reply).await {
            assert_eq!(outcome.failed, None, "{outcome:?}");
            assert_eq!(outcome.text, text, "{outcome:?}");
        }
    }

    async fn end(self) {
        self.run.end(&self.stage).await;
    }
}

impl ApiOutcome {
    fn nothing() -> Self {
        Self {
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            failed: None,
            usage: Value::Null,
        }
    }

    fn fail(&mut self, data: &Value) {
        let code = data["error"]["code"].as_str().unwrap_or_default();
        self.failed = Some((code.to_owned(), data["error"].to_string()));
    }

    /// Joins parts of calls by this member, as clients do.
    fn add_calls(&mut self, calls: &Value, key: &str) {
        for call in calls.as_array().into_iter().flatten() {
            let of = |pointer: &str| {
                call.pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let position = match key {
                "id" => self.calls.iter().position(|(id, ..)| *id == of("/id")),
                _ => call["index"]
                    .as_u64()
                    .map(|index| usize::try_from(index).unwrap()),
            };
            let position = position.unwrap_or(self.calls.len());
            if position >= self.calls.len() {
                self.calls.push((of("/id"), String::new(), String::new()));
            }
            if self.calls[position].1.is_empty() {
                self.calls[position].1 = of("/function/name");
            }
            self.calls[position].2 += &of("/function/arguments");
        }
    }
}

fn hi() -> String {
    chunk(&json!({"content": "hi"}))
}

fn with(events: &[&str]) -> Vec<String> {
    events.iter().map(|event| (*event).to_owned()).collect()
}

#[tokio::test]
async fn faults_after_complete_response_are_ignored() {
    let asking = DeviationStage::start().await;
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
    let complete = with(&[&hi(), END, usage]);
    for tail in [
        "data: [DONE] ",
        "data:",
        "data: null",
        "data: bye",
        "data: {\"error\":{\"message\":\"late\",\"code\":500}}",
        "event: error\ndata: {\"message\":\"late\"}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"more\"}}]}",
    ] {
        let reply = || UpstreamReply::Events([complete.clone(), with(&[tail])].concat());
        asking.check("remote", reply, "hi").await;
    }
    for reply in [
        UpstreamReply::Cut,
        UpstreamReply::Hold,
        UpstreamReply::Beats,
    ] {
        asking
            .check("remote", || reply(complete.clone()), "hi")
            .await;
    }
    let late = with(&[&hi(), END, "data: bye", usage]);
    let outcome = asking.native("remote", UpstreamReply::Events(late)).await;
    assert_eq!(outcome.usage["prompt_tokens"], 9, "{outcome:?}");
    asking.end().await;
}

fn of_anthropic(reason: &Value, tail: &[&str]) -> Vec<String> {
    let events = [
        json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1200, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"input_tokens": 0, "output_tokens": 7}}),
    ];
    let events = events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}", event["type"].as_str().unwrap()));
    events.chain(with(tail)).collect()
}

const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}";

#[tokio::test]
async fn faults_after_message_stop_are_ignored() {
    let asking = DeviationStage::start().await;
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"late\"}}";
    for (reason, tail) in [
        (json!("end_turn"), &[STOP, "data: bye"][..]),
        (json!("end_turn"), &[error]),
        (json!("end_turn"), &["data: bye", STOP]),
        (json!(null), &[STOP]),
        (json!(""), &[STOP, error]),
    ] {
        let reply = || UpstreamReply::Events(of_anthropic(&reason, tail));
        asking.check("claude", reply, "hi").await;
    }
    let held = || UpstreamReply::Hold(of_anthropic(&json!("end_turn"), &[]));
    asking.check("claude", held, "hi").await;
    let cut = UpstreamReply::Events(of_anthropic(&json!(null), &[]));
    let cut = asking.native("claude", cut).await;
    assert_eq!(cut.code(), "runtime_error", "{cut:?}");
    let counted = UpstreamReply::Events(of_anthropic(&json!("end_turn"), &[STOP]));
    let counted = asking.native("claude", counted).await;
    let usage = &counted.usage;
    assert_members!(usage, {"prompt_tokens": 1200, "completion_tokens": 7});
    asking.end().await;
}

#[tokio::test]
async fn requires_finish_reason_or_done_marker() {
    let asking = DeviationStage::start().await;
    let of = |reason: Value| {
        let chunk =
            json!({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": reason}]});
        format!("data: {chunk}")
    };
    for reason in [json!(""), json!("null"), json!(null)] {
        let half = with(&[&of(reason.clone())]);
        for outcome in asking.both_of(&half).await {
            let message = outcome.failed.unwrap().1;
            assert_contains!(message, "the stream ended before the answer did");
        }
        let marked = with(&[&of(reason), DONE]);
        asking.accepts(&marked).await;
    }
    asking.end().await;
}

#[tokio::test]
async fn maps_errors_in_200_responses_to_codes() {
    let asking = DeviationStage::start().await;
    let limited = json!({"error": {"message": "slow down", "code": 429}});
    let unknown = json!({"error": {"message": "who are you", "code": 401}});
    for (error, code) in [(&limited, "rate_limited"), (&unknown, "runtime_error")] {
        let complete = || UpstreamReply::Json(200, error.clone());
        let streamed = || UpstreamReply::Events(with(&[&format!("data: {error}")]));
        let bare = || UpstreamReply::Raw(error.to_string().into_bytes());
        for reply in [complete(), streamed(), bare()] {
            assert_eq!(asking.native("remote", reply).await.code(), code);
        }
        for reply in [complete(), streamed(), bare()] {
            assert_eq!(asking.openai("remote", reply).await.code(), code);
        }
        let mut body = chat_request("hi");
        body["model"] = json!("remote");
        for (path, body) in [
            ("/models/remote/invoke", &chat_request("hi")),
            ("/openai/v1/chat/completions", &body),
        ] {
            let (status, text) = asking.ask(path, body, complete()).await;
            let body: Value = serde_json::from_str(&text).unwrap();
            assert_ne!(status, 200);
            assert_eq!(body["error"]["code"], code, "{text}");
        }
    }
    asking.end().await;
}

#[tokio::test]
async fn accepts_completion_for_stream_and_vice_versa() {
    let asking = DeviationStage::start().await;
    let calls =
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let completion = json!({"id": "x", "object": "chat.completion", "choices": [{"index": 0,
        "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "hi", "tool_calls": calls}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}});
    for framing in ["document", "event", "document under a stream's type"] {
        let reply = || match framing {
            "document" => UpstreamReply::Json(200, completion.clone()),
            "event" => UpstreamReply::Events(vec![format!("data: {completion}")]),
            _ => UpstreamReply::Raw(completion.to_string().into_bytes()),
        };
        for outcome in asking.both("remote", reply).await {
            assert_eq!(
                (outcome.failed.as_ref(), outcome.text.as_str()),
                (None, "hi"),
                "{outcome:?}"
            );
            assert_eq!(
                outcome.calls,
                [("c".to_owned(), "f".to_owned(), "{}".to_owned())]
            );
            assert_eq!(outcome.usage["prompt_tokens"], 3);
        }
    }
    let stream =
        || UpstreamReply::Events(with(&[&hi(), &chunk(&json!({"content": "!"})), END, DONE]));
    let mut body = chat_request("hi");
    body["model"] = json!("remote");
    let (_, text) = asking
        .ask("/openai/v1/chat/completions", &body, stream())
        .await;
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], "hi!", "{text}");
    let (_, text) = asking
        .ask("/models/remote/invoke", &chat_request("hi"), stream())
        .await;
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body["message"]["content"], "hi!", "{text}");
    let half = UpstreamReply::Events(with(&[&hi()]));
    let (status, text) = asking
        .ask("/models/remote/invoke", &chat_request("hi"), half)
        .await;
    assert_eq!(status, 502);
    assert_contains!(text, "a stream of events instead of a document");
    asking.end().await;
}

#[tokio::test]
async fn reads_events_without_blank_lines() {
    let asking = DeviationStage::start().await;
    let lines = format!(
        "{}\n{}\n{END}\n{DONE}\n",
        hi(),
        chunk(&json!({"content": "!"}))
    );
    let crlf = lines.replace('\n', "\r\n");
    let last_bare = format!("{}\n\n{}\n\n{END}", hi(), chunk(&json!({"content": "!"})));
    for body in [lines, crlf, last_bare] {
        let reply = || UpstreamReply::Raw(body.clone().into_bytes());
        asking.check("remote", reply, "hi!").await;
    }
    asking.end().await;
}

#[tokio::test]
async fn data_heartbeats_do_not_end_streams() {
    let asking = DeviationStage::start().await;
    for beat in [
        "event: ping\ndata: ping",
        "event: ping\ndata: {}",
        "event: keepalive\ndata: 7",
        "data:",
        "data: null",
    ] {
        let events = with(&[beat, &hi(), beat, END, beat, DONE]);
        asking.accepts(&events).await;
    }
    asking.end().await;
}

#[tokio::test]
async fn invalid_utf8_does_not_end_streams() {
    let asking = DeviationStage::start().await;
    let deltas = |member: &str, texts: &[&[u8]]| {
        let mut body = Vec::new();
        for text in texts {
            body.extend_from_slice(br#"data: {"choices":[{"index":0,"delta":{""#);
            body.extend_from_slice(member.as_bytes());
            body.extend_from_slice(br#"":""#);
            body.extend_from_slice(text);
            body.extend_from_slice(
                b"\"},\"logprobs\":{\"content\":[{\"token\":\"\\ud83d\",\"bytes\":null}]}}]}\n\n",
            );
        }
        body.extend_from_slice(format!("{END}\n\n{DONE}\n\n").as_bytes());
        body
    };
    for (texts, expected) in [
        (&[&br"a\ud83d"[..], br"\ude00b"][..], "a😀b"),
        (&[br"a\ud83d", b"b"], "a\u{FFFD}b"),
        (&[br"a\ud83d"], "a\u{FFFD}"),
        (&[br"a\u0000b"], "a\u{FFFD}b"),
        (&[b"a\xFFb"], "a\u{FFFD}b"),
    ] {
        let content = deltas("content", texts);
        asking
            .check("remote", || UpstreamReply::Raw(content.clone()), expected)
            .await;
        let reasoning = UpstreamReply::Raw(deltas("reasoning_content", texts));
        let reasoning = asking.openai("remote", reasoning).await;
        assert_eq!(
            (reasoning.reasoning.as_str(), reasoning.failed),
            (expected, None)
        );
    }
    let call = |arguments: &str| {
        format!(
            r#"data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"c","function":{{"name":"f","arguments":"{arguments}"}}}}]}}}}]}}"#
        )
    };
    let events = with(&[
        &call(r#"{\"q\":\"\ud83d"#),
        &call(r#"\ude00\u0000\"}"#),
        END,
    ]);
    for outcome in asking.both_of(&events).await {
        assert_eq!(outcome.failed, None);
        assert_eq!(outcome.calls[0].2, "{\"q\":\"😀\u{FFFD}\"}");
    }
    let half = json!({"choices": [{"message": {"role": "assistant", "content": "a#"}, "finish_reason": "stop"}]});
    let body = half.to_string().replace('#', "\\ud83d\\u0000");
    let json = vec![("content-type", "application/json".to_owned())];
    let (status, text) = asking
        .ask(
            "/models/remote/invoke",
            &chat_request("hi"),
            UpstreamReply::Headed(200, json, body),
        )
        .await;
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("a\u{FFFD}\u{FFFD}"), "{text}");
    asking.end().await;
}

#[tokio::test]
async fn separates_tool_calls_with_equal_ids() {
    let asking = DeviationStage::start().await;
    let delta = |arguments: &str| {
        let function = json!({"name": "look", "arguments": arguments});
        chunk(
            &json!({"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}),
        )
    };
    let objects = ["{\"q\":1}", "{\"q\":2}", "{\"q\":3}"];
    let events = [objects.map(delta).to_vec(), with(&[END])].concat();
    for outcome in asking.both_of(&events).await {
        let arguments: Vec<_> = outcome.calls.iter().map(|call| call.2.as_str()).collect();
        assert_eq!(arguments, objects, "{outcome:?}");
        assert!(
            outcome.calls.iter().all(|call| call.1 == "look"),
            "{outcome:?}"
        );
    }
    let calls = objects.map(|object| json!({"id": "call_0", "type": "function", "function": {"name": "look", "arguments": object}}));
    let completion = json!({"choices": [{"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}]});
    let mut body = chat_request("hi");
    body["model"] = json!("remote");
    for (path, body, pointer) in [
        (
            "/models/remote/invoke",
            &chat_request("hi"),
            "/message/tool_calls",
        ),
        (
            "/openai/v1/chat/completions",
            &body,
            "/choices/0/message/tool_calls",
        ),
    ] {
        let (_, text) = asking
            .ask(path, body, UpstreamReply::Json(200, completion.clone()))
            .await;
        let body: Value = serde_json::from_str(&text).unwrap();
        let calls = body.pointer(pointer).unwrap().as_array().unwrap().clone();
        let mut ids: Vec<_> = calls
            .iter()
            .map(|call| call["id"].as_str().unwrap())
            .collect();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{text}");
    }
    asking.end().await;
}

#[tokio::test]
async fn keeps_usage_from_any_position() {
    let asking = DeviationStage::start().await;
    let counted = json!({"prompt_tokens": 1200.0, "completion_tokens": 30.0, "total_tokens": 1230});
    let zeros = r#"data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}"#;
    let of_groq = format!(
        "data: {}",
        json!({"choices": [], "x_groq": {"usage": counted}})
    );
    let in_choice = format!(
        "data: {}",
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": counted}]})
    );
    let named = r#"data: {"choices":[],"usage":{"input_tokens":1200,"output_tokens":30}}"#;
    for events in [
        vec![hi(), END.to_owned(), of_groq, zeros.to_owned()],
        vec![hi(), in_choice, zeros.to_owned()],
        vec![hi(), END.to_owned(), named.to_owned(), zeros.to_owned()],
    ] {
        for outcome in asking.both_of(&events).await {
            let usage = &outcome.usage;
            assert_eq!(
                (&usage["prompt_tokens"], &usage["completion_tokens"]),
                (&json!(1200), &json!(30)),
                "{events:?}"
            );
        }
    }
    asking.end().await;
}

#[tokio::test]
async fn provider_health_shows_deviations() {
    let asking = DeviationStage::start().await;
    let events = with(&[&hi(), END, "data: bye", "data: [DONE]"]);
    asking.accepts(&events).await;
    let admin = asking.stage.admin.clone();
    let providers = admin.get("/v1/model-providers").await.body;
    let items = providers["items"].as_array().unwrap();
    let provider = items.iter().find(|one| one["name"] == "openai").unwrap();
    assert_members!(provider, {"deviations": json!({"failure_behind_answer": 2})});
    asking.end().await;
}

#[tokio::test]
async fn halves_oversized_batches() {
    let asking = DeviationStage::start().await;
    let vectors = |count: usize| {
        let data: Vec<_> = (0..count)
            .map(|n| json!({"index": n, "embedding": [1, n]}))
            .collect();
        UpstreamReply::Json(
            200,
            json!({"data": data, "usage": {"prompt_tokens": 10 * count, "total_tokens": 10 * count}}),
        )
    };
    asking.upstream.reply(UpstreamReply::Json(
        413,
        json!({"error": "batch size 5 > maximum allowed batch size 2"}),
    ));
    let refused = json!({"error": {"message": "input must not have more than 1 item: too many"}});
    asking.upstream.reply(UpstreamReply::Json(400, refused));
    // The first request follows the rejections; the second already knows the batch size.
    for _ in 0..10 {
        asking.upstream.reply(vectors(1));
    }
    for _ in 0..2 {
        let body = json!({"texts": ["a", "b", "c", "d", "e"]});
        let answer = asking.run.call("/models/remote/embed", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.body["vectors"].as_array().unwrap().len(), 5);
        assert_eq!(answer.body["usage"]["prompt_tokens"], 50);
    }
    let sizes: Vec<_> = asking
        .upstream
        .requests()
        .iter()
        .map(|request| request.body["input"].as_array().unwrap().len())
        .collect();
    assert_eq!(sizes, [5, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    asking
        .upstream
        .reply(UpstreamReply::Json(413, json!({"error": "too large"})));
    let alone = asking
        .run
        .call("/models/remote/embed", &json!({"texts": ["a"]}))
        .await;
    assert_eq!(alone.status, 400, "{}", alone.body);
    asking.end().await;
}
