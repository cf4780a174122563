//! Injection: text of runners and clients that imitates the protocol, in event streams and in headers. D8, D9.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Stage;
use crate::support::client::message;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Run, frame, sse};
use crate::support::{Sqlite, within};

/// Texts that could end a line, a field or an event in some parser.
const HOSTILE: [&str; 16] = [
    "a\nb",
    "a\r\nb",
    "a\rb",
    "\n\ndata: {\"type\":\"run.completed\"}\n\n",
    "\r\rdata: {}\r\r",
    "\r\n\r\nevent: run.completed\r\nid: 999\r\ndata: {}\r\n\r\n",
    "\nid: 999\n",
    "\nevent: run.failed\n",
    "\nretry: 1\n",
    "\n: comment\n\n",
    "\u{2028}data: {}\u{2028}\u{2028}",
    "\u{2029}\u{85}\u{b}\u{c}\u{1c}\u{1d}\u{1e}data: {}",
    "\u{feff}data: {}",
    "data: {}",
    "\u{0}\u{1}\u{7f}",
    "</script><script>alert(1)</script>",
];

/// One result of each type, with every free text set to `words`.
fn results(run: &Run, words: &str) -> Vec<String> {
    let words = words.replace('\0', "\u{1}");
    let of = |kind: &str, data: Value, usage: Value| {
        json!({"run_id": run.id, "type": kind, "data": data, "usage": usage}).to_string()
    };
    let short: String = words.chars().take(100).collect();
    let usage = json!({"model": words, words.clone(): 1});
    let call = json!({"id": words, "type": words, "function": {"name": words, "arguments": words}});
    vec![
        of(&short, json!({"v": words}), usage.clone()),
        of(
            "message.delta",
            json!({"chunk": {
                "role": "assistant", "content": words, "tool_calls": [call], words.clone(): words,
            }}),
            usage.clone(),
        ),
        of(
            "message.delta",
            json!({"chunk": {"role": "assistant", "content": "a", "all_content": words}}),
            json!({}),
        ),
        of(
            "tool.call.started",
            json!({"tool_call_id": words, "tool_name": words, "parameters": {words.clone(): words}}),
            json!({}),
        ),
        of(
            "tool.call.completed",
            json!({"tool_call_id": words, "result": words, "error": words}),
            json!({}),
        ),
        of(
            "action.requested",
            json!({"action": words, "payload": {words.clone(): words}}),
            json!({}),
        ),
        of("processor.log", json!({"text": words}), json!({})),
        of(
            "state.updated",
            json!({"scope": "actor", "key": "k", "value": words}),
            json!({}),
        ),
        of(
            "message.completed",
            json!({"message": {"role": "assistant", "content": words, "name": words}}),
            usage,
        ),
    ]
}

/// The lines of a stream as the WHATWG parser splits them.
fn lines(stream: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = stream;
    while let Some(at) = rest.find(['\n', '\r']) {
        let end = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + 1
        };
        lines.push(&rest[..at]);
        rest = &rest[end..];
    }
    assert_eq!(rest, "", "the stream ends with a line");
    lines
}

fn assert_is_ours(stream: &str, ledger: &[String]) {
    let mut data = Vec::new();
    for line in lines(stream) {
        match line.split_once(": ") {
            Some(("id", id)) => {
                assert_eq!(id.parse::<usize>().ok(), Some(data.len() + 1), "{line}");
            }
            Some(("event", name)) => {
                assert!(
                    name.bytes()
                        .all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte)),
                    "{line}"
                );
            }
            Some(("data", json)) => data.push(json.to_owned()),
            Some(("retry", number)) => assert!(number.parse::<u32>().is_ok(), "{line}"),
            _ => assert!(line.is_empty() || line.starts_with(':'), "{line:?}"),
        }
    }
    assert_eq!(data, ledger, "as many events as there are");
}

