//! Search of a base. The index finds the chunks of a term and the domain ranks them, so results are equal on
//! both databases.
//!
//! `CROSS JOIN` makes `SQLite` query the index first, then each document.

use domain::knowledge::filter::{FILTERED_NAMES, Filters};
use domain::knowledge::rank::Corpus;
use sea_orm::Value;
use serde_json::json;

use super::{BaseKey, COLUMNS, DocumentRecord, SPAN, record};
use crate::engine::Backend;
use crate::error::{StoreError, unsigned};
use crate::repositories::KnowledgeRepository;
use crate::sql::{Sql, padded};

/// Maximum chunks read per term. A term with more is too common to rank by.
const COMMON: usize = 5_000;
/// Maximum terms per statement.
const TERMS: usize = 12;
/// Maximum terms counted per statement.
const COUNTED: usize = 64;
/// Maximum count of chunks per term: a term with more is common.
const COUNTED_CHUNKS: usize = 500;
/// Maximum chunks per statement.
const CHUNKS: usize = 100;

/// Chunks with one term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posting {
    pub ids: Vec<i64>,
    /// More chunks exist, and `ids` is an arbitrary part of them.
    pub is_common: bool,
}

/// A found chunk, with its document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChunk {
    pub id: i64,
    /// Number within the document.
    pub n: u64,
    pub text: String,
    pub start: u64,
    pub end: u64,
    pub heading: Option<String>,
    pub document: DocumentRecord,
}

/// A vector of a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVector {
    pub id: i64,
    pub bytes: Vec<u8>,
}

/// SQL condition that document `d` passes all filters; appends to `values`. All values of a filter are one
/// parameter. The order of filters is fixed and their number padded, so connections cache few statements.
fn passes(backend: Backend, filters: &Filters, values: &mut Vec<Value>) -> String {
    let mut bind = |value: String| {
        values.push(value.into());
        values.len()
    };
    let among = |parameter: usize| match backend {
        Backend::Sqlite => format!("IN (SELECT value FROM json_each(${parameter}))"),
        Backend::Postgres => format!(
            "= ANY(ARRAY(SELECT json_array_elements_text(CAST(CAST(${parameter} AS text) AS json))))"
        ),
    };
    let mut conditions = Vec::new();
    for own in FILTERED_NAMES {
        if let Some((_, wanted)) = filters.0.iter().find(|(name, _)| name == own) {
            // A non-text value matches no name.
            let names = wanted
                .iter()
                .filter_map(|value| value.as_str())
                .collect::<Vec<_>>();
            let names = bind(json!(names).to_string());
            conditions.push(format!(" AND d.{own} {}", among(names)));
        }
    }
    let others = filters.0.iter();
    let others = others.filter(|(name, _)| !FILTERED_NAMES.contains(&name.as_str()));
    for (name, wanted) in padded(others) {
        let wanted: Vec<_> = wanted.iter().map(ToString::to_string).collect();
        let (name, wanted) = (bind(name.clone()), bind(json!(wanted).to_string()));
        conditions.push(format!(
            " AND EXISTS (SELECT 1 FROM knowledge_metadata m WHERE m.content = d.content \
             AND m.name = ${name} AND m.value {})",
            among(wanted)
        ));
    }
    conditions.concat()
}

