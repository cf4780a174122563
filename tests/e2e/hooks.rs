//! Hooks: HTTP calls that allow, deny or replace events, model calls and tool calls.

use reqwest::Method;
use rstest::rstest;
use runner_kit::signature::SigningSecret;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, message, send};
use crate::support::gateway::{Agent, STUB_SECRET};
use crate::support::held::HeldRun;
use crate::support::receiver::{Reaction, ReceivedMessage, Receiver};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::tool_server::ToolServer;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, until, within};

const SCRIPT: &str = "[[turns]]\nchunks = [\"Echo \", \"of: \", \"{input}\"]\n";
/// Routes of model calls that answer completely.
const COMPLETE: [&str; 4] = [
    "/models/talker/invoke",
    "/openai/v1/chat/completions",
    "/openai/v1/responses",
    "/anthropic/v1/messages",
];

fn hook(name: &str, receiver: &Receiver, on: &[&str], more: &str) -> String {
    format!(
        "[[hooks]]\nname = \"{name}\"\nurl = \"{}\"\nsecret = \"env:{}\"\non = {on:?}\n{more}\n",
        receiver.url, STUB_SECRET.0
    )
}

/// A stage whose agent may call all tools of the server and the model `talker`.
async fn stage_of(engine: Engine, server: &ToolServer, hooks: &str) -> Option<OwnStage> {
    let resources =
        r#"tools = { act = "allow", find = "allow", ask = "ask" }, models = ["talker"]"#;
    stage_with_resources(engine, server, hooks, resources).await
}

async fn stage_with_resources(
    engine: Engine,
    server: &ToolServer,
    hooks: &str,
    resources: &'static str,
) -> Option<OwnStage> {
    let directory = TempDirectory::new();
    let script = directory.write("script.toml", SCRIPT);
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] =
        json!({"tools": ["detail", "call"], "models": ["invoke", "stream", "count_tokens"]});
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        config.agents = vec![Agent {
            resources,
            ..Agent::default()
        }];
        config.rest = format!(
            "{tools}[[model_providers]]\nname = \"script\"\nkind = \"scripted\"\nscript = \"{script}\"\n\
             [[models]]\nmodel_id = \"talker\"\nprovider = \"script\"\nmax_output_tokens = 100\n{hooks}",
            tools = tools(server),
            script = script.display(),
        );
    })
    .await
}

/// `act` and `ask` have an effect, `find` only reads.
fn tools(server: &ToolServer) -> String {
    let tool = |name: &str, effect: &str| {
        format!(
            "[[tools]]\ntool_name = \"{name}\"\nurl = \"{}/{name}\"\neffect = \"{effect}\"\n",
            server.url
        )
    };
    tool("act", "write") + &tool("ask", "write") + &tool("find", "read")
}

/// In the form that both `always` and `react` take.
fn answer(decision: &Value) -> Option<Reaction> {
    Reaction::Body(decision.to_string()).into()
}

fn allow() -> Option<Reaction> {
    answer(&json!({"decision": "allow"}))
}

fn deny() -> Option<Reaction> {
    answer(&json!({"decision": "deny", "reason": "has a card number"}))
}

fn replace(value: &Value) -> Option<Reaction> {
    answer(&json!({"decision": "replace", "value": value}))
}

/// Reactions of a hook that has failed.
fn failures() -> Vec<Reaction> {
    let answers = [
        "",
        "{",
        "[]",
        r#"{"decision":"maybe"}"#,
        r#"{"decision":"replace"}"#,
        r#"{"decision":"replace","value":"no object"}"#,
    ];
    let mut failures: Vec<_> = answers.map(|one| Reaction::Body(one.to_owned())).into();
    failures.extend([
        Reaction::Body("x".repeat(100_000)),
        Reaction::Status(204),
        Reaction::Status(403),
        Reaction::Status(500),
        Reaction::Headed(307, "location: http://169.254.169.254/".to_owned()),
        Reaction::Hang,
        Reaction::Drip,
        Reaction::DripHead,
        Reaction::Close,
        Reaction::Reset,
    ]);
    failures
}

