//! Attempts under way: their tasks, timers, and the events and commands that wait.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use action_graph::code::Code;
use action_graph::graph::Millis;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::Sent;
use action_graph::schedule::{ActionOutcome, Command, GraphEvent};
use protocol::id::RunId;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use crate::drive::failed;
use crate::execute::AttemptReport;
use crate::host::GraphAgentHost;

/// Reason of a cancelled child run.
const CHILD_REASON: &str = "the action that started it was cancelled";

/// One attempt of an action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptKey {
    pub(crate) graph: GraphId,
    pub(crate) id: ActionId,
    pub(crate) attempt: u32,
}

/// The attempts of a run. Dropping it ends all tasks.
#[derive(Debug, Default)]
pub(crate) struct AttemptTasks {
    tasks: JoinSet<AttemptReport>,
    names: HashMap<Id, AttemptKey>,
    running: HashMap<AttemptKey, AbortHandle>,
    /// Attempts whose task only waits for a child run.
    followed: HashSet<AttemptKey>,
    /// Child runs of attempts.
    pub(crate) children: HashMap<AttemptKey, RunId>,
    timers: BTreeSet<(Millis, AttemptKey)>,
    /// Events that are not applied yet.
    pub(crate) events: VecDeque<(GraphId, GraphEvent)>,
    /// Commands that are not carried out yet.
    pub(crate) commands: VecDeque<(GraphId, Command)>,
    /// Requests to end child runs.
    detached: JoinSet<()>,
}

impl AttemptTasks {
    /// Runs an attempt.
    pub(crate) fn start(
        &mut self,
        key: AttemptKey,
        task: impl Future<Output = AttemptReport> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(task);
        self.names.insert(handle.id(), key.clone());
        self.running.insert(key, handle);
    }

    /// Waits for the child run of an attempt.
    pub(crate) fn follow(
        &mut self,
        key: AttemptKey,
        run: RunId,
        task: impl Future<Output = AttemptReport> + Send + 'static,
    ) {
        self.children.insert(key.clone(), run);
        self.followed.insert(key.clone());
        self.start(key, task);
    }

    /// Does something that nothing waits for.
    fn spawn_detached(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.detached.spawn(task);
    }

    /// Asks a child run to end.
    pub(crate) fn end_child(&mut self, host: impl GraphAgentHost, run: RunId) {
        self.spawn_detached(async move {
            if let Err(error) = host.cancel_child(run, CHILD_REASON).await {
                tracing::warn!(run.id = %run, code = error.code, "a child run was not cancelled");
            }
        });
    }

    /// The attempt has ended.
    pub(crate) fn finish(&mut self, key: &AttemptKey, outcome: ActionOutcome) {
        let event = GraphEvent::Finished {
            id: key.id.clone(),
            attempt: key.attempt,
            outcome,
        };
        self.events.push_back((key.graph.clone(), event));
    }

    /// An executor broke.
    pub(crate) fn broke(&mut self, key: &AttemptKey, error: &JoinError) {
        tracing::error!(graph = %key.graph, action = %key.id, "an executor broke: {error}");
        let failure = failed(Code::ExecutorFault, "the executor broke", Sent::Maybe);
        self.finish(key, failure);
    }

    /// Ends attempts that have not begun: their start is not stored, so that nothing of them may happen.
    pub(crate) fn call_off(&mut self, graph: &GraphId) {
        let all = std::mem::take(&mut self.commands);
        for (id, command) in all {
            match command {
                Command::Execute(execute) | Command::SpawnChild(execute) if id == *graph => {
                    let message = "its start cannot be stored";
                    let outcome = failed(Code::BudgetExhausted, message, Sent::No);
                    let event = GraphEvent::Finished {
                        id: execute.id,
                        attempt: execute.attempt,
                        outcome,
                    };
                    self.events.push_back((id, event));
                }
                command => self.commands.push_back((id, command)),
            }
        }
    }

    /// Waits until all that was put aside is done.
    pub(crate) async fn finish_detached(&mut self) {
        while self.detached.join_next().await.is_some() {}
    }

    /// The next attempt that reports. Pending while there is none.
    pub(crate) async fn next(&mut self) -> (AttemptKey, Result<AttemptReport, JoinError>) {
        loop {
            let Some(done) = self.tasks.join_next_with_id().await else {
                return std::future::pending().await;
            };
            let (id, report) = match done {
                Ok((id, report)) => (id, Ok(report)),
                Err(error) => (error.id(), Err(error)),
            };
            let Some(key) = self.names.remove(&id) else {
                continue;
            };
            // An attempt that was aborted has told its end already.
            let is_current = self
                .running
                .get(&key)
                .is_some_and(|handle| handle.id() == id);
            if is_current {
                self.running.remove(&key);
                self.followed.remove(&key);
                return (key, report);
            }
        }
    }

    /// Ends the task of an attempt; false when it has none.
    pub(crate) fn abort(&mut self, key: &AttemptKey) -> bool {
        self.followed.remove(key);
        self.timers.retain(|(_, other)| other != key);
        match self.running.remove(key) {
            Some(handle) => {
                handle.abort();
                true
            }
            None => false,
        }
    }

    /// Ends all tasks and forgets timers, events and commands of a graph.
    pub(crate) fn drop_graph(&mut self, graph: &GraphId) {
        let keys: Vec<_> = self
            .running
            .keys()
            .filter(|key| key.graph == *graph)
            .cloned()
            .collect();
        for key in keys {
            self.abort(&key);
        }
        self.timers.retain(|(_, key)| key.graph != *graph);
        self.events.retain(|(id, _)| id != graph);
        self.commands.retain(|(id, _)| id != graph);
    }

    pub(crate) fn set_timer(&mut self, at: Millis, key: AttemptKey) {
        self.timers.insert((at, key));
    }

    /// The time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes the timers that are due.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<AttemptKey> {
        let later = self
            .timers
            .iter()
            .filter(|(at, _)| *at > now)
            .cloned()
            .collect();
        let due = std::mem::replace(&mut self.timers, later);
        due.into_iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, key)| key)
            .collect()
    }

    pub(crate) fn has_timer_before(&self, end: Millis) -> bool {
        self.next_timer().is_some_and(|at| at <= end)
    }

    /// Whether an attempt is under way that does more than wait for a child run.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.len() > self.followed.len()
    }

    /// Graphs whose child runs are waited for.
    pub(crate) fn following(&self) -> impl Iterator<Item = &GraphId> {
        self.followed.iter().map(|key| &key.graph)
    }
}