impl KnowledgeRepository<'_> {
    /// Size of a base, and the counted version.
    pub async fn knowledge_corpus(self, base: &BaseKey) -> Result<(Corpus, i64), StoreError> {
        let sql = "SELECT CAST(COALESCE(SUM(chunks), 0) AS BIGINT) AS chunks, \
            CAST(COALESCE(SUM(units), 0) AS BIGINT) AS units, \
            (SELECT version FROM knowledge_bases WHERE workspace_id = $1 AND kb_id = $2) AS version \
            FROM knowledge_documents WHERE workspace_id = $1 AND kb_id = $2 AND content > 0";
        let rows = self
            .db
            .readers
            .query_sql(sql.to_owned(), base.values().to_vec())
            .await?;
        let Some(row) = rows.first() else {
            return Ok((Corpus::default(), 0));
        };
        let count = |column| unsigned(column, &base.kb_id, row.number(column)?);
        let corpus = Corpus {
            passages: count("chunks")?,
            units: count("units")?,
        };
        Ok((corpus, row.number_if_any("version")?.unwrap_or(0)))
    }

    /// Number of chunks with each term, up to 500. An estimate: includes chunks being written or deleted.
    pub async fn knowledge_frequencies(self, terms: &[String]) -> Result<Vec<u64>, StoreError> {
        let mut counts = Vec::with_capacity(terms.len());
        for some in terms.chunks(COUNTED) {
            let mut values: Vec<Value> = Vec::new();
            let mut parts = Vec::new();
            // Padded, so connections cache one statement per width.
            for (index, term) in padded(some.iter()).into_iter().enumerate() {
                let held = self.holds(term, &mut values);
                parts.push(format!(
                    "SELECT CAST({index} AS BIGINT) AS term, (SELECT COUNT(*) FROM (SELECT 1 AS held \
                     FROM knowledge_terms WHERE {held} LIMIT {COUNTED_CHUNKS}) AS s{index}) AS chunks"
                ));
            }
            let rows = self.db.readers.query_sql(parts.join(" UNION ALL "), values);
            let mut found = vec![0; some.len()];
            for row in rows.await? {
                let index = usize::try_from(row.number("term")?).unwrap_or(COUNTED);
                if let Some(count) = found.get_mut(index) {
                    *count = u64::try_from(row.number("chunks")?).unwrap_or_default();
                }
            }
            counts.extend(found);
        }
        Ok(counts)
    }

    /// SQL condition that a chunk has a term; appends to `values`.
    fn holds(self, term: &str, values: &mut Vec<Value>) -> String {
        values.push(match self.db.backend() {
            Backend::Sqlite => format!("\"{term}\"").into(),
            Backend::Postgres => format!("'{term}'").into(),
        });
        match self.db.backend() {
            Backend::Sqlite => format!("knowledge_terms MATCH ${}", values.len()),
            Backend::Postgres => format!(
                "knowledge_terms.terms @@ CAST(CAST(${} AS text) AS tsquery)",
                values.len()
            ),
        }
    }

    /// Chunks with each term, in documents that pass the filters.
    pub async fn knowledge_postings(
        self,
        base: &BaseKey,
        terms: &[String],
        filters: &Filters,
    ) -> Result<Vec<Posting>, StoreError> {
        let mut postings = vec![Posting::default(); terms.len()];
        for (chunk, some) in terms.chunks(TERMS).enumerate() {
            let mut values = base.values().to_vec();
            let condition = passes(self.db.backend(), filters, &mut values);
            let mut parts = Vec::new();
            for (index, term) in some.iter().enumerate() {
                let held = self.holds(term, &mut values);
                parts.push(format!(
                    "SELECT * FROM (SELECT CAST({index} AS BIGINT) AS term, knowledge_terms.rowid AS id \
                     FROM knowledge_terms CROSS JOIN knowledge_documents d \
                     WHERE {held} AND d.content = knowledge_terms.rowid / {SPAN} AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2{condition} \
                     LIMIT {}) AS s{index}",
                    // One more than the maximum shows that the term is common.
                    COMMON + 1
                ));
            }
            for row in self
                .db
                .readers
                .query_sql(parts.join(" UNION ALL "), values)
                .await?
            {
                let index = usize::try_from(row.number("term")?).unwrap_or(TERMS);
                if let Some(posting) = postings.get_mut(chunk * TERMS + index) {
                    posting.ids.push(row.number("id")?);
                }
            }
        }
        for posting in &mut postings {
            posting.is_common = posting.ids.len() > COMMON;
            posting.ids.sort_unstable();
        }
        Ok(postings)
    }

    /// The first chunks of the base with all of these terms, for queries of common terms only.
    pub async fn knowledge_holding_all(
        self,
        base: &BaseKey,
        terms: &[String],
        filters: &Filters,
        limit: usize,
    ) -> Result<Vec<i64>, StoreError> {
        let mut values = base.values().to_vec();
        let condition = passes(self.db.backend(), filters, &mut values);
        let (quote, and) = match self.db.backend() {
            Backend::Sqlite => ('"', " AND "),
            Backend::Postgres => ('\'', " & "),
        };
        let quoted: Vec<_> = terms
            .iter()
            .map(|term| format!("{quote}{term}{quote}"))
            .collect();
        values.push(quoted.join(and).into());
        let held = match self.db.backend() {
            Backend::Sqlite => format!("knowledge_terms MATCH ${}", values.len()),
            Backend::Postgres => format!(
                "knowledge_terms.terms @@ CAST(CAST(${} AS text) AS tsquery)",
                values.len()
            ),
        };
        let sql = format!(
            "SELECT knowledge_terms.rowid AS id FROM knowledge_terms \
             CROSS JOIN knowledge_documents d \
             WHERE {held} AND d.content = knowledge_terms.rowid / {SPAN} AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2{condition} \
             ORDER BY knowledge_terms.rowid LIMIT {limit}"
        );
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.iter().map(|row| row.number("id")).collect()
    }

    /// The searchable ones of these chunks, with their documents, unordered.
    pub async fn knowledge_chunks(
        self,
        base: &BaseKey,
        ids: &[i64],
    ) -> Result<Vec<FoundChunk>, StoreError> {
        let document = document_columns();
        let mut found = Vec::with_capacity(ids.len());
        for some in ids.chunks(CHUNKS) {
            let mut values = base.values().to_vec();
            let mut placeholders = Vec::new();
            for id in padded(some) {
                values.push((*id).into());
                placeholders.push(format!("${}", values.len()));
            }
            let sql = format!(
                "SELECT c.id, c.text, c.start_at, c.end_at, c.heading, {document} \
                 FROM knowledge_chunks c JOIN knowledge_documents d ON d.content = c.id / {SPAN} \
                 WHERE c.id IN ({}) AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2",
                placeholders.join(", ")
            );
            for row in self.db.readers.query_sql(sql, values).await? {
                found.push(found_chunk(&row)?);
            }
        }
        Ok(found)
    }

    /// Chunks of a content in order, from number `from`, for re-chunking.
    pub async fn knowledge_content(
        self,
        base: &BaseKey,
        content: i64,
        from: u64,
        limit: u64,
    ) -> Result<Vec<FoundChunk>, StoreError> {
        let mut values = base.values().to_vec();
        let first = content * SPAN + i64::try_from(from).unwrap_or(SPAN);
        values.extend([first.into(), ((content + 1) * SPAN).into()]);
        let document = document_columns();
        let sql = format!(
            "SELECT c.id, c.text, c.start_at, c.end_at, c.heading, {document} \
             FROM knowledge_chunks c JOIN knowledge_documents d ON d.content = c.id / {SPAN} \
             WHERE c.id >= $3 AND c.id < $4 AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2 \
             ORDER BY c.id LIMIT {limit}"
        );
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.iter().map(found_chunk).collect()
    }

    /// Vectors of one model in documents that pass the filters, after the chunk `after`.
    pub async fn knowledge_vectors(
        self,
        base: &BaseKey,
        model: &str,
        filters: &Filters,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredVector>, StoreError> {
        let mut values = base.values().to_vec();
        values.extend([model.into(), after.into()]);
        let condition = passes(self.db.backend(), filters, &mut values);
        let sql = format!(
            "SELECT v.id, v.vector FROM knowledge_vectors v \
             CROSS JOIN knowledge_documents d \
             WHERE v.id > $4 AND d.content = v.id / {SPAN} AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2 \
             AND d.vector_model = $3{condition} ORDER BY v.id LIMIT {limit}"
        );
        let rows = self.db.readers.query_sql(sql, values).await?;
        let read = |row: &crate::sql::SqlRow| {
            Ok(StoredVector {
                id: row.number("id")?,
                bytes: row.bytes("vector")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

fn document_columns() -> String {
    let columns = [COLUMNS.variable, COLUMNS.fixed]
        .concat()
        .into_iter()
        .map(|column| format!("d.{column}"));
    columns.collect::<Vec<_>>().join(", ")
}

fn found_chunk(row: &crate::sql::SqlRow) -> Result<FoundChunk, StoreError> {
    let id = row.number("id")?;
    let document = record(row)?;
    let count = |column: &'static str| unsigned(column, &document.document_id, row.number(column)?);
    Ok(FoundChunk {
        id,
        n: unsigned("knowledge_chunks.id", &document.document_id, id % SPAN)?,
        text: row.text("text")?,
        start: count("start_at")?,
        end: count("end_at")?,
        heading: row.text_if_any("heading")?,
        document,
    })
}

#[cfg(test)]
mod tests {
    use domain::knowledge::filter::check_filters;
    use serde_json::Value as Json;

    use super::*;

    #[test]
    fn filters_of_any_length_use_few_statements() {
        let statement = |backend, filters: &Json| {
            let filters = check_filters(filters.as_object().unwrap()).unwrap();
            let mut values = Vec::new();
            let text = passes(backend, &filters, &mut values);
            (text, values.len())
        };
        for backend in [Backend::Sqlite, Backend::Postgres] {
            let one = statement(backend, &json!({"name": ["x"], "a": [1]}));
            let wide: Vec<u8> = (0..64).collect();
            let many = json!({"a": wide, "name": {"$in": ["x", "y", 7]}});
            assert_eq!(one, statement(backend, &many));
            let names = |count: usize| (0..count).map(|n| (format!("n-{n}"), json!(n)));
            let mut texts: Vec<_> = (0..=32)
                .map(|count| statement(backend, &Json::Object(names(count).collect())))
                .collect();
            texts.dedup();
            assert_eq!(texts.len(), 7, "none, one, two, four and so on");
        }
    }
}