async fn call(run: &HeldRun, tool: &str, key: &str, parameters: &Value) -> ApiResponse {
    let path = format!("/tools/{tool}/call");
    let request = run.request(Method::POST, &path);
    let request = request.header("idempotency-key", key);
    send(request.json(&json!({ "parameters": parameters })))
        .await
        .unwrap()
}

#[tokio::test]
async fn call_that_needs_an_amendment_passes_the_hooks() {
    let (server, guard) = (ToolServer::start().await, Receiver::start().await);
    guard.always(deny());
    let hooks = hook("guard", &guard, &["tool.call"], "");
    let resources = r#"tools = ["find"], on_denied = "ask""#;
    let stage = stage_with_resources(Sqlite, &server, &hooks, resources)
        .await
        .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let refused = call(&run, "act", "k-1", &json!({"text": "4000 1234"})).await;
    assert_denied(&refused, "tool.call");
    let open = stage.client.get("/v1/interactions").await.expect(200).body;
    assert_eq!(open["items"], json!([]));
    run.end(&stage).await;
}

/// Waits until the denied calls of a run have these rules.
async fn denied_by(stage: &Stage, run: &HeldRun, rules: &[&str]) {
    let path = format!("/v1/runs/{}/audit?limit=100", run.run_id);
    until("the audit entries", async || {
        let page = stage.client.get(&path).await.expect(200).body;
        let rows = page["items"].as_array().unwrap().iter();
        let denied = rows.filter(|row| row["decision"] == "deny");
        let found: Vec<_> = denied.map(|row| row["rule"].as_str().unwrap()).collect();
        found == rules
    })
    .await;
}

#[track_caller]
fn assert_denied(response: &ApiResponse, moment: &str) {
    assert_eq!(response.status, 403, "{}", response.body);
    let text = response.body.to_string();
    assert!(text.contains("the hook guard denied this"), "{text}");
    assert!(text.contains(moment), "{text}");
    assert!(text.contains("has a card number"), "{text}");
}

fn is_signed(received: &ReceivedMessage) -> bool {
    let secret: SigningSecret = STUB_SECRET.1.parse().unwrap();
    let headers = &received.headers;
    let (id, at) = (&headers["webhook-id"], &headers["webhook-timestamp"]);
    assert_eq!(received.body["id"], id.as_str());
    let expected = secret.sign(id, at.parse().unwrap(), received.text.as_bytes());
    headers["webhook-signature"] == expected
}

#[rstest]
#[tokio::test]
async fn tool_calls_pass_their_hooks_in_order(#[values(Sqlite, Postgres)] engine: Engine) {
    let (server, first, second) = (
        ToolServer::start().await,
        Receiver::start().await,
        Receiver::start().await,
    );
    let hooks = hook("first", &first, &["tool.call", "tool.result"], "")
        + &hook("guard", &second, &["tool.call"], "agents = [\"main\"]");
    let stage = or_skip!(stage_of(engine, &server, &hooks).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    first.always(allow());
    second.always(allow());
    let parameters = json!({"card": "4111"});
    let called = call(&run, "act", "k-1", &parameters).await.expect(200);
    assert_eq!(called.body["result"]["body"], parameters);
    let received = first.received();
    assert!(received.iter().all(is_signed));
    assert_members!(received[0].body, {
        "type": "tool.call", "hook": "first", "tool": "act", "run_id": run.run_id, "workspace_id": "default",
        "event_id": "m-1", "value": parameters,
    });
    assert_members!(received[1].body, {"type": "tool.result", "tool": "act", "value": called.body["result"]});

    // The second hook and the tool get the replacement of the first, and the caller that of the result.
    first.react(replace(&json!({"card": "…"})));
    first.react(replace(&json!("masked")));
    let called = call(&run, "act", "k-2", &parameters).await.expect(200);
    assert_eq!(called.body["result"], "masked");
    assert_eq!(
        second.received().last().unwrap().body["value"],
        json!({"card": "…"})
    );
    assert_eq!(server.seen("/act").len(), 2);
    assert_eq!(server.seen("/act")[1].body, json!({"card": "…"}));

    second.always(deny());
    let denied = call(&run, "act", "k-3", &parameters).await;
    assert_denied(&denied, "tool.call");
    assert_eq!(denied.error("code"), "hook_denied");
    assert_eq!(denied.detail("hook"), "guard");
    assert_eq!(denied.detail("hook_reason"), "has a card number");
    let over_mcp = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "act", "arguments": parameters}});
    let over_mcp = run.call("/mcp", &over_mcp).await.expect(200).body;
    assert_eq!(over_mcp["result"]["isError"], true, "{over_mcp}");
    let text = over_mcp["result"]["content"].to_string();
    assert!(text.contains("has a card number"), "{text}");
    assert_eq!(server.seen("/act").len(), 2, "denied calls reach no tool");
    denied_by(&stage, &run, &["hook guard on tool.call"; 2]).await;
    // A tool without a grant is refused as without hooks.
    let count = first.received().len();
    call(&run, "absent", "k-4", &parameters).await.expect(403);
    assert_eq!(first.received().len(), count);
}

