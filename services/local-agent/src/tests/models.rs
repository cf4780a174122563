//! Model calls: streams, fallbacks, usage.

use std::io::Read as _;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;

use crate::testing::{
    AnswerStep, TestHost, answer, call, context, end, ending, fail, kinds, run, text, usage,
};

fn not_streaming() -> protocol::context::AgentRunContext {
    let mut context = context("hi", &json!({}));
    context.delivery.supports_streaming = false;
    context
}

#[tokio::test]
async fn streams_deltas_then_complete_message() {
    let host = TestHost::default();
    host.model(
        "m",
        vec![text("It is"), text(" sunny"), end(), usage(10, 3)],
    );
    let results = run(&host, context("weather?", &json!({}))).await;
    assert_eq!(
        kinds(&results),
        ["message.delta", "message.completed", "run.completed"]
    );
    assert_eq!(answer(&results), "It is sunny");
    let chunks: Vec<_> = results
        .iter()
        .filter_map(|result| result.data.get("chunk"))
        .collect();
    assert_eq!(chunks[0]["content"], "It is");
    assert_eq!(chunks[1]["content"], " sunny");
    assert_eq!(chunks[2]["is_final"], true);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk.get("all_content").is_none())
    );
    assert_eq!(json!(results.last().unwrap().usage)["total_tokens"], 13);
    assert_eq!(json!(results.last().unwrap().usage)["model_calls"], 1);
}

#[tokio::test]
async fn bounds_delta_bytes_of_long_answers() {
    let host = TestHost::default();
    let words: Vec<AnswerStep> = (0..20_000).map(|_| text("word ")).chain([end()]).collect();
    host.model("m", words);
    let results = run(&host, context("much", &json!({"all-content": true}))).await;
    let bytes: usize = results
        .iter()
        .map(|result| json!(result.data).to_string().len())
        .sum();
    assert_eq!(answer(&results).len(), 100_000);
    assert!(bytes < 100 * 100_000, "{bytes}");
    let increments: String = results
        .iter()
        .filter_map(|result| result.data.get("chunk")?.get("content")?.as_str())
        .collect();
    assert_eq!(
        increments,
        answer(&results),
        "the increments are the answer"
    );
}

#[tokio::test(start_paused = true)]
async fn bounds_delta_bytes_of_slow_answers() {
    let host = TestHost::default();
    let slowly = |_| [text("word "), AnswerStep::Pause(Duration::from_millis(200))];
    let words: Vec<AnswerStep> = (0..4_000).flat_map(slowly).chain([end()]).collect();
    host.model("m", words);
    let config = json!({"timeout": 0, "all-content": true});
    let results = run(&host, context("much", &config)).await;
    let full_text = answer(&results);
    assert_eq!(full_text.len(), 20_000);
    let chunks: Vec<_> = results
        .iter()
        .filter_map(|result| result.data.get("chunk"))
        .collect();
    assert_eq!(chunks.len(), 4_001, "each word is sent before the next");
    let bytes: usize = chunks.iter().map(|chunk| chunk.to_string().len()).sum();
    assert!(bytes < 100 * full_text.len(), "{bytes}");
    let mut increments = String::new();
    for chunk in &chunks {
        increments.push_str(chunk["content"].as_str().unwrap_or_default());
        let all_content = chunk["all_content"].as_str();
        assert!(
            all_content.is_none_or(|all_content| all_content == increments),
            "{chunk}"
        );
    }
    assert_eq!(increments, full_text);
    assert_eq!(
        chunks[4_000]["all_content"], full_text,
        "the final delta has the complete text"
    );
}

#[tokio::test]
async fn omits_calls_over_line_limit() {
    for streams in [true, false] {
        for (arguments, is_sent) in ["a", &"a".repeat(9_000)].into_iter().zip([true, false]) {
            let host = TestHost::default();
            host.tool_says("send", json!({"terminate": true}));
            host.model(
                "m",
                vec![call("c1", "send", &json!({"all": arguments})), end()],
            );
            let mut context = context("hi", &json!({}));
            context.delivery.supports_streaming = streams;
            let limits = json!({"limits": {"line_bytes": 8_000}});
            context.runtime.metadata = limits.as_object().unwrap().clone();
            let results = run(&host, context).await;
            assert_eq!(ending(&results), ("run.completed", None));
            for result in &results {
                let bytes = json!(result).to_string().len();
                assert!(bytes < 7_900, "{}: {bytes}", result.kind);
            }
            let mut completed = results
                .iter()
                .filter(|result| result.kind == "message.completed");
            let message = &completed.next().unwrap().data["message"];
            assert_eq!(message.get("tool_calls").is_some(), is_sent, "{message}");
        }
    }
}

