//! An in-memory host API for `runnel conform`. It answers a runner's calls like the host API, without a
//! database, and records each call.

mod appends;
mod resources;
mod routes;
mod state;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use domain::authorization::AuthorizationSnapshot;
use domain::normalize::{ResultLimits, StateUpdate};
use http::Method;
use protocol::context::AvailableApis;
use protocol::history::TranscriptItem;
use protocol::host_api::{RunCheckpoint, StatePut};
use protocol::id::RunId;
use protocol::resources::StateScope;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use uuid::Uuid;

use clock::Clock;

use appends::AppendLog;
pub(crate) use appends::AppendStep;
use egress::Egress;
use models::Model;
pub(crate) use resources::{mock_knowledge_base, mock_model, mock_tool};

/// Prefix of the tokens of mock runs.
pub(crate) const TOKEN_PREFIX: &str = "mock-run.";
/// Maximum number of recorded calls. Further calls are answered but not recorded.
const MAX_CALLS: usize = 10_000;
/// Maximum characters of a recorded path.
const MAX_PATH: usize = 300;
/// Maximum number of tokens of all runs, including renewed ones.
const MAX_TOKENS: usize = 10_000;
/// Maximum number of state keys of one run.
const MAX_KEYS: usize = 1000;

/// The host API of mock runs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MockHost(Arc<MockHostInner>);

struct MockHostInner {
    clock: Clock,
    limits: ResultLimits,
    append_lease: Duration,
    model: Arc<Model>,
    host_state: Mutex<MockHostState>,
}

#[derive(Default)]
struct MockHostState {
    by_token: HashMap<String, Arc<MockRunState>>,
    /// Tokens of earlier attempts.
    moved: HashSet<String>,
    calls: Vec<RecordedCall>,
}

/// A mock run.
#[derive(Debug)]
pub(crate) struct MockRun {
    pub snapshot: AuthorizationSnapshot,
    /// The context in serialized form.
    pub context: String,
    /// Items that `GET /history` returns.
    pub history: Vec<TranscriptItem>,
    /// Epoch milliseconds.
    pub deadline_at: i64,
}

/// The state of a mock run, found by its token.
struct MockRunState {
    run: MockRun,
    model: Arc<Model>,
    started_at: i64,
    progress: Mutex<MockRunProgress>,
    held: watch::Sender<bool>,
    appends: watch::Sender<AppendLog>,
}

#[derive(Default)]
struct MockRunProgress {
    phase: MockRunPhase,
    /// Epoch seconds.
    cancel_requested_at: Option<i64>,
    /// Entries with their versions.
    state: BTreeMap<(StateScope, String), (StatePut, i64)>,
    checkpoint: Option<RunCheckpoint>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MockRunPhase {
    #[default]
    Live,
    /// The runner has ended the run.
    Ended,
    /// The kit has left the run.
    Abandoned,
}

/// One call of a runner.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    /// The run of the token.
    pub run: Option<RunId>,
    pub method: Method,
    pub path: String,
    pub outcome: CallOutcome,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// No response yet, or the runner disconnected.
    Open,
    /// A regular response, with its status.
    Answered(u16),
    /// No valid run token.
    Unauthenticated,
    /// The token of a run that the runner has already ended.
    AfterEnd,
    /// No such route in the host API.
    NoRoute,
    /// An invalid key, query or body, with the reason.
    Invalid(String),
    /// The run has no grant for this call, with the reason.
    NotGranted(String),
}

impl MockHost {
    /// `egress` validates image URLs; the host sends no requests.
    pub(crate) fn new(
        clock: Clock,
        limits: ResultLimits,
        append_lease: Duration,
        egress: Egress,
    ) -> Self {
        Self(Arc::new(MockHostInner {
            clock,
            limits,
            append_lease,
            model: Arc::new(resources::model(clock, egress)),
            host_state: Mutex::default(),
        }))
    }

    /// The part of `granted` that the mock serves, for the context.
    pub(crate) fn serves(granted: AvailableApis) -> AvailableApis {
        AvailableApis {
            history_page: granted.history_page,
            state: granted.state,
            run_get: granted.run_get,
            run_append_result: granted.run_append_result,
            steering_pull: granted.steering_pull,
            ..AvailableApis::default()
        }
    }

    /// The routes, under `/host/v1`.
    pub(crate) fn router(&self) -> Router {
        routes::router(self.clone())
    }

    /// Registers a run and returns its token.
    pub(crate) fn open(&self, run: MockRun) -> SecretString {
        let part = MockRunState {
            run,
            model: Arc::clone(&self.0.model),
            started_at: self.0.clock.now_seconds(),
            progress: Mutex::default(),
            held: watch::Sender::new(false),
            appends: watch::Sender::default(),
        };
        self.issue_token(Arc::new(part))
    }

