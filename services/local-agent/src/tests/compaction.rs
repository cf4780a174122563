//! Conversations beyond the model's window.

use protocol::context::AgentRunContext;
use protocol::model::LlmRequest;
use serde_json::{Value, json};

use crate::context::checkpoint::KEY;
use crate::context::estimate;
use crate::context::learned_limit::KEY as LIMIT;
use crate::testing::{
    AnswerStep, SUMMARISER, TestHost, answer, call, context, end, ending, fail, is_summary, item,
    run, text, usage,
};

/// Window of 6,000 tokens, 4,500 of them for the request.
fn small() -> Value {
    json!({"context-window-tokens": 6000, "context-reserve-tokens": 1500,
        "context-keep-recent-tokens": 1500, "context-summary-tokens": 800})
}

/// History of `count` messages of about 55 tokens each.
fn long_history(host: &TestHost, count: i64) {
    let roles = ["assistant", "user"];
    let items = (1..=count).map(|seq| {
        let text = format!("message {seq} {}", "several more words ".repeat(10));
        item(seq, roles[usize::try_from(seq % 2).unwrap()], &text)
    });
    host.script().history = items.collect();
}

fn sent(host: &TestHost) -> Vec<LlmRequest> {
    let script = host.script();
    script
        .requests
        .iter()
        .filter(|request| !is_summary(request))
        .cloned()
        .collect()
}

#[tokio::test]
async fn summarizes_old_history_and_keeps_recent_messages() {
    let host = TestHost::default();
    long_history(&host, 100);
    host.model(SUMMARISER, vec![text("## Goal\nTea for Ada.")])
        .model("m", vec![text("ok"), end()]);
    let results = run(&host, context("and now?", &small())).await;
    assert_eq!(answer(&results), "ok");
    let request = &sent(&host)[0];
    assert!(estimate::messages(&request.messages) <= 4500);
    let texts: Vec<_> = request
        .messages
        .iter()
        .map(protocol::message::Message::plain_text)
        .collect();
    assert!(
        texts[0].starts_with("<conversation_summary>\nv=1 source=llm count="),
        "{texts:?}"
    );
    assert!(texts[0].contains("Tea for Ada."));
    assert!(texts.join("\n").contains("message 100 "));
    assert!(texts.last().unwrap().ends_with("and now?"));

    let checkpoint = host.script().state[KEY].clone();
    assert_eq!(
        checkpoint["schema_version"],
        "langbot.local_agent.compaction_checkpoint.v1"
    );
    assert_eq!(checkpoint["conversation_id"], "c-7");
    assert!(checkpoint["tokens_before"].as_u64().unwrap() > 4500);
    // Covered items are summarised; later items are sent verbatim.
    let covered: i64 = checkpoint["covers_until"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        texts
            .iter()
            .any(|text| text.contains(&format!("message {} ", covered + 1)))
    );
    assert!(
        !texts
            .iter()
            .any(|text| text.contains(&format!("message {covered} ")))
    );
}

#[tokio::test]
async fn summary_covers_only_included_history() {
    let host = TestHost::default();
    long_history(&host, 40);
    // All but the first ten follow the current message; answers among them stay.
    host.script().history[10].event_id = "m-1001".to_owned();
    host.model(SUMMARISER, vec![text("a summary")])
        .model("m", vec![text("ok"), end()]);
    let tight = json!({"context-window-tokens": 1000, "context-keep-recent-tokens": 100});
    run(&host, context("and now?", &tight)).await;
    let length = sent(&host)[0].messages.len();
    assert!(
        length < 10,
        "{length}: some of the answers are summarised, too"
    );
    assert_eq!(host.script().state[KEY]["covers_until"], "10");
}

#[tokio::test]
async fn counts_tools_once_per_compaction() {
    let host = TestHost::default();
    long_history(&host, 100);
    host.model(SUMMARISER, vec![text("a summary")])
        .model("m", vec![text("ok"), end()]);
    run(&host, context("and now?", &small())).await;
    let counts = host.calls("count_tokens");
    assert!(!counts.is_empty());
    assert!(
        counts.iter().all(|call| call == "count_tokens m tools=0"),
        "{counts:?}"
    );
}

#[tokio::test]
async fn falls_back_to_local_summary() {
    for failing in [vec![fail("runtime_error", "down")], vec![text("  ")]] {
        let host = TestHost::default();
        long_history(&host, 100);
        host.model(SUMMARISER, failing)
            .model("m", vec![text("ok"), end()]);
        run(&host, context("and now?", &small())).await;
        let first = sent(&host)[0].messages[0].plain_text();
        assert!(
            first.starts_with("<conversation_summary>\nv=v1 count="),
            "{first}"
        );
    }
}