#[rstest]
#[tokio::test]
async fn denied_result_stays_denied_without_repeated_call(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let (server, guard) = (ToolServer::start().await, Receiver::start().await);
    let hooks = hook("guard", &guard, &["tool.result"], "");
    let stage = or_skip!(stage_of(engine, &server, &hooks).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    guard.react(deny());
    for _ in 0..2 {
        let denied = call(&run, "act", "k", &json!({})).await;
        assert_denied(&denied, "tool.result");
        assert_eq!(denied.detail("effect"), "done");
    }
    assert_eq!(guard.received().len(), 1);
    assert_eq!(server.seen("/act").len(), 1);
    // A read has no ticket.
    guard.react(deny());
    let path = "/tools/find/call";
    let denied = run.call(path, &json!({"parameters": {}})).await;
    assert_denied(&denied, "tool.result");
    guard.react(replace(&json!({"n": 1})));
    let found = run.call(path, &json!({"parameters": {}})).await.expect(200);
    assert_eq!(found.body["result"], json!({"n": 1}));
    denied_by(&stage, &run, &["hook guard on tool.result"; 2]).await;
}

#[tokio::test]
async fn people_approve_the_replaced_arguments() {
    let (server, guard) = (ToolServer::start().await, Receiver::start().await);
    let hooks = hook("guard", &guard, &["tool.call"], "");
    let stage = stage_of(Sqlite, &server, &hooks).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    guard.always(replace(&json!({"amount": 2})));
    let path = "/tools/ask/call?wait_seconds=0";
    let asking = async || {
        let request = run
            .request(Method::POST, path)
            .header("idempotency-key", "k");
        let body = json!({"parameters": {"amount": 1}});
        send(request.json(&body)).await.unwrap()
    };
    let held = asking().await.expect(202).body;
    let path = format!(
        "/v1/interactions/{}",
        held["interaction_id"].as_str().unwrap()
    );
    let question = stage.client.get(&path).await.expect(200).body;
    let text = question["request"]["description"].to_string();
    assert!(text.contains(r#"{\"amount\":2}"#), "{text}");
    let body = json!({"interaction_id": question["request"]["interaction_id"], "action_id": "allow_once", "values": {}});
    let path = format!("{path}/submit");
    stage.client.create(&path, &body).await.expect(200);
    let called = asking().await.expect(200);
    assert_eq!(called.body["result"]["body"], json!({"amount": 2}));
}

#[tokio::test]
async fn failed_hooks_refuse_calls_unless_open() {
    let server = ToolServer::start().await;
    let (closed, open) = (Receiver::start().await, Receiver::start().await);
    let hooks = hook("closed", &closed, &["tool.call"], "timeout_seconds = 0.3")
        + &hook(
            "open",
            &open,
            &["tool.call"],
            "timeout_seconds = 0.3\nfail = \"open\"",
        );
    let stage = stage_of(Sqlite, &server, &hooks).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut expected = Vec::new();
    for (n, failure) in failures().into_iter().enumerate() {
        closed.always(Some(failure.clone()));
        open.always(allow());
        let key = format!("closed-{n}");
        let refused = call(&run, "act", &key, &json!({})).await;
        assert_eq!(refused.status, 503, "{failure:?}: {}", refused.body);
        assert_eq!(refused.error("code"), "hook_unavailable");
        assert_eq!(refused.detail("hook"), "closed");
        assert_eq!(refused.error("retryable"), true);
        assert_eq!(server.seen("/act").len(), n, "{failure:?}");
        expected.push("hook closed on tool.call");

        closed.always(allow());
        open.always(Some(failure.clone()));
        // The same key: the refused call was not made.
        let called = call(&run, "act", &key, &json!({})).await;
        assert_eq!(called.status, 200, "{failure:?}: {}", called.body);
    }
    denied_by(&stage, &run, &expected).await;
    let log = stage.gateway.log();
    assert!(log.contains("redirects are not followed"), "{log}");
    assert!(!log.contains(&closed.url) && !log.contains(STUB_SECRET.1));
}

fn request_to(path: &str, text: &str, stream: bool) -> Value {
    let mut body = match path {
        "/openai/v1/responses" => json!({"model": "talker", "input": text}),
        "/anthropic/v1/messages" => {
            json!({"model": "talker", "max_tokens": 99, "messages": [{"role": "user", "content": text}]})
        }
        "/openai/v1/chat/completions" => {
            json!({"model": "talker", "messages": [{"role": "user", "content": text}]})
        }
        _ => return json!({"messages": [{"role": "user", "content": text}]}),
    };
    body["stream"] = json!(stream);
    body
}

async fn text_of(run: &HeldRun, path: &str, body: &Value) -> (u16, String) {
    let sending = run.request(Method::POST, path).json(body).send();
    let response = within("an answer", sending).await.unwrap();
    let status = response.status().as_u16();
    (status, within("its text", response.text()).await.unwrap())
}

/// The same document with another text.
fn masked(document: &Value) -> Value {
    serde_json::from_str(&document.to_string().replace("4111", "masked")).unwrap()
}

#[rstest]
#[tokio::test]
async fn model_requests_and_answers_pass_hooks(#[values(Sqlite, Postgres)] engine: Engine) {
    let (server, guard) = (ToolServer::start().await, Receiver::start().await);
    let hooks = hook("guard", &guard, &["model.request", "model.response"], "");
    let stage = or_skip!(stage_of(engine, &server, &hooks).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let formats = ["native", "chat", "responses", "messages"];
    let mut rules = Vec::new();
    for (path, format) in COMPLETE.into_iter().zip(formats) {
        let request = request_to(path, "4111", false);
        guard.always(allow());
        let (status, text) = text_of(&run, path, &request).await;
        assert_eq!(status, 200, "{path}: {text}");
        let received = guard.received();
        let [request_call, answer_call] = &received[received.len() - 2..] else {
            panic!("two calls");
        };
        assert_members!(request_call.body, {"type": "model.request", "model": "talker", "format": format, "value": request});
        assert_members!(answer_call.body, {"type": "model.response", "model": "talker", "format": format});
        assert_eq!(
            answer_call.body["value"],
            serde_json::from_str::<Value>(&text).unwrap()
        );

        guard.react(replace(&masked(&request)));
        let (status, text) = text_of(&run, path, &request).await;
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains("Echo of: masked"), "{path}: {text}");
        guard.react(allow());
        guard.react(replace(&masked(&answer_call.body["value"])));
        let (status, text) = text_of(&run, path, &request).await;
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains("Echo of: masked"), "{path}: {text}");

        guard.react(deny());
        assert_denied(&run.call(path, &request).await, "model.request");
        rules.push("hook guard on model.request");
        guard.react(allow().into_iter().chain(deny()));
        assert_denied(&run.call(path, &request).await, "model.response");
        rules.push("hook guard on model.response");
        // Another model, or another delivery, is no replacement.
        if format != "native" {
            let mut other = request.clone();
            other["model"] = json!("other");
            guard.react(replace(&other));
            let (status, text) = text_of(&run, path, &request).await;
            // Anthropic's status of an overload.
            let unavailable = if format == "messages" { 529 } else { 503 };
            assert_eq!(status, unavailable, "{path}: {text}");
            rules.push("hook guard on model.request");
        }
    }
    denied_by(&stage, &run, &rules).await;
    // The provider is paid for answers that were denied.
    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("the calls to be counted", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 16
    })
    .await;
}

#[tokio::test]
async fn denied_stream_ends_with_an_error() {
    let (server, guard) = (ToolServer::start().await, Receiver::start().await);
    let hooks = hook(
        "guard",
        &guard,
        &["model.response"],
        "timeout_seconds = 0.3",
    );
    let stage = stage_of(Sqlite, &server, &hooks).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let ends = [
        ("/models/talker/stream", "\"is_final\":true"),
        ("/openai/v1/chat/completions", "[DONE]"),
        ("/openai/v1/responses", "response.completed"),
        ("/anthropic/v1/messages", "message_stop"),
    ];
    for (path, end) in ends {
        let request = request_to(path, "hello", true);
        guard.always(allow());
        let (status, text) = text_of(&run, path, &request).await;
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains(end), "{path}: {text}");
        let value = json!({"text": "Echo of: hello", "reasoning": "", "tool_calls": ""});
        let received = guard.received();
        assert_members!(received.last().unwrap().body, {
            "type": "model.response", "format": "text", "value": value,
        });
        // The text was sent, so its replacement is a denial.
        for (reaction, cause) in [
            (deny(), "has a card number"),
            (replace(&json!({"text": "…"})), "cannot be replaced"),
            (Some(Reaction::Hang), "does not answer"),
        ] {
            guard.always(reaction);
            let (status, text) = text_of(&run, path, &request).await;
            assert_eq!(status, 200, "{path}: {text}");
            assert!(text.contains("of: "), "{path}: {text}");
            assert!(text.contains(cause), "{path}: {text}");
            assert!(!text.contains(end), "{path}: {text}");
        }
    }
    denied_by(&stage, &run, &["hook guard on model.response"; 12]).await;
}

