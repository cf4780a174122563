//! Full-text search of transcripts: SQLite always, PostgreSQL when `RUNNEL_TEST_POSTGRES_URL` is set.

use crate::support::{
    StoreFixture, TestEvent, create_database, new_run, on_both, plan_by, sqlite_url,
};
use domain::authorization::FrozenConversation;
use domain::event::ConversationIdentity;
use domain::text_index::TextQuery;
use migrations::{Migrator, MigratorTrait};
use protocol::id::RunId;
use sea_orm::{ConnectionTrait, Database};
use store::{
    HistoryMatch, HistoryQuery, Ingest, IngestPlan, Ingested, PAGE_BYTES, ReadBudget, Store,
    StoreError, UserMessage,
};
use tokio::task::JoinSet;
use uuid::Uuid;

on_both!(
    search_matches_the_model,
    search_applies_filters,
    failed_event_keeps_index_of_its_batch,
    pages_of_large_items_are_short,
);

// --- helpers for messages ---

fn conversation(name: &str) -> FrozenConversation {
    FrozenConversation {
        bot_id: String::new(),
        conversation_id: name.to_owned(),
        thread_id: String::new(),
    }
}

/// An event with a message.
fn saying(bench: &StoreFixture, name: &str, message: UserMessage) -> TestEvent {
    let run_id = RunId(Uuid::now_v7());
    Ingest {
        conversation: Some(ConversationIdentity {
            bot_id: String::new(),
            conversation_id: name.to_owned(),
            thread_id: String::new(),
        }),
        decide: plan_by(move |_| IngestPlan::Start {
            run: Box::new(new_run(run_id)),
            attempt: None,
            message: Some(message.clone()),
            answer: "{}".to_owned(),
        }),
        ..bench.event(&run_id.to_string(), "body")
    }
}

fn message(content: &str) -> UserMessage {
    UserMessage {
        id: Uuid::now_v7(),
        content: Some(content.to_owned()),
        content_json: "{}".to_owned(),
        attachment_refs: "[]".to_owned(),
        author: None,
    }
}

async fn say(bench: &StoreFixture, name: &str, message: UserMessage) {
    let stored = bench.ingest(saying(bench, name, message)).await;
    assert!(matches!(stored.unwrap(), Ingested::Stored { .. }));
}

async fn key_of(bench: &StoreFixture, name: &str) -> String {
    let conversation = conversation(name);
    let key = bench
        .conversations()
        .find_conversation_key(&bench.workspace, &conversation);
    key.await.unwrap().unwrap()
}

fn wanted(query: &str) -> HistoryMatch {
    HistoryMatch {
        query: TextQuery::parse(query).unwrap(),
        roles: Vec::new(),
        item_types: Vec::new(),
        before: None,
        after: None,
        top: 100,
    }
}

async fn found(store: &Store, key: &str, wanted: &HistoryMatch) -> Vec<i64> {
    let found = store
        .conversations()
        .search_history(key, wanted, ReadBudget::default())
        .await
        .unwrap();
    found.iter().map(|item| item.seq).collect()
}

// --- the model: a text is one string, a search is `contains` ---

/// Parts of texts: written form, normalized form, and true for words.
const ATOMS: [(&str, &str, bool); 22] = [
    ("hello", "hello", true),
    ("Hello", "hello", true),
    ("ＨＥＬＬＯ", "hello", true),
    ("big", "big", true),
    ("world", "world", true),
    ("Café", "cafe", true),
    ("cafe\u{301}", "cafe", true),
    ("ёлка", "ёлка", true),
    ("４2", "42", true),
    ("天", "天", false),
    ("气", "气", false),
    ("今", "今", false),
    ("タ", "タ", false),
    ("ﾀ", "タ", false),
    ("ワ", "ワ", false),
    ("ー", "ー", false),
    ("ガ", "ガ", false),
    ("ｶﾞ", "ガ", false),
    ("학", "학", false),
    ("교", "교", false),
    ("👍", "👍", false),
    ("👍🏽", "👍]🏽", false),
];
const GAPS: [&str; 8] = ["", "", "", " ", " ", ", ", "。", "…\n"];

/// Deterministic random numbers.
struct SearchRng(u64);

impl SearchRng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A text and its model form: `<word>`, `sign]`, and `/` where a separator splits two signs.
#[derive(Clone, Debug, Default)]
struct ModelText {
    written: String,
    read: String,
}

impl ModelText {
    fn random(numbers: &mut SearchRng, atoms: usize, gaps: &[&str]) -> Self {
        let mut text = Self::default();
        let mut last_word = None;
        for index in 0..atoms {
            let gap = if index == 0 { "" } else { numbers.pick(gaps) };
            let (written, read, is_word) = numbers.pick(&ATOMS);
            text.written += gap;
            text.written += written;
            match (last_word, is_word) {
                (Some(true), true) if gap.is_empty() => {
                    text.read.pop();
                }
                (Some(false), false) if !gap.is_empty() => text.read += "/",
                _ => {}
            }
            if is_word && !(last_word == Some(true) && gap.is_empty()) {
                text.read += "<";
            }
            text.read += read;
            text.read += if is_word { ">" } else { "]" };
            last_word = Some(is_word);
        }
        text
    }