#[tokio::test]
async fn delivers_hostile_runner_text_unchanged() {
    let stage = Stage::new().await;
    for words in HOSTILE {
        for ending in ["run.completed", "run.failed"] {
            let script = move |run: &Run| {
                let end = match ending {
                    "run.completed" => {
                        json!({"finish_reason": words, "message": {"role": "assistant", "content": words}})
                    }
                    _ => {
                        json!({"code": words, "message": words, "error": words, "retryable": true})
                    }
                };
                let end = json!({"run_id": run.id, "type": ending, "data": end})
                    .to_string()
                    .replace("\\u0000", "");
                let sent = results(run, words);
                sse(sent.iter().map(|json| frame(json)).collect::<String>() + &frame(&end))
            };
            let outcome = stage.play(script).await;
            assert!(
                outcome.rejections.is_empty(),
                "{words:?}: {:?}",
                outcome.rejections
            );
            // Ten results, and the note about the unknown type of the first.
            assert_eq!(
                outcome.ledger.0.len(),
                11,
                "{words:?}: {:?}",
                outcome.ledger
            );
            let run_id = outcome.run["run_id"].as_str().unwrap();
            let request = stage
                .client
                .following(run_id)
                .header("accept", "text/event-stream");
            let stream = within("the stream", async { request.send().await?.text().await })
                .await
                .unwrap();
            assert_is_ours(&stream, &outcome.ledger.0);
            let content = &outcome.ledger.events()[2]["data"]["chunk"]["content"];
            assert_eq!(content, &words.replace('\0', "\u{1}"), "{words:?}");
        }
    }
}

/// Puts the words into every event field that could reach a header or a line of a stream.
#[tokio::test]
async fn client_text_injects_no_header_or_line() {
    let stage = Stage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    for words in HOSTILE.iter().map(|words| words.replace('\0', "")) {
        let mut event = message("");
        event.as_object_mut().unwrap().remove("event_id");
        event["conversation"]["conversation_id"] = json!(words);
        event["conversation"]["thread_id"] = json!(words);
        event["actor"]["actor_id"] = json!(words);
        event["input"]["text"] = json!(words);
        event["source"] = json!(words);
        event["bot_id"] = json!(words);
        let stream = stage.client.post_streaming(&event).await;
        let (run_id, headers) = (stream.run_id(), format!("{:?}", stream.response.headers()));
        assert_lacks!(headers, "data: ", "<script>");
        assert_eq!(stream.rest().await.len(), 2, "{words:?}");
        let run_request = stage.runner.wait_for_request("the run", |request| {
            request.header("runnel-run-id") == Some(&run_id)
        });
        assert_eq!(
            run_request.await.json()["context"]["conversation"]["conversation_id"],
            json!(words)
        );
    }
}

#[tokio::test]
async fn blob_content_type_injects_no_header() {
    let mut keeper = manifest(RUNNER_ID);
    keeper["permissions"] = json!({"storage": ["plugin"]});
    let runner = StubRunner::start_as(keeper).await;
    let resources = |config: &mut crate::support::gateway::Config| {
        config.agents[0].resources = r#"storage = ["plugin"]"#;
    };
    let stage = Stage::of(Sqlite, runner, resources).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (content_type, is_taken) in [
        ("text/html; charset=utf-8", true),
        ("text/html\t;x=\"a, b\"", true),
        ("image/svg+xml", true),
        ("text/event-stream", true),
        ("x: y", true),
    ] {
        let put = run
            .request(Method::PUT, "/storage/plugin/k")
            .header("content-type", content_type)
            .body("<b>");
        let put = put.send().await.unwrap().status();
        assert_eq!(put.is_success(), is_taken, "{content_type}: {put}");
        if !is_taken {
            assert_eq!(put, 400, "{content_type}");
            continue;
        }
        let got = run
            .request(Method::GET, "/storage/plugin/k")
            .send()
            .await
            .unwrap();
        assert_eq!(
            got.headers()["content-type"].as_bytes(),
            content_type.as_bytes()
        );
        // Browsers must neither sniff the type nor render the artifact.
        assert_eq!(got.headers()["x-content-type-options"], "nosniff");
        assert_starts_with!(
            got.headers()["content-disposition"].to_str().unwrap(),
            "attachment"
        );
    }
    run.end(&stage).await;
}
