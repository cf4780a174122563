//! Tables in, domain types out. The only crate that knows sea-orm.
//!
//! All writes go through one task per database ([`writer`]) that commits what has gathered; reads
//! have a pool of their own. Every query starts from its workspace or its run.

mod bulk;
mod cancel;
mod capacity;
mod children;
mod common;
mod connect;
mod conversation;
mod database_clock;
mod doorbell;
mod entity;
mod error;
mod event_log;
pub mod failpoint;
pub mod foreign;
mod inline;
pub mod meter;
mod page;
mod readers;
mod sql;
mod workspaces;
pub mod writer;

mod agent_skills;
mod agents;
mod api_keys;
mod artifacts;
mod attempts;
mod audit;
mod deferrals;
mod discovery;
mod endpoints;
mod handover;
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
mod succession;
mod tool_calls;
mod transcript;
mod turns;
mod usage;

pub use agent_skills::{AgentSkillRecord, RegisterSkill, SkillRegistered, WithdrawSkill};
pub use agents::{AgentRecord, SaveAgent, SavedAgent};
pub use api_keys::{ApiKeyRecord, LastAdmin, RevokeApiKey, Revoked};
pub use artifacts::{
    ArtifactFacts, ArtifactOrigin, ArtifactRecord, ArtifactShares, BeginArtifact, Begun,
    BindArtifact, Bound, DropArtifact, ExpiredArtifact, FinishArtifact, Finished, ShareOf, Sharers,
    UnbindArtifact,
};
pub use attempts::{Dispatch, Dispatched, FirstAttempt, STARTED};
pub use audit::{AuditEntry, AuditOutcome, AuditRecord};
pub use base::digest::{hex, sha256_hex};
pub use cancel::CancelOutcome;
pub use capacity::Capacities;
pub use children::{Childless, ParentOf};
pub use connect::{Backend, Condition, Store, check_database_url};
pub use conversation::{ConversationNow, ConversationsOf, LiveRun, occupancy};
pub use deferrals::{
    AppendResults, Backlog, CloseAppends, Closed, Defer, Deferral, Heard, Heartbeat,
    ResultsAppended, result_digest,
};
pub use discovery::{SaveDiscovery, SaveFailure};
pub use doorbell::Notice;
pub use endpoints::{EndpointAddress, EndpointRecord, SaveEndpoint};
pub use error::StoreError;
pub use event_log::{EventFilter, EventPosition, EventRecord};
pub use handover::LeftOff;
pub use health::HealthRecord;
pub use history::{HistoryQuery, TranscriptRecord};
pub use history_search::HistoryMatch;
pub use ingest::{Decide, EventKey, Facts, Ingest, Ingested, Place, Plan};
pub use interactions::{
    AnsweredBy, AnsweredInteraction, AwaitedRecord, CloseAwaited, GiveAnswer, Given,
    InteractionFilter, InteractionRecord, InteractionsFound, LinkInteraction, NewInteraction,
    TakenAs, Unanswerable, answer_event_id,
};
pub use knowledge::{
    BaseKey, BeginIndexing, DeleteDocument, DocumentFacts, DocumentRecord, FailIndexing,
    FinishIndexing, FoundChunk, IndexingBegun, NewChunk, Posting, Recipe, StoredVector,
    SweepKnowledge, WriteChunks,
};
pub use leases::{LeaseKeeper, Leases};
pub use ledger::{Append, Appended, Line, RejectionRecord, Terminal};
pub use new_run::{Candidate, NewRun, UserMessage};
pub use page::{Budget, Found, OverBudget, PAGE_BYTES, PageBound, PageBudget};
pub use runners::{FoundRunner, RunnerRecord, RunnerStatus};
pub use runs::{RunFilter, RunInputs, RunPosition, RunWindow, RunsFound};
pub use shared_parts::SharedParts;
pub use signing_keys::{ForgetKeys, RotateKey, SigningKeyRecord};
pub use skills::ActivateSkill;
pub use state::{STATE_KEYS, StateAccess, StateChange, StatePart, StateRecord, StateWritten};
pub use steering::{PULL_BYTES, PullSteering, SteeredEvent};
pub use storage::{
    AreaAccess, BeginUpload, BlobDeleted, BlobRecord, CHUNK_BYTES, DeleteBlob, FinishUpload,
    GiveUpload, PutIf, Quota, Uploaded, WriteChunk,
};
pub use succession::{Succession, TakeUp};
pub use tool_calls::{
    BeginToolCall, FinishToolCall, GoesOn, KeyOf, TOOL_CALLS, ToolCallBegun, ToolCallEnd,
};
pub use transcript::{TranscriptWrite, terms_of};
pub use usage::{BudgetLine, ReserveBudget, SettleUsage, UsageOfRun, UsedBudget, UsedCall};
pub use workspaces::{CreateWorkspace, WorkspaceRecord};
