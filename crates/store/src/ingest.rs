//! Ingest: dedupe, decision and all rows of an accepted event in one transaction.

mod batched;
mod duplicates;
mod rows;

use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::batch_op::{BatchOp, BatchResult};
use crate::entity::events;
use crate::error::StoreError;
use crate::model::ingest::{Ingest, Ingested};
use crate::mutation::BatchWork;
use crate::repositories::EventRepository;

pub(crate) use batched::ingest_batch;
pub use duplicates::EventKey;

impl EventRepository<'_> {
    /// Ingests an event. A duplicate key returns the answer of the first event.
    pub async fn ingest(self, ingest: Ingest) -> Result<Ingested, StoreError> {
        const TRIES: usize = 3;
        let mut tries = 1;
        loop {
            match self.db.write(ingest.clone()).await {
                // Another replica stored the same key concurrently: retry.
                Err(StoreError::Taken) if tries < TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }
}

impl BatchWork for Ingest {
    type Output = Ingested;
    const TAKES_EVENT: bool = true;

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

    fn op(&self) -> BatchOp<'_> {
        BatchOp::Ingest(self)
    }

    fn output_of(&self, done: BatchResult) -> Option<Ingested> {
        match done {
            BatchResult::Ingest(ingested) => Some(ingested),
            _ => None,
        }
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
