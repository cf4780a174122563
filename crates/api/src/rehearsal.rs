//! A little host API for `runnel conform`: what a runner calls back, served from memory, with a record
//! of every call. It answers as the host API would, without a database behind it.

mod appends;
mod routes;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use domain::authorization::AuthorizationSnapshot;
use domain::normalize::{ResultLimits, StateUpdate};
use http::Method;
use protocol::context::AvailableApis;
use protocol::history::TranscriptItem;
use protocol::id::RunId;
use protocol::resources::StateScope;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

use base::clock::Clock;

pub use appends::Appended;
use appends::Appends;

/// How the tokens of rehearsed runs begin.
pub const TOKEN_PREFIX: &str = "rehearsal.";
/// Calls beyond these are answered and not recorded.
const MOST_CALLS: usize = 10_000;
/// The beginning of a path is enough to know it.
const MOST_PATH: usize = 300;
/// Tokens of all runs, renewed ones included.
const MOST_TOKENS: usize = 10_000;
/// State keys of one run.
const MOST_KEYS: usize = 1000;

/// The host API of rehearsed runs. Cheap to clone.
#[derive(Clone)]
pub struct Rehearsal(Arc<Shared>);

struct Shared {
    clock: Clock,
    limits: ResultLimits,
    append_lease: Duration,
    stage: Mutex<Stage>,
}

#[derive(Default)]
struct Stage {
    by_token: HashMap<String, Arc<Part>>,
    calls: Vec<HostCall>,
}

/// A run that is rehearsed.
#[derive(Debug)]
pub struct RehearsedRun {
    pub snapshot: AuthorizationSnapshot,
    /// The context as it is sent.
    pub context: String,
    /// What `GET /history` shows.
    pub history: Vec<TranscriptItem>,
    /// Epoch milliseconds.
    pub deadline_at: i64,
}

/// A rehearsed run on the stage: what its token opens.
struct Part {
    run: RehearsedRun,
    started_at: i64,
    progress: Mutex<Progress>,
    held: watch::Sender<bool>,
    appends: watch::Sender<Appends>,
}

#[derive(Default)]
struct Progress {
    phase: Phase,
    /// Epoch seconds.
    cancel_requested_at: Option<i64>,
    state: BTreeMap<(StateScope, String), (Value, i64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Live,
    /// The runner has said how its run ended.
    Ended,
    /// We left.
    Cut,
}

/// One call of a runner.
#[derive(Clone, Debug)]
pub struct HostCall {
    /// The run whose token was sent.
    pub run: Option<RunId>,
    pub method: Method,
    pub path: String,
    pub outcome: CallOutcome,
}

/// How a call was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It has not been answered, or the runner did not wait.
    Open,
    /// As it should be; the status.
    Answered(u16),
    /// Without the token of a run.
    Unauthenticated,
    /// With the token of a run that the runner had ended.
    AfterEnd,
    /// The host API has no such route.
    NoRoute,
    /// Key, query or body are not what the route takes; why.
    Invalid(String),
    /// The run was not granted it; why.
    NotGranted(String),
}

impl Rehearsal {
    pub fn new(clock: Clock, limits: ResultLimits, append_lease: Duration) -> Self {
        Self(Arc::new(Shared {
            clock,
            limits,
            append_lease,
            stage: Mutex::default(),
        }))
    }

    /// What of `granted` is served here: a context promises no more.
    pub fn serves(granted: AvailableApis) -> AvailableApis {
        AvailableApis {
            history_page: granted.history_page,
            state: granted.state,
            run_get: granted.run_get,
            run_append_result: granted.run_append_result,
            ..AvailableApis::default()
        }
    }

    /// The routes, under `/host/v1`.
    pub fn router(&self) -> Router {
        routes::router(self.clone())
    }

    /// Puts a run on the stage; gives its token.
    pub fn open(&self, run: RehearsedRun) -> SecretString {
        let part = Part {
            run,
            started_at: self.0.clock.now_seconds(),
            progress: Mutex::default(),
            held: watch::Sender::new(false),
            appends: watch::Sender::default(),
        };
        self.admit(Arc::new(part))
    }

    /// From now on the calls of a run wait for their answers.
    pub fn hold(&self, token: &SecretString) {
        self.with(token, |part| part.held.send_replace(true));
    }

    /// The calls of a run are answered again.
    pub fn release(&self, token: &SecretString) {
        self.with(token, |part| part.held.send_replace(false));
    }

    /// The run is asked to stop: `GET /run` says so, and its calls are answered.
    pub fn cancel(&self, token: &SecretString) {
        let now = self.0.clock.now_seconds();
        self.with(token, |part| {
            part.progress().cancel_requested_at.get_or_insert(now);
            part.held.send_replace(false)
        });
    }

    /// A result wrote a value.
    pub fn set_state(&self, token: &SecretString, update: &StateUpdate) {
        let value = serde_json::from_str(&update.value).unwrap_or_default();
        self.with(token, |part| {
            let mut progress = part.progress();
            let key = (update.scope, update.key.clone());
            let version = progress
                .state
                .get(&key)
                .map_or(1, |(_, version)| version + 1);
            if version > 1 || progress.state.len() < MOST_KEYS {
                progress.state.insert(key, (value, version));
            }
        });
    }

    /// The runner has ended the run: its token is dead, and further calls are faults of the runner.
    pub fn end(&self, token: &SecretString) {
        self.leave(token, Phase::Ended);
    }

    /// We have left the run: its token is dead, and nobody is to blame for calls that still come.
    pub fn cut(&self, token: &SecretString) {
        self.leave(token, Phase::Cut);
    }

    /// What was called, the first `seen` calls left out.
    pub fn calls_after(&self, seen: usize) -> Vec<HostCall> {
        self.stage().calls.iter().skip(seen).cloned().collect()
    }

    /// How many calls were recorded.
    pub fn call_count(&self) -> usize {
        self.stage().calls.len()
    }

    fn leave(&self, token: &SecretString, phase: Phase) {
        self.with(token, |part| {
            let mut progress = part.progress();
            if progress.phase == Phase::Live {
                progress.phase = phase;
            }
            drop(progress);
            part.held.send_replace(false)
        });
    }

    fn with<T>(&self, token: &SecretString, act: impl FnOnce(&Part) -> T) {
        if let Some(part) = self.find(token.expose_secret()) {
            act(&part);
        }
    }

    /// One more token for a part.
    fn admit(&self, part: Arc<Part>) -> SecretString {
        let token = format!(
            "{TOKEN_PREFIX}{}{}",
            Uuid::new_v4().simple(),
            Uuid::new_v4().simple()
        );
        self.stage().by_token.insert(token.clone(), part);
        SecretString::from(token)
    }

    fn find(&self, token: &str) -> Option<Arc<Part>> {
        self.stage().by_token.get(token).cloned()
    }

    /// Records a call before it is answered; gives its place.
    fn note(&self, call: HostCall) -> Option<usize> {
        let mut stage = self.stage();
        if stage.calls.len() >= MOST_CALLS {
            return None;
        }
        stage.calls.push(call);
        Some(stage.calls.len() - 1)
    }

    fn answered(&self, place: Option<usize>, outcome: CallOutcome) {
        let mut stage = self.stage();
        if let Some(call) = place.and_then(|place| stage.calls.get_mut(place)) {
            call.outcome = outcome;
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn released(&self) {
        let mut held = self.held.subscribe();
        // The sender is ours: it cannot be gone.
        let _ = held.wait_for(|held| !held).await;
    }
}
