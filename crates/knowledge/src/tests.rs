//! Tests of bases with vectors. The mock provider maps synonyms to equal vectors.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use encoding_rs::UTF_8;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use protocol::id::WorkspaceId;
use protocol::knowledge::RetrievalQuery;
use protocol::principal::PrincipalKind;
use serde_json::json;
use store::{BaseKey, ChangeStamp, DocumentFacts, sha256_hex};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::extract::DocumentFormat;
use super::index::{DocumentSource, Indexed, NewDocument};
use super::*;
use models::Payment;

const MEANINGS: [&[&str]; 3] = [
    &["car", "automobile", "garage"],
    &["vacation", "holiday", "leave"],
    &["天气", "weather"],
];

fn stamp() -> ChangeStamp {
    ChangeStamp::of(PrincipalKind::Cli, 0)
}

/// One dimension per meaning, and one for other words.
#[derive(Default)]
struct Meanings {
    requests: AtomicUsize,
    fails: AtomicBool,
    is_silent: AtomicBool,
}

impl Embedder for Meanings {
    fn embed<'a>(
        &'a self,
        _model: &'a str,
        texts: &'a [String],
        patience: Duration,
        _paid: &'a Payment,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>> {
        async move {
            self.requests.fetch_add(1, Ordering::SeqCst);
            if self.is_silent.load(Ordering::SeqCst) {
                tokio::time::sleep(patience).await;
                return Err(UpstreamError::Timeout);
            }
            if self.fails.load(Ordering::SeqCst) {
                return Err(UpstreamError::Timeout);
            }
            let vector = |text: &String| {
                let text = text.to_lowercase();
                let has = |words: &&[&str]| words.iter().any(|word| text.contains(word));
                let mut vector: Vec<f32> = MEANINGS
                    .iter()
                    .map(|words| f32::from(u8::from(has(words))))
                    .collect();
                vector.push(0.1);
                vector
            };
            Ok(texts.iter().map(vector).collect())
        }
        .boxed()
    }
}

struct Bench {
    knowledge: Knowledge,
    meanings: Arc<Meanings>,
    stopping: CancellationToken,
    base: BaseKey,
    file: PathBuf,
    _writer: JoinSet<()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        for end in ["db", "db-wal", "db-shm"] {
            let _ = std::fs::remove_file(self.file.with_extension(end));
        }
    }
}

fn embedded(model: Option<&str>) -> Base {
    Base::Embedded(EmbeddedBase {
        embedding_model: model.map(str::to_owned),
        size: ChunkSize {
            characters: 200,
            overlap: 40,
        },
    })
}

impl Bench {
    async fn new() -> Self {
        let name = format!("runnel-knowledge-{}.db", Uuid::now_v7());
        let file = std::env::temp_dir().join(name);
        let url = format!("sqlite://{}", file.display());
        let (store, writer) = Store::open(&url).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(writer);
        let meanings = Arc::new(Meanings::default());
        let stopping = CancellationToken::new();
        let embedder: Arc<dyn Embedder> = meanings.clone();
        let knowledge = Knowledge::new(Parts {
            store,
            clock: Clock::system(),
            egress: Egress::new(Vec::new(), Duration::from_secs(1)).unwrap(),
            bases: BTreeMap::from([("kb".to_owned(), embedded(Some("m")))]),
            embedder: Some(embedder),
            stopping: stopping.clone(),
        });
        Self {
            knowledge: knowledge.unwrap_or_else(|error| panic!("{error}")),
            meanings,
            stopping,
            base: BaseKey {
                workspace: WorkspaceId("default".to_owned()),
                kb_id: "kb".to_owned(),
            },
            file,
            _writer: tasks,
        }
    }

    async fn put(&self, id: &str, text: &str) -> Result<Indexed, KnowledgeError> {
        let document = NewDocument {
            base: self.base.clone(),
            document_id: id.to_owned(),
            facts: DocumentFacts {
                name: id.to_owned(),
                mime_type: "text/plain".to_owned(),
                metadata: json!({"first": id.chars().next()}).to_string(),
                sha256: sha256_hex(text.as_bytes()),
                bytes: text.len() as u64,
            },
            entries: vec![("first".to_owned(), json!(id.chars().next()).to_string())],
            source: DocumentSource::Bytes(
                DocumentFormat::Text(Some(UTF_8)),
                text.to_owned().into(),
            ),
            stamp: stamp(),
        };
        let indexing_slot = self.knowledge.indexing_slot().await?;
        self.knowledge.index(document, indexing_slot).await
    }

    async fn find(&self, query: &str, filters: serde_json::Value) -> Vec<String> {
        let query = RetrievalQuery {
            query_text: query.to_owned(),
            top_k: None,
            filters: serde_json::from_value(filters).unwrap(),
        };
        let found = self
            .knowledge
            .retrieve(&self.base, &query, &Payment::by_operator())
            .await
            .unwrap();
        let id = |entry: &protocol::knowledge::RetrievalResultEntry| {
            entry.metadata["document_id"].as_str().unwrap().to_owned()
        };
        found.iter().map(id).collect()
    }