#[tokio::test]
async fn keeps_results_within_line_limit() {
    let long = "\"so\"\n".repeat(3_000);
    for streams in [true, false] {
        let host = TestHost::default();
        host.tool_says("look", json!(long));
        let in_pieces = long.as_bytes().chunks(600).map(|piece| {
            let piece = std::str::from_utf8(piece).unwrap();
            text(piece)
        });
        host.model("m", vec![call("c1", "look", &json!({"all": long})), end()])
            .model("m", in_pieces.chain([end()]).collect())
            .model("m", vec![text(&long), end()]);
        host.script().steering = [vec![], vec![crate::testing::steering("more")]].into();
        let mut context = context("hi", &json!({"max-tool-result-chars": 1_000_000}));
        context.delivery.supports_streaming = streams;
        let limits = json!({"limits": {"line_bytes": 8_000}});
        context.runtime.metadata = limits.as_object().unwrap().clone();
        let results = run(&host, context).await;
        assert_eq!(ending(&results), ("run.completed", None));
        for result in &results {
            let bytes = json!(result).to_string().len();
            assert!(bytes < 7_900, "{}: {bytes}", result.kind);
        }
        let chunks = || results.iter().filter_map(|result| result.data.get("chunk"));
        let sent_text: String = chunks()
            .filter_map(|chunk| chunk["content"].as_str())
            .collect();
        assert_eq!(
            sent_text,
            format!("{long}{long}"),
            "the host makes a message of it"
        );
        assert!(chunks().next_back().unwrap()["is_final"] == true);
        assert!(
            results
                .iter()
                .all(|result| result.kind != "message.completed")
        );
        let of = |kind: &str| {
            &results
                .iter()
                .find(|result| result.kind == kind)
                .unwrap()
                .data
        };
        let parameters = &of("tool.call.started")["parameters"];
        assert_eq!(parameters["type"], "tool_parameters_preview");
        let result = &of("tool.call.completed")["result"];
        assert_eq!(result["type"], "tool_result_preview");
        assert!(result["preview"].as_str().unwrap().len() > 1_000);
        assert_eq!(host.request(1).last().unwrap().plain_text(), long);
    }
}

#[tokio::test]
async fn invokes_model_without_streaming() {
    for by_host in [false, true] {
        let host = TestHost::default();
        host.model("m", vec![text("hello"), usage(1, 1)]);
        let mut context = not_streaming();
        if by_host {
            context.delivery.supports_streaming = true;
            let metadata = json!({"streaming_supported": false});
            context.runtime.metadata = metadata.as_object().unwrap().clone();
        }
        let results = run(&host, context).await;
        assert_eq!(kinds(&results), ["message.completed", "run.completed"]);
        assert_eq!(answer(&results), "hello");
        assert_eq!(host.calls("stream_model").len(), 0);
    }
}

#[tokio::test]
async fn falls_back_before_first_output() {
    let first_failures: [Vec<AnswerStep>; 5] = [
        vec![fail("runtime_error", "down")],
        vec![
            AnswerStep::Chunk(json!({"role": "assistant"})),
            fail("runtime_error", "down"),
        ],
        vec![text(" "), text("\n"), end()],
        vec![end()],
        vec![],
    ];
    for steps in first_failures {
        for streams in [true, false] {
            let host = TestHost::default();
            host.model("m", steps.clone())
                .model("n", vec![text("here I am"), end()]);
            let context = if streams {
                context("hi", &json!({}))
            } else {
                not_streaming()
            };
            let results = run(&host, context).await;
            assert_eq!(ending(&results), ("run.completed", None), "{steps:?}");
            assert_eq!(answer(&results), "here I am");
        }
    }
}

