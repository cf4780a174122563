//! The store of one gateway: opens the database and hands out the repositories.

use std::time::Duration;

use crate::changes::{Administered, ChangeStamp, Recorded};
use crate::connect::{self, MAX_SILENCE, Migrations};
use crate::engine::{Backend, StoreEngine};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::probe::{DatabaseCondition, DatabaseProbes};
use crate::repositories::{
    AccessRepository, AgentRepository, ArtifactRepository, AuditRepository, ConversationRepository,
    EndpointRepository, EventRepository, InteractionRepository, KnowledgeRepository,
    LeaseRepository, Notifications, RetentionRepository, RunRepository, StateRepository,
    UsageRepository,
};

/// The tables of one gateway. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    db: StoreEngine,
    probes: DatabaseProbes,
}

impl Store {
    /// Connects to `sqlite://PATH` or `postgres://…` and migrates. Returns the store and the writer's future,
    /// which the caller runs as a task until [`Store::close`].
    pub async fn open(
        url: &str,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StoreError> {
        Self::open_for_leases(url, MAX_SILENCE * 3).await
    }

    /// [`Store::open`] for holders of leases of this length. Within a transaction the database may be silent for a
    /// third of the lease, clamped to 1 to 15 s. The transaction takes at most 1.5 times as long in total. So a dead
    /// connection is replaced while leases of 4 s and more still hold.
    pub async fn open_for_leases(
        url: &str,
        lease: Duration,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StoreError> {
        Self::open_with(url, lease, Migrations::All).await
    }

    /// [`Store::open_for_leases`], which migrates these databases only.
    pub async fn open_with(
        url: &str,
        lease: Duration,
        migrations: Migrations,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StoreError> {
        let (db, work) = connect::open(url, lease, migrations).await?;
        let probes = DatabaseProbes::default();
        Ok((Self { db, probes }, work))
    }

    /// The database engine.
    pub fn backend(&self) -> Backend {
        self.db.backend()
    }

    /// Probes the database: a query, and the state of the writer. After a commit that failed on the database,
    /// for example on a full disk, it also probes a small write. Each probe runs at most once per second, shared
    /// by concurrent callers.
    pub async fn condition(&self) -> DatabaseCondition {
        self.probes.condition(&self.db).await
    }

    /// Stops the writer after all queued items are committed. Later writes fail.
    pub async fn close(&self) {
        self.db.writer.close().await;
    }

    /// Queues `work` and returns after its commit.
    pub async fn write<W: Mutation>(&self, work: W) -> Result<W::Output, StoreError> {
        self.db.write(work).await
    }

    /// [`Store::write`] for administrative work. The same transaction stores what has changed, see
    /// `GET /v1/changes`.
    pub async fn change<W: Administered>(
        &self,
        stamp: ChangeStamp,
        work: W,
    ) -> Result<W::Output, StoreError> {
        self.db.write(Recorded { work, stamp }).await
    }

    /// Queues `work` and returns before its commit, for rows without a waiting caller. During a database outage
    /// the writer keeps 1,024 such items for retry. Further items are lost, and all of them when the process
    /// ends. `is_committed` must detect an earlier commit.
    pub async fn write_later<W: Mutation>(&self, work: W) -> Result<(), StoreError> {
        self.db.write_later(work).await
    }

    /// Queued items of the writer.
    pub fn queued_writes(&self) -> usize {
        self.db.writer.queued()
    }

    /// Agents and their skills.
    pub fn agents(&self) -> AgentRepository<'_> {
        AgentRepository { db: &self.db }
    }

    /// Workspaces, API keys and signing keys.
    pub fn access(&self) -> AccessRepository<'_> {
        AccessRepository { db: &self.db }
    }

    /// Artifacts of runs and events.
    pub fn artifacts(&self) -> ArtifactRepository<'_> {
        ArtifactRepository { db: &self.db }
    }

    /// The audit log of host calls.
    pub fn audit_log(&self) -> AuditRepository<'_> {
        AuditRepository { db: &self.db }
    }

    /// Conversations, their transcripts and the search in them.
    pub fn conversations(&self) -> ConversationRepository<'_> {
        ConversationRepository { db: &self.db }
    }

    /// Runner endpoints, their runners, their health and the checks due.
    pub fn endpoints(&self) -> EndpointRepository<'_> {
        EndpointRepository { db: &self.db }
    }

    /// Events: ingest and reads.
    pub fn events(&self) -> EventRepository<'_> {
        EventRepository { db: &self.db }
    }

    /// Questions of runs, and their answers.
    pub fn interactions(&self) -> InteractionRepository<'_> {
        InteractionRepository { db: &self.db }
    }

    /// Knowledge bases: documents, chunks and vectors.
    pub fn knowledge(&self) -> KnowledgeRepository<'_> {
        KnowledgeRepository { db: &self.db }
    }

    /// Runs: reads, dispatch attempts, cancel requests, and the ledger.
    pub fn runs(&self) -> RunRepository<'_> {
        RunRepository { db: &self.db }
    }

    /// Leases: expiry, take-over and release of runs, and runs with appended results.
    pub fn leases(&self) -> LeaseRepository<'_> {
        LeaseRepository { db: &self.db }
    }

    /// State entries and blobs.
    pub fn state(&self) -> StateRepository<'_> {
        StateRepository { db: &self.db }
    }

    /// Usage and budgets.
    pub fn usage(&self) -> UsageRepository<'_> {
        UsageRepository { db: &self.db }
    }

    /// Deletion of expired rows.
    pub fn retention(&self) -> RetentionRepository<'_> {
        RetentionRepository { db: &self.db }
    }

    /// Notifications between replicas, and messages to webhooks.
    pub fn notifications(&self) -> Notifications<'_> {
        Notifications { db: &self.db }
    }
}
