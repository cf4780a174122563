//! Searching a base. The index says which chunks hold a term and the domain ranks them, so that both
//! databases find the same in the same order.
//!
//! `CROSS JOIN` is how `SQLite` is told to ask the index first, and each document after it.

use domain::knowledge::filter::{FILTERED_NAMES, Filters};
use domain::knowledge::rank::Corpus;
use sea_orm::Value;
use serde_json::json;

use super::{BaseKey, COLUMNS, DocumentRecord, SPAN, record};
use crate::connect::{Backend, Store};
use crate::error::{StoreError, unsigned};
use crate::sql::{Sql, padded};

/// Chunks that are looked up for one term at most. One that more have tells them not apart.
const COMMON: usize = 5_000;
/// Terms of one statement.
const TERMS: usize = 12;
/// Terms that one statement counts.
const COUNTED: usize = 64;
/// Chunks that are counted of one term at most: a term with more is common.
const COUNTED_CHUNKS: usize = 500;
/// Chunks of one statement.
const CHUNKS: usize = 100;

/// The chunks that hold one term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posting {
    pub ids: Vec<i64>,
    /// There are more: `ids` is no choice among them.
    pub is_common: bool,
}

/// A chunk that was found, with the document it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChunk {
    pub id: i64,
    /// Its number in the document.
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

/// The condition that a document `d` passes all filters; values go behind those that stand there. However many values a
/// filter has, they are one parameter, and filters come in an order and a number of few: connections keep each statement.
fn passes(backend: Backend, filters: &Filters, values: &mut Vec<Value>) -> String {
    let mut place = |value: String| {
        values.push(value.into());
        values.len()
    };
    let among = |place: usize| match backend {
        Backend::Sqlite => format!("IN (SELECT value FROM json_each(${place}))"),
        Backend::Postgres => format!(
            "= ANY(ARRAY(SELECT json_array_elements_text(CAST(CAST(${place} AS text) AS json))))"
        ),
    };
    let mut conditions = Vec::new();
    for own in FILTERED_NAMES {
        if let Some((_, wanted)) = filters.0.iter().find(|(name, _)| name == own) {
            // What is no text is the name of nothing.
            let names = wanted
                .iter()
                .filter_map(|value| value.as_str())
                .collect::<Vec<_>>();
            let names = place(json!(names).to_string());
            conditions.push(format!(" AND d.{own} {}", among(names)));
        }
    }
    let others = filters.0.iter();
    let others = others.filter(|(name, _)| !FILTERED_NAMES.contains(&name.as_str()));
    for (name, wanted) in padded(others) {
        let wanted: Vec<_> = wanted.iter().map(ToString::to_string).collect();
        let (name, wanted) = (place(name.clone()), place(json!(wanted).to_string()));
        conditions.push(format!(
            " AND EXISTS (SELECT 1 FROM knowledge_metadata m WHERE m.content = d.content \
             AND m.name = ${name} AND m.value {})",
            among(wanted)
        ));
    }
    conditions.concat()
}

