//! Running attempts: tasks, timers, and queues of events and commands.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use action_graph::code::Code;
use action_graph::graph::Millis;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::Sent;
use action_graph::schedule::{ActionOutcome, Command, Execute, GraphEvent, Suspension};
use protocol::id::RunId;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use crate::execute::AttemptReport;
use crate::host::GraphAgentHost;

/// Reason of a cancelled child run.
const CHILD_REASON: &str = "the action that started it was cancelled";

/// Key of one attempt of an action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptKey {
    pub(crate) graph: GraphId,
    pub(crate) id: ActionId,
    pub(crate) attempt: u32,
}

impl AttemptKey {
    pub(crate) fn new(graph: &GraphId, execute: &Execute) -> Self {
        Self {
            graph: graph.clone(),
            id: execute.id.clone(),
            attempt: execute.attempt,
        }
    }
}

/// Attempts of a run. Dropping it aborts all tasks.
#[derive(Debug, Default)]
pub(crate) struct AttemptTasks {
    tasks: JoinSet<AttemptReport>,
    names: HashMap<Id, AttemptKey>,
    running: HashMap<AttemptKey, AbortHandle>,
    /// Attempts whose tasks only wait for a child run.
    followed: HashSet<AttemptKey>,
    /// Live child runs by attempt.
    pub(crate) children: HashMap<AttemptKey, RunId>,
    timers: BTreeSet<(Millis, AttemptKey)>,
    /// Queue of events to apply.
    pub(crate) events: VecDeque<(GraphId, GraphEvent)>,
    /// Queue of commands to execute.
    pub(crate) commands: VecDeque<(GraphId, Command)>,
    /// Background tasks that cancel child runs.
    detached: JoinSet<()>,
}

impl AttemptTasks {
    /// Spawns the task of an attempt.
    pub(crate) fn start(
        &mut self,
        key: AttemptKey,
        task: impl Future<Output = AttemptReport> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(task);
        self.names.insert(handle.id(), key.clone());
        self.running.insert(key, handle);
    }

    /// Spawns a task that waits for the child run of an attempt.
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

    /// Cancels a child run in the background.
    pub(crate) fn end_child(&mut self, host: impl GraphAgentHost, run: RunId) {
        // In the background: a slow gateway must not block the other attempts.
        self.detached.spawn(async move {
            if let Err(error) = host.cancel_child(run, CHILD_REASON).await {
                tracing::warn!(run.id = %run, code = error.code, "cannot cancel a child run, it ends at its own deadline");
            }
        });
    }

    /// Queues an event of a graph.
    pub(crate) fn push(&mut self, graph: &GraphId, event: GraphEvent) {
        self.events.push_back((graph.clone(), event));
    }

    /// Queues the end of an attempt.
    pub(crate) fn finish(&mut self, key: &AttemptKey, outcome: ActionOutcome) {
        let (id, attempt) = (key.id.clone(), key.attempt);
        let event = GraphEvent::Finished {
            id,
            attempt,
            outcome,
        };
        self.push(&key.graph, event);
    }

    /// Queues the wait of an attempt.
    pub(crate) fn suspend(&mut self, key: &AttemptKey, on: Suspension) {
        let (id, attempt) = (key.id.clone(), key.attempt);
        self.push(&key.graph, GraphEvent::Suspended { id, attempt, on });
    }

    /// Queues the failure of an attempt whose task panicked.
    pub(crate) fn task_panicked(&mut self, key: &AttemptKey, error: &JoinError) {
        tracing::error!(graph = %key.graph, action = %key.id, "executor panicked, its attempt fails: {error}");
        let failure =
            ActionOutcome::failed(Code::ExecutorFault, "the executor panicked", Sent::Maybe);
        self.finish(key, failure);
    }

    /// Fails queued attempts of a graph whose start cannot be stored.
    pub(crate) fn fail_queued(&mut self, graph: &GraphId) {
        let all = std::mem::take(&mut self.commands);
        for (id, command) in all {
            match command {
                Command::Execute(execute) | Command::SpawnChild(execute) if id == *graph => {
                    let message = "its start cannot be stored";
                    let outcome = ActionOutcome::failed(Code::BudgetExhausted, message, Sent::No);
                    self.finish(&AttemptKey::new(&id, &execute), outcome);
                }
                command => self.commands.push_back((id, command)),
            }
        }
    }

    /// Waits for all background tasks.
    pub(crate) async fn finish_detached(&mut self) {
        while self.detached.join_next().await.is_some() {}
    }

    /// Report of the next attempt. Pends while no task runs. Cancel-safe.
    pub(crate) async fn next(&mut self) -> (AttemptKey, Result<AttemptReport, JoinError>) {
        loop {
            let Some(done) = self.tasks.join_next_with_id().await else {
                // Returning would end the `select!` of the drive loop, which also waits for timers.
                return std::future::pending().await;
            };
            let (id, report) = match done {
                Ok((id, report)) => (id, Ok(report)),
                Err(error) => (error.id(), Err(error)),
            };
            let Some(key) = self.names.remove(&id) else {
                continue;
            };
            // Aborted attempts have reported their end already.
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

    /// Aborts the task of an attempt; false if it has none.
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

    /// Aborts all tasks and removes timers, events and commands of a graph.
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

    /// Due time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Removes and returns all due timers.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<AttemptKey> {
        let due = self.timers.extract_if(.., |(at, _)| *at <= now);
        due.map(|(_, key)| key).collect()
    }

    pub(crate) fn has_timer_before(&self, end: Millis) -> bool {
        self.next_timer().is_some_and(|at| at <= end)
    }

    /// True if a task runs that does not only wait for a child run.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.len() > self.followed.len()
    }

    /// Graphs that wait for child runs.
    pub(crate) fn following(&self) -> impl Iterator<Item = &GraphId> {
        self.followed.iter().map(|key| &key.graph)
    }
}
