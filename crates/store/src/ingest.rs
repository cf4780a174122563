//! Ingest: dedupe, decision and all rows of an accepted event in one transaction.

mod batched;
mod duplicates;
mod rows;

use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::batch_op::{BatchOp, BatchResult};
use crate::capacity::lock_capacity;
use crate::conversation::live_runs;
use crate::entity::events;
use crate::error::StoreError;
use crate::failpoint;
use crate::generations::generations_of;
use crate::model::ingest::{DecisionFacts, Ingest, IngestPlan, Ingested};
use crate::mutation::Mutation;
use crate::new_run::cached_candidates;
use crate::repositories::EventRepository;
use crate::tx_cache::TxCache;
use rows::{Rows, lock_conversations};

pub(crate) use batched::ingest_batch;
pub use duplicates::EventKey;

impl EventRepository<'_> {
    /// Ingests an event. A duplicate key returns the answer of the first event.
    pub async fn ingest(self, ingest: Ingest) -> Result<Ingested, StoreError> {
        const TRIES: usize = 3;
        let mut tries = 1;
        loop {
            match self.db.write(ingest.clone()).await {
                Err(StoreError::Refused) => return Ok(Ingested::Refused),
                // Another replica stored the same key concurrently: retry.
                Err(StoreError::Taken) if tries < TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }
}

impl Mutation for Ingest {
    type Output = Ingested;
    const SAVEPOINT: bool = true;
    const TAKES_EVENT: bool = true;
    const CHANGES_AGENTS: bool = false;

    /// Sorts before all runs, and by workspace, so replicas lock several capacities in one order.
    fn order(&self) -> Uuid {
        let bytes = self.workspace.as_str().bytes();
        let hash = bytes.fold(0_u64, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        Uuid::from_u64_pair(0, hash)
    }

    fn weight(&self) -> usize {
        self.envelope.len() + self.raw.as_ref().map_or(0, String::len) + self.ready_bytes
    }

    fn batched(&self) -> Option<BatchOp<'_>> {
        // Answers and child runs are rare, and need their question or parent.
        let is_plain = self.answers.is_none() && self.parent.is_none();
        is_plain.then_some(BatchOp::Ingest(self))
    }

    fn output_of(&self, done: BatchResult) -> Option<Ingested> {
        match done {
            BatchResult::Ingest(ingested) => Some(ingested),
            _ => None,
        }
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Ingested, StoreError> {
        self.apply_with(tx, &mut TxCache::default()).await
    }

    async fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        tx_cache: &mut TxCache,
    ) -> Result<Ingested, StoreError> {
        // Before any lock: a replayed event does not wait for its conversation.
        if let Some(existing) = self.find_duplicate(tx).await? {
            return Ok(existing);
        }
        // Before every other lock of the transaction, as in all replicas.
        let capacities = lock_capacity(tx, &self.workspace, self.max_live_runs).await?;
        let conversation = lock_conversations(tx, &[self]).await?.pop();
        // A new conversation has no runs.
        let lived = conversation.as_ref().filter(|row| row.version > 1);
        let key = lived.map(|row| row.position.conversation_key.as_str());
        let newest = lived.map_or(0, |row| row.position.transcript_before);
        let candidates = cached_candidates(tx, &self.workspace, tx_cache).await?;
        let facts = DecisionFacts {
            generations: generations_of(tx, &candidates, key, newest).await?,
            candidates,
            live: live_runs(tx, key).await?,
            position: conversation.map(|row| row.position),
            capacities,
            unanswerable: self.unanswerable(tx).await?,
            child_refused: self.child_refused(tx).await?,
        };
        let plan = (self.decide)(&facts);
        // Another replica may have stored this event while this one waited for the conversation. The run that
        // causes the refusal may then be its own.
        if matches!(plan, IngestPlan::Refuse) && self.find_duplicate(tx).await?.is_some() {
            return Err(StoreError::Taken);
        }
        let mut rows = Rows::default();
        let stored = rows.gather(tx, self, plan, facts.position.as_ref()).await?;
        rows.write(tx).await?;
        failpoint::pass("ingest.before_commit").await?;
        Ok(stored)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        // Other results wrote nothing, so a retry is safe.
        let Ingested::Stored { answer: stored } = output else {
            return Ok(false);
        };
        let key = (self.workspace.to_string(), self.event_id.clone());
        let event = events::Entity::find_by_id(key).one(tx).await?;
        // The answer contains the run id, which is unique to this try.
        Ok(event.is_some_and(|event| event.answer == *stored))
    }
}