/// Streams of providers with these APIs pass without translation.
#[tokio::test]
async fn denied_relayed_streams_end_with_errors() {
    let (upstream, guard) = (Upstream::start().await, Receiver::start().await);
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({"models": ["invoke", "stream"]});
    let runner = StubRunner::start_as(manifest).await;
    let stage = OwnStage::of(Sqlite, runner, |config| {
        config.agents[0].resources = r#"models = ["gpt", "claude"]"#;
        config.rest = format!(
            "[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\nresponses = true\n\
             [[model_providers]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\n\
             [[models]]\nmodel_id = \"gpt\"\nprovider = \"openai\"\n\
             [[models]]\nmodel_id = \"claude\"\nprovider = \"anthropic\"\n{}",
            hook("guard", &guard, &["model.response"], ""),
            url = upstream.url
        );
    })
    .await
    .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut denied_text = String::new();
    let response = |status: &str| {
        json!({"id": "resp_1", "object": "response", "status": status, "output": [],
            "usage": {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}})
    };
    let responses = [
        json!({"type": "response.created", "sequence_number": 0, "response": response("in_progress")}),
        json!({"type": "response.output_text.delta", "sequence_number": 1, "delta": "hi"}),
        json!({"type": "response.completed", "sequence_number": 2, "response": response("completed")}),
    ];
    let messages = [
        json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
            "usage": {"input_tokens": 5, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}),
        json!({"type": "message_stop"}),
    ];
    for (path, model, events, end) in [
        (COMPLETE[2], "gpt", &responses[..], "response.completed"),
        (COMPLETE[3], "claude", &messages[..], "message_stop"),
    ] {
        let mut request = request_to(path, "hello", true);
        request["model"] = json!(model);
        for reaction in [allow(), deny()] {
            let is_denied = reaction
                .as_ref()
                .is_some_and(|one| matches!(one, Reaction::Body(body) if body.contains("deny")));
            guard.always(reaction);
            let id = if is_denied { "resp_2" } else { "resp_1" };
            let event = |event: &Value| {
                let data = event.to_string().replace("resp_1", id);
                format!("event: {}\ndata: {data}", event["type"].as_str().unwrap())
            };
            upstream.reply(UpstreamReply::Events(events.iter().map(event).collect()));
            let (status, text) = text_of(&run, path, &request).await;
            assert_eq!(status, 200, "{path}: {text}");
            assert_eq!(text.contains(end), !is_denied, "{path}: {text}");
            assert_eq!(text.contains("has a card number"), is_denied, "{text}");
            if is_denied && model == "gpt" {
                denied_text = text;
            }
        }
        let received = guard.received();
        assert_eq!(received.last().unwrap().body["value"]["text"], "hi");
    }
    // A denied answer is not stored for later requests.
    let (_, id) = denied_text.split_once(r#""id":"resp_"#).unwrap();
    let (id, _) = id.split_once('"').unwrap();
    let mut request = request_to(COMPLETE[2], "more", false);
    request["model"] = json!("gpt");
    request["previous_response_id"] = json!(format!("resp_{id}"));
    run.call(COMPLETE[2], &request).await.expect(400);
}

