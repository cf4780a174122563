//! The repositories: one for each aggregate. Each borrows the engine; its methods are in the aggregate's modules.

use crate::engine::StoreEngine;

/// Agents, their skills, and pauses of their runs.
#[derive(Clone, Copy)]
pub struct AgentRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Workspaces, API keys and signing keys.
#[derive(Clone, Copy)]
pub struct AccessRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Artifacts of runs and events.
#[derive(Clone, Copy)]
pub struct ArtifactRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// The audit log of host calls.
#[derive(Clone, Copy)]
pub struct AuditRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Conversations, their transcripts and the search in them.
#[derive(Clone, Copy)]
pub struct ConversationRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Runner endpoints, their runners, their health and the checks due.
#[derive(Clone, Copy)]
pub struct EndpointRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Events: ingest and reads.
#[derive(Clone, Copy)]
pub struct EventRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Questions of runs, and their answers.
#[derive(Clone, Copy)]
pub struct InteractionRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Knowledge bases: documents, chunks and vectors.
#[derive(Clone, Copy)]
pub struct KnowledgeRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Runs: reads, dispatch attempts, cancel requests, and the ledger.
#[derive(Clone, Copy)]
pub struct RunRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Leases: expiry, take-over and release of runs, runs with appended results, and jobs.
#[derive(Clone, Copy)]
pub struct LeaseRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// State entries and blobs.
#[derive(Clone, Copy)]
pub struct StateRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Usage and budgets.
#[derive(Clone, Copy)]
pub struct UsageRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Deletion of expired rows.
#[derive(Clone, Copy)]
pub struct RetentionRepository<'s> {
    pub(crate) db: &'s StoreEngine,
}

/// Notifications between replicas, and messages to webhooks.
#[derive(Clone, Copy)]
pub struct Notifications<'s> {
    pub(crate) db: &'s StoreEngine,
}
