//! Retrieval from embedded and remote bases.

use domain::knowledge::filter::check_filters;
use domain::knowledge::{DEFAULT_TOP, MAX_QUERY_BYTES, MAX_TOP};
use protocol::admin::Fault;
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::message::ContentElement;
use serde_json::json;
use store::BaseKey;

use crate::closest::RankedChunk;
use crate::{Base, Knowledge, KnowledgeError};
use models::Payment;

impl Knowledge {
    /// The closest passages of a base. The caller has authorized the query; `paid` pays for its vector.
    pub async fn retrieve(
        &self,
        base: &BaseKey,
        query: &RetrievalQuery,
        paid: &Payment,
    ) -> Result<Vec<RetrievalResultEntry>, KnowledgeError> {
        let mut faults = check_query(query);
        // Collect the faults of the query and of the filters, so that the caller sees all at once.
        let filters = check_filters(&query.filters).unwrap_or_else(|found| {
            faults.extend(found);
            domain::knowledge::filter::Filters::default()
        });
        if !faults.is_empty() {
            return Err(KnowledgeError::Faults(faults));
        }
        let top = query.top_k.unwrap_or(DEFAULT_TOP);
        let top = usize::try_from(top).unwrap_or(usize::MAX);
        match self.base(&base.kb_id)? {
            Base::Embedded(embedded) => {
                let found = self
                    .closest(embedded, base, &query.query_text, &filters, top, paid)
                    .await?;
                Ok(found.into_iter().map(entry).collect())
            }
            Base::Remote(remote) => {
                let egress = &self.0.parts.egress;
                Ok(remote
                    .retrieve(egress, &query.query_text, top, &filters)
                    .await?)
            }
        }
    }
}

/// Faults of a query, by JSON pointer.
pub fn check_query(query: &RetrievalQuery) -> Vec<Fault> {
    let mut faults = Vec::new();
    if query.query_text.trim().is_empty() {
        faults.push(Fault::new("/query_text", "must not be empty"));
    }
    if query.query_text.len() > MAX_QUERY_BYTES {
        let message = format!("must have at most {MAX_QUERY_BYTES} bytes");
        faults.push(Fault::new("/query_text", message));
    }
    if query.top_k.is_some_and(|top| !(1..=MAX_TOP).contains(&top)) {
        faults.push(Fault::new("/top_k", format!("must be 1 to {MAX_TOP}")));
    }
    faults
}

/// A passage in protocol form: trimmed, with its position in the document.
fn entry(RankedChunk { chunk, score }: RankedChunk) -> RetrievalResultEntry {
    let text = chunk.text.trim();
    let before = chunk.text.len() - chunk.text.trim_start().len();
    // Positions count characters, as in the stored chunk, and not bytes.
    let skipped = chunk.text.get(..before).unwrap_or_default().chars().count() as u64;
    let start = chunk.start + skipped;
    let document = chunk.document;
    let mut metadata: protocol::JsonObject =
        serde_json::from_str(&document.facts.metadata).unwrap_or_default();
    // The document's own `source` has priority; the members below always replace its values.
    metadata
        .entry("source")
        .or_insert_with(|| json!(document.facts.name));
    for (name, value) in [
        ("document_id", json!(document.document_id)),
        ("name", json!(document.facts.name)),
        ("mime_type", json!(document.facts.mime_type)),
        ("chunk", json!(chunk.n)),
        ("start", json!(start)),
        ("end", json!(start + text.chars().count() as u64)),
        ("heading", json!(chunk.heading)),
    ] {
        metadata.insert(name.to_owned(), value);
    }
    RetrievalResultEntry {
        id: format!("{}#{}", document.document_id, chunk.n),
        content: vec![ContentElement::text(text)],
        metadata,
        distance: 1.0 - score,
        score: Some(score),
    }
}
