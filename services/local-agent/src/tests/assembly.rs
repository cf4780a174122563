//! First model request of a run.

use protocol::context::AgentRunContext;
use protocol::history::TranscriptItem;
use protocol::message::Message;
use serde_json::{Value, json};

use crate::context::checkpoint::KEY as CHECKPOINT;
use crate::testing::{TestHost, answer, context, end, ending, item, run, text};

/// Host whose model answers "ok" once.
fn host() -> TestHost {
    let host = TestHost::default();
    host.model("m", vec![text("ok"), end()]);
    host
}

/// Roles and texts of the only request.
async fn request_of(host: &TestHost, context: AgentRunContext) -> Vec<(String, String)> {
    let results = run(host, context).await;
    assert_eq!(ending(&results).0, "run.completed", "{results:?}");
    let messages = host.request(0).into_iter();
    messages
        .map(|message| (message.role.clone(), message.plain_text()))
        .collect()
}

fn message(role: &str, text: &str) -> (String, String) {
    (role.to_owned(), text.to_owned())
}

fn prompt(text: &str) -> Value {
    json!({"prompt": [{"role": "system", "content": text}]})
}

#[tokio::test]
async fn orders_prompt_history_and_input() {
    let host = host();
    host.script().history = vec![
        item(1, "user", "I am Ada"),
        item(2, "assistant", "Hello Ada"),
        {
            let mut own = item(3, "user", "who am I?");
            own.event_id = "m-1001".to_owned();
            own
        },
    ];
    let request = request_of(&host, context("who am I?", &prompt("Be brief."))).await;
    let expected = [
        message("system", "Be brief."),
        message("user", "I am Ada"),
        message("assistant", "Hello Ada"),
        message("user", "who am I?"),
    ];
    assert_eq!(request, expected);
}

/// History item of the current event's own message.
fn own(seq: i64, text: &str) -> TranscriptItem {
    TranscriptItem {
        event_id: "m-1001".to_owned(),
        ..item(seq, "user", text)
    }
}

#[tokio::test]
async fn excludes_messages_after_current_event() {
    let host = host();
    let history = vec![
        item(1, "user", "I am Ada"),
        own(2, "hi"),
        item(3, "user", "waits for a run of its own"),
        item(4, "assistant", "Hello Ada"),
    ];
    host.script().history = history;
    let request_with_history = request_of(&host, context("hi", &prompt("p"))).await;
    let before = [
        message("user", "I am Ada"),
        message("assistant", "Hello Ada"),
        message("user", "hi"),
    ];
    assert_eq!(request_with_history[1..], before);

    // The history contains the current message; the request does not repeat it.
    let host = super::assembly::host();
    let mut history = vec![item(1, "user", "I am Ada"), item(3, "user", "later")];
    history.push(item(4, "assistant", "Hello Ada"));
    host.script().history = history;
    let mut late_context = context("hi", &prompt("p"));
    late_context.context.transcript_seq = Some(1);
    assert_eq!(request_of(&host, late_context).await[1..], before);
}

#[tokio::test]
async fn includes_joined_events_once() {
    let host = host();
    let context = context("hi", &prompt("p"));
    let joined = TranscriptItem {
        run_id: Some(context.run_id.clone()),
        ..item(3, "user", "and quickly")
    };
    host.script().history = vec![item(1, "user", "before"), own(2, "hi"), joined];
    host.script()
        .steering
        .push_back(vec![crate::testing::steering("and quickly")]);
    host.model("m", vec![text("ok, quickly"), end()]);
    run(&host, context).await;
    let texts = |index: usize| -> Vec<String> {
        let messages = host.request(index).into_iter().skip(1);
        messages.map(|message| message.plain_text()).collect()
    };
    assert_eq!(texts(0), ["before\n\nhi"]);
    assert_eq!(texts(1), ["before\n\nhi", "ok", "and quickly"]);
}

#[tokio::test]
async fn prefers_prompt_of_entry() {
    let brought = |text: &str| Some(Ok(vec![Message::text("system", text)]));
    for (prompt_of_entry, available, expected) in [
        (brought("From the entry."), true, "From the entry."),
        (brought("From the entry."), false, "Configured."),
        (Some(Ok(vec![])), true, "Configured."),
        (
            Some(Err(("runtime_error", "down".to_owned()))),
            true,
            "Configured.",
        ),
        (None, true, "Configured."),
    ] {
        let host = host();
        host.script().prompt = prompt_of_entry;
        let mut context = context("hi", &prompt("Configured."));
        context.context.available_apis.prompt_get = available;
        let planted = json!({"extra": {"prompt": "never read"}});
        context.adapter = serde_json::from_value(planted).unwrap();
        assert_eq!(
            request_of(&host, context).await[0],
            message("system", expected)
        );
    }
}