    async fn fill(&self) {
        for (id, text) in [
            ("parking", "The garage is free for visitors."),
            ("rest", "Everybody has thirty days of leave."),
            ("sky", "今天的天气很好。"),
            (
                "words",
                "An automobile is not what this is about, only holiday.",
            ),
        ] {
            assert!(matches!(self.put(id, text).await, Ok(Indexed::Changed(_))));
        }
    }
}

#[tokio::test]
async fn vector_search_complements_text_and_fusion_ranks_first() {
    let bench = Bench::new().await;
    bench.fill().await;
    assert_eq!(
        bench.find("car", json!({})).await[..2],
        ["parking", "words"]
    );
    assert_eq!(bench.find("weather", json!({})).await[0], "sky");
    // Matches by word and by vector.
    assert_eq!(bench.find("holiday", json!({})).await[0], "words");
    assert_eq!(bench.find("car", json!({"first": "w"})).await, ["words"]);
    // The cache returns the same result as the tables.
    assert_eq!(bench.find("weather", json!({})).await[0], "sky");
    bench
        .put("another sky", "Weather report: 天气")
        .await
        .unwrap();
    let found = bench.find("weather", json!({})).await;
    assert_eq!(
        found[..2],
        ["another sky", "sky"],
        "what is kept is not old"
    );
    bench
        .knowledge
        .remove(bench.base.clone(), "another sky".to_owned(), stamp())
        .await
        .unwrap();
    assert_eq!(bench.find("weather", json!({})).await[0], "sky");
}

#[tokio::test]
async fn provider_failure_falls_back_to_text_search() {
    let bench = Bench::new().await;
    bench.fill().await;
    bench.meanings.fails.store(true, Ordering::SeqCst);
    assert_eq!(bench.find("visitors", json!({})).await, ["parking"]);
    assert!(bench.find("car", json!({})).await.is_empty());
    let failed = bench.put("parking", "It is closed.").await;
    assert!(matches!(
        failed,
        Err(KnowledgeError::Upstream(UpstreamError::Timeout))
    ));
    let store = &bench.knowledge.0.parts.store;
    let record = store
        .knowledge()
        .find_document(&bench.base, "parking")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (record.status.as_str(), record.content > 0),
        ("failed", true)
    );
    assert_eq!(bench.find("visitors", json!({})).await, ["parking"]);
    assert!(bench.find("closed", json!({})).await.is_empty());
    bench.meanings.fails.store(false, Ordering::SeqCst);
    bench.put("parking", "It is closed.").await.unwrap();
    assert_eq!(bench.find("closed", json!({})).await[0], "parking");
}

#[tokio::test]
async fn unchanged_documents_are_embedded_again_on_reindex_only() {
    let bench = Bench::new().await;
    bench.fill().await;
    let requests = || bench.meanings.requests.load(Ordering::SeqCst);
    let before = requests();
    let again = bench.put("sky", "今天的天气很好。").await;
    assert!(matches!(again, Ok(Indexed::Unchanged(_))));
    assert_eq!(requests(), before);
    let done = bench
        .knowledge
        .reindex(&bench.base, None, &stamp())
        .await
        .unwrap();
    assert_eq!((done.documents.len(), done.more_after), (4, None));
    assert_eq!(requests(), before + 4);
    assert_eq!(bench.find("weather", json!({})).await[0], "sky");
}

#[tokio::test]
async fn indexing_is_exclusive_and_cancelled_at_shutdown() {
    let bench = Bench::new().await;
    bench.meanings.is_silent.store(true, Ordering::SeqCst);
    let first = bench.put("a", "text");
    let then = async {
        while bench.meanings.requests.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let second = bench.put("a", "text").await;
        assert!(matches!(second, Err(KnowledgeError::DocumentBusy)));
        bench.stopping.cancel();
    };
    let (first, ()) = tokio::join!(first, then);
    assert!(matches!(first, Err(KnowledgeError::Stopping)));
    bench.knowledge.end().await;
    let store = &bench.knowledge.0.parts.store;
    let record = store
        .knowledge()
        .find_document(&bench.base, "a")
        .await
        .unwrap()
        .unwrap();
    assert_eq!((record.status.as_str(), record.content), ("failed", 0));
    assert!(store.knowledge().sweep_knowledge().await.unwrap());
}

#[tokio::test]
async fn refuses_vector_bases_without_a_provider() {
    let bench = Bench::new().await;
    let parts = |model| Parts {
        store: bench.knowledge.0.parts.store.clone(),
        clock: Clock::system(),
        egress: bench.knowledge.0.parts.egress.clone(),
        bases: BTreeMap::from([("kb".to_owned(), embedded(model))]),
        embedder: None,
        stopping: CancellationToken::new(),
    };
    let refused = Knowledge::new(parts(Some("m")))
        .err()
        .map(|error| error.to_string());
    assert!(refused.unwrap().contains("kb has an embedding_model"));
    assert!(Knowledge::new(parts(None)).is_ok());
}
