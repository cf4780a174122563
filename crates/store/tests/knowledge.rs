//! Documents of knowledge bases: SQLite always, PostgreSQL when `RUNNEL_TEST_POSTGRES_URL` is set.
use crate::support::{LockHolder, StoreFixture, on_both};
use domain::knowledge::filter::Filters;
use domain::knowledge::rank::{Corpus, vector_bytes};
use domain::text_index::{RankedQuery, passage_terms};
use serde_json::json;
use store::{
    BaseKey, BeginIndexing, DeleteDocument, DocumentFacts, DocumentRecord, FailIndexing,
    FinishIndexing, IndexingBegun, NewChunk, Recipe, WriteChunks,
};

on_both!(
    replaces_documents_atomically,
    repeated_writes_index_once,
    does_not_rebuild_outdated_content,
    does_not_publish_abandoned_content,
    indexes_document_once_within_base_limit,
    pages_vectors_of_one_model,
);

fn base(bench: &StoreFixture) -> BaseKey {
    BaseKey {
        workspace: bench.workspace.clone(),
        kb_id: "kb".to_owned(),
    }
}

fn begin(bench: &StoreFixture, id: &str, attempt: &str) -> BeginIndexing {
    BeginIndexing {
        base: base(bench),
        document_id: id.to_owned(),
        facts: facts(attempt),
        recipe: recipe(),
        attempt: attempt.to_owned(),
        max_documents: 2,
        anew: None,
        at: 1,
    }
}

fn facts(sha256: &str) -> DocumentFacts {
    DocumentFacts {
        name: "name".to_owned(),
        mime_type: "text/plain".to_owned(),
        metadata: "{}".to_owned(),
        sha256: sha256.to_owned(),
        bytes: 1,
    }
}

fn recipe() -> Recipe {
    Recipe {
        vector_model: Some("m".to_owned()),
        chunk_chars: 100,
        chunk_overlap: 10,
    }
}

fn chunk(text: &str) -> NewChunk {
    let (terms, units) = passage_terms("scope", text);
    NewChunk {
        text: text.to_owned(),
        start: 0,
        end: text.chars().count() as u64,
        heading: None,
        terms: terms.join(" "),
        units,
        vector: Some(vector_bytes(&[1.0, 0.0])),
    }
}

fn write(content: i64, first: u64, texts: &[&str]) -> WriteChunks {
    WriteChunks {
        content,
        first,
        chunks: texts.iter().map(|text| chunk(text)).collect(),
        all: 2,
    }
}

fn finish(bench: &StoreFixture, id: &str, content: i64, sha256: &str) -> FinishIndexing {
    FinishIndexing {
        base: base(bench),
        document_id: id.to_owned(),
        content,
        facts: facts(sha256),
        recipe: recipe(),
        entries: vec![("lang".to_owned(), "\"en\"".to_owned())],
        characters: 10,
        chunks: 2,
        units: 6,
        missing: None,
        at: 2,
    }
}

async fn begun(bench: &StoreFixture, id: &str, attempt: &str) -> i64 {
    match bench.write(begin(bench, id, attempt)).await.unwrap() {
        IndexingBegun::Content(content) => content,
        other => panic!("{other:?}"),
    }
}

async fn index(bench: &StoreFixture, id: &str, attempt: &str, texts: &[&str]) -> DocumentRecord {
    let content = begun(bench, id, attempt).await;
    let store = &bench.store;
    assert!(store.write(write(content, 0, texts)).await.unwrap());
    let finished = store
        .write(finish(bench, id, content, attempt))
        .await
        .unwrap();
    finished.unwrap()
}

/// Texts that contain a word.
async fn holding(bench: &StoreFixture, word: &str, filters: &Filters) -> Vec<String> {
    let terms = RankedQuery::parse(word).terms("scope");
    let store = &bench.store;
    let postings = store
        .knowledge()
        .knowledge_postings(&base(bench), &terms, filters)
        .await
        .unwrap();
    let ids = &postings[0].ids;
    let all = store
        .knowledge()
        .knowledge_holding_all(&base(bench), &terms[..1], filters, 10)
        .await
        .unwrap();
    assert_eq!(&all, ids);
    let chunks = store
        .knowledge()
        .knowledge_chunks(&base(bench), ids)
        .await
        .unwrap();
    let mut texts: Vec<_> = chunks.into_iter().map(|chunk| chunk.text).collect();
    texts.sort();
    texts
}