    /// Model forms of a quoted phrase: separators between its signs are optional in the text.
    fn readings(&self) -> Vec<String> {
        let parts: Vec<&str> = self.read.split('/').collect();
        let mut readings = vec![String::new()];
        for (index, part) in parts.iter().enumerate() {
            let glues: &[&str] = if index == 0 { &[""] } else { &["", "/"] };
            let longer = readings.iter().flat_map(|reading| {
                glues
                    .iter()
                    .map(move |glue| format!("{reading}{glue}{part}"))
            });
            readings = longer.collect();
        }
        readings
    }
}

/// A query and its phrases, each with all model forms.
fn random_query(numbers: &mut SearchRng) -> (String, Vec<Vec<String>>) {
    let (mut written, mut phrases) = (Vec::new(), Vec::new());
    for _ in 0..=numbers.below(3) {
        let atoms = 1 + numbers.below(4);
        if numbers.below(2) == 0 {
            let quoted = ModelText::random(numbers, atoms, &GAPS);
            written.push(format!("\"{}\"", quoted.written));
            phrases.push(quoted.readings());
        } else {
            let word = ModelText::random(numbers, atoms, &["", "-", "。"]);
            written.push(word.written.clone());
            phrases.extend(word.read.split('/').map(|part| vec![part.to_owned()]));
        }
    }
    (written.join(" "), phrases)
}

async fn search_matches_the_model(bench: StoreFixture) {
    let mut numbers = SearchRng(20_261_122);
    let mut texts: Vec<Vec<ModelText>> = vec![Vec::new(); 2];
    for _ in 0..240 {
        let talk = numbers.below(2);
        let atoms = 1 + numbers.below(12);
        let text = ModelText::random(&mut numbers, atoms, &GAPS);
        say(&bench, ["a", "b"][talk], message(&text.written)).await;
        texts[talk].push(text);
    }
    let keys = [key_of(&bench, "a").await, key_of(&bench, "b").await];
    let mut hits = 0;
    for _ in 0..400 {
        let (query, phrases) = random_query(&mut numbers);
        for (key, texts) in keys.iter().zip(&texts) {
            let holds = |text: &ModelText, readings: &[String]| {
                readings.iter().any(|one| text.read.contains(one))
            };
            let matches = |text: &ModelText| phrases.iter().all(|phrase| holds(text, phrase));
            let newest_first = (1..).zip(texts).collect::<Vec<_>>().into_iter().rev();
            let expected: Vec<i64> = newest_first
                .filter(|(_, text)| matches(text))
                .map(|(seq, _)| seq)
                .take(100)
                .collect();
            hits += expected.len();
            let found = found(&bench.store, key, &wanted(&query)).await;
            assert_eq!(found, expected, "{query}");
        }
    }
    assert!(hits > 1000, "the queries are too rare to say much: {hits}");
}

async fn search_applies_filters(bench: StoreFixture) {
    for number in 1..=30 {
        let content = format!("多功能 word {}", if number % 3 == 0 { "fizz" } else { "" });
        say(&bench, "a", message(&content)).await;
        say(&bench, "b", message("another word")).await;
    }
    let key = key_of(&bench, "a").await;
    let all: Vec<i64> = (1..=30).rev().collect();
    let check = async |wanted: HistoryMatch, expected: &[i64]| {
        assert_eq!(
            found(&bench.store, &key, &wanted).await,
            expected,
            "{wanted:?}"
        );
    };
    check(wanted("word"), &all).await;
    check(wanted("功能"), &all).await;
    check(wanted("another"), &[]).await;
    check(wanted("!?"), &[]).await;
    let fizz = wanted("fizz");
    let three = HistoryMatch {
        top: 3,
        ..fizz.clone()
    };
    check(three.clone(), &[30, 27, 24]).await;
    let older = HistoryMatch {
        before: Some(24),
        ..three
    };
    check(older, &[21, 18, 15]).await;
    let between = HistoryMatch {
        before: Some(24),
        after: Some(18),
        ..fizz.clone()
    };
    check(between, &[21]).await;
    for (role, item_type, expected) in [
        (
            "user",
            "message",
            &[30, 27, 24, 21, 18, 15, 12, 9, 6, 3][..],
        ),
        ("assistant", "message", &[]),
        ("user", "tool", &[]),
    ] {
        let filtered = HistoryMatch {
            roles: vec!["nobody".to_owned(), role.to_owned()],
            item_types: vec![item_type.to_owned()],
            ..fizz.clone()
        };
        check(filtered, expected).await;
    }
}