#[tokio::test]
async fn compacts_tool_results_before_next_call() {
    let host = TestHost::default();
    host.tool_says("look", json!("a long report ".repeat(900)));
    for n in 0..4 {
        let id = format!("c{n}");
        host.model("m", vec![call(&id, "look", &json!({"n": n})), end()]);
    }
    let host_says = |request: &LlmRequest| estimate::messages(&request.messages);
    host.model("m", vec![text("done"), end()]);
    let results = run(&host, context("look four times", &small())).await;
    assert_eq!(answer(&results), "done");
    let requests = sent(&host);
    assert_eq!(requests.len(), 5);
    for request in &requests {
        assert!(host_says(request) <= 4500, "{}", host_says(request));
        let texts: Vec<_> = request
            .messages
            .iter()
            .filter(|message| message.role == "user")
            .collect();
        assert_eq!(texts.last().unwrap().plain_text(), "look four times");
    }
}

#[tokio::test]
async fn prefers_reported_usage_over_estimates() {
    let host = TestHost::default();
    host.tool_says("look", json!("short"));
    long_history(&host, 60);
    // The provider reports a nearly full window, above any estimate.
    host.model(
        "m",
        vec![call("c1", "look", &json!({})), end(), usage(4_499, 400)],
    );
    host.model(SUMMARISER, vec![text("a summary")])
        .model("m", vec![text("ok"), end()]);
    let results = run(&host, context("hi", &small())).await;
    assert_eq!(answer(&results), "ok");
    assert!(host.script().requests.iter().any(is_summary));
    let requests = sent(&host);
    let size = |index: usize| requests[index].messages.len();
    assert!(size(1) < size(0) + 2, "history was left out");
}

fn overflow() -> Vec<AnswerStep> {
    vec![fail(
        "invalid_argument",
        "This model's maximum context length is 1000 tokens",
    )]
}

#[tokio::test]
async fn retries_once_with_smaller_context_after_overflow() {
    for streams in [true, false] {
        let host = TestHost::default();
        long_history(&host, 60);
        host.model("m", overflow())
            .model(SUMMARISER, vec![text("a summary")])
            .model("m", vec![text("ok"), end()]);
        let mut context = context("hi", &json!({"context-window-tokens": 8000}));
        context.delivery.supports_streaming = streams;
        let results = run(&host, context).await;
        assert_eq!(answer(&results), "ok");
        let requests = sent(&host);
        let size = |index: usize| estimate::messages(&requests[index].messages);
        assert!(size(1) < size(0) * 3 / 4 + 1, "{} {}", size(0), size(1));
    }
}

#[tokio::test]
async fn later_runs_stay_below_refused_size() {
    // No window is known. Sixty messages, one long message, and a summary of this run's own turns.
    for (count, window) in [
        (60, json!({})),
        (60, json!({"context-window-tokens": 0})),
        (1, json!({})),
    ] {
        let host = TestHost::default();
        long_history(&host, count);
        let input = if count == 1 {
            "a long question ".repeat(900)
        } else {
            "hi".to_owned()
        };
        host.model("m", overflow())
            .model(SUMMARISER, vec![text("a summary")])
            .model("m", vec![text("ok"), end()]);
        run(&host, context(&input, &window)).await;
        let refused = estimate::messages(&sent(&host)[0].messages);
        let limit = host.script().state[LIMIT]["tokens"].as_u64().unwrap();
        assert!(limit < refused, "{limit} {refused}");
        if count > 1 {
            assert!(
                host.script().state.contains_key(KEY),
                "the retry's summary is stored"
            );
        }

        let before = host.script().requests.len();
        host.model(SUMMARISER, vec![text("a summary")])
            .model("m", vec![text("ok"), end()]);
        let results = run(&host, context(&input, &window)).await;
        assert_eq!(answer(&results), "ok");
        let script = host.script();
        let calls = &script.requests[before..];
        assert_eq!(calls.len(), 1, "no refused call and no new summary");
        assert!(estimate::messages(&calls[0].messages) <= limit);
    }
}

