//! Inputs of runs: frozen texts and the event.

use domain::run::Run;
use protocol::id::RunId;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};

use crate::engine::StoreEngine;
use crate::entity::{events, transcript_items};
use crate::error::StoreError;
use crate::new_run::frozen_in;
use crate::page::ReadBudget;
use crate::repositories::RunRepository;
use crate::shared_parts::restore_text;
use crate::sql::Sql;

/// The inputs of a run.
#[derive(Clone, Debug)]
pub struct StoredRunInputs {
    /// The frozen agent specification, as JSON.
    pub agent_spec: String,
    /// The authorization snapshot, as JSON.
    pub snapshot: String,
    /// The envelope, as JSON.
    pub envelope: String,
    pub event_seq: Option<i64>,
    /// Arrival of the event, in epoch milliseconds.
    pub arrived_at: i64,
    /// Newest transcript sequence, without the event's own message; 0 for none.
    pub transcript_before: i64,
}

/// Frozen texts of a run, complete with their shared parts.
struct Frozen {
    agent_spec: String,
    snapshot: String,
}

impl RunRepository<'_> {
    /// The inputs of a run, read again at its dispatch.
    pub async fn find_run_inputs(self, run: &Run) -> Result<Option<StoredRunInputs>, StoreError> {
        let frozen = self.find_frozen(run.id).await?;
        let event = events::Entity::find_by_id((run.workspace.to_string(), run.event_id.clone()))
            .one(&self.db.readers)
            .await?;
        let Some((frozen, event)) = frozen.zip(event) else {
            return Ok(None);
        };
        let transcript_before = match &run.conversation_key {
            None => 0,
            Some(key) => transcript_before(self.db, &run.event_id, key).await?,
        };
        Ok(Some(StoredRunInputs {
            agent_spec: frozen.agent_spec,
            snapshot: frozen.snapshot,
            envelope: event.envelope,
            event_seq: event.event_seq,
            arrived_at: event.received_at,
            transcript_before,
        }))
    }

    /// The authorization snapshot of a run, as JSON.
    pub async fn find_snapshot(self, id: RunId) -> Result<Option<String>, StoreError> {
        let frozen = self.find_frozen(id).await?;
        Ok(frozen.map(|frozen| frozen.snapshot))
    }

    async fn find_frozen(self, id: RunId) -> Result<Option<Frozen>, StoreError> {
        let (table, key) = frozen_in(self.db.readers.backend());
        let sql = format!("SELECT agent_spec, snapshot FROM {table} WHERE {key} = $1");
        let row = id.to_string();
        let found = self.db.readers.query_sql(sql, vec![row.as_str().into()]);
        let Some(found) = found.await?.pop() else {
            return Ok(None);
        };
        let restore = |stored| restore_text(self.db, &row, stored, ReadBudget::default());
        Ok(Some(Frozen {
            agent_spec: restore(found.text("agent_spec")?).await?,
            snapshot: restore(found.text("snapshot")?).await?,
        }))
    }
}

/// Newest transcript sequence of the conversation, without the run's own message.
async fn transcript_before(db: &StoreEngine, event_id: &str, key: &str) -> Result<i64, StoreError> {
    let newest: Option<i64> = transcript_items::Entity::find()
        .select_only()
        .column(transcript_items::Column::Seq)
        .filter(transcript_items::Column::ConversationKey.eq(key))
        .filter(transcript_items::Column::EventId.ne(event_id))
        .order_by_desc(transcript_items::Column::Seq)
        .into_tuple()
        .one(&db.readers)
        .await?;
    Ok(newest.unwrap_or(0))
}
