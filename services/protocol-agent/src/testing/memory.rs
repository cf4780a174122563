//! A gateway in memory: state with versions, storage, runs, and tools whose effects are counted. It outlives runs.
//!
//! Each call passes the failpoints `host.before` and `host.after`, so that a test can kill a run around any of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use protocol::JsonObject;
use protocol::error::AgentApiError;
use protocol::host_api::{StateKeys, StateValue, StorageKeys};
use protocol::run::RunStatus;
use runner_kit::HostError;
use serde_json::{Value, json};

use crate::failpoint::Kill;
use crate::records::{HostResult, RecordsHost};

/// Bytes of a value of state.
const STATE_BYTES: usize = 256 << 10;
/// Bytes of a stored body.
const BLOB_BYTES: usize = 10 << 20;
/// Keys of one page.
const PAGE: usize = 100;

/// State of the gateway.
#[derive(Debug, Default)]
pub(crate) struct GatewayWorld {
    pub(crate) state: BTreeMap<String, (Value, i64)>,
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    pub(crate) runs: BTreeMap<String, RunStatus>,
    /// Calls of tools that acted: name and key.
    pub(crate) effects: Vec<(String, String)>,
    answers: BTreeMap<String, Value>,
    /// Tools that give a stored answer to a key that they know.
    pub(crate) keyed: BTreeSet<String>,
    /// Every call: the run, the operation and the key.
    pub(crate) calls: Vec<(String, &'static str, String)>,
    faults: VecDeque<(&'static str, &'static str, usize)>,
    /// Calls whose answers are lost after they acted.
    lost: Option<(&'static str, usize)>,
    last_version: i64,
    /// Accept writes of ended runs: the gateway has not noticed their end yet.
    pub(crate) lax: bool,
}

impl GatewayWorld {
    /// Removes all scripted failures.
    pub(crate) fn reset(&mut self) {
        self.faults.clear();
        self.lost = None;
    }

    /// True if a call with this key acted.
    pub(crate) fn happened(&self, key: &str) -> bool {
        self.effects.iter().any(|(_, acted)| acted == key)
    }
}

/// The gateway as one run sees it. Clones are the same gateway.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    world: Arc<Mutex<GatewayWorld>>,
    run: String,
    kill: Option<Kill>,
}

impl Memory {
    /// A gateway with a first run.
    pub(crate) fn new(run: &str) -> Self {
        let memory = Self {
            world: Arc::default(),
            run: run.to_owned(),
            kill: None,
        };
        memory.begin(run)
    }

    /// The same gateway, as another run that begins now sees it.
    pub(crate) fn begin(&self, run: &str) -> Self {
        let mut world = self.world();
        world.runs.insert(run.to_owned(), RunStatus::Running);
        drop(world);
        Self {
            run: run.to_owned(),
            ..self.clone()
        }
    }

    /// Ends this run.
    pub(crate) fn end(&self, status: RunStatus) {
        self.set(&self.run, status);
    }

    /// Sets the status of a run.
    pub(crate) fn set(&self, run: &str, status: RunStatus) {
        self.world().runs.insert(run.to_owned(), status);
    }

    /// The same, for a run that dies at the failpoint of the test.
    pub(crate) fn dying(&self, kill: Option<&Kill>) -> Self {
        Self {
            kill: kill.cloned(),
            ..self.clone()
        }
    }

    /// Kills the run here if the test has armed this failpoint.
    async fn pass(&self, point: &'static str) {
        if let Some(kill) = &self.kill {
            kill.pass(point).await;
        }
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, GatewayWorld> {
        self.world.lock().unwrap()
    }

    /// Fails the next calls of an operation.
    pub(crate) fn fail(&self, operation: &'static str, code: &'static str, times: usize) {
        self.world().faults.push_back((operation, code, times));
    }

    /// Loses the answers of the next calls of an operation, which act nevertheless.
    pub(crate) fn lose(&self, operation: &'static str, times: usize) {
        self.world().lost = Some((operation, times));
    }

    /// True if the response of the last call is lost.
    fn loses(&self) -> bool {
        let mut world = self.world();
        let last = world.calls.last().map(|(_, operation, _)| *operation);
        match &mut world.lost {
            Some((operation, left)) if Some(*operation) == last && *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// Number of calls in which a tool acted.
    pub(crate) fn effects(&self, tool: &str) -> usize {
        let world = self.world();
        let effects = world.effects.iter();
        effects.filter(|(name, _)| name == tool).count()
    }

    /// Number of calls of an operation by all runs.
    pub(crate) fn count(&self, operation: &str) -> usize {
        let world = self.world();
        let calls = world.calls.iter();
        calls.filter(|(_, name, _)| *name == operation).count()
    }

    /// Calls a tool. A keyed tool acts once under a key, and gives the same answer again.
    pub(crate) async fn call_tool(
        &self,
        name: &str,
        key: &str,
        answer: Value,
    ) -> HostResult<Value> {
        self.pass("host.before").await;
        let answer = self.act(name, key, answer);
        self.pass("tool.acted").await;
        self.pass("host.after").await;
        answer
    }

    fn act(&self, name: &str, key: &str, answer: Value) -> HostResult<Value> {
        let mut world = self.admit("call_tool", name)?;
        let stored = world.answers.get(key).cloned();
        if let Some(stored) = stored.filter(|_| world.keyed.contains(name)) {
            return Ok(stored);
        }
        world.effects.push((name.to_owned(), key.to_owned()));
        world.answers.insert(key.to_owned(), answer.clone());
        Ok(answer)
    }

    /// Notes a call, and refuses it to a run that is over.
    fn admit(
        &self,
        operation: &'static str,
        key: &str,
    ) -> HostResult<MutexGuard<'_, GatewayWorld>> {
        let mut world = self.world();
        world
            .calls
            .push((self.run.clone(), operation, key.to_owned()));
        let fault = world
            .faults
            .iter_mut()
            .find(|(name, _, left)| *name == operation && *left > 0);
        if let Some((_, code, left)) = fault {
            *left -= 1;
            return Err(error(code));
        }
        let status = world.runs.get(&self.run);
        let is_over = status.is_none_or(|status| status.is_terminal());
        if is_over && !world.lax {
            return Err(error("unauthorized"));
        }
        Ok(world)
    }
}

/// An error of the gateway. Those that begin with `callback.` may pass, and `rate_limited`.
pub(crate) fn error(code: &str) -> HostError {
    AgentApiError {
        code: code.to_owned(),
        message: "scripted error".to_owned(),
        retryable: code.starts_with("callback.") || code == "rate_limited",
        details: JsonObject::new(),
    }
    .into()
}

/// Passes both failpoints around a call.
macro_rules! call {
    ($host:ident, $call:expr) => {{
        $host.memory().pass("host.before").await;
        let answer = $call;
        let is_lost = answer.is_ok() && $host.memory().loses();
        $host.memory().pass("host.after").await;
        if is_lost {
            return Err(error("callback.timeout"));
        }
        answer
    }};
}

/// A host whose records are those of a gateway in memory.
pub(crate) trait InMemory: Clone + Send + Sync + 'static {
    fn memory(&self) -> &Memory;
}

impl InMemory for Memory {
    fn memory(&self) -> &Memory {
        self
    }
}

impl<T: InMemory> RecordsHost for T {
    async fn state_get(&self, key: &str) -> HostResult<Option<StateValue>> {
        call!(
            self,
            self.memory().admit("state_get", key).map(|world| {
                let entry = world.state.get(key).cloned();
                entry.map(|(value, version)| StateValue { value, version })
            })
        )
    }

