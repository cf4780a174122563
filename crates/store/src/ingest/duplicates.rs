//! Deduplication of events by idempotency key and id.

use std::collections::HashSet;

use protocol::id::WorkspaceId;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, ExprTrait, QueryFilter,
    QuerySelect,
};

use crate::entity::events;
use crate::error::{StoreError, signed};
use crate::model::ingest::{Ingest, Ingested};
use crate::repositories::EventRepository;
use crate::sql::{PLAN_FENCE, Sql, returned};

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

/// Columns of a row, in order.
impl From<(String, String, String, String, i64)> for StoredEvent {
    fn from(row: (String, String, String, String, i64)) -> Self {
        let (event_id, dedupe_key, body_sha256, answer, received_at) = row;
        Self {
            event_id,
            dedupe_key,
            body_sha256,
            answer,
            received_at,
        }
    }
}

/// Positions of events whose key or id is stored.
pub(super) async fn duplicates_among(
    tx: &impl Sql,
    ingests: &[&Ingest],
    indexes: &[usize],
) -> Result<HashSet<usize>, StoreError> {
    let rows = indexes.iter().map(|index| {
        let ingest = ingests[*index];
        [
            ingest.workspace.as_str().into(),
            ingest.event_id.as_str().into(),
            ingest.dedupe_key.as_str().into(),
            signed(*index as u64).into(),
        ]
    });
    let of = "SELECT 1 FROM events e WHERE e.workspace_id = ?1";
    let select = format!(
        "SELECT ?4 AS place FROM rows WHERE EXISTS ({of} AND e.event_id = ?2 {PLAN_FENCE}) \
         OR EXISTS ({of} AND e.dedupe_key = ?3 {PLAN_FENCE})"
    );
    let found = returned(tx, rows.collect(), &select).await?;
    let indexes = found.iter().map(|row| row.number("place"));
    let indexes: Result<Vec<_>, _> = indexes.collect();
    Ok(indexes?
        .into_iter()
        .filter_map(|index| usize::try_from(index).ok())
        .collect())
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

impl Ingest {
    /// The answer of an earlier event with the same key or id.
    pub(super) async fn find_duplicate(
        &self,
        tx: &DatabaseTransaction,
    ) -> Result<Option<Ingested>, StoreError> {
        let key = EventKey {
            workspace: &self.workspace,
            event_id: &self.event_id,
            dedupe_key: &self.dedupe_key,
            body_sha256: &self.body_sha256,
            at: self.at,
        };
        let find_matches = key.find_matches(tx).await?;
        if let Some(event) = key
            .of_same_key(&find_matches)
            .filter(|event| key.outlives(event))
        {
            // In the same transaction as the new event: a failed ingest must not free the key.
            self.free_old_key(tx, event).await?;
        }
        Ok(key.outcome_of(&find_matches))
    }

    async fn free_old_key(
        &self,
        tx: &DatabaseTransaction,
        event: &StoredEvent,
    ) -> Result<(), StoreError> {
        // Cannot collide with a client's key, which is ASCII.
        let freed = format!("†{}", event.event_id);
        events::Entity::update_many()
            .col_expr(events::Column::DedupeKey, Expr::value(freed))
            .filter(events::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(events::Column::EventId.eq(event.event_id.as_str()))
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl EventKey<'_> {
    /// Events with this key or id.
    async fn find_matches(
        &self,
        connection: &impl ConnectionTrait,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let same = events::Column::DedupeKey
            .eq(self.dedupe_key)
            .or(events::Column::EventId.eq(self.event_id));
        let rows: Vec<(String, String, String, String, i64)> = events::Entity::find()
            .select_only()
            .column(events::Column::EventId)
            .column(events::Column::DedupeKey)
            .column(events::Column::BodySha256)
            .column(events::Column::Answer)
            .column(events::Column::ReceivedAt)
            .filter(events::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(same)
            .into_tuple()
            .all(connection)
            .await?;
        Ok(rows.into_iter().map(StoredEvent::from).collect())
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