#[tokio::test]
async fn retries_overflow_of_tool_schemas_with_fewer_messages() {
    // Tools as large as the conversation; a count of half the estimate; both.
    for (tools, counted, window) in [
        (true, None, 8_000),
        (true, None, 20_000),
        (true, None, 0),
        (false, Some(Ok(1_700)), 20_000),
        (true, Some(Ok(1_700)), 20_000),
    ] {
        let host = TestHost::default();
        long_history(&host, 60);
        host.script().count = counted.clone();
        host.model("m", overflow())
            .model(SUMMARISER, vec![text("a summary")])
            .model("m", vec![text("ok"), end()]);
        let mut context = context("hi", &json!({"context-window-tokens": window}));
        if tools {
            let described = json!({"type": "object", "title": "a long description ".repeat(700)});
            context.resources.tools[0].parameters = serde_json::from_value(described).unwrap();
        }
        let results = run(&host, context).await;
        let case = (tools, counted, window);
        assert_eq!(ending(&results), ("run.completed", None), "{case:?}");
        let requests = sent(&host);
        let size = |index: usize| estimate::messages(&requests[index].messages);
        let (first, second) = (size(0), size(1));
        assert!(second < first * 3 / 4 + 1, "{case:?}: {first} {second}");
    }
}

#[tokio::test]
async fn fails_run_on_second_or_irreducible_overflow() {
    let host = TestHost::default();
    long_history(&host, 60);
    host.model("m", overflow())
        .model(SUMMARISER, vec![text("a summary")])
        .model("m", overflow());
    let results = run(
        &host,
        context("hi", &json!({"context-window-tokens": 8000})),
    )
    .await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.llm_error")));
    assert_eq!(sent(&host).len(), 2);
}

#[tokio::test]
async fn sends_full_context_without_budget() {
    let host = TestHost::default();
    long_history(&host, 40);
    host.model("m", vec![text("ok"), end()]);
    run(&host, context("hi", &json!({"context-window-tokens": 0}))).await;
    assert_eq!(sent(&host)[0].messages.len(), 41);
    assert_eq!(host.calls("count_tokens").len(), 0);
}

#[tokio::test]
async fn skips_token_count_far_below_budget() {
    let host = TestHost::default();
    long_history(&host, 10);
    host.model("m", vec![text("ok"), end()]);
    run(&host, context("hi", &json!({}))).await;
    assert_eq!(host.calls("count_tokens").len(), 0);
}

/// Turn `turn` of a long conversation on one host.
async fn turn(host: &TestHost, turn: i64, window: AgentRunContext) {
    let question = format!("question {turn} {}", "about this and that ".repeat(20));
    let mut context = window;
    context.input = serde_json::from_value(json!({"text": question})).unwrap();
    context.event.event_id = format!("e-{}", 2 * turn - 1);
    let results = run(host, context).await;
    assert_eq!(ending(&results).0, "run.completed", "turn {turn}");
    let mut script = host.script();
    let seq = 2 * turn;
    script.history.push(item(seq - 1, "user", &question));
    let reference = if turn == 5 {
        "Kept as order-7731-ab12-x9 in /vault/ada."
    } else {
        ""
    };
    let answer = format!(
        "{reference} answer {turn} {}",
        "with many details ".repeat(20)
    );
    script.history.push(item(seq, "assistant", &answer));
}

#[tokio::test]
async fn bounds_context_over_three_hundred_turns() {
    let host = TestHost::default();
    let metadata = json!({"model_context_window_tokens": 16_000, "model_max_output_tokens": 4_000});
    for n in 1..=300 {
        let mut window = context("", &json!({}));
        window.runtime.metadata = metadata.as_object().unwrap().clone();
        // Summariser that drops everything.
        host.script()
            .models
            .insert(SUMMARISER.to_owned(), [vec![text("(none)"), end()]].into());
        host.script()
            .models
            .insert("m".to_owned(), [vec![text("ok"), end()]].into());
        turn(&host, n, window).await;
    }
    let requests = host.script().requests.clone();
    let summaries = requests
        .iter()
        .filter(|request| is_summary(request))
        .count();
    assert!(
        (1..15).contains(&summaries),
        "{summaries} summaries in 300 turns"
    );
    for request in &requests {
        assert!(estimate::messages(&request.messages) <= 12_000);
    }
    let last = requests.last().unwrap();
    let last: String = last
        .messages
        .iter()
        .map(protocol::message::Message::plain_text)
        .collect();
    assert!(
        last.contains("order-7731-ab12-x9"),
        "the reference of turn 5 is still there"
    );
    let pages = host.calls("history").len();
    assert!(pages < 900, "{pages} pages: the checkpoint is used");
}