impl Store {
    /// How much there is to find in a base, and the version of it that was counted.
    pub async fn knowledge_corpus(&self, base: &BaseKey) -> Result<(Corpus, i64), StoreError> {
        let sql = "SELECT CAST(COALESCE(SUM(chunks), 0) AS BIGINT) AS chunks, \
            CAST(COALESCE(SUM(units), 0) AS BIGINT) AS units, \
            (SELECT version FROM knowledge_bases WHERE workspace_id = $1 AND kb_id = $2) AS version \
            FROM knowledge_documents WHERE workspace_id = $1 AND kb_id = $2 AND content > 0";
        let rows = self
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

    /// How many chunks hold each term, to 500 at most. An estimate: chunks that are being written or removed count, too.
    pub async fn knowledge_frequencies(&self, terms: &[String]) -> Result<Vec<u64>, StoreError> {
        let mut counts = Vec::with_capacity(terms.len());
        for some in terms.chunks(COUNTED) {
            let mut values: Vec<Value> = Vec::new();
            let mut parts = Vec::new();
            for (place, term) in padded(some.iter()).into_iter().enumerate() {
                let held = self.holds(term, &mut values);
                parts.push(format!(
                    "SELECT CAST({place} AS BIGINT) AS term, (SELECT COUNT(*) FROM (SELECT 1 AS held \
                     FROM knowledge_terms WHERE {held} LIMIT {COUNTED_CHUNKS}) AS s{place}) AS chunks"
                ));
            }
            let rows = self.readers.query_sql(parts.join(" UNION ALL "), values);
            let mut found = vec![0; some.len()];
            for row in rows.await? {
                let place = usize::try_from(row.number("term")?).unwrap_or(COUNTED);
                if let Some(count) = found.get_mut(place) {
                    *count = u64::try_from(row.number("chunks")?).unwrap_or_default();
                }
            }
            counts.extend(found);
        }
        Ok(counts)
    }

    /// The condition that a chunk holds a term; the term goes behind the values that stand there.
    fn holds(&self, term: &str, values: &mut Vec<Value>) -> String {
        values.push(match self.backend() {
            Backend::Sqlite => format!("\"{term}\"").into(),
            Backend::Postgres => format!("'{term}'").into(),
        });
        match self.backend() {
            Backend::Sqlite => format!("knowledge_terms MATCH ${}", values.len()),
            Backend::Postgres => format!(
                "knowledge_terms.terms @@ CAST(CAST(${} AS text) AS tsquery)",
                values.len()
            ),
        }
    }

    /// For each term, which chunks hold it, of documents that pass the filters.
    pub async fn knowledge_postings(
        &self,
        base: &BaseKey,
        terms: &[String],
        filters: &Filters,
    ) -> Result<Vec<Posting>, StoreError> {
        let mut postings = vec![Posting::default(); terms.len()];
        for (chunk, some) in terms.chunks(TERMS).enumerate() {
            let mut values = base.values().to_vec();
            let condition = passes(self.backend(), filters, &mut values);
            let mut parts = Vec::new();
            for (place, term) in some.iter().enumerate() {
                let held = self.holds(term, &mut values);
                parts.push(format!(
                    "SELECT * FROM (SELECT CAST({place} AS BIGINT) AS term, knowledge_terms.rowid AS id \
                     FROM knowledge_terms CROSS JOIN knowledge_documents d \
                     WHERE {held} AND d.content = knowledge_terms.rowid / {SPAN} AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2{condition} \
                     LIMIT {}) AS s{place}",
                    COMMON + 1
                ));
            }
            for row in self
                .readers
                .query_sql(parts.join(" UNION ALL "), values)
                .await?
            {
                let place = usize::try_from(row.number("term")?).unwrap_or(TERMS);
                if let Some(posting) = postings.get_mut(chunk * TERMS + place) {
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

    /// Chunks that hold all of these terms, the first of the base. For a query that has common terms alone.
    pub async fn knowledge_holding_all(
        &self,
        base: &BaseKey,
        terms: &[String],
        filters: &Filters,
        most: usize,
    ) -> Result<Vec<i64>, StoreError> {
        let mut values = base.values().to_vec();
        let condition = passes(self.backend(), filters, &mut values);
        let (quote, and) = match self.backend() {
            Backend::Sqlite => ('"', " AND "),
            Backend::Postgres => ('\'', " & "),
        };
        let quoted: Vec<_> = terms
            .iter()
            .map(|term| format!("{quote}{term}{quote}"))
            .collect();
        values.push(quoted.join(and).into());
        let held = match self.backend() {
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
             ORDER BY knowledge_terms.rowid LIMIT {most}"
        );
        let rows = self.readers.query_sql(sql, values).await?;
        rows.iter().map(|row| row.number("id")).collect()
    }

    /// These chunks with their documents, as far as they are still searched. In no order.
    pub async fn knowledge_chunks(
        &self,
        base: &BaseKey,
        ids: &[i64],
    ) -> Result<Vec<FoundChunk>, StoreError> {
        let document = document_columns();
        let mut found = Vec::with_capacity(ids.len());
        for some in ids.chunks(CHUNKS) {
            let mut values = base.values().to_vec();
            let mut places = Vec::new();
            for id in padded(some) {
                values.push((*id).into());
                places.push(format!("${}", values.len()));
            }
            let sql = format!(
                "SELECT c.id, c.text, c.start_at, c.end_at, c.heading, {document} \
                 FROM knowledge_chunks c JOIN knowledge_documents d ON d.content = c.id / {SPAN} \
                 WHERE c.id IN ({}) AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2",
                places.join(", ")
            );
            for row in self.readers.query_sql(sql, values).await? {
                found.push(found_chunk(&row)?);
            }
        }
        Ok(found)
    }

    /// Chunks of a content in their order, from number `from` on: to be cut anew.
    pub async fn knowledge_content(
        &self,
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
        let rows = self.readers.query_sql(sql, values).await?;
        rows.iter().map(found_chunk).collect()
    }

    /// Vectors that one model made of documents that pass the filters, after the chunk `after`.
    pub async fn knowledge_vectors(
        &self,
        base: &BaseKey,
        model: &str,
        filters: &Filters,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredVector>, StoreError> {
        let mut values = base.values().to_vec();
        values.extend([model.into(), after.into()]);
        let condition = passes(self.backend(), filters, &mut values);
        let sql = format!(
            "SELECT v.id, v.vector FROM knowledge_vectors v \
             CROSS JOIN knowledge_documents d \
             WHERE v.id > $4 AND d.content = v.id / {SPAN} AND d.content > 0 AND d.workspace_id = $1 AND d.kb_id = $2 \
             AND d.vector_model = $3{condition} ORDER BY v.id LIMIT {limit}"
        );
        let rows = self.readers.query_sql(sql, values).await?;
        let read = |row: &crate::sql::Row| {
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

fn found_chunk(row: &crate::sql::Row) -> Result<FoundChunk, StoreError> {
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
    fn filters_of_any_length_are_few_statements() {
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
