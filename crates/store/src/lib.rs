//! Persistence: maps domain types to tables. The only crate that uses sea-orm.
//!
//! One writer task per database ([`writer`]) commits all writes in batches; reads use their own pool. Every
//! query is keyed by workspace or run.

mod batch;
mod cancel;
mod capacity;
mod children;
mod connect;
mod conversation;
mod database_clock;
mod entity;
mod error;
mod event_log;
pub mod failpoint;
pub mod foreign;
pub mod metrics;
mod notifier;
mod page;
mod readers;
mod sql;
mod sqlite_direct;
mod tx_cache;
mod workspaces;
pub mod writer;

mod agent_skills;
mod agents;
mod api_keys;
mod artifacts;
mod async_runs;
mod attempts;
mod audit;
mod discovery;
mod discovery_claims;
mod endpoints;
mod health;
mod history;
mod history_search;
mod ingest;
mod interactions;
mod knowledge;
mod leases;
mod ledger;
mod new_run;
mod overview;
mod preview;
mod promotion;
mod release;
mod retention;
mod runners;
mod runs;
mod shared_parts;
mod shares;
mod signing_keys;
mod skills;
mod state;
mod steering;
mod storage;
mod tool_calls;
mod transcript;
mod usage;

pub use agent_skills::{AgentSkillRecord, RegisterSkill, SkillRegistered, WithdrawSkill};
pub use agents::{AgentRecord, SaveAgent, SavedAgent};
pub use api_keys::{ApiKeyRecord, LastAdmin, RevokeApiKey, Revoked};
pub use artifacts::{
    ArtifactFacts, ArtifactFinished, ArtifactOrigin, ArtifactRecord, ArtifactShares, BeginArtifact,
    Begun, BindArtifact, Bound, DropArtifact, ExpiredArtifact, FinishArtifact, ShareOf, Sharers,
    UnbindArtifact,
};
pub use async_runs::{
    AppendResults, AppendsClosed, AsyncRun, Backlog, CloseAppends, Heartbeat, Heartbeating,
    ResultsAppended, StartAsyncRun, result_digest,
};
pub use attempts::{Dispatch, Dispatched, FirstAttempt, STARTED};
pub use audit::{AuditEntry, AuditOutcome, AuditRecord};
pub use base::digest::{hex, sha256_hex};
pub use cancel::CancelOutcome;
pub use capacity::Capacities;
pub use children::{ChildRefused, ParentRun};
pub use connect::{Backend, DatabaseCondition, Store, check_database_url};
pub use conversation::{ConversationRun, ConversationState, ConversationsOf, occupancy};
pub use discovery::{SaveDiscovery, SaveFailure};
pub use endpoints::{EndpointAddress, EndpointRecord, SaveEndpoint};
pub use error::StoreError;
pub use event_log::{EventFilter, EventPosition, EventRecord};
pub use health::HealthRecord;
pub use history::{HistoryQuery, TranscriptRecord};
pub use history_search::HistoryMatch;
pub use ingest::{
    ConversationPosition, Decide, DecisionFacts, EventKey, Ingest, IngestPlan, Ingested,
};
pub use interactions::{
    AnswerDelivery, AnsweredBy, AnsweredInteraction, AwaitedRecord, CloseAwaited, DeliverAnswer,
    InteractionFilter, InteractionRecord, InteractionsFound, LinkInteraction, NewInteraction,
    TakenAs, Unanswerable, answer_event_id,
};
pub use knowledge::{
    BaseKey, BeginIndexing, DeleteDocument, DocumentFacts, DocumentRecord, FailIndexing,
    FinishIndexing, FoundChunk, IndexingBegun, NewChunk, Posting, Recipe, StoredVector,
    SweepKnowledge, WriteChunks,
};
pub use leases::{LeaseFilter, LeaseKeeper};
pub use ledger::{Append, Appended, LedgerLine, RejectionRecord, RunEnd};
pub use new_run::{Candidate, NewRun, UserMessage};
pub use notifier::NotifyEvent;
pub use page::{ListPage, OverBudget, PAGE_BYTES, PageBound, PageBudget, ReadBudget};
pub use promotion::{CreateForEvent, Promotion};
pub use release::ResumePoint;
pub use runners::{FoundRunner, RunnerRecord, RunnerStatus};
pub use runs::{RunFilter, StoredRunInputs, RunPosition, RunWindow, RunsFound};
pub use shared_parts::SharedParts;
pub use signing_keys::{DeleteExpiredKeys, RotateKey, SigningKeyRecord};
pub use skills::ActivateSkill;
pub use state::{STATE_KEYS, StateAccess, StateChange, StatePart, StateRecord, StateWritten};
pub use steering::{PULL_BYTES, PullSteering, SteeredEvent};
pub use storage::{
    AbandonUpload, AreaAccess, BeginUpload, BlobDeleted, BlobRecord, CHUNK_BYTES, DeleteBlob,
    FinishUpload, PutIf, Quota, UploadStep, WriteChunk,
};
pub use tool_calls::{
    BeginToolCall, FinishToolCall, GoesOn, KeyOf, TOOL_CALLS, ToolCallBegun, ToolCallEnd,
};
pub use transcript::{TranscriptWrite, terms_of};
pub use usage::{BudgetLine, ReserveBudget, SettleUsage, UsageOfRun, UsedBudget, UsedCall};
pub use workspaces::{CreateWorkspace, WorkspaceRecord};
