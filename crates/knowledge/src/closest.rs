//! Search in an embedded base: full-text, and by vectors if the base has them.

use std::collections::HashMap;
use std::time::Duration;

use domain::knowledge::filter::Filters;
use domain::knowledge::rank::{Corpus, TermWeights, TopK, fuse};
use domain::text_index::RankedQuery;
use store::{BaseKey, FoundChunk};

use crate::index::on_blocking_thread;
use crate::prepare::{embed, passage, scope};
use crate::{EmbeddedBase, Knowledge, KnowledgeError};
use models::Payment;

/// Maximum number of passages whose texts are ranked.
const CANDIDATES: usize = 200;
/// Maximum length of each list in rank fusion.
const RANKED: usize = 100;
/// Timeout for the embedding of a query.
const EMBEDDING: Duration = Duration::from_secs(15);

/// A passage and its similarity, from 0 to 1.
pub(super) struct RankedChunk {
    pub(super) chunk: FoundChunk,
    pub(super) score: f64,
}

impl Knowledge {
    /// The closest passages, best first.
    pub(super) async fn closest(
        &self,
        base: &EmbeddedBase,
        key: &BaseKey,
        text: &str,
        filters: &Filters,
        top: usize,
        paid: &Payment,
    ) -> Result<Vec<RankedChunk>, KnowledgeError> {
        // Read the version before the vectors: a version read later could label older vectors as new.
        let (corpus, version) = self.0.parts.store.knowledge().knowledge_corpus(key).await?;
        let by_words = self.by_words(key, text, filters, corpus).await?;
        let Some(model) = &base.embedding_model else {
            return Ok(by_words.into_iter().take(top).collect());
        };
        let vector = self.query_vector(model, key, text, paid).await;
        let by_vectors = match vector {
            Some(vector) => {
                self.by_vectors(model, key, vector, filters, version)
                    .await?
            }
            None => Vec::new(),
        };
        self.together(key, by_words, by_vectors, top).await
    }

    async fn by_words(
        &self,
        key: &BaseKey,
        text: &str,
        filters: &Filters,
        corpus: Corpus,
    ) -> Result<Vec<RankedChunk>, KnowledgeError> {
        let mut query = RankedQuery::parse(text);
        let store = &self.0.parts.store;
        // A long query reads many postings, so keep only its rarest terms.
        if query.is_long() {
            let all = query.terms(&scope(key));
            let held = store.knowledge().knowledge_frequencies(&all).await?;
            query = TermWeights::narrow(query, &held, corpus);
        }
        let terms = query.terms(&scope(key));
        if terms.is_empty() {
            return Ok(Vec::new());
        }
        let postings = store
            .knowledge()
            .knowledge_postings(key, &terms, filters)
            .await?;
        let held: Vec<u64> = postings
            .iter()
            .map(|posting| posting.ids.len() as u64)
            .collect();
        let weights = TermWeights::new(&query, &held, corpus);
        let mut worth: HashMap<i64, f64> = HashMap::new();
        for (term, posting) in postings
            .iter()
            .enumerate()
            // Common terms hardly change the order, but their lists are long.
            .filter(|(_, one)| !one.is_common)
        {
            for id in &posting.ids {
                *worth.entry(*id).or_default() += weights.presence_score([term]);
            }
        }
        if worth.is_empty() {
            // All terms are common: search passages that contain every term.
            let common = terms
                .iter()
                .zip(&postings)
                .filter(|(_, posting)| posting.is_common);
            let common: Vec<String> = common.map(|(term, _)| term.clone()).collect();
            if !common.is_empty() {
                let all = store
                    .knowledge()
                    .knowledge_holding_all(key, &common, filters, CANDIDATES);
                worth.extend(all.await?.into_iter().map(|id| (id, 1.0)));
            }
        }
        // Rank by postings first: only the best candidates are read as texts.
        let mut best = TopK::new(CANDIDATES);
        for (id, worth) in worth {
            best.offer(worth, id);
        }
        let ids: Vec<i64> = best.into_sorted().into_iter().map(|(_, id)| id).collect();
        let chunks = store.knowledge().knowledge_chunks(key, &ids).await?;
        let scored = on_blocking_thread(move || {
            let score = |chunk: FoundChunk| {
                let text = passage(chunk.heading.as_deref(), &chunk.text);
                let score = weights.score(&query, &text, corpus);
                RankedChunk { chunk, score }
            };
            let mut scored: Vec<_> = chunks.into_iter().map(score).collect();
            sort(&mut scored);
            scored
        });
        scored.await
    }

    /// The vector of a query. `None` if the provider fails: full-text search still works.
    async fn query_vector(
        &self,
        model: &str,
        key: &BaseKey,
        text: &str,
        paid: &Payment,
    ) -> Option<Vec<f32>> {
        let embedder = self.0.parts.embedder.as_ref()?;
        let texts = [text.to_owned()];
        match embed(embedder.as_ref(), model, &texts, EMBEDDING, paid).await {
            Ok(mut vectors) => vectors.pop(),
            Err(error) => {
                let reason = error.reason();
                tracing::warn!(
                    reason,
                    model,
                    kb.id = key.kb_id,
                    "embedding of a query failed; knowledge base {} is searched by full text only",
                    key.kb_id
                );
                None
            }
        }
    }

    /// Ids of the chunks with the closest vectors, best first.
    async fn by_vectors(
        &self,
        model: &str,
        key: &BaseKey,
        query: Vec<f32>,
        filters: &Filters,
        version: i64,
    ) -> Result<Vec<i64>, KnowledgeError> {
        let found = self
            .0
            .vectors
            .closest(
                &self.0.parts.store,
                key,
                model,
                filters,
                version,
                query,
                RANKED,
            )
            .await?;
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    async fn together(
        &self,
        key: &BaseKey,
        by_words: Vec<RankedChunk>,
        by_vectors: Vec<i64>,
        top: usize,
        // Ranks are fused, because scores of words and of vectors have different scales.
    ) -> Result<Vec<RankedChunk>, KnowledgeError> {
        if by_vectors.is_empty() {
            return Ok(by_words.into_iter().take(top).collect());
        }
        let words: Vec<i64> = by_words
            .iter()
            .take(RANKED)
            .map(|close| close.chunk.id)
            .collect();
        let fused = fuse(&[words, by_vectors]);
        let mut chunks_by_id: HashMap<i64, FoundChunk> = by_words
            .into_iter()
            .map(|close| (close.chunk.id, close.chunk))
            .collect();
        let missing: Vec<i64> = fused
            .keys()
            .copied()
            .filter(|id| !chunks_by_id.contains_key(id))
            .collect();
        let others = self
            .0
            .parts
            .store
            .knowledge()
            .knowledge_chunks(key, &missing)
            .await?;
        chunks_by_id.extend(others.into_iter().map(|chunk| (chunk.id, chunk)));
        let close = |(id, score)| {
            chunks_by_id
                .remove(&id)
                .map(|chunk| RankedChunk { chunk, score })
        };
        let mut closest: Vec<RankedChunk> = fused.into_iter().filter_map(close).collect();
        sort(&mut closest);
        closest.truncate(top);
        Ok(closest)
    }
}

/// Sorts by score, descending, then by position.
fn sort(closest: &mut [RankedChunk]) {
    closest.sort_by(|one, other| {
        // A stable order for equal scores, so that repeated queries agree.
        let position =
            |close: &RankedChunk| (close.chunk.document.document_id.clone(), close.chunk.n);
        other
            .score
            .total_cmp(&one.score)
            .then_with(|| position(one).cmp(&position(other)))
    });
}
