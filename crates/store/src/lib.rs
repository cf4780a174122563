//! Persistence: maps domain types to tables. The only crate that uses sea-orm.
//!
//! One writer task per database ([`writer`]) commits all writes in batches; reads use their own pool. Every
//! query is keyed by workspace or run.
//!
//! Layers, each of which imports only those above it:
//!
//! 1. `sql`, `page`, `error`, `entity`: statements, bounded pages, tables.
//! 2. `model`, `batch_op`, `mutation`: data types of the operations, and the trait of the writer's work.
//! 3. `engine`, `repositories`: pools, caches, the writer's queue, and the handles that borrow them.
//! 4. The aggregates, for example `runs` and `ledger`: queries and mutations, as methods of a repository.
//! 5. `batch`, `writer`, `connect`, `store`: group commit, connections, and the facade.

mod advisory_key;
mod backup;
mod batch;
mod batch_op;
mod cancel;
mod capacity;
mod changes;
mod children;
mod connect;
mod conversation;
mod conversation_list;
mod database_clock;
mod database_server;
mod engine;
mod entity;
mod error;
mod event_log;
pub mod failpoint;
pub mod foreign;
mod generations;
mod model;
mod mutation;
mod notifier;
mod page;
mod part_cache;
mod part_text;
mod postgres_connector;
mod postgres_direct;
mod postgres_sessions;
mod postgres_tls;
mod probe;
mod readers;
mod repositories;
mod sql;
mod sqlite_direct;
mod store;
mod tx_cache;
mod workspaces;
pub mod writer;

mod actor_tokens;
mod agent_skills;
mod agents;
mod api_keys;
mod approvals;
mod artifacts;
mod async_runs;
mod attempts;
mod audit;
mod checkpoints;
mod discovery;
mod discovery_claims;
mod endpoints;
mod health;
mod history;
mod history_search;
mod ingest;
mod interactions;
mod jobs;
mod knowledge;
mod leases;
mod ledger;
mod new_run;
mod overview;
mod pauses;
mod preview;
mod promotion;
mod recorded_calls;
mod release;
mod retention;
mod retry;
mod runners;
mod runs;
mod schedules;
mod shared_parts;
mod shares;
mod signing_keys;
mod skills;
mod sources;
mod state;
mod steering;
mod storage;
mod stream_links;
mod tool_calls;
mod transcript;
mod usage;
mod webhooks;