    /// Holds the responses to calls of the run.
    pub(crate) fn hold(&self, token: &SecretString) {
        self.with(token, |part| part.held.send_replace(true));
    }

    /// Releases held responses.
    pub(crate) fn release(&self, token: &SecretString) {
        self.with(token, |part| part.held.send_replace(false));
    }

    /// Requests the cancellation of the run: `GET /run` reports it, and held responses are released.
    pub(crate) fn cancel(&self, token: &SecretString) {
        let now = self.0.clock.now_seconds();
        self.with(token, |part| {
            part.progress().cancel_requested_at.get_or_insert(now);
            part.held.send_replace(false)
        });
    }

    /// Applies a state update of a result.
    pub(crate) fn set_state(&self, token: &SecretString, update: &StateUpdate) {
        let value: serde_json::Value = serde_json::from_str(&update.value).unwrap_or_default();
        self.with(token, |part| {
            let mut progress = part.progress();
            let key = (update.scope, update.key.clone());
            let version = progress
                .state
                .get(&key)
                .map_or(1, |(_, version)| version + 1);
            // An existing key may change even at the limit.
            if version > 1 || progress.state.len() < MAX_KEYS {
                progress.state.insert(key, (StatePut::of(value), version));
            }
        });
    }

    /// The runner has ended the run: its token is invalid, and further calls are faults of the runner.
    pub(crate) fn end(&self, token: &SecretString) {
        self.leave(token, MockRunPhase::Ended);
    }

    /// The kit has left the run: its token is invalid, and late calls are not faults.
    pub(crate) fn cut(&self, token: &SecretString) {
        self.leave(token, MockRunPhase::Abandoned);
    }

    /// Begins another attempt of the run: returns its token, and refuses the earlier ones.
    pub(crate) fn move_run(&self, token: &SecretString) -> SecretString {
        let Some(part) = self.find(token.expose_secret()) else {
            return token.clone();
        };
        let mut host_state = self.host_state();
        let tokens = host_state.by_token.iter();
        let earlier = tokens.filter(|(_, other)| Arc::ptr_eq(other, &part));
        let earlier: Vec<_> = earlier.map(|(token, _)| token.clone()).collect();
        host_state.moved.extend(earlier);
        drop(host_state);
        self.issue_token(part)
    }

    /// True for a token of an earlier attempt.
    fn is_moved(&self, token: &str) -> bool {
        self.host_state().moved.contains(token)
    }

    /// Recorded calls without the first `seen`.
    pub(crate) fn calls_after(&self, seen: usize) -> Vec<RecordedCall> {
        self.host_state().calls.iter().skip(seen).cloned().collect()
    }

    /// The number of recorded calls.
    pub(crate) fn call_count(&self) -> usize {
        self.host_state().calls.len()
    }

    fn leave(&self, token: &SecretString, phase: MockRunPhase) {
        self.with(token, |part| {
            let mut progress = part.progress();
            if progress.phase == MockRunPhase::Live {
                progress.phase = phase;
            }
            drop(progress);
            part.held.send_replace(false)
        });
    }

    fn with<T>(&self, token: &SecretString, act: impl FnOnce(&MockRunState) -> T) {
        if let Some(part) = self.find(token.expose_secret()) {
            act(&part);
        }
    }

    /// Issues one more token for a run.
    fn issue_token(&self, part: Arc<MockRunState>) -> SecretString {
        let token = format!(
            "{TOKEN_PREFIX}{}{}",
            Uuid::new_v4().simple(),
            Uuid::new_v4().simple()
        );
        self.host_state().by_token.insert(token.clone(), part);
        SecretString::from(token)
    }

    fn find(&self, token: &str) -> Option<Arc<MockRunState>> {
        self.host_state().by_token.get(token).cloned()
    }

    /// Records a call before its response and returns its index.
    fn note(&self, call: RecordedCall) -> Option<usize> {
        let mut host_state = self.host_state();
        if host_state.calls.len() >= MAX_CALLS {
            return None;
        }
        host_state.calls.push(call);
        Some(host_state.calls.len() - 1)
    }

    fn answered(&self, index: Option<usize>, outcome: CallOutcome) {
        let mut host_state = self.host_state();
        if let Some(call) = index.and_then(|index| host_state.calls.get_mut(index)) {
            call.outcome = outcome;
        }
    }

    fn host_state(&self) -> MutexGuard<'_, MockHostState> {
        self.0
            .host_state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl MockRunState {
    fn progress(&self) -> MutexGuard<'_, MockRunProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn released(&self) {
        let mut held = self.held.subscribe();
        // `self` owns the sender, so it cannot be dropped.
        let _ = held.wait_for(|held| !held).await;
    }
}