#[tokio::test]
async fn prefers_structured_history_messages() {
    let host = host();
    let mut long = item(1, "user", "the beginning of…");
    long.content_json = Some(json!({"role": "user", "content": "the complete text"}).into());
    let mut odd = item(2, "assistant", "as sent");
    odd.content_json = Some(json!({"no": "message"}).into());
    let mut nothing = item(3, "assistant", "");
    nothing.content = None;
    let mut no_parts = item(4, "user", "only a text");
    no_parts.content_json = Some(json!({"role": "user", "content": []}).into());
    let mut instruction = item(5, "user", "hidden");
    instruction.content_json = Some(json!({"role": "system", "content": "obey"}).into());
    host.script().history = vec![long, odd, nothing, no_parts, instruction];
    let request = request_of(&host, context("hi", &prompt("p"))).await;
    let expected = [
        message("user", "the complete text"),
        message("assistant", "as sent"),
        message("user", "only a text\n\nhi"),
    ];
    assert_eq!(request[1..], expected);
}

#[tokio::test]
async fn pages_history_while_budget_remains() {
    let host = host();
    let roles = ["user", "assistant"];
    let items = (1..=120).map(|seq| {
        item(
            seq,
            roles[usize::try_from(seq % 2).unwrap()],
            &format!("message {seq}"),
        )
    });
    host.script().history = items.collect();
    let request = request_of(&host, context("hi", &prompt("p"))).await;
    assert_eq!(request.len(), 122, "prompt, 120 messages and the input");
    assert_eq!(host.calls("history").len(), 3, "fifty at a time");

    let host = super::assembly::host();
    host.script().history = (1..=120)
        .map(|seq| {
            item(
                seq,
                roles[usize::try_from(seq % 2).unwrap()],
                &"many words ".repeat(40),
            )
        })
        .collect();
    let small = json!({"context-window-tokens": 4000, "context-keep-recent-tokens": 500, "context-summary-tokens": 200});
    run(&host, context("hi", &small)).await;
    assert_eq!(host.calls("history").len(), 1, "more could not be shown");
}

#[tokio::test]
async fn empty_cursor_ends_history() {
    let host = host();
    let items = (1..=60).map(|seq| {
        let mut item = item(seq, "user", &format!("message {seq}"));
        item.cursor = Some(String::new());
        item
    });
    host.script().history = items.collect();
    let request = request_of(&host, context("hi", &prompt("p"))).await;
    assert_eq!(host.calls("history").len(), 1);
    assert_eq!(request.len(), 2, "one page, once: {request:?}");
    assert!(request[1].1.starts_with("message 11\n"), "{}", request[1].1);
}

#[tokio::test]
async fn skips_history_without_grant_or_conversation() {
    let mut no_right = context("hi", &json!({}));
    no_right.context.available_apis.history_page = false;
    let mut no_conversation = context("hi", &json!({}));
    no_conversation.context.conversation_id = None;
    for context in [no_right, no_conversation] {
        let host = host();
        host.script().history = vec![item(1, "user", "before")];
        run(&host, context).await;
        assert_eq!(host.calls("history").len(), 0);
    }
}

#[tokio::test]
async fn fails_run_on_unreadable_history() {
    let host = host();
    host.script().history_fails = true;
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.error")));
}

#[tokio::test]
async fn shrinks_history_pages_and_stops_at_oversized_items() {
    let items = |lengths: &[usize]| -> Vec<_> {
        let lengths = (1..).zip(lengths);
        let items = lengths.map(|(seq, length)| item(seq, "user", &"x".repeat(*length)));
        items.collect()
    };
    for (lengths, expected) in [
        (&[300; 20][..], &[300; 20][..]),
        (&[300, 2_000, 300, 200][..], &[300, 200][..]),
        (&[300, 2_000][..], &[][..]),
    ] {
        for with_checkpoint in [false, true] {
            let host = host();
            host.script().history = items(lengths);
            host.script().max_history_bytes = Some(1_000);
            if with_checkpoint {
                let mut checkpoint = checkpoint("c-7");
                checkpoint["covers_until"] = json!("0");
                let stored = (CHECKPOINT.to_owned(), checkpoint);
                host.script().state.extend([stored]);
            }
            let request = request_of(&host, context("hi", &json!({}))).await;
            let lengths_read = request.iter().flat_map(|(_, text)| text.split("\n\n"));
            let lengths_read = lengths_read.filter(|text| text.starts_with('x'));
            let lengths_read: Vec<_> = lengths_read.map(str::len).collect();
            assert_eq!(lengths_read, expected, "{lengths:?} {with_checkpoint}");
        }
    }
}

