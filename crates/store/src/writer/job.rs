//! Items of the writer's queue.

use futures_util::future::BoxFuture;
use sea_orm::DatabaseTransaction;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::batch_op::{BatchOp, BatchResult};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::tx_cache::TxCache;

/// A queued item, independent of the type of its work.
pub(crate) trait Item: Send {
    fn order(&self) -> Uuid;
    fn in_savepoint(&self) -> bool;
    fn is_urgent(&self) -> bool;
    /// True when a caller waits for the result.
    fn is_awaited(&self) -> bool;
    fn takes_event(&self) -> bool;
    fn lock(&self) -> Option<String>;
    /// The key of the conversation that it locks.
    fn conversation(&self) -> Option<&str>;
    fn advisory_keys(&self) -> Vec<AdvisoryKey>;
    fn weight(&self) -> usize;
    fn changes_agents(&self) -> bool;
    fn batched(&self) -> Option<BatchOp<'_>>;
    fn note_done(&mut self, done: BatchResult);
    /// True when no earlier try left a result that may be committed.
    fn has_no_result(&self) -> bool;
    /// Drops the result of the last try after a certain rollback.
    fn discard_result(&mut self);
    fn apply<'a>(
        &'a mut self,
        tx: &'a DatabaseTransaction,
        tx_cache: &'a mut TxCache,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
    fn finish(self: Box<Self>, refusal: Option<StoreError>);
}

/// A mutation and the channel for its result.
pub(crate) struct Job<W: Mutation> {
    work: W,
    output: Option<W::Output>,
    reply: Option<oneshot::Sender<Result<W::Output, StoreError>>>,
}

impl<W: Mutation> Job<W> {
    pub(crate) fn new(
        work: W,
        reply: Option<oneshot::Sender<Result<W::Output, StoreError>>>,
    ) -> Self {
        Self {
            work,
            output: None,
            reply,
        }
    }
}

impl<W: Mutation> Item for Job<W> {
    fn order(&self) -> Uuid {
        self.work.order()
    }

    fn in_savepoint(&self) -> bool {
        W::SAVEPOINT
    }

    fn is_urgent(&self) -> bool {
        W::URGENT
    }

    fn is_awaited(&self) -> bool {
        self.reply.is_some()
    }

    fn takes_event(&self) -> bool {
        W::TAKES_EVENT
    }

    fn conversation(&self) -> Option<&str> {
        self.work.conversation()
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        self.work.advisory_keys()
    }

    fn lock(&self) -> Option<String> {
        self.work.lock()
    }

    fn weight(&self) -> usize {
        self.work.weight()
    }

    fn changes_agents(&self) -> bool {
        W::CHANGES_AGENTS
    }

    fn batched(&self) -> Option<BatchOp<'_>> {
        // An earlier try may be committed: check the item by itself.
        self.output.is_none().then(|| self.work.batched())?
    }

    fn note_done(&mut self, done: BatchResult) {
        self.output = self.work.output_of(done);
    }

    fn has_no_result(&self) -> bool {
        self.output.is_none()
    }

    fn discard_result(&mut self) {
        self.output = None;
    }

    fn apply<'a>(
        &'a mut self,
        tx: &'a DatabaseTransaction,
        tx_cache: &'a mut TxCache,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            // An earlier try lost its reply: applying it again could write twice.
            if let Some(previous) = &self.output
                && self.work.is_committed(tx, previous).await?
            {
                return Ok(());
            }
            // Cleared first: a failed try must not return the previous result.
            self.output = None;
            self.output = Some(self.work.apply_with(tx, tx_cache).await?);
            Ok(())
        })
    }

    fn finish(self: Box<Self>, refusal: Option<StoreError>) {
        let outcome = match (refusal, self.output) {
            (Some(error), Some(output)) if error.is_transient() => W::after_error(output, error),
            (Some(error), _) => Err(error),
            (None, Some(output)) => Ok(output),
            (None, None) => Err(StoreError::Closed),
        };
        match self.reply {
            // The caller may have gone; the work is done anyway.
            Some(reply) => drop(reply.send(outcome)),
            None => {
                if let Err(error) = outcome {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "background write failed and is lost"
                    );
                }
            }
        }
    }
}
