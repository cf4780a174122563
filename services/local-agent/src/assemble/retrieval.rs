//! Passages from knowledge bases for the current message.

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use protocol::JsonObject;
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::model::Rerank;
use runner_kit::HostError;

use crate::config::Config;
use crate::host::LocalAgentHost;

use super::survivable;

/// Concurrent searches.
const AT_ONCE: usize = 4;
/// Document limit of a rerank call.
const MAX_RANKED: usize = 64;
/// Query limit of a knowledge base, in bytes.
const QUERY_BYTES: usize = 8 * 1024;

/// Passages for the model, best first. A knowledge base that fails is left out.
pub(super) async fn retrieve(
    host: &impl LocalAgentHost,
    config: &Config,
    text: &str,
) -> Result<Vec<String>, HostError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let query = RetrievalQuery {
        query_text: beginning(text).to_owned(),
        top_k: Some(config.retrieval_top_k),
        ..RetrievalQuery::default()
    };
    let searches = config.knowledge_bases.iter();
    let searches: Vec<_> = searches
        .map(|kb_id| host.retrieve(kb_id, &query).boxed())
        .collect();
    // `buffered` keeps the order of the knowledge bases, which ranks passages without a rerank model.
    let found: Vec<_> = stream::iter(searches).buffered(AT_ONCE).collect().await;
    let mut passages = Vec::new();
    for (kb_id, found) in config.knowledge_bases.iter().zip(found) {
        match found {
            Ok(entries) => passages.extend(entries.iter().map(text_of)),
            Err(failed) => {
                let failed = survivable(failed)?;
                tracing::warn!(
                    kb.id = kb_id,
                    "knowledge base {kb_id} is left out: {failed}"
                );
            }
        }
    }
    // Blank passages would take ranks and tokens without any content.
    passages.retain(|passage| !passage.trim().is_empty());
    let Some(rerank) = &config.rerank else {
        passages.truncate(usize::try_from(config.retrieval_top_k).unwrap_or(usize::MAX));
        return Ok(passages);
    };
    let mut passages = ranked(
        host,
        &rerank.model,
        rerank.top_k,
        &query.query_text,
        passages,
    )
    .await?;
    // Also bounds the unranked fallback, which returns all passages.
    passages.truncate(rerank.top_k.max(1));
    Ok(passages)
}

/// Passages in the order of the rerank model, else in their own order.
async fn ranked(
    host: &impl LocalAgentHost,
    model: &str,
    top_k: usize,
    query: &str,
    mut passages: Vec<String>,
) -> Result<Vec<String>, HostError> {
    if passages.is_empty() {
        return Ok(passages);
    }
    // Above the limit the gateway rejects the call, and all passages would stay unranked.
    passages.truncate(MAX_RANKED);
    let request = Rerank {
        query: query.to_owned(),
        documents: passages.clone(),
        top_k: Some(top_k as u64),
        extra_args: JsonObject::new(),
    };
    let ranked = match host.rerank(model, &request).await {
        Ok(ranked) => ranked,
        Err(failed) => {
            tracing::warn!(
                "reranking failed, keeping the order of the knowledge bases: {}",
                survivable(failed)?
            );
            return Ok(passages);
        }
    };
    let mut order: Vec<usize> = Vec::new();
    for position in ranked.iter().map(|result| result.index) {
        // Indices come from a model's API: out of range would panic, duplicates would repeat a passage.
        if position < passages.len() && !order.contains(&position) {
            order.push(position);
        }
    }
    // An empty or unusable ranking must not drop all passages.
    if order.is_empty() {
        return Ok(passages);
    }
    Ok(order
        .into_iter()
        .map(|position| passages[position].clone())
        .collect())
}

fn text_of(entry: &RetrievalResultEntry) -> String {
    let texts = entry.content.iter().filter_map(|part| part.text.as_deref());
    texts.collect::<Vec<_>>().join(" ")
}

/// Longest prefix that is a valid query.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(QUERY_BYTES);
    // A cut inside a character would panic.
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