async fn replaces_documents_atomically(bench: StoreFixture) {
    let everything = Filters::default();
    let store = &bench.store;
    let first = index(&bench, "a", "1", &["red apple", "red pear"]).await;
    assert_eq!(
        holding(&bench, "red", &everything).await,
        ["red apple", "red pear"]
    );
    let (corpus, version) = store
        .knowledge()
        .knowledge_corpus(&base(&bench))
        .await
        .unwrap();
    assert_eq!(
        corpus,
        Corpus {
            passages: 2,
            units: 6
        }
    );

    let next = begun(&bench, "a", "2").await;
    assert!(
        store
            .write(write(next, 0, &["red plum", "red fig"]))
            .await
            .unwrap()
    );
    assert_eq!(
        holding(&bench, "red", &everything).await,
        ["red apple", "red pear"]
    );
    let record = store
        .knowledge()
        .find_document(&base(&bench), "a")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (record.status.as_str(), record.done, record.all),
        ("indexing", 2, 2)
    );
    assert_eq!(
        (record.content, &record.facts),
        (first.content, &first.facts)
    );
    store
        .write(finish(&bench, "a", next, "2"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        holding(&bench, "red", &everything).await,
        ["red fig", "red plum"]
    );
    assert!(
        store
            .knowledge()
            .knowledge_corpus(&base(&bench))
            .await
            .unwrap()
            .1
            > version
    );
    let named = |value| Filters(vec![("lang".to_owned(), vec![json!(value)])]);
    assert_eq!(holding(&bench, "red", &named("en")).await.len(), 2);
    assert!(holding(&bench, "red", &named("de")).await.is_empty());

    // A failed indexing keeps the previous content and records its error.
    let lost = begun(&bench, "a", "3").await;
    assert!(store.write(write(lost, 0, &["red grape"])).await.unwrap());
    let fail = FailIndexing {
        content: lost,
        error: "why".to_owned(),
        at: 3,
    };
    store.write(fail).await.unwrap();
    assert!(!store.write(write(lost, 1, &["red date"])).await.unwrap());
    assert_eq!(
        store.write(finish(&bench, "a", lost, "3")).await.unwrap(),
        None
    );
    assert_eq!(
        holding(&bench, "red", &everything).await,
        ["red fig", "red plum"]
    );
    while store.knowledge().sweep_knowledge().await.unwrap() {}
    assert_eq!(
        holding(&bench, "red", &everything).await,
        ["red fig", "red plum"]
    );
    assert_deleted(&bench).await;
}

async fn assert_deleted(bench: &StoreFixture) {
    let store = &bench.store;
    let delete = DeleteDocument {
        base: base(bench),
        document_id: "a".to_owned(),
    };
    assert!(store.write(delete.clone()).await.unwrap());
    assert!(!store.write(delete).await.unwrap());
    assert!(holding(bench, "red", &Filters::default()).await.is_empty());
}

async fn repeated_writes_index_once(bench: StoreFixture) {
    let store = &bench.store;
    let content = begun(&bench, "a", "1").await;
    assert_eq!(
        begun(&bench, "a", "1").await,
        content,
        "the answer was lost"
    );
    assert!(
        store
            .write(write(content, 0, &["one", "two"]))
            .await
            .unwrap()
    );
    let finished = store
        .write(finish(&bench, "a", content, "1"))
        .await
        .unwrap();
    let again = store
        .write(finish(&bench, "a", content, "1"))
        .await
        .unwrap();
    assert_eq!(finished, again);
    let same = store.write(begin(&bench, "a", "1")).await.unwrap();
    assert!(matches!(same, IndexingBegun::Unchanged(record) if record.content == content));
    let anew = again_of(&bench, "a", content);
    assert!(matches!(
        store.write(anew).await.unwrap(),
        IndexingBegun::Content(_)
    ));
}

