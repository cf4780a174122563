//! Drives graphs until no transition is possible: applies events, stores, executes commands, shows progress.

mod carry;
mod words;

use action_graph::code::Code;
use action_graph::ids::GraphId;
use action_graph::node::Sent;
use action_graph::schedule::{ActionOutcome, Command, GraphEvent, IgnoredEvent, Suspension, step};
use protocol::result::{ResultType, ToolCallCompletedPayload};
use runner_kit::results;
use tokio::time::{Instant, sleep_until};

use crate::execute::{AttemptReport, agent};
use crate::failpoint::reach;
use crate::failure::Halt;
use crate::host::GraphAgentHost;
use crate::records::RecordsError;
use crate::run_clock::millis;
use crate::session::{GraphDriver, RunGraphs};
use crate::work::AttemptKey;
use crate::writer::within_limit;

impl<H: GraphAgentHost> GraphDriver<H> {
    /// Drives all graphs until they need a model, a person, or a later run. Waits for child runs, see [`Self::moves`].
    pub(crate) async fn drive(&mut self) -> Result<(), Halt> {
        self.drive_until(self.graphs.env.end).await
    }

    /// Like [`Self::drive`], until `end` at the latest.
    pub(crate) async fn drive_until(&mut self, end: Instant) -> Result<(), Halt> {
        loop {
            self.drain().await?;
            self.graphs.show_due().await;
            if !self.moves() {
                break;
            }
            let timer = self.graphs.work.next_timer();
            let timer = timer.map(|at| self.graphs.env.clock.instant(at));
            let shows = self.graphs.next_show();
            // Biased: a cancel takes precedence over finished attempts, which could start new ones.
            tokio::select! {
                biased;
                () = self.cancel.cancelled(), if !self.graphs.is_closing => return Err(Halt::Cancelled),
                (key, report) = self.graphs.work.next() => match report {
                    Ok(report) => self.reported(key, report).await,
                    Err(error) => self.graphs.work.task_panicked(&key, &error),
                },
                () = at(timer) => self.fire(),
                // The loop sends due patches at its start.
                () = at(shows) => {}
                () = sleep_until(end) => return Err(Halt::Deadline),
            }
        }
        self.graphs.show_all().await;
        Ok(())
    }

    /// True while an attempt, a due timer or a child run can change a graph.
    fn moves(&self) -> bool {
        let env = &self.graphs.env;
        let end = env.clock.now().saturating_add(millis(env.left()));
        // A timer after the end of work is left to the next run.
        if self.graphs.work.is_busy() || self.graphs.work.has_timer_before(end) {
            return true;
        }
        // The answer to a question of the same graph starts a run that continues with the child, too. Questions of
        // other graphs do not count: their answers may never arrive.
        let is_asking = |graph: &GraphId| {
            let position = self.graphs.position(graph);
            position.is_some_and(|position| self.graphs.live_graphs[position].has_question())
        };
        let mut following = self.graphs.work.following();
        following.any(|graph| !is_asking(graph)) && !self.graphs.is_closing
    }

