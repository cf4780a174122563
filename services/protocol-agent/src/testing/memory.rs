//! A gateway in memory: run documents, runs, and tools whose effects are counted. It outlives runs.
//!
//! Each call passes the failpoints `host.before` and `host.after`, so that a test can kill a run around any of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use protocol::JsonObject;
use protocol::error::AgentApiError;
use protocol::host_api::{StateDocument, StateLease, StatePut, StateValue};
use protocol::id::RunId;
use protocol::run::RunStatus;
use runner_kit::HostError;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::failpoint::Kill;
use crate::records::{HostResult, RecordsHost};

/// Bytes of the value of a document.
const STATE_BYTES: usize = 256 << 10;
/// Bytes of one write.
const WRITE_BYTES: usize = 20 << 20;

/// A run document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemoryDocument {
    pub(crate) value: Value,
    pub(crate) summary: Value,
    pub(crate) version: i64,
    leased_by: Option<String>,
    pub(crate) bodies: BTreeMap<String, Value>,
}

/// State of the gateway.
#[derive(Debug, Default)]
pub(crate) struct GatewayWorld {
    pub(crate) documents: BTreeMap<String, MemoryDocument>,
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
    async fn documents(&self) -> HostResult<Vec<StateDocument>> {
        call!(self, self.memory().list())
    }

    async fn document(&self, key: &str) -> HostResult<Option<StateValue>> {
        call!(
            self,
            self.memory().admit("document", key).map(|world| {
                let stored = world.documents.get(key)?;
                Some(StateValue {
                    value: stored.value.clone(),
                    version: stored.version,
                    summary: Some(stored.summary.clone()),
                    lease: world.lease(stored),
                })
            })
        )
    }

    async fn body(&self, key: &str, id: &str) -> HostResult<Option<Value>> {
        call!(
            self,
            self.memory().admit("body", key).map(|world| world
                .documents
                .get(key)?
                .bodies
                .get(id)
                .cloned())
        )
    }

    async fn put_document(
        &self,
        key: &str,
        document: &StatePut,
        version: Option<i64>,
    ) -> HostResult<i64> {
        call!(self, self.memory().put(key, document, version))
    }

    async fn delete_document(&self, key: &str) -> HostResult<bool> {
        call!(
            self,
            self.memory()
                .admit("delete_document", key)
                .map(|mut world| world.documents.remove(key).is_some())
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

impl GatewayWorld {
    /// Live run with the lease of a document.
    fn holder<'a>(&self, stored: &'a MemoryDocument) -> Option<&'a str> {
        let run = stored.leased_by.as_deref()?;
        let status = self.runs.get(run)?;
        (!status.is_terminal()).then_some(run)
    }

    /// Lease without the id of its run, which is no UUID in tests.
    fn lease(&self, stored: &MemoryDocument) -> Option<StateLease> {
        self.holder(stored).map(|_| StateLease {
            run_id: RunId(Uuid::nil()),
            expires_at: i64::MAX,
        })
    }
}

impl Memory {
    fn list(&self) -> HostResult<Vec<StateDocument>> {
        let world = self.admit("documents", "")?;
        let documents = world.documents.iter().map(|(key, stored)| StateDocument {
            key: key.clone(),
            version: stored.version,
            summary: stored.summary.clone(),
            lease: world.lease(stored),
        });
        Ok(documents.collect())
    }

    fn put(&self, key: &str, put: &StatePut, version: Option<i64>) -> HostResult<i64> {
        let mut world = self.admit("put_document", key)?;
        let bytes = json!(put).to_string().len();
        if put.value.to_string().len() > STATE_BYTES || bytes > WRITE_BYTES {
            return Err(error("payload_too_large"));
        }
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        for id in put.bodies.keys().map(String::as_str).chain([key]) {
            assert!(id.len() <= 255 && id.bytes().all(legal), "{id}");
        }
        let stored = world.documents.get(key);
        let holder = stored.and_then(|stored| world.holder(stored));
        if holder.is_some_and(|run| run != self.run) {
            let mut refused = error("conflict");
            let lease = json!({"run_id": holder});
            refused.details.insert("lease".to_owned(), lease);
            return Err(refused);
        }
        match (version, stored) {
            (Some(_), None) => return Err(error("not_found")),
            (Some(expected), Some(stored)) if expected != stored.version => {
                return Err(error("conflict"));
            }
            (None, Some(_)) if put.lease_seconds.is_some() && holder.is_none() => {
                return Err(error("conflict"));
            }
            _ => {}
        }
        let mut bodies = stored
            .map(|stored| stored.bodies.clone())
            .unwrap_or_default();
        if let Some(ids) = &put.body_ids {
            for id in ids {
                let is_body = bodies.contains_key(id) || put.bodies.contains_key(id);
                assert!(is_body, "{id} names no body");
            }
            bodies.retain(|id, _| ids.contains(id));
        }
        bodies.extend(put.bodies.clone());
        world.last_version += 1;
        let version = world.last_version;
        let document = MemoryDocument {
            value: put.value.clone(),
            summary: put.summary.clone().unwrap_or_default(),
            version,
            leased_by: put.lease_seconds.map(|_| self.run.clone()),
            bodies,
        };
        world.documents.insert(key.to_owned(), document);
        Ok(version)
    }
}