#[tokio::test]
async fn fails_run_after_partial_output() {
    let host = TestHost::default();
    host.model(
        "m",
        vec![text("It is"), fail("runtime_error", "cut"), text("never")],
    );
    host.model("n", vec![text("unasked"), end()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(kinds(&results), ["message.delta", "run.failed"]);
    assert_eq!(ending(&results).1, Some("runner.llm_error"));
    assert_eq!(results.last().unwrap().data["retryable"], false);
    assert_eq!(host.calls("stream_model"), ["stream_model m"]);
}

#[tokio::test]
async fn fails_retryably_when_all_models_fail() {
    let host = TestHost::default();
    host.model("m", vec![end()])
        .model("n", vec![fail("rate_limited", "wait a little")]);
    let results = run(&host, context("hi", &json!({}))).await;
    let data = &results.last().unwrap().data;
    assert_eq!(data["code"], "runner.llm_error");
    assert_eq!(data["retryable"], true);
    assert!(data["message"].as_str().unwrap().contains("wait a little"));
}

#[tokio::test]
async fn retries_without_rejected_images() {
    let refuses = || fail("invalid_argument/upstream_refused", "cannot be loaded");
    let seen = json!({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}});
    let mut context = context("see", &json!({}));
    context
        .input
        .contents
        .push(serde_json::from_value(seen).unwrap());

    let host = TestHost::default();
    host.model("m", vec![refuses()]).model("n", vec![refuses()]);
    host.model("m", vec![text("I cannot see it"), end()]);
    let results = run(&host, context.clone()).await;
    assert_eq!(answer(&results), "I cannot see it");
    let last = |index: usize| json!(host.request(index).last().unwrap()).to_string();
    assert!(last(0).contains("image_url") && last(1).contains("image_url"));
    let retried = last(2);
    assert!(
        retried.contains("[picture https://a.b/c.png: not shown]"),
        "{retried}"
    );

    // A transient failure is not retried on the same model.
    let host = TestHost::default();
    host.model("m", vec![fail("runtime_error", "overloaded")]);
    host.model("n", vec![fail("rate_limited", "wait")]);
    let results = run(&host, context).await;
    assert_eq!(ending(&results).1, Some("runner.llm_error"));
    assert_eq!(host.calls("stream_model").len(), 2);

    let host = TestHost::default();
    host.model("m", vec![refuses()]).model("n", vec![refuses()]);
    let results = run(&host, crate::testing::context("hi", &json!({}))).await;
    assert_eq!(host.calls("stream_model").len(), 2, "there is no picture");
    assert_eq!(results.last().unwrap().data["retryable"], false);
}

#[tokio::test]
async fn empty_answers_fail_the_run() {
    let host = TestHost::default();
    host.model("m", vec![text(" "), end()])
        .model("n", vec![end()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(kinds(&results), ["run.failed"]);
    let data = &results.last().unwrap().data;
    assert_eq!(data["code"], "runner.llm_error");
    assert!(data["message"].as_str().unwrap().contains("empty"));
}

#[tokio::test]
async fn reports_usage_and_cause_of_fallback() {
    let (mut lines, writer) = std::io::pipe().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(writer));
    let listening = tracing::subscriber::set_default(subscriber.finish());
    let host = TestHost::default();
    host.model("m", vec![fail("runtime_error", "out of order")])
        .model("n", vec![text("here I am"), end(), usage(7, 2)]);
    let mut context = context("hi", &json!({}));
    let mut unknown = context.resources.tools[0].clone();
    unknown.tool_name = "gone".to_owned();
    unknown.parameters = None;
    context.resources.tools.push(unknown);
    let results = run(&host, context).await;
    assert_eq!(json!(results.last().unwrap().usage)["total_tokens"], 9);
    drop(listening);
    let mut log = String::new();
    lines.read_to_string(&mut log).unwrap();
    assert!(log.contains("model m failed"), "{log}");
    assert!(log.contains("out of order"), "{log}");
    assert!(log.contains("tool gone is left out"), "{log}");
}

#[tokio::test]
async fn a_deadline_stops_the_fallback() {
    let host = TestHost::default();
    host.model("m", vec![fail("deadline_exceeded", "over")])
        .model("n", vec![text("late"), end()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.timeout")));
    assert_eq!(results.last().unwrap().data["retryable"], true);
    assert_eq!(host.calls("stream_model"), ["stream_model m"]);
}

#[tokio::test]
async fn falls_back_after_model_timeout() {
    let slow = || fail("deadline_exceeded/upstream_timeout", "no answer in time");
    for streams in [true, false] {
        let host = TestHost::default();
        host.model("m", vec![slow()])
            .model("n", vec![text("here I am"), end()]);
        let context = if streams {
            context("hi", &json!({}))
        } else {
            not_streaming()
        };
        let results = run(&host, context).await;
        assert_eq!(answer(&results), "here I am");
    }

    let host = TestHost::default();
    host.model("m", vec![text("It is"), slow()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.llm_error")));
}

#[tokio::test]
async fn keeps_first_answering_model() {
    for streams in [true, false] {
        let host = TestHost::default();
        host.tool_says("look", json!("sunny"));
        host.model("m", vec![fail("runtime_error", "down")])
            .model("m", vec![text("back"), end()]);
        host.model("n", vec![call("c1", "look", &json!({})), end()])
            .model("n", vec![text("sunny"), end()]);
        let context = if streams {
            context("hi", &json!({}))
        } else {
            not_streaming()
        };
        let results = run(&host, context).await;
        assert_eq!(answer(&results), "sunny");
    }
}

#[tokio::test]
async fn omits_thinking_from_next_request() {
    for (streams, operation) in [(true, "stream"), (false, "invoke")] {
        let host = TestHost::default();
        host.tool_says("look", json!("sunny"));
        host.model(
            "m",
            vec![
                text("<think a=\"1\">hmm</think>Let me look."),
                call("c1", "look", &json!({})),
                end(),
            ],
        );
        host.model("m", vec![text("Sunny."), end()]);
        let mut context = context("hi", &json!({"remove-think": true}));
        context.delivery.supports_streaming = streams;
        run(&host, context).await;
        let requests = host.script().requests.clone();
        assert!(
            requests.iter().all(|request| request.remove_think),
            "{operation}"
        );
        let answer = requests[1]
            .messages
            .iter()
            .find(|message| message.role == "assistant")
            .unwrap();
        assert_eq!(answer.plain_text(), "Let me look.");
    }
}

#[tokio::test]
async fn sums_usage_over_turns() {
    let host = TestHost::default();
    host.tool_says("look", json!("sunny"));
    host.model(
        "m",
        vec![call("c1", "look", &json!({})), end(), usage(10, 2)],
    );
    host.model("m", vec![text("Sunny."), end(), usage(20, 3)]);
    let results = run(&host, context("hi", &json!({}))).await;
    let used = json!(results.last().unwrap().usage);
    assert_eq!(
        (&used["prompt_tokens"], &used["total_tokens"]),
        (&json!(30), &json!(35))
    );
    assert_eq!(used["turns"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn returns_thinking_signatures_with_tool_results() {
    for streams in [true, false] {
        let host = TestHost::default();
        host.tool_says("look", json!("sunny"));
        let fields = json!({"finish_reason": "tool_calls", "model": "m", "reasoning_content": "T",
            "extra_content": {"of": "message"}});
        let mut called = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
        called["provider_specific_fields"] =
            json!({"model": "m", "extra_content": {"signature": "S"}, "function": {"seal": "F"}});
        let chunk = json!({"role": "assistant", "content": "<think>\nT\n</think>\n", "tool_calls": [called],
            "provider_specific_fields": fields, "is_final": true});
        host.model("m", vec![AnswerStep::Chunk(chunk)]);
        host.model("m", vec![text("done"), end()]);
        let mut context = context("hi", &json!({}));
        context.delivery.supports_streaming = streams;
        let results = run(&host, context).await;
        assert_eq!(ending(&results).0, "run.completed");
        let back = serde_json::to_value(host.request(1)).unwrap();
        let message = back
            .as_array()
            .unwrap()
            .iter()
            .find(|message| message["role"] == "assistant")
            .unwrap();
        assert_eq!(
            message["provider_specific_fields"]["reasoning_content"], "T",
            "{streams}: {back}"
        );
        let call = &message["tool_calls"][0]["provider_specific_fields"];
        assert_eq!(call["extra_content"]["signature"], "S", "{streams}: {back}");
        assert_eq!(call["function"]["seal"], "F", "{streams}: {back}");
        let fields = &message["provider_specific_fields"];
        assert_eq!(
            fields["extra_content"]["of"], "message",
            "{streams}: {back}"
        );
        assert!(message["content"].is_null(), "thoughts are no text: {back}");
        let shown = json!(
            results
                .iter()
                .map(|result| &result.data)
                .collect::<Vec<_>>()
        )
        .to_string();
        assert!(!shown.contains("signature"), "{shown}");
    }
}

#[tokio::test]
async fn retracts_streamed_thinking_text() {
    let host = TestHost::default();
    let over = json!({"role": "assistant", "content": "answer", "all_content": "answer"});
    host.model(
        "m",
        vec![text("thoughts"), AnswerStep::Chunk(over), text("."), end()],
    );
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(answer(&results), "answer.");
    let chunks: Vec<_> = results
        .iter()
        .filter_map(|result| result.data.get("chunk"))
        .collect();
    assert_eq!(chunks[0]["content"], "thoughts");
    assert_eq!(chunks[1]["all_content"], "answer");
}
