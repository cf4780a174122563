//! Full-text search of one transcript. The index finds candidates, and the domain checks each.

use std::collections::HashMap;

use domain::text_index::TextQuery;
use sea_orm::sea_query::{Expr, JoinType};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, RelationDef};

use crate::engine::Backend;
use crate::entity::{transcript_items, transcript_terms};
use crate::error::StoreError;
use crate::history::TranscriptRecord;
use crate::page::ReadBudget;
use crate::repositories::ConversationRepository;
use crate::sql::padded;

/// A search within one conversation.
#[derive(Clone, Debug)]
pub struct HistoryMatch {
    pub query: TextQuery,
    /// Only items of these roles; all when empty.
    pub roles: Vec<String>,
    /// Only items of these types; all when empty.
    pub item_types: Vec<String>,
    /// Only items before this sequence.
    pub before: Option<i64>,
    /// Only items after this sequence.
    pub after: Option<i64>,
    /// Maximum results.
    pub top: u64,
}

/// Maximum candidates of one search: the newest items with every word of the query. Nearly all match; exceptions
/// contain the pairs of a longer phrase, but not the phrase.
const CANDIDATES: u64 = 400;
/// Maximum texts in memory at a time.
const TEXTS_IN_MEMORY: usize = 100;

impl ConversationRepository<'_> {
    /// The newest matching items, with their attachments.
    pub async fn search_history(
        self,
        conversation_key: &str,
        wanted: &HistoryMatch,
        budget: ReadBudget<'_>,
    ) -> Result<Vec<TranscriptRecord>, StoreError> {
        let candidates = self.candidates(conversation_key, wanted).await?;
        let max = usize::try_from(wanted.top).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        // In parts, because texts are large and the newest items often suffice.
        for some in candidates.chunks(TEXTS_IN_MEMORY) {
            let texts = self.texts_at(conversation_key, some).await?;
            let matches = |seq: &&i64| {
                let text = texts.get(*seq).and_then(Option::as_deref);
                text.is_some_and(|text| wanted.query.matches(text))
            };
            let remaining = max - found.len();
            found.extend(some.iter().filter(matches).take(remaining));
            if found.len() == max {
                break;
            }
        }
        self.fitting_items_at(conversation_key, &found, budget)
            .await
    }

    /// Sequences of items with all terms of the query, newest first.
    async fn candidates(
        self,
        conversation_key: &str,
        wanted: &HistoryMatch,
    ) -> Result<Vec<i64>, StoreError> {
        let terms = wanted.query.terms(conversation_key);
        if terms.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = transcript_terms::Entity::find()
            .select_only()
            .column(transcript_terms::Column::Seq)
            .filter(has_all(&terms, self.db.backend()))
            .filter(transcript_terms::Column::ConversationKey.eq(conversation_key));
        if let Some(before) = wanted.before {
            query = query.filter(transcript_terms::Column::Seq.lt(before));
        }
        if let Some(after) = wanted.after {
            query = query.filter(transcript_terms::Column::Seq.gt(after));
        }
        // Joined only for these filters: the index has neither role nor type.
        if !wanted.roles.is_empty() || !wanted.item_types.is_empty() {
            query = query.join(JoinType::InnerJoin, items());
        }
        if !wanted.roles.is_empty() {
            query = query.filter(transcript_items::Column::Role.is_in(padded(&wanted.roles)));
        }
        if !wanted.item_types.is_empty() {
            query =
                query.filter(transcript_items::Column::ItemType.is_in(padded(&wanted.item_types)));
        }
        let newest = query.order_by_desc(transcript_terms::Column::Seq);
        let sequences = newest.limit(CANDIDATES).into_tuple().all(&self.db.readers);
        Ok(sequences.await?)
    }

    async fn texts_at(
        self,
        conversation_key: &str,
        sequences: &[i64],
    ) -> Result<HashMap<i64, Option<String>>, StoreError> {
        let texts: Vec<(i64, Option<String>)> = transcript_items::Entity::find()
            .select_only()
            .column(transcript_items::Column::Seq)
            .column(transcript_items::Column::Content)
            .filter(transcript_items::Column::ConversationKey.eq(conversation_key))
            .filter(transcript_items::Column::Seq.is_in(padded(sequences.iter().copied())))
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        Ok(texts.into_iter().collect())
    }
}

/// Terms have letters and digits only, so quoting suffices in both query languages.
fn has_all(terms: &[String], backend: Backend) -> Expr {
    let quoted = |quote: char, and: &str| {
        let terms = terms.iter().map(|term| format!("{quote}{term}{quote}"));
        terms.collect::<Vec<_>>().join(and)
    };
    match backend {
        Backend::Sqlite => {
            Expr::cust_with_values("transcript_terms MATCH ?", [quoted('"', " AND ")])
        }
        Backend::Postgres => Expr::cust_with_values(
            "transcript_terms.terms @@ CAST(CAST($1 AS text) AS tsquery)",
            [quoted('\'', " & ")],
        ),
    }
}

fn items() -> RelationDef {
    use transcript_items::Column as Item;
    use transcript_terms::Column as Terms;
    transcript_terms::Entity::belongs_to(transcript_items::Entity)
        .from((Terms::ConversationKey, Terms::Seq))
        .to((Item::ConversationKey, Item::Seq))
        .into()
}