    /// Applies all pending events and executes all pending commands.
    pub(crate) async fn drain(&mut self) -> Result<(), Halt> {
        loop {
            if let Some((graph, command)) = self.graphs.work.commands.pop_front() {
                if let Some(position) = self.graphs.position(&graph) {
                    self.execute_command(position, command).await?;
                }
            } else if let Some((graph, event)) = self.graphs.work.events.pop_front() {
                // Adjacent events of one graph share a single write of its head.
                let mut events = vec![event];
                let queue = &mut self.graphs.work.events;
                while let Some((_, event)) = queue.pop_front_if(|(id, _)| *id == graph) {
                    events.push(event);
                }
                if let Some(position) = self.graphs.position(&graph) {
                    self.graphs.apply(position, events).await?;
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Handles the report of an executor.
    async fn reported(&mut self, key: AttemptKey, report: AttemptReport) {
        match report {
            AttemptReport::Finished(outcome) => {
                self.graphs.report_end(&key, &outcome).await;
                reach("effect.answered").await;
                self.graphs.work.finish(&key, outcome);
            }
            AttemptReport::Spawned(run) => {
                reach("child.spawned").await;
                let node = self.graphs.node(&key);
                // The attempt was aborted during the spawn request, so the new child run is obsolete.
                if node.is_none_or(|node| node.aborting || node.attempt != key.attempt) {
                    let host = self.graphs.env.host.clone();
                    self.graphs.work.end_child(host, run);
                    return self.graphs.work.finish(
                        &key,
                        ActionOutcome::failed(Code::ChildCancelled, "it was cancelled", Sent::Yes),
                    );
                }
                let child = run.to_string();
                self.graphs
                    .work
                    .suspend(&key, Suspension::Child { run: child });
                let env = self.graphs.env.clone();
                let follow = async move { AttemptReport::Finished(agent::follow(&env, run).await) };
                self.graphs.work.follow(key, run, follow);
            }
        }
    }

    /// Fires all due timers.
    fn fire(&mut self) {
        for key in self.graphs.work.due(self.graphs.env.clock.now()) {
            let node = self.graphs.node(&key);
            // The timer of an aborted attempt is the end of its grace period.
            if node.is_some_and(|node| node.aborting) {
                self.graphs.work.abort(&key);
            }
            let AttemptKey { graph, id, attempt } = key;
            let event = GraphEvent::TimerFired { id, attempt };
            self.graphs.work.push(&graph, event);
        }
    }
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Applies events to a graph, stores it, and queues its commands. Returns true if the rules refused an event.
    pub(crate) async fn apply(
        &mut self,
        position: usize,
        events: Vec<GraphEvent>,
    ) -> Result<bool, Halt> {
        let now = self.env.clock.now();
        let live = &mut self.live_graphs[position];
        let (mut stores, mut is_refused) = (false, false);
        for event in events {
            let mut has_changed = false;
            for command in step(&mut live.graph, event, now) {
                match command {
                    Command::Note(change) => {
                        live.is_dirty = true;
                        live.is_reported = false;
                        has_changed = true;
                        tracing::debug!(graph = %live.graph.id, action = %change.id, to = ?change.to, "action changed");
                    }
                    Command::Persist(_) => {
                        stores = true;
                        has_changed = true;
                    }
                    Command::Quiescent(why) => {
                        live.why = Some(why);
                        has_changed = false;
                    }
                    Command::Count(IgnoredEvent::Refused) => is_refused = true,
                    Command::Count(IgnoredEvent::Late) => {
                        tracing::debug!(graph = %live.graph.id, "an event came late");
                    }
                    command => {
                        has_changed = true;
                        let id = live.graph.id.clone();
                        self.work.commands.push_back((id, command));
                    }
                }
            }
            if has_changed {
                live.why = None;
            }
        }
        // Stored before the queued commands run: a crash between both must not lose a started effect.
        if stores {
            self.save(position).await?;
        }
        Ok(is_refused)
    }

    /// Stores a graph. Stops driving it if another run has taken it over.
    pub(crate) async fn save(&mut self, position: usize) -> Result<(), Halt> {
        let graph = &self.live_graphs[position].graph;
        match self.records.driven.save(graph).await {
            Ok(()) => Ok(()),
            Err(error) => self.handle_records_error(position, error),
        }
    }

    /// Handles a failed write of a record. `Ok`: the run continues.
    pub(crate) fn handle_records_error(
        &mut self,
        position: usize,
        error: RecordsError,
    ) -> Result<(), Halt> {
        let live = &mut self.live_graphs[position];
        let graph = live.graph.id.clone();
        match error {
            RecordsError::LeaseLost { run, .. } => {
                tracing::warn!(graph = %graph, run.id = run, "another run drives the graph now, this one stops");
                live.is_closed = true;
                self.work.drop_graph(&graph);
                Ok(())
            }
            RecordsError::Full { what, bound } => {
                tracing::warn!(graph = %graph, what, most = bound, "a record of the graph is full, nothing new starts");
                let is_first = !std::mem::replace(&mut live.is_full, true);
                // Queued starts are not stored, so none of them may run.
                self.work.fail_queued(&graph);
                // One event is enough: all further writes of the record fail in the same way.
                if is_first {
                    self.work.push(&graph, GraphEvent::BudgetGone);
                }
                Ok(())
            }
            // The run ends anyway; the next run decides from the last stored state.
            error if self.is_closing => {
                tracing::warn!(graph = %graph, "the last state of the graph is not stored: {error}");
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    /// Sends `tool.call.completed` for an attempt.
    async fn report_end(&mut self, key: &AttemptKey, outcome: &ActionOutcome) {
        let node = self.node(key);
        let Some(node) = node.filter(|node| carry::is_reported(node)) else {
            return;
        };
        let line_limit = self.writer.line_limit();
        let (result, error) = match outcome {
            ActionOutcome::Ok { output, .. } if carry::may_see(node) => {
                let value = match &output.value {
                    serde_json::Value::Object(object) => object.clone(),
                    other => protocol::JsonObject::from_iter([("value".to_owned(), other.clone())]),
                };
                (Some(within_limit(line_limit, value)), None)
            }
            // Private output: the user sees the end of the call without its result.
            ActionOutcome::Ok { .. } => (Some(protocol::JsonObject::new()), None),
            ActionOutcome::Err(failure) => {
                let message = format!("{}: {}", failure.code, failure.message);
                (None, Some(line_limit.half().beginning(&message).to_owned()))
            }
        };
        let payload = ToolCallCompletedPayload {
            tool_call_id: carry::call_id(key),
            tool_name: node.target().to_owned(),
            result,
            error,
        };
        self.writer
            .send(results::typed(ResultType::ToolCallCompleted, &payload))
            .await;
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
