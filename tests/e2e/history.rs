//! Transcripts: pages in both directions, and full-text search.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

const BOTH: &str = r#"history = ["page", "search"]"#;

/// A gateway whose runner requests these operations and whose agent grants `resources`.
async fn stage(engine: Engine, wanted: &Value, resources: &'static str) -> Option<OwnStage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({ "history": wanted });
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources = resources;
    })
    .await
}

async fn open_stage(engine: Engine) -> Option<OwnStage> {
    stage(engine, &json!(["page", "search"]), BOTH).await
}

fn saying(event_id: &str, text: &str) -> Value {
    let mut event = message(event_id);
    event["input"] = json!({ "text": text });
    event
}

/// Posts a message and waits until the answer is in the transcript.
async fn say(stage: &Stage, event: &Value) {
    let run_id = stage.client.post(event).await.run_id();
    stage.client.finished(&run_id).await;
}

async fn search(run: &HeldRun, body: &Value) -> Value {
    let answer = run.call("/history/search", body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.body
}

fn members<'a>(page: &'a Value, name: &str) -> Vec<&'a Value> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| &item[name]).collect()
}

fn seqs(page: &Value) -> Vec<i64> {
    let seqs = members(page, "seq");
    seqs.iter().map(|seq| seq.as_i64().unwrap()).collect()
}

// --- search ---

#[rstest]
#[tokio::test]
async fn search_finds_words_of_own_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(open_stage(engine).await);
    for (event_id, text) in [
        ("m-1", "今天天气不错，我们去公园"),
        ("m-2", "東京タワーの高さは？"),
        ("m-3", "Hello big World, ＡＰＩ v2"),
        ("m-4", "학교에서 Café 👍🏽"),
    ] {
        say(&stage, &saying(event_id, text)).await;
        // The same words in other conversations, one of them a thread of this one.
        let mut elsewhere = saying(&format!("{event_id}-b"), text);
        elsewhere["conversation"]["conversation_id"] = json!("c-8");
        say(&stage, &elsewhere).await;
        let mut threaded = saying(&format!("{event_id}-c"), text);
        threaded["conversation"]["thread_id"] = json!("t-1");
        say(&stage, &threaded).await;
    }
    let run = HeldRun::start(&stage, &saying("m-5", "what was it?")).await;
    let apis = &run.run_request["context"]["context"]["available_apis"];
    assert_members!(apis, {"history_page": true, "history_search": true});
    for (query, expected) in [
        ("天气", &["m-1"][..]),
        ("气", &["m-1"]),
        ("公园 天气", &["m-1"]),
        ("天我", &[]),
        ("ﾀﾜｰ", &["m-2"]),
        ("東京", &["m-2"]),
        ("hello WORLD", &["m-3"]),
        ("\"big world\"", &["m-3"]),
        ("\"world big\"", &[]),
        ("api", &["m-3"]),
        ("학교", &["m-4"]),
        ("cafe", &["m-4"]),
        ("👍", &["m-4"]),
        ("nowhere", &[]),
        ("!?", &[]),
        // The stub's answers.
        ("1", &["m-4", "m-3", "m-2", "m-1"]),
    ] {
        let found = search(&run, &json!({ "query": query })).await;
        assert_eq!(members(&found, "event_id"), expected, "{query}");
        assert_eq!(found["query"], query);
        assert_eq!(found["total_count"], expected.len());
    }
    let item = search(&run, &json!({"query": "天气"})).await["items"][0].take();
    assert_eq!(item["content"], "今天天气不错，我们去公园");
    assert_eq!(
        json!([item["role"], item["conversation_id"], item["thread_id"]]),
        json!(["user", "c-7", null])
    );
    // The cursor of a search result is valid for pages, too.
    let cursor = item["cursor"].as_str().unwrap();
    let path = format!("/history?direction=forward&limit=1&after_cursor={cursor}");
    assert_eq!(seqs(&run.get(&path).await.body), [2]);
    run.end(&stage).await;
}

