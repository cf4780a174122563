//! Deduplication of events by idempotency key and id.

use protocol::id::WorkspaceId;

use crate::error::StoreError;
use crate::model::ingest::{AnyIngest, Ingested};
use crate::repositories::EventRepository;
use crate::sql::{PLAN_FENCE, Sql, SqlRow, returned};

/// Lifetime of an idempotency key.
const KEY_LIFE_MS: i64 = 7 * 24 * 60 * 60 * 1000;

/// Dedupe key and id of an event.
#[derive(Clone, Copy, Debug)]
pub struct EventKey<'a> {
    pub workspace: &'a WorkspaceId,
    pub event_id: &'a str,
    pub dedupe_key: &'a str,
    pub body_sha256: &'a str,
    /// Time of the query, epoch milliseconds.
    pub at: i64,
}

/// Earlier event with the same key or id.
struct StoredEvent {
    event_id: String,
    dedupe_key: String,
    body_sha256: String,
    answer: String,
    received_at: i64,
}

/// Earlier event with the key or id of a new one.
pub(super) enum Duplicate {
    Stored(Ingested),
    /// Its key has expired, and may name the new event. The id of the earlier event.
    Expired(String),
}

/// Events whose key or id is stored, by their positions.
pub(super) async fn duplicates_among(
    tx: &impl Sql,
    ingests: &[&AnyIngest],
) -> Result<Vec<(usize, Duplicate)>, StoreError> {
    let rows = ingests.iter().zip(0_i64..).map(|(ingest, index)| {
        [
            ingest.workspace.as_str().into(),
            ingest.event_id.as_str().into(),
            ingest.dedupe_key.as_str().into(),
            index.into(),
        ]
    });
    let of = "SELECT 1 FROM events e WHERE e.workspace_id = ?1";
    let select = format!(
        "SELECT ?4 AS place FROM rows WHERE EXISTS ({of} AND e.event_id = ?2 {PLAN_FENCE}) \
         OR EXISTS ({of} AND e.dedupe_key = ?3 {PLAN_FENCE})"
    );
    let mut duplicates = Vec::new();
    for row in returned(tx, rows.collect(), &select).await? {
        let index = usize::try_from(row.number("place")?).unwrap_or(usize::MAX);
        if let Some(ingest) = ingests.get(index)
            && let Some(duplicate) = ingest.find_duplicate(tx).await?
        {
            duplicates.push((index, duplicate));
        }
    }
    Ok(duplicates)
}

impl EventRepository<'_> {
    /// The answer of an earlier event with this key or id. `None`: new so far; the ingest transaction checks
    /// again.
    pub async fn find_existing_event(
        self,
        key: EventKey<'_>,
    ) -> Result<Option<Ingested>, StoreError> {
        let find_matches = key.find_matches(&self.db.readers).await?;
        Ok(key.outcome_of(&find_matches))
    }
}

impl AnyIngest {
    /// The earlier event with the same key or id.
    pub(super) async fn find_duplicate(
        &self,
        tx: &impl Sql,
    ) -> Result<Option<Duplicate>, StoreError> {
        let key = EventKey {
            workspace: &self.workspace,
            event_id: &self.event_id,
            dedupe_key: &self.dedupe_key,
            body_sha256: &self.body_sha256,
            at: self.at,
        };
        let matches = key.find_matches(tx).await?;
        if let Some(answer) = key.outcome_of(&matches) {
            return Ok(Some(Duplicate::Stored(answer)));
        }
        let expired = key.of_same_key(&matches);
        Ok(expired.map(|event| Duplicate::Expired(event.event_id.clone())))
    }
}

impl EventKey<'_> {
    /// Events with this key or id.
    async fn find_matches(&self, conn: &impl Sql) -> Result<Vec<StoredEvent>, StoreError> {
        let sql = "SELECT event_id, dedupe_key, body_sha256, answer, received_at FROM events \
                   WHERE workspace_id = $1 AND (dedupe_key = $2 OR event_id = $3)";
        let values = [self.workspace.as_str(), self.dedupe_key, self.event_id];
        let values = values.map(Into::into).into();
        let rows = conn.query_sql(sql.to_owned(), values).await?;
        let read = |row: &SqlRow| {
            Ok(StoredEvent {
                event_id: row.text("event_id")?,
                dedupe_key: row.text("dedupe_key")?,
                body_sha256: row.text("body_sha256")?,
                answer: row.text("answer")?,
                received_at: row.number("received_at")?,
            })
        };
        rows.iter().map(read).collect()
    }

    fn outcome_of(&self, find_matches: &[StoredEvent]) -> Option<Ingested> {
        let same_key = self.of_same_key(find_matches);
        if let Some(event) = same_key.filter(|event| !self.outlives(event)) {
            return Some(if event.body_sha256 == self.body_sha256 {
                Ingested::Replayed {
                    answer: event.answer.clone(),
                }
            } else {
                Ingested::Mismatch
            });
        }
        // Another key with a stored id: ids are never reused.
        let same_id = find_matches
            .iter()
            .any(|event| event.event_id == self.event_id);
        same_id.then_some(Ingested::EventExists)
    }

    fn of_same_key<'k>(&self, find_matches: &'k [StoredEvent]) -> Option<&'k StoredEvent> {
        find_matches
            .iter()
            .find(|event| event.dedupe_key == self.dedupe_key)
    }

    /// A client's key expires after a week and may then name another event.
    fn outlives(&self, event: &StoredEvent) -> bool {
        event.event_id != self.event_id && event.received_at <= self.at - KEY_LIFE_MS
    }
}