#[rstest]
#[tokio::test]
async fn events_pass_hooks_before_they_are_stored(#[values(Sqlite, Postgres)] engine: Engine) {
    let (server, guard) = (ToolServer::start().await, Receiver::start().await);
    let hooks = hook("guard", &guard, &["event"], "timeout_seconds = 0.3");
    let stage = or_skip!(stage_of(engine, &server, &hooks).await);
    guard.always(allow());
    let event = message("e-1");
    let run_id = stage.client.post(&event).await.run_id();
    stage.client.finished(&run_id).await;
    let received = guard.received();
    assert!(is_signed(&received[0]));
    assert_members!(received[0].body, {"type": "event", "event_id": "e-1", "workspace_id": "default"});
    let input = &received[0].body["value"]["input"];
    assert_eq!(input["text"], event["input"]["text"]);

    // A repeated event gets its first answer.
    guard.always(deny());
    let repeated = stage.client.post(&event).await;
    assert_eq!(repeated.run_id(), run_id);
    let denied = stage.client.post(&message("e-2")).await;
    assert_denied(&denied, "event");
    assert_eq!(denied.error("code"), "hook_denied");
    let stored = stage
        .admin
        .get("/v1/events?limit=10")
        .await
        .expect(200)
        .body;
    assert_eq!(stored["items"].as_array().unwrap().len(), 1, "{stored}");

    let mut value = message("e-3");
    value["input"] = json!({"text": "masked"});
    guard.always(replace(&value));
    let posted = stage.client.post(&message("e-3")).await.run_id();
    let context = stage.runner.run_request(&posted).await.json()["context"].clone();
    assert_eq!(context["input"]["text"], "masked", "{context}");
    assert!(!context.to_string().contains("hello big world"));

    // Neither the sender nor the conversation can be replaced.
    value["actor"]["actor_id"] = json!("u-2");
    guard.always(replace(&value));
    let refused = stage.client.post(&message("e-4")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.error("code"), "hook_unavailable");
    guard.always(Some(Reaction::Hang));
    let refused = stage.client.post(&message("e-5")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
}