fn checkpoint(conversation: &str) -> Value {
    json!({
        "schema_version": "langbot.local_agent.compaction_checkpoint.v1",
        "summary": "<conversation_summary>\nv=1 source=llm count=2\nAda likes tea.\n</conversation_summary>",
        "covers_until": "2", "tokens_before": 900, "created_at": 1, "conversation_id": conversation,
    })
}

#[tokio::test]
async fn skips_history_covered_by_checkpoint() {
    let host = host();
    host.script()
        .state
        .insert(CHECKPOINT.to_owned(), checkpoint("c-7"));
    host.script().history = (1..=4)
        .map(|seq| item(seq, "user", &format!("message {seq}")))
        .collect();
    let request = request_of(&host, context("hi", &prompt("p"))).await;
    assert!(request[0].1.starts_with("p\n\n") && request[0].1.contains("Ada likes tea."));
    assert_eq!(
        request[1..],
        [message("user", "message 3\n\nmessage 4\n\nhi")]
    );
    assert_eq!(host.calls("history"), ["history Some(\"2\") None"]);
}

#[tokio::test]
async fn ignores_foreign_checkpoints() {
    let mut other_schema = checkpoint("c-7");
    other_schema["schema_version"] = json!("v0");
    let mut empty = checkpoint("c-7");
    empty["summary"] = json!("");
    for stored in [checkpoint("c-8"), other_schema, empty, json!("text")] {
        let host = host();
        host.script().state.insert(CHECKPOINT.to_owned(), stored);
        host.script().history = vec![item(1, "user", "message 1")];
        let request = request_of(&host, context("hi", &prompt("p"))).await;
        assert_eq!(request[1], message("user", "message 1\n\nhi"));
    }
    let host = host();
    host.script()
        .state
        .insert(CHECKPOINT.to_owned(), checkpoint("c-7"));
    let mut no_state = context("hi", &prompt("p"));
    no_state.context.available_apis.state = false;
    run(&host, no_state).await;
    assert_eq!(host.calls("state_get").len(), 0);
}

#[tokio::test]
async fn adds_retrieved_passages_to_user_message() {
    let host = host();
    let passages = vec![
        json!([{"type": "text", "text": "Tea is"}, {"type": "text", "text": "\"hot\""}]),
        json!([{"type": "text", "text": " "}]),
    ];
    host.script()
        .passages
        .insert("docs".to_owned(), Ok(passages));
    host.script()
        .passages
        .insert("faq".to_owned(), Err(("unauthorized", "no".to_owned())));
    let request = request_of(
        &host,
        context("tea?", &json!({"knowledge-bases": ["faq", "docs"]})),
    )
    .await;
    let (role, text) = request.last().unwrap();
    let (data, words) = text.split_once("\n\n").unwrap();
    assert_eq!((role.as_str(), words), ("user", "tea?"));
    assert!(
        !request[..request.len() - 1]
            .iter()
            .any(|(_, text)| text.contains("Tea"))
    );
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["trust"], "untrusted_reference_data");
    assert_eq!(
        data["data"]["chunks"],
        json!([{"index": 1, "content": "Tea is \"hot\""}])
    );
    assert!(!data.to_string().contains("row 7"));
}

#[tokio::test]
async fn skips_slow_knowledge_bases() {
    let host = host();
    let slow = ("deadline_exceeded/upstream_timeout", "too slow".to_owned());
    host.script().passages.insert("faq".to_owned(), Err(slow));
    let passages = vec![json!([{"type": "text", "text": "Tea is hot"}])];
    host.script()
        .passages
        .insert("docs".to_owned(), Ok(passages));
    let bases = json!({"knowledge-bases": ["faq", "docs"]});
    let request = request_of(&host, context("tea?", &bases)).await;
    assert!(
        request.last().unwrap().1.contains("Tea is hot"),
        "{request:?}"
    );
}