/// Rebuilds a content.
fn again_of(bench: &StoreFixture, id: &str, content: i64) -> BeginIndexing {
    BeginIndexing {
        anew: Some(content),
        attempt: "anew".to_owned(),
        ..begin(bench, id, "1")
    }
}

async fn does_not_rebuild_outdated_content(bench: StoreFixture) {
    let store = &bench.store;
    let old = index(&bench, "a", "1", &["one"]).await.content;
    let new = index(&bench, "a", "2", &["two"]).await.content;
    let begun = store.write(again_of(&bench, "a", old)).await.unwrap();
    assert_eq!(begun, IndexingBegun::Gone);
    let delete = DeleteDocument {
        base: base(&bench),
        document_id: "a".to_owned(),
    };
    assert!(store.write(delete).await.unwrap());
    let begun = store.write(again_of(&bench, "a", new)).await.unwrap();
    assert_eq!(begun, IndexingBegun::Gone);
    let left = store
        .knowledge()
        .find_document(&base(&bench), "a")
        .await
        .unwrap();
    assert_eq!(left, None);
}

async fn does_not_publish_abandoned_content(bench: StoreFixture) {
    let Some(database) = bench.database.clone() else {
        return;
    };
    let content = begun(&bench, "a", "1").await;
    let given_up = "UPDATE knowledge_documents SET status = 'failed', pending = 0";
    let mut other = LockHolder::of(&database, given_up).await;
    let finishing = bench.write(finish(&bench, "a", content, "1"));
    let (finished, ()) = tokio::join!(finishing, async {
        other.wait_until_blocking().await;
        other.commit().await;
    });
    assert_eq!(finished.unwrap(), None);
    let left = bench
        .knowledge()
        .find_document(&base(&bench), "a")
        .await
        .unwrap();
    assert_eq!(left.unwrap().status, "failed");
}

async fn indexes_document_once_within_base_limit(bench: StoreFixture) {
    let store = &bench.store;
    begun(&bench, "a", "1").await;
    let second = store.write(begin(&bench, "a", "2")).await.unwrap();
    assert_eq!(second, IndexingBegun::Busy);
    begun(&bench, "b", "1").await;
    let third = store.write(begin(&bench, "c", "1")).await.unwrap();
    assert_eq!(third, IndexingBegun::Full);
    let elsewhere = BeginIndexing {
        base: BaseKey {
            kb_id: "other".to_owned(),
            ..base(&bench)
        },
        ..begin(&bench, "c", "1")
    };
    assert!(matches!(
        store.write(elsewhere).await.unwrap(),
        IndexingBegun::Content(_)
    ));
    let listed = store
        .knowledge()
        .list_documents(&base(&bench), None, 10)
        .await
        .unwrap()
        .items;
    let ids: Vec<_> = listed.iter().map(|one| one.document_id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    let after = store
        .knowledge()
        .list_documents(&base(&bench), Some("a"), 10)
        .await
        .unwrap();
    assert_eq!((after.items.len(), after.has_more), (1, false));
}

async fn pages_vectors_of_one_model(bench: StoreFixture) {
    index(&bench, "a", "1", &["one", "two"]).await;
    index(&bench, "b", "1", &["three", "four"]).await;
    let (everything, base) = (Filters::default(), base(&bench));
    let (mut ids, mut after) = (Vec::new(), 0);
    loop {
        let store = &bench.store;
        let page = store
            .knowledge()
            .knowledge_vectors(&base, "m", &everything, after, 3);
        let page = page.await.unwrap();
        assert!(
            page.iter()
                .all(|one| one.bytes == vector_bytes(&[1.0, 0.0]))
        );
        ids.extend(page.iter().map(|one| one.id));
        match page.last() {
            Some(last) => after = last.id,
            None => break,
        }
    }
    assert!(ids.len() == 4 && ids.is_sorted(), "{ids:?}");
    let store = &bench.store;
    let others = store
        .knowledge()
        .knowledge_vectors(&base, "other", &everything, 0, 9);
    assert!(others.await.unwrap().is_empty());
}