async fn failed_event_keeps_index_of_its_batch(bench: StoreFixture) {
    let taken = message("first");
    say(&bench, "a", taken.clone()).await;
    let all = (0..40).map(|number| {
        let text = format!("word number{number}");
        let mut message = message(&text);
        if number % 8 == 5 {
            // Its id is taken, so the complete event is rolled back within a commit.
            message.id = taken.id;
        }
        bench.ingest(saying(&bench, "a", message))
    });
    let outcomes = futures_util::future::join_all(all).await;
    let failed: Vec<_> = outcomes.iter().map(Result::is_err).collect();
    let key = key_of(&bench, "a").await;
    assert_eq!(found(&bench.store, &key, &wanted("word")).await.len(), 35);
    for (number, failed) in failed.iter().enumerate() {
        assert_eq!(*failed, number % 8 == 5);
        let one = found(&bench.store, &key, &wanted(&format!("number{number}"))).await;
        assert_eq!(one.len(), usize::from(!failed), "{number}");
    }
    let error = outcomes.into_iter().find_map(Result::err);
    assert!(matches!(error, Some(StoreError::Taken)), "{error:?}");
}

async fn pages_of_large_items_are_short(bench: StoreFixture) {
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let large = PAGE_BYTES / 5 * 2 - 500;
    for bytes in [PAGE_BYTES * 2, large, large, 100, large] {
        let message = UserMessage {
            content_json: text(bytes),
            attachment_refs: format!("[{}]", text(PAGE_BYTES / 4)),
            author: None,
            ..message("word")
        };
        say(&bench, "a", message).await;
    }
    let key = key_of(&bench, "a").await;
    for (forward, attachments, after, expected, has_more) in [
        (true, false, None, &[1][..], true),
        (true, false, Some(1), &[2, 3, 4], true),
        (true, false, Some(4), &[5], false),
        (true, true, Some(1), &[2], true),
        (true, true, Some(3), &[4, 5], false),
        (false, false, Some(1), &[5, 4, 3], true),
        (false, false, Some(2), &[5, 4, 3], false),
    ] {
        let page = HistoryQuery {
            forward,
            attachments,
            after,
            limit: 100,
            ..HistoryQuery::default()
        };
        let slice = bench
            .conversations()
            .page_history(&key, page)
            .await
            .unwrap();
        let sequences: Vec<_> = slice.items.iter().map(|item| item.seq).collect();
        assert_eq!(
            (&sequences[..], slice.has_more),
            (expected, has_more),
            "{page:?}"
        );
        let refs = slice.items.iter().map(|item| item.attachment_refs.len());
        let shown = usize::from(attachments);
        assert!(refs.clone().all(|count| count == shown), "{page:?}");
    }
    let found = found(&bench.store, &key, &wanted("word")).await;
    assert_eq!(found, [5, 4], "a search fits its answer, too");
}

// --- items of an older gateway ---

#[tokio::test]
async fn indexes_items_of_older_gateways_once() {
    enter_old_items(&sqlite_url()).await;
    if let Some(database) = create_database().await {
        enter_old_items(&database.url()).await;
        database.drop().await;
    }
}

async fn enter_old_items(url: &str) {
    let create = if url.starts_with("sqlite") {
        "?mode=rwc"
    } else {
        ""
    };
    let old = Database::connect(format!("{url}{create}")).await.unwrap();
    Migrator::up(&old, None).await.unwrap();
    for number in 0..100 {
        let (key, seq) = (["x", "y"][number % 2], number / 2);
        let content = if number == 7 {
            "NULL".to_owned()
        } else {
            format!("'old number{number}'")
        };
        let sql = format!(
            "INSERT INTO transcript_items (conversation_key, seq, id, run_id, event_id, role,
                item_type, content, content_json, attachment_refs, created_at)
            VALUES ('{key}', {seq}, '{number}', 'r', '{number}', 'user', 'message', {content},
                '{{}}', '[]', 1)"
        );
        old.execute_unprepared(&sql).await.unwrap();
    }
    old.close().await.unwrap();

    let mut writers = JoinSet::new();
    let mut stores = Vec::new();
    let replicas = if url.starts_with("sqlite") { 1 } else { 3 };
    for _ in 0..replicas {
        let (store, writer) = Store::open(url).await.unwrap();
        writers.spawn(writer);
        stores.push(store);
    }
    assert!(found(&stores[0], "x", &wanted("old")).await.is_empty());
    let all = stores
        .iter()
        .map(|store| async { while store.conversations().index_backlog().await.unwrap() {} });
    futures_util::future::join_all(all).await;
    for (key, count) in [("x", 50), ("y", 49)] {
        let found = found(&stores[0], key, &wanted("old")).await;
        assert_eq!(found.len(), count, "{key}");
        assert!(
            found.is_sorted_by(|newer, older| newer > older),
            "each once"
        );
    }
    assert_eq!(found(&stores[0], "y", &wanted("number41")).await, [20]);
    for store in stores {
        store.close().await;
    }
}
