//! Connections, caches and the writer's handle of one database.

use std::sync::Arc;

use sea_orm::ConnectOptions;
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::part_cache::PartCache;
use crate::readers::{PointReads, Readers};
use crate::writer::job::Job;
use crate::writer::queue::Writer;

/// The database engine of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

/// Connections, caches and the writer's handle of one database. Repositories borrow it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StoreEngine {
    pub(crate) readers: Readers,
    /// For point reads.
    pub(crate) point_reads: PointReads,
    pub(crate) writer: Writer,
    pub(crate) parts: PartCache,
    pub(crate) backend: Backend,
    /// Options of the connection that renews leases: see `LeaseRepository::lease_keeper`.
    pub(crate) renewing: Option<Arc<ConnectOptions>>,
}

impl StoreEngine {
    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    /// Queues `work` and returns after its commit.
    pub(crate) async fn write<W: Mutation>(&self, work: W) -> Result<W::Output, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Job::new(work, Some(reply));
        self.writer.send(Box::new(job)).await?;
        // The writer drops the reply channel without a result after a panic, and when it is closed.
        answer.await.map_err(|_| {
            if self.writer.is_open() {
                StoreError::Panicked
            } else {
                StoreError::Closed
            }
        })?
    }

    /// Queues `work` and returns before its commit, see `Store::write_later`.
    pub(crate) async fn write_later<W: Mutation>(&self, work: W) -> Result<(), StoreError> {
        self.writer.send(Box::new(Job::new(work, None))).await
    }
}