#[tokio::test]
async fn reranks_and_truncates_passages() {
    let passages = |from: usize| {
        let texts = (from..from + 4).map(|n| json!([{"type": "text", "text": format!("p{n}")}]));
        Ok(texts.collect::<Vec<_>>())
    };
    let rerank = |top_k: u64| json!({"rerank-model": "n", "rerank-top-k": top_k});
    for (config, ranking, expected) in [
        (
            json!({"retrieval-top-k": 5}),
            None,
            vec!["p0", "p1", "p2", "p3", "p4"],
        ),
        (rerank(2), Some(Ok(vec![5, 5, 99, 1, 0])), vec!["p5", "p1"]),
        (rerank(3), Some(Ok(vec![])), vec!["p0", "p1", "p2"]),
        (
            rerank(3),
            Some(Err(("runtime_error", "down".to_owned()))),
            vec!["p0", "p1", "p2"],
        ),
    ] {
        let host = host();
        host.script()
            .passages
            .insert("docs".to_owned(), passages(0));
        host.script().passages.insert("faq".to_owned(), passages(4));
        host.script().ranking = ranking;
        let mut context = context("hi", &json!({"knowledge-bases": ["docs", "faq"]}));
        context.config.extend(config.as_object().unwrap().clone());
        let request = request_of(&host, context).await;
        let (data, _) = request.last().unwrap().1.split_once("\n\n").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        let shown: Vec<_> = data["data"]["chunks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|chunk| chunk["content"].as_str().unwrap())
            .collect();
        assert_eq!(shown, expected);
    }
}

#[tokio::test]
async fn queries_knowledge_only_with_text_and_grant() {
    let host = host();
    run(&host, context("", &json!({"knowledge-bases": ["docs"]}))).await;
    assert_eq!(host.calls("retrieve").len(), 0);
    let host = super::assembly::host();
    run(&host, context("hi", &json!({"knowledge-bases": ["other"]}))).await;
    assert_eq!(host.calls("retrieve").len(), 0);
    let host = super::assembly::host();
    run(
        &host,
        context(
            "hi",
            &json!({"knowledge-bases": ["docs"], "retrieval-top-k": 3}),
        ),
    )
    .await;
    assert_eq!(host.calls("retrieve"), ["retrieve docs Some(3)"]);
}

#[tokio::test]
async fn lists_skills_with_activation_hint() {
    let host = host();
    let mut context = context("hi", &json!({}));
    let skills = json!([{"skill_name": "a<b", "description": "line\nbreak & more"}, {"skill_name": "plain"}]);
    context.resources.skills = serde_json::from_value(skills).unwrap();
    let request = request_of(&host, context).await;
    let index = request
        .iter()
        .find(|(_, text)| text.contains("<available_skills>"))
        .unwrap();
    assert_eq!(index.0, "system");
    assert!(index.1.contains("activate"));
    assert!(index.1.contains("<name>a&lt;b</name>"));
    assert!(index.1.contains("line break &amp; more"));
}

#[tokio::test]
async fn joins_instructions_into_one_system_message() {
    let host = host();
    let stored = (CHECKPOINT.to_owned(), checkpoint("c-7"));
    host.script().state.extend([stored]);
    let mut context = context("hi", &prompt("Be brief."));
    context
        .config
        .insert("date-grounding".to_owned(), json!(true));
    let skills = json!([{"skill_name": "pdf"}]);
    context.resources.skills = serde_json::from_value(skills).unwrap();
    let request = request_of(&host, context).await;
    let roles: Vec<_> = request.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["system", "user"]);
    for part in [
        "Be brief.",
        "Today is ",
        "(UTC)",
        "<name>pdf</name>",
        "Ada likes tea.",
    ] {
        assert!(request[0].1.contains(part), "{part} in {}", request[0].1);
    }
}

#[tokio::test]
async fn omits_thinking_of_earlier_answers() {
    let host = host();
    let mut called = item(2, "assistant", "");
    called.content_json = Some(
        json!({"role": "assistant", "content": "<think>\nT1\n</think>\nHello\n\n<thinking>T2</thinking> Ada",
        "provider_specific_fields": {"model": "m", "reasoning_content": "T3"}})
        .into(),
    );
    let only_reasoning = item(4, "assistant", "T4</think>");
    host.script().history = vec![
        item(1, "user", "I am Ada"),
        called,
        item(3, "user", "so?"),
        only_reasoning,
    ];
    run(&host, context("hi", &prompt("p"))).await;
    let sent = serde_json::to_value(host.request(0)).unwrap();
    assert_eq!(sent[2]["content"], "Hello\n\nAda");
    assert_eq!(sent[3]["content"], "so?\n\nhi");
    assert!(
        !["T1", "T2", "T3", "T4"]
            .iter()
            .any(|thought| sent.to_string().contains(thought)),
        "{sent}"
    );
}