pub use agent_skills::{AgentSkillRecord, RegisterSkill, SkillRegistered, WithdrawSkill};
pub use agents::{SaveAgent, SavedAgent};
pub use api_keys::{
    ApiKeyRecord, KEY_USE_RESOLUTION_MS, LastAdmin, RecordKeyUses, RevokeApiKey, Revoked,
};
pub use approvals::{
    ApprovalRecord, CallToApprove, CoveredCalls, CreateApproval, RevokeApproval, RevokedBy,
};
pub use artifacts::{
    ArtifactFacts, ArtifactFinished, ArtifactOrigin, ArtifactRecord, ArtifactShares, BeginArtifact,
    Begun, BindArtifact, Bound, DropArtifact, ExpiredArtifact, FinishArtifact, ShareOf, Sharers,
    UnbindArtifact,
};
pub use async_runs::{
    AppendResults, AppendsClosed, AsyncRun, Backlog, CloseAppends, Heartbeat, Heartbeating,
    ResultsAppended, StartAsyncRun, result_digest,
};
pub use attempts::STARTED;
pub use audit::{AgentCalls, AuditRecord};
pub use backup::copy_sqlite;
pub use cancel::{CancelCause, CancelOutcome};
pub use capacity::Capacities;
pub use changes::{
    Administered, ChangeFilter, ChangeRecord, ChangeStamp, ChangedObjects, ExportedChange,
    secret_mark,
};
pub use checkpoints::{CheckpointRecord, CheckpointWritten, PutCheckpoint};
pub use connect::{Migrations, check_database_url, probe_database, probe_signing_keys};
pub use conversation::{ConversationsOf, occupancy, promotable};
pub use conversation_list::{ConversationRecord, ConversationsFound};
pub use discovery::{SaveDiscovery, SaveFailure};
pub use discovery_claims::CheckSoon;
pub use endpoints::{EndpointRecord, SaveEndpoint};
pub use engine::Backend;
pub use error::StoreError;
pub use event_log::{EventFilter, EventPosition, EventRecord};
pub use generations::ConversationGenerations;
pub use health::HealthRecord;
pub use history::{HistoryQuery, TranscriptRecord};
pub use history_search::HistoryMatch;
pub use ingest::EventKey;
pub use interactions::{
    ActionClaim, ActionFilter, ActionOpened, ActionPosition, ActionResultStored, ActionsFound,
    AnswerDelivery, AnswerSummary, AnsweredInteraction, ApprovalReference, AskAboutCall,
    AskAboutRun, AskBudget, AskedAboutCall, AwaitedRecord, BudgetQuestion, ClaimPlatformAction,
    ClaimPurpose, CloseAwaited, CloseBudgetQuestion, CloseExpiredAction, DeliverAnswer,
    ExpiryPosition, FinishPlatformAction, GATEWAY_QUESTION, InteractionFilter, InteractionOrder,
    InteractionRecord, InteractionStatus, InteractionsFound, LinkInteraction, PlatformActionRecord,
    QuestionedBudget, RequestPlatformAction, RunWaits, TakenAs, answer_event_id,
};
pub use jobs::{
    CancelJob, ClaimJob, ClaimedJob, CreateJob, JobProgress, JobRecord, MAX_OPEN_JOBS, RecordJob,
};
pub use knowledge::{
    BaseKey, BeginIndexing, DeleteDocument, DocumentFacts, DocumentRecord, FailIndexing,
    FinishIndexing, FoundChunk, IndexingBegun, NewChunk, Posting, Recipe, StoredVector,
    SweepKnowledge, WriteChunks,
};
pub use leases::{LeaseFilter, LeaseKeeper, LockedOwner, OwnerLock, Renewed};
pub use ledger::{LedgerRow, RejectionRecord};
pub use model::append::{
    AcceptedCall, Append, Appended, CreateForEvent, NewInteraction, Promotion, RunEnd,
    SteeredEvent, TranscriptWrite,
};
pub use model::audit::{AuditEntry, AuditOutcome, TicketEffect};
pub use model::dispatch::{Dispatch, DispatchPurpose, Dispatched};
pub use model::ingest::{
    AnsweredBy, ChildRefused, ConversationPosition, ConversationRun, DecideEvent, DecisionFacts,
    EventActor, EventDecision, Ingest, IngestOutcome, IngestPlan, Ingested, ParentAttempt,
    SealedActorToken, Unanswerable,
};
pub use model::new_run::{FirstAttempt, NewRun, UserMessage};
pub use model::platform_action::NewPlatformAction;
pub use model::registry::{AgentRecord, Candidate, EndpointAddress, RunnerRecord, RunnerStatus};
pub use model::state::{ScopeState, StateAccess, StateEntry, StatePart};
pub use notifier::NotifyEvent;
pub use page::{ListPage, OverBudget, PAGE_BYTES, PageBound, PageBudget, ReadBudget};
pub use part_text::{SharedParts, StoredText};
pub use pauses::{
    MAX_PAUSES, PauseRecord, PauseScope, ReleaseHeld, ReleasedRuns, ResumePause, RunInScope,
    SetPause,
};
pub use probe::DatabaseCondition;
pub use recorded_calls::{AnswerFromRecord, RecordedAnswer};
pub use release::{RejectedResults, ResumePoint};
pub use repositories::{
    AccessRepository, AgentRepository, ArtifactRepository, AuditRepository, ConversationRepository,
    EndpointRepository, EventRepository, InteractionRepository, KnowledgeRepository,
    LeaseRepository, Notifications, RetentionRepository, RunRepository, StateRepository,
    UsageRepository,
};
pub use retry::{Retried, RetryOutcome, RetryRun};
pub use runners::FoundRunner;
pub use runs::{
    NumberRange, RunCounts, RunFilter, RunLabels, RunOwner, RunPosition, RunWindow, RunsFound,
    StatusCount, StoredRunInputs,
};
pub use schedules::{
    AdvanceSchedules, CancelWake, ClaimOccurrences, ClaimedOccurrence, DueSchedules, NewOccurrence,
    OccurrenceRecord, OccurrenceResult, OccurrenceSource, RecordOccurrences, RequestWake,
    RunSchedule, SaveSchedule, SavedSchedule, ScheduleAdvance, ScheduleRan, ScheduleRecord,
    SweepWakes, TriedOccurrence, WakeCancelled, WakeRecord, WakeScope, WakeStored,
};
pub use secrets::digest::{hex, sha256_hex};
pub use signing_keys::{DeleteExpiredKeys, RotateKey, SigningKeyRecord};
pub use skills::ActivateSkill;
pub use sources::{SaveSource, SavedSource, SourceRecord};
pub use state::{
    DocumentParts, EntryLease, STATE_BODIES, STATE_BODY_BYTES, STATE_KEYS, StateChange,
    StateRecord, StateSummary, StateWritten,
};
pub use steering::{PULL_BYTES, PullSteering};
pub use storage::{
    AbandonUpload, AreaAccess, BeginUpload, BlobDeleted, BlobRecord, CHUNK_BYTES, DeleteBlob,
    FinishUpload, PutIf, Quota, UploadStep, WriteChunk,
};
pub use store::Store;
pub use stream_links::{CreateStreamLink, OpenStreamLink, StoredStreamLink, StreamLink};
pub use tool_calls::{
    BeginToolCall, FinishToolCall, GoesOn, KeyOf, TOOL_CALLS, TicketKey, ToolCallBegun, ToolCallEnd,
};
pub use transcript::terms_of;
pub use usage::{
    BudgetLine, BudgetOverride, BudgetRefusal, BudgetSet, MAX_OVERRIDES, ModelCall, ReserveBudget,
    ResetBudget, SetBudget, SettleUsage, UsageDays, UsageGrouping, UsageOfDay, UsageOfRun,
    UsedBudget, UsedCall,
};
pub use webhooks::{
    ClaimDeliveries, ClaimedDelivery, DeliveryRecord, DeliveryResult, FeedBounds, MessageRecord,
    MessagesFound, PublishMessages, RecordDelivery, Redeliver, RedeliveredBatch, SaveWebhook,
    SavedWebhook, SweepWebhooks, WebhookRecord,
};
pub use workspaces::{CreateWorkspace, WorkspaceRecord};