#[tokio::test]
async fn search_applies_filters_and_continues_by_cursor() {
    let stage = open_stage(Sqlite).await.unwrap();
    for number in 0..5 {
        say(&stage, &saying(&format!("m-{number}"), "chapter 1")).await;
    }
    let run = HeldRun::start(&stage, &saying("m-5", "what was it?")).await;
    let all = search(&run, &json!({"query": "1"})).await;
    assert_eq!(seqs(&all), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    for (body, expected) in [
        (json!({"query": "1", "top_k": 2}), &[10, 9][..]),
        (
            json!({"query": "1", "top_k": null, "filters": null}),
            &seqs(&all),
        ),
        (
            json!({"query": "1", "filters": {"roles": ["user"]}}),
            &[9, 7, 5, 3, 1],
        ),
        (
            json!({"query": "1", "filters": {"roles": ["assistant"]}, "top_k": 2}),
            &[10, 8],
        ),
        (json!({"query": "1", "filters": {"roles": ["system"]}}), &[]),
        (
            json!({"query": "1", "filters": {"item_types": ["message"]}, "top_k": 1}),
            &[10],
        ),
        (
            json!({"query": "1", "filters": {"item_types": ["tool"]}}),
            &[],
        ),
    ] {
        assert_eq!(seqs(&search(&run, &body).await), expected, "{body}");
    }
    let cursor = |seq: usize| all["items"][10 - seq]["cursor"].clone();
    let filters = json!({"before_cursor": cursor(8), "after_cursor": cursor(3)});
    let between = search(&run, &json!({"query": "1", "filters": filters})).await;
    assert_eq!(seqs(&between), [7, 6, 5, 4]);

    // Clients with an API key find the same items.
    let path = "/v1/conversations/c-7/history/search";
    for (query, expected) in [
        ("query=1&top_k=3".to_owned(), &[10, 9, 8][..]),
        (
            "query=chapter%201&roles=user,system&top_k=1".to_owned(),
            &[9],
        ),
        (
            "query=1&roles=assistant&item_types=message&top_k=2".to_owned(),
            &[10, 8],
        ),
        (
            format!("query=1&before_cursor={}", cursor(3).as_str().unwrap()),
            &[2, 1],
        ),
        ("query=1&thread_id=t-1".to_owned(), &[]),
        ("query=1&bot_id=b-1".to_owned(), &[]),
    ] {
        let found = stage.client.get(&format!("{path}?{query}")).await;
        assert_eq!(found.status, 200, "{query}: {}", found.body);
        assert_eq!(seqs(&found.body), expected, "{query}");
    }
    let nowhere = "/v1/conversations/never/history/search?query=1";
    assert_eq!(stage.client.get(nowhere).await.body["total_count"], 0);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn search_accepts_any_query_text(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(open_stage(engine).await);
    let run = HeldRun::start(&stage, &saying("m-1", "hello OR near")).await;
    for (query, status) in [
        ("hello OR", 200),
        ("NEAR(hello near, 5)", 200),
        ("hello AND NOT ) (", 200),
        ("terms:hello* ^hello", 200),
        ("'; DROP TABLE runs; --", 200),
        ("' | 'a' & !b <-> c:*", 200),
        ("\"unbalanced", 200),
        ("\"\"\"\"", 200),
        ("\\ \u{202e} % _ \u{7f}", 200),
        ("👍🏽❤️🇨🇳", 200),
        ("", 400),
        (" \u{3000} ", 400),
        (&"x".repeat(10_000), 400),
        (&"天".repeat(10_000), 400),
        (&"👍".repeat(999), 400),
        (&"a ".repeat(400), 400),
    ] {
        let answer = run
            .call("/history/search", &json!({ "query": query }))
            .await;
        let short: String = query.chars().take(30).collect();
        assert_eq!(answer.status, status, "{short}: {}", answer.body);
        if status == 400 {
            assert_eq!(answer.detail("pointer"), "/query", "{short}");
        }
    }
    let found = search(&run, &json!({"query": "hello OR"})).await;
    assert_eq!(found["total_count"], 1, "operators are words");
    for (body, pointer) in [
        (json!({}), "/query"),
        (json!({"query": 1}), "/query"),
        (json!({"query": "a", "top_k": 0}), "/top_k"),
        (json!({"query": "a", "top_k": 101}), "/top_k"),
        (json!({"query": "a", "limit": 5}), "/limit"),
        (
            json!({"query": "a", "filters": {"role": ["user"]}}),
            "/filters/role",
        ),
        (
            json!({"query": "a", "filters": {"roles": "user"}}),
            "/filters/roles",
        ),
    ] {
        let answer = run.call("/history/search", &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert_eq!(answer.error("code"), "invalid_argument");
        assert_eq!(answer.detail("pointer"), pointer, "{body}");
    }
    let path = "/v1/conversations/c-7/history/search";
    for (query, pointer) in [
        ("", "/query"),
        ("query=a&top_k=0", "/top_k"),
        ("query=a&roles=user,a%20b", "/roles/1"),
    ] {
        let answer = stage.client.get(&format!("{path}?{query}")).await;
        assert_eq!(
            (answer.status, answer.detail("pointer")),
            (400, &json!(pointer))
        );
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn search_reads_no_other_conversation() {
    let stage = open_stage(Sqlite).await.unwrap();
    let mut elsewhere = saying("m-0", "secret plan");
    elsewhere["conversation"]["conversation_id"] = json!("c-8");
    say(&stage, &elsewhere).await;
    let foreign = stage.client.get("/v1/conversations/c-8/history").await.body;
    let foreign = foreign["items"][0]["cursor"].as_str().unwrap().to_owned();
    let run = HeldRun::start(&stage, &saying("m-1", "public plan")).await;
    let own = search(&run, &json!({"query": "plan"})).await;
    assert_eq!(members(&own, "event_id"), ["m-1"]);
    let cursor = own["items"][0]["cursor"].as_str().unwrap();
    let malformed = format!("{}A", &cursor[..cursor.len() - 1]);
    let malformed = if malformed == cursor {
        malformed.replace('A', "B")
    } else {
        malformed
    };
    for (cursor, status) in [
        (cursor, 200),
        (foreign.as_str(), 400),
        (malformed.as_str(), 400),
        ("7", 400),
        ("", 400),
    ] {
        for name in ["before_cursor", "after_cursor"] {
            let body = json!({"query": "plan", "filters": {name: cursor}});
            let answer = run.call("/history/search", &body).await;
            assert_eq!(answer.status, status, "{name} {cursor}: {}", answer.body);
        }
    }
    let named = json!({"query": "plan", "conversation_id": "c-8"});
    run.call("/history/search", &named).await.expect(403);
    let with_key = stage
        .client
        .request(Method::POST, "/host/v1/history/search");
    let refused = send(with_key.json(&json!({"query": "plan"})))
        .await
        .unwrap();
    assert_eq!(refused.status, 401);
    let path = "/v1/conversations/c-7/history/search?query=plan";
    let with_token = Client::new(&stage.client.url, &run.token).get(path).await;
    assert_eq!(with_token.status, 401);
    run.end(&stage).await;
}

#[rstest]
#[case(json!(["page"]), BOTH, "manifest", 403)]
#[case(json!(["page", "search"]), r#"history = ["page"]"#, "agent_policy", 403)]
#[case(json!(["page", "search"]), "history = []", "agent_policy", 403)]
#[case(json!(["page", "search"]), BOTH, "event_scope", 200)]
#[tokio::test]
async fn search_requires_every_layer_and_is_audited(
    #[case] wanted: Value,
    #[case] allowed: &'static str,
    #[case] layer: &str,
    #[case] opened: u16,
) {
    let stage = stage(Sqlite, &wanted, allowed).await.unwrap();
    let run = HeldRun::start(&stage, &saying("m-1", "hello")).await;
    let apis = &run.run_request["context"]["context"]["available_apis"];
    assert_eq!(apis["history_search"], opened == 200);
    let body = json!({"query": "hello"});
    let answer = run.call("/history/search", &body).await;
    assert_eq!(answer.status, opened, "{}", answer.body);
    if opened == 403 {
        assert_eq!(answer.error("code"), "unauthorized");
        assert_eq!(answer.detail("operation"), "history:search");
        assert_eq!(layer_of(&stage, &run).await, layer);
    }
    // The row is committed before the end of its run.
    run.end(&stage).await;
    assert_eq!(
        searches(&stage, &run).await,
        [if opened == 200 { "allow" } else { "deny" }]
    );

    // A run without a conversation has no history, whatever its grants.
    let mut alone = saying("m-2", "hello");
    alone.as_object_mut().unwrap().remove("conversation");
    let run = HeldRun::start(&stage, &alone).await;
    let apis = &run.run_request["context"]["context"]["available_apis"];
    assert_eq!(apis["history_search"], false);
    let answer = run.call("/history/search", &body).await;
    assert_eq!(answer.status, opened, "{}", answer.body);
    if opened == 200 {
        assert_eq!(
            answer.body,
            json!({"items": [], "total_count": 0, "query": "hello"})
        );
        let page = run.get("/history").await.body;
        let empty =
            json!({"items": [], "next_cursor": null, "prev_cursor": null, "has_more": false});
        assert_eq!(page, empty);
        assert_eq!(run.get("/history?conversation_id=c-7").await.status, 403);
    }
    assert_eq!(layer_of(&stage, &run).await, layer);
    run.end(&stage).await;
}

/// The layer that decided about a run's search.
async fn layer_of(stage: &Stage, run: &HeldRun) -> String {
    let path = format!("/v1/runs/{}/authorization", run.run_id);
    let explained = stage.client.get(&path).await.body;
    let decisions = explained["decisions"].as_array().unwrap();
    let of_search = |one: &&Value| one["kind"] == "history" && one["operation"] == "search";
    let found: Vec<_> = decisions.iter().filter(of_search).collect();
    assert_eq!(found.len(), 1, "{explained}");
    found[0]["layer"].as_str().unwrap().to_owned()
}

/// Audit decisions on the searches of a run.
async fn searches(stage: &Stage, run: &HeldRun) -> Vec<String> {
    let path = format!("/v1/runs/{}/audit?limit=100", run.run_id);
    let audit = stage.client.get(&path).await.body;
    let rows = audit["items"].as_array().unwrap().iter();
    let searches = rows.filter(|row| row["action"] == "history_search");
    let decision = |row: &Value| {
        assert_members!(row, {"resource": "conversation", "operation": "search"});
        row["decision"].as_str().unwrap().to_owned()
    };
    searches.map(decision).collect()
}

// --- pages ---

/// One page with its cursors.
async fn page(run: &HeldRun, query: &str) -> Value {
    let answer = run.get(&format!("/history?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.body);
    answer.body
}

#[rstest]
#[tokio::test]
async fn paging_both_ways_is_stable_during_inserts(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(open_stage(engine).await);
    for number in 0..4 {
        say(&stage, &saying(&format!("m-{number}"), "hello")).await;
    }
    let run = HeldRun::start(&stage, &saying("m-4", "hello")).await;
    for (there, there_bound, back, back_bound) in [
        ("backward", "before_cursor", "forward", "after_cursor"),
        ("forward", "after_cursor", "backward", "before_cursor"),
    ] {
        let first_seq = seqs(&page(&run, "limit=1").await)[0];
        let mut seen = Vec::new();
        let mut at = page(&run, &format!("limit=2&direction={there}")).await;
        seen.extend(seqs(&at));
        say(&stage, &saying(&format!("added-{there}"), "hello")).await;
        while at["has_more"] == true {
            let next = at["next_cursor"].as_str().unwrap();
            at = page(
                &run,
                &format!("limit=2&direction={there}&{there_bound}={next}"),
            )
            .await;
            seen.extend(seqs(&at));
        }
        assert_eq!(at["next_cursor"], Value::Null);
        // The walk includes items added ahead of its cursor, but none added at pages that it has read.
        let mut expected: Vec<i64> = match there {
            "backward" => (1..=first_seq).rev().collect(),
            _ => (1..=first_seq + 2).collect(),
        };
        assert_eq!(seen, expected, "{there}");

        let turned = seqs(&at).len();
        let mut seen = Vec::new();
        let mut cursor = at["prev_cursor"].as_str().unwrap().to_owned();
        loop {
            let at = page(
                &run,
                &format!("limit=3&direction={back}&{back_bound}={cursor}"),
            )
            .await;
            seen.extend(seqs(&at));
            match at["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break assert_eq!(at["has_more"], false),
            }
        }
        expected.truncate(expected.len() - turned);
        expected.reverse();
        if there == "backward" {
            expected.extend([first_seq + 1, first_seq + 2]);
        }
        assert_eq!(seen, expected, "{there} and back");
    }
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn both_cursors_bound_pages_in_both_directions(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(open_stage(engine).await);
    for number in 0..4 {
        say(&stage, &saying(&format!("m-{number}"), "hello")).await;
    }
    let run = HeldRun::start(&stage, &saying("m-4", "hello")).await;
    let all = page(&run, "direction=forward").await;
    let cursor = |seq: usize| all["items"][seq - 1]["cursor"].as_str().unwrap();
    let check = async |query: String, expected: &[i64], next: Option<i64>| {
        let page = page(&run, &query).await;
        assert_eq!(seqs(&page), expected, "{query}");
        assert_eq!(page["has_more"], next.is_some(), "{query}");
        let next = next.and_then(|seq| usize::try_from(seq).ok()).map(cursor);
        assert_eq!(page["next_cursor"].as_str(), next, "{query}");
        let first = expected
            .first()
            .map(|seq| cursor(usize::try_from(*seq).unwrap()));
        assert_eq!(page["prev_cursor"].as_str(), first, "{query}");
        // Clients get the same page with the same parameters.
        let path = format!("/v1/conversations/c-7/history?{query}");
        assert_eq!(stage.client.get(&path).await.body, page, "{query}");
    };
    let from = |after: usize, before: usize| {
        let (after, before) = (cursor(after), cursor(before));
        format!("after_cursor={after}&before_cursor={before}")
    };
    check("limit=2".to_owned(), &[9, 8], Some(8)).await;
    check("limit=2&direction=forward".to_owned(), &[1, 2], Some(2)).await;
    check("limit=9".to_owned(), &[9, 8, 7, 6, 5, 4, 3, 2, 1], None).await;
    for (direction, expected) in [("backward", [6, 5, 4, 3]), ("forward", [3, 4, 5, 6])] {
        let bounds = format!("direction={direction}&{}", from(2, 7));
        check(bounds.clone(), &expected, None).await;
        check(format!("{bounds}&limit=4"), &expected, None).await;
        let (three, third) = (&expected[..3], Some(expected[2]));
        check(format!("{bounds}&limit=3"), three, third).await;
        check(format!("direction={direction}&{}", from(5, 6)), &[], None).await;
        check(format!("direction={direction}&{}", from(7, 2)), &[], None).await;
    }
    let before = format!("before_cursor={}&limit=2", cursor(5));
    check(before.clone(), &[4, 3], Some(3)).await;
    check(format!("{before}&direction=forward"), &[1, 2], Some(2)).await;
    let after = format!("after_cursor={}&limit=2", cursor(5));
    check(after.clone(), &[9, 8], Some(8)).await;
    check(format!("{after}&direction=forward"), &[6, 7], Some(7)).await;
    run.end(&stage).await;
}

#[tokio::test]
async fn items_name_author_and_attachments_without_bytes() {
    let stage = open_stage(Sqlite).await.unwrap();
    let mut event = saying("m-1", "look at this");
    event["actor"] = json!({"actor_type": "user", "actor_id": "u-1", "actor_name": "Ada", "metadata": {"role": "owner"}});
    event["input"] = json!({
        "text": "look at this",
        "contents": [
            {"type": "text", "text": "look at this"},
            {"type": "image_base64", "image_base64": "BYTES-OF-AN-IMAGE"},
        ],
        "attachments": [
            {"type": "image", "id": "a-1", "name": "a.png", "content": "BYTES-OF-A-FILE"},
        ],
    });
    let run = HeldRun::start(&stage, &event).await;
    let client = stage.client.clone();
    let path = "/v1/conversations/c-7/history";
    let mut answers = Vec::new();
    for (query, shown) in [
        ("", 0),
        ("?include_attachments=false", 0),
        ("?include_attachments=true", 1),
    ] {
        for answer in [
            run.get(&format!("/history{query}")).await.body,
            client.get(&format!("{path}{query}")).await.body,
        ] {
            let refs = answer["items"][0]["attachment_refs"].as_array().unwrap();
            assert_eq!(refs.len(), shown, "{query}: {answer}");
            answers.push(answer);
        }
    }
    let found = search(&run, &json!({"query": "look"})).await;
    assert_eq!(found["items"][0]["attachment_refs"][0]["id"], "a-1");
    answers.push(found);
    answers.push(client.get(&format!("{path}/search?query=look")).await.body);
    for answer in answers {
        let item = &answer["items"][0];
        assert_eq!(item["content_json"]["content_redacted"], true, "{answer}");
        let author = json!({"actor_type": "user", "actor_id": "u-1", "actor_name": "Ada"});
        assert_eq!(item["metadata"], json!({"actor": author}));
        assert!(!answer.to_string().contains("BYTES-OF"), "{answer}");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn splits_pages_of_large_messages() {
    let stage = open_stage(Sqlite).await.unwrap();
    let large = "word ".repeat(180_000);
    for number in 0..6 {
        say(&stage, &saying(&format!("m-{number}"), &large)).await;
    }
    let mut seen = Vec::new();
    let mut bound = String::new();
    loop {
        let path = format!("/v1/conversations/c-7/history?limit=100{bound}");
        let page = stage.client.get(&path).await.body;
        let bytes = page.to_string().len();
        assert!(bytes < 4_500_000, "{bytes}");
        seen.extend(seqs(&page));
        match page["next_cursor"].as_str() {
            Some(next) => bound = format!("&before_cursor={next}"),
            None => break,
        }
    }
    assert!(!bound.is_empty(), "all of it came at once");
    assert_eq!(seen, (1..=12).rev().collect::<Vec<_>>());
    let path = "/v1/conversations/c-7/history/search?query=word&top_k=100";
    let found = stage.client.get(path).await.body;
    assert_eq!(seqs(&found), [11, 9, 7, 5], "a search fits its answer, too");
}

/// An ignored cursor under a wrong name would return the first page forever.
#[tokio::test]
async fn lists_reject_unknown_parameters() {
    let stage = Stage::new().await;
    for (list, existing) in [
        ("/v1/interactions", "status=open&limit=1"),
        (
            "/v1/conversations/c-7/history",
            "bot_id=b&thread_id=t&limit=1&direction=forward",
        ),
        (
            "/v1/conversations/c-7/history/search",
            "bot_id=b&thread_id=t&query=a",
        ),
        ("/v1/events", "limit=1"),
        ("/v1/runs", "limit=1"),
    ] {
        let taken = stage.client.get(&format!("{list}?{existing}")).await;
        assert_eq!(taken.status, 200, "{list}: {}", taken.body);
        let refused = stage.client.get(&format!("{list}?{existing}&page=x")).await;
        assert_eq!(
            (refused.status, refused.error("code")),
            (400, &json!("invalid_argument")),
            "{list}"
        );
    }
}

// --- other conversations ---

#[rstest]
#[tokio::test]
async fn other_conversations_need_their_own_grant(#[values(Sqlite, Postgres)] engine: Engine) {
    let wanted = json!(["page", "search", "workspace"]);
    let stage = or_skip!(stage(engine, &wanted, BOTH).await);
    for conversation in ["c-1", "c-2"] {
        let mut event = saying(conversation, &format!("words of {conversation}"));
        event["conversation"]["conversation_id"] = json!(conversation);
        say(&stage, &event).await;
    }
    for (name, policy, readable) in [
        (
            "own",
            json!({"history": ["page", "search"]}),
            [false, false],
        ),
        ("all", json!({"history": ["workspace"]}), [true, true]),
        (
            "listed",
            json!({"history": ["page"], "history_conversations": ["c-2"]}),
            [false, true],
        ),
    ] {
        let agent = json!({
            "name": name, "event_types": [format!("digest.{name}")], "runner_id": RUNNER_ID,
            "resource_policy": policy,
        });
        stage.admin.create("/v1/agents", &agent).await.expect(201);
        // A schedule has no conversation of its own.
        let event = json!({"event_type": format!("digest.{name}"), "event_id": name});
        let run = HeldRun::start(&stage, &event).await;
        for (conversation, open) in ["c-1", "c-2"].into_iter().zip(readable) {
            let path = format!("/history?conversation_id={conversation}");
            let page = run.get(&path).await;
            let body = json!({"query": "words", "conversation_id": conversation});
            let found = run.call("/history/search", &body).await;
            let expected = if open { 200 } else { 403 };
            assert_eq!([page.status, found.status], [expected, expected], "{name}");
            if open {
                let text = format!("words of {conversation}");
                assert_eq!(members(&found.body, "content"), [&json!(text)]);
                assert_eq!(page.body["items"].as_array().unwrap().len(), 2);
            }
        }
        let thread = run.get("/history?conversation_id=c-2&thread_id=t").await;
        let expected = if readable[1] {
            (200, Some(0))
        } else {
            (403, None)
        };
        let items = thread.body["items"].as_array().map(Vec::len);
        assert_eq!((thread.status, items), expected, "{name}");
        let path = format!("/v1/runs/{}/authorization", run.run_id);
        let decisions = stage.client.get(&path).await.body["decisions"].clone();
        let mut decisions = decisions.as_array().unwrap().clone();
        decisions.retain(|one| one["operation"] == "workspace" && one["kind"] == "history");
        let (granted, layer) = match name {
            "all" => (true, "event_scope"),
            _ => (false, "agent_policy"),
        };
        assert_eq!(decisions[0]["granted"], granted, "{decisions:?}");
        assert_eq!(decisions[0]["layer"], layer, "{decisions:?}");
        run.end(&stage).await;
    }
}

#[tokio::test]
async fn manifest_limits_history_of_other_conversations() {
    let stage = stage(Sqlite, &json!(["page", "search"]), BOTH)
        .await
        .unwrap();
    say(&stage, &saying("c-1", "secret")).await;
    let agent = json!({
        "name": "digest", "event_types": ["digest"], "runner_id": RUNNER_ID,
        "resource_policy": {"history": ["workspace"], "history_conversations": ["c-7"]},
    });
    stage.admin.create("/v1/agents", &agent).await.expect(201);
    let event = json!({"event_type": "digest", "event_id": "d-1"});
    let run = HeldRun::start(&stage, &event).await;
    run.get("/history?conversation_id=c-7").await.expect(403);
    run.end(&stage).await;
}