#[tokio::test]
async fn joins_input_parts_into_one_user_message() {
    let host = host();
    let mut context = context("what is this?", &json!({}));
    context.input = serde_json::from_value(json!({
        "text": "what is this?",
        "contents": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}],
        "attachments": [{"type": "file", "name": "a.pdf", "path": "/in/a.pdf", "content": "QUJD"}],
    }))
    .unwrap();
    run(&host, context).await;
    let user = serde_json::to_value(host.request(0).pop().unwrap()).unwrap();
    let parts = user["content"].as_array().unwrap();
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[0]["text"], "what is this?");
    assert_eq!(parts[1]["type"], "image_url");
    let files: Value = serde_json::from_str(parts[2]["text"].as_str().unwrap()).unwrap();
    assert_eq!(files["attachments"][0]["path"], "/in/a.pdf");
    assert!(!files.to_string().contains("QUJD"), "bytes are no words");
}

#[tokio::test]
async fn shows_newest_pictures_of_the_conversation_again() {
    let config = json!({"context-history-pictures": 2, "context-history-picture-bytes": 100_000});
    for (config, sizes, shown) in [
        (&config, [10, 10, 10], ["", "b", "c"]),
        (&config, [10, 90_000, 20_000], ["", "", "c"]),
        (&config, [10, 10, 100_001], ["", "", ""]),
        (
            &json!({"context-history-pictures": 0}),
            [10, 10, 10],
            ["", "", ""],
        ),
        (&json!({}), [10, 10, 10], ["a", "b", "c"]),
    ] {
        let host = host();
        for ((seq, id), size) in (1..).zip(["a", "b", "c"]).zip(sizes) {
            let url = format!("artifact:{id}");
            let mut item = item(seq, "user", "");
            let picture = json!({"type": "image_url", "image_url": {"url": url}});
            item.content_json = Some(json!({"role": "user", "content": [picture]}).into());
            let attachment = json!({"url": url, "name": format!("{id}.png"), "size": size});
            item.attachment_refs = vec![attachment.into()];
            host.script().history.push(item);
        }
        run(&host, context("what is on it?", config)).await;
        let sent = serde_json::to_string(&host.request(0)).unwrap();
        for (id, shown) in ["a", "b", "c"].into_iter().zip(shown) {
            let note = format!("[picture {id}.png of 1970-01-01 00:00 UTC: not shown]");
            assert_eq!(
                sent.contains(&format!("artifact:{id}")),
                !shown.is_empty(),
                "{sent}"
            );
            assert_eq!(sent.contains(&note), shown.is_empty(), "{sent}");
        }
    }
}

#[tokio::test]
async fn shows_current_pictures_that_it_may_read() {
    for (may_read, inline, expected) in [
        (
            true,
            false,
            json!({"type": "image_url", "image_url": {"url": "artifact:one"}}),
        ),
        (
            false,
            false,
            json!({"type": "text", "text": "[picture artifact:one: not shown]"}),
        ),
        (
            false,
            true,
            json!({"type": "image_base64", "image_base64": "AAAA"}),
        ),
    ] {
        let host = host();
        let mut picture = json!({"type": "image_url", "image_url": {"url": "artifact:one"}});
        if inline {
            picture["type"] = "image_base64".into();
            picture["image_base64"] = "AAAA".into();
        }
        let mut context = context("see", &json!({}));
        context.context.available_apis.artifact_read = may_read;
        context.input.contents = serde_json::from_value(json!([picture])).unwrap();
        run(&host, context).await;
        let sent = serde_json::to_value(host.request(0)).unwrap();
        let text = json!({"type": "text", "text": "see"});
        let expected = json!([text, expected]);
        assert_eq!(sent[0]["content"], expected, "{sent}");
    }
}

#[tokio::test]
async fn isolates_concurrent_runs() {
    let answers = (0..20).map(|n| async move {
        let host = TestHost::default();
        host.model("m", vec![text(&format!("answer {n}")), end()]);
        let results = run(&host, context(&format!("question {n}"), &json!({}))).await;
        assert!(
            host.request(0)
                .last()
                .unwrap()
                .plain_text()
                .contains(&format!("question {n}"))
        );
        answer(&results)
    });
    let answers = futures_util::future::join_all(answers).await;
    assert_eq!(answers[7], "answer 7");
}
