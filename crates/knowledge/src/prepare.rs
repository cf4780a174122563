//! Prepares chunks for the index: terms and vectors.

use std::time::Duration;

use domain::knowledge::chunk::Chunk;
use domain::knowledge::rank::{normalized, vector_bytes};
use domain::text_index::passage_terms;
use store::{BaseKey, NewChunk};

use crate::embed::Embedder;
use egress::upstream::UpstreamError;
use models::Payment;

/// Timeout of an embedding request for one batch.
pub(super) const EMBEDDING: Duration = Duration::from_mins(1);
/// Maximum number of dimensions.
const MAX_DIMENSIONS: usize = 8192;

/// Key that separates the terms of a base from those of others.
pub(super) fn scope(base: &BaseKey) -> String {
    format!("knowledge {} {}", base.workspace, base.kb_id)
}

/// Searchable text of a chunk, with its headings.
pub(super) fn passage(heading: Option<&str>, text: &str) -> String {
    match heading {
        Some(heading) => format!("{heading}\n{text}"),
        None => text.to_owned(),
    }
}

/// Adds terms to chunks.
pub(super) fn with_terms(base: &BaseKey, chunks: &[Chunk]) -> Vec<NewChunk> {
    let scope = scope(base);
    let prepared = chunks.iter().map(|chunk| {
        let (terms, units) = passage_terms(&scope, &passage(chunk.heading.as_deref(), &chunk.text));
        NewChunk {
            text: chunk.text.clone(),
            start: chunk.start as u64,
            end: chunk.end as u64,
            heading: chunk.heading.clone(),
            terms: terms.join(" "),
            units,
            vector: None,
        }
    });
    prepared.collect()
}

/// Adds vectors to chunks.
pub(super) async fn add_vectors(
    embedder: &dyn Embedder,
    model: &str,
    chunks: &mut [NewChunk],
) -> Result<(), UpstreamError> {
    let texts: Vec<String> = chunks
        .iter()
        .map(|chunk| passage(chunk.heading.as_deref(), &chunk.text))
        .collect();
    // Indexing by operators is not charged to the budget of a run.
    let vectors = embed(embedder, model, &texts, EMBEDDING, &Payment::by_operator()).await?;
    for (chunk, vector) in chunks.iter_mut().zip(vectors) {
        chunk.vector = Some(vector_bytes(&vector));
    }
    Ok(())
}

/// Returns one vector of length 1 per text. All have the same number of dimensions.
pub(super) async fn embed(
    embedder: &dyn Embedder,
    model: &str,
    texts: &[String],
    patience: Duration,
    paid: &Payment,
) -> Result<Vec<Vec<f32>>, UpstreamError> {
    let vectors = embedder.embed(model, texts, patience, paid).await?;
    if vectors.len() != texts.len() {
        let message = format!("{} vectors for {} texts", vectors.len(), texts.len());
        return Err(UpstreamError::Malformed(message));
    }
    // Vectors of different dimensions cannot be compared.
    let dimensions = vectors.first().map_or(0, Vec::len);
    let unit = |vector: &Vec<f32>| {
        let is_valid = vector.len() == dimensions && dimensions <= MAX_DIMENSIONS;
        normalized(vector).filter(|_| is_valid)
    };
    let units: Option<Vec<_>> = vectors.iter().map(unit).collect();
    units.ok_or_else(|| {
        UpstreamError::Malformed("a vector is empty, too long, or has no direction".to_owned())
    })
}
