//! Ingest: dedupe, decision and all rows of an accepted event in one transaction.

mod batched;
mod duplicates;
mod rows;

use std::sync::Arc;

use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::batch_op::{BatchOp, BatchResult};
use crate::entity::events;
use crate::error::StoreError;
use crate::model::ingest::{DecideEvent, Ingest, IngestOutcome, Ingested};
use crate::mutation::BatchWork;
use crate::repositories::EventRepository;

pub(crate) use batched::ingest_batch;
pub use duplicates::EventKey;

impl EventRepository<'_> {
    /// Ingests an event. A duplicate key returns the answer of the first event.
    pub async fn ingest<D: DecideEvent>(self, ingest: Ingest<D>) -> IngestOutcome<D::Effects> {
        const TRIES: usize = 3;
        let ingest = Arc::new(ingest);
        let mut tries = 1;
        loop {
            return match self.db.write(Arc::clone(&ingest)).await {
                // Another replica stored the same key concurrently: retry.
                Err(StoreError::Taken) if tries < TRIES => {
                    tries += 1;
                    continue;
                }
                Ok(outcome) => outcome,
                Err(error) => IngestOutcome {
                    ingested: Err(error),
                    effects: None,
                },
            };
        }
    }
}

impl<D: DecideEvent> BatchWork for Ingest<D> {
    type Output = IngestOutcome<D::Effects>;
    const TAKES_EVENT: bool = true;

    /// Sorts before all runs, and by workspace, so replicas lock several capacities in one order.
    fn order(&self) -> Uuid {
        let bytes = self.workspace.as_str().bytes();
        let hash = bytes.fold(0_u64, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        Uuid::from_u64_pair(0, hash)
    }

    /// The context of a run that this commit dispatches repeats the envelope.
    fn weight(&self) -> usize {
        2 * self.envelope.len()
            + self.raw.as_ref().map_or(0, String::len)
            + self
                .actor
                .token
                .as_ref()
                .map_or(0, |token| token.sealed.len())
    }

    fn op(&self) -> BatchOp<'_> {
        BatchOp::Ingest(self)
    }

    fn output_of(&self, done: BatchResult) -> Option<Self::Output> {
        let BatchResult::Ingest(ingested, effects) = done else {
            return None;
        };
        let effects = effects.and_then(|effects| effects.downcast().ok());
        Some(IngestOutcome {
            ingested: Ok(ingested),
            effects: effects.map(|effects| *effects),
        })
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        // Other results wrote nothing, so a retry is safe.
        let Ok(Ingested::Stored { answer: stored }) = &output.ingested else {
            return Ok(false);
        };
        let key = (self.workspace.to_string(), self.event_id.clone());
        let event = events::Entity::find_by_id(key).one(tx).await?;
        // The answer contains the run id, which is unique to this try.
        Ok(event.is_some_and(|event| event.answer == *stored))
    }

    fn after_error(output: Self::Output, error: StoreError) -> Result<Self::Output, StoreError> {
        Ok(IngestOutcome {
            ingested: Err(error),
            ..output
        })
    }
}