    async fn state_put(&self, key: &str, value: Value, version: Option<i64>) -> HostResult<i64> {
        call!(self, self.memory().put(key, value, version))
    }

    async fn state_delete(&self, key: &str) -> HostResult<bool> {
        call!(
            self,
            self.memory()
                .admit("state_delete", key)
                .map(|mut world| world.state.remove(key).is_some())
        )
    }

    async fn state_list(&self, prefix: &str, limit: u32) -> HostResult<StateKeys> {
        call!(
            self,
            self.memory().admit("state_list", prefix).map(|world| {
                let keys = world.state.keys().filter(|key| key.starts_with(prefix));
                let limit = usize::try_from(limit).unwrap().min(PAGE);
                StateKeys {
                    keys: keys.take(limit).cloned().collect(),
                    has_more: false,
                }
            })
        )
    }

    async fn blob_get(&self, key: &str) -> HostResult<Option<Vec<u8>>> {
        call!(
            self,
            self.memory()
                .admit("blob_get", key)
                .map(|world| world.blobs.get(key).cloned())
        )
    }

    async fn blob_put(&self, key: &str, bytes: Vec<u8>) -> HostResult<()> {
        call!(
            self,
            self.memory().admit("blob_put", key).map(|mut world| {
                let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
                assert!(key.len() <= 255 && key.bytes().all(legal), "{key}");
                assert!(bytes.len() <= BLOB_BYTES, "{key}");
                world.blobs.insert(key.to_owned(), bytes);
            })
        )
    }

    async fn blob_delete(&self, key: &str) -> HostResult<bool> {
        call!(
            self,
            self.memory()
                .admit("blob_delete", key)
                .map(|mut world| world.blobs.remove(key).is_some())
        )
    }

    async fn blob_list(&self, prefix: &str, after: Option<String>) -> HostResult<StorageKeys> {
        call!(
            self,
            self.memory().admit("blob_list", prefix).map(|world| {
                let keys = world.blobs.keys().filter(|key| key.starts_with(prefix));
                let keys = keys.filter(|key| after.as_ref().is_none_or(|after| *key > after));
                let mut keys: Vec<_> = keys.take(PAGE + 1).cloned().collect();
                let has_more = keys.len() > PAGE;
                keys.truncate(PAGE);
                StorageKeys {
                    next_cursor: keys.last().filter(|_| has_more).cloned(),
                    has_more,
                    keys,
                }
            })
        )
    }

    async fn run_status(&self, id: &str) -> HostResult<Option<RunStatus>> {
        call!(
            self,
            self.memory()
                .admit("run_status", id)
                .map(|world| world.runs.get(id).copied())
        )
    }
}

impl Memory {
    fn put(&self, key: &str, value: Value, version: Option<i64>) -> HostResult<i64> {
        let mut world = self.admit("state_put", key)?;
        let bytes = json!(value).to_string().len();
        if bytes > STATE_BYTES {
            return Err(error("payload_too_large"));
        }
        let current = world.state.get(key).map(|(_, version)| *version);
        match (version, current) {
            (Some(_), None) => return Err(error("not_found")),
            (Some(expected), Some(current)) if expected != current => {
                return Err(error("conflict"));
            }
            _ => {}
        }
        world.last_version += 1;
        let version = world.last_version;
        world.state.insert(key.to_owned(), (value, version));
        Ok(version)
    }
}
