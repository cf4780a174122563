//! Drives graphs until nothing of them moves: applies events, stores, carries out commands, shows progress.

mod carry;
mod words;

use action_graph::code::Code;
use action_graph::node::Sent;
use action_graph::schedule::{Command, Counted, Event, Failure, Outcome, Suspension, step};
use protocol::result::{ResultType, ToolCallCompletedPayload};
use tokio::time::{Instant, sleep_until};

use crate::execute::{Report, agent};
use crate::failpoint::reach;
use crate::failure::Halt;
use crate::host::AgentHost;
use crate::keep::KeepError;
use crate::session::{GraphDriver, RunGraphs};
use crate::speaker::known;
use crate::work::Key;

impl<H: AgentHost> GraphDriver<H> {
    /// Runs until nothing moves without the outside. A child run is waited for, unless a question is open: its answer
    /// starts another run.
    pub(crate) async fn drive(&mut self) -> Result<(), Halt> {
        self.drive_until(self.graphs.hands.end).await
    }

    /// The same, until `end` at the latest.
    pub(crate) async fn drive_until(&mut self, end: Instant) -> Result<(), Halt> {
        loop {
            self.drain().await?;
            self.graphs.show_due().await;
            if !self.moves() {
                break;
            }
            let timer = self
                .graphs
                .work
                .next_timer()
                .map(|at| self.graphs.hands.clock.instant(at));
            let shows = self.graphs.next_show();
            tokio::select! {
                biased;
                () = self.cancel.cancelled(), if !self.graphs.is_closing => return Err(Halt::Cancelled),
                (key, report) = self.graphs.work.next() => match report {
                    Ok(report) => self.reported(key, report).await,
                    Err(error) => self.graphs.work.broke(&key, &error),
                },
                () = at(timer) => self.fire(),
                () = at(shows) => {}
                () = sleep_until(end) => return Err(Halt::Deadline),
            }
        }
        self.graphs.show_all().await;
        Ok(())
    }

    fn moves(&self) -> bool {
        let end = self
            .graphs
            .hands
            .clock
            .now()
            .saturating_add(crate::clock::millis(self.graphs.hands.left()));
        if self.graphs.work.is_busy() || self.graphs.work.has_timer_before(end) {
            return true;
        }
        let is_asking = self
            .graphs
            .lives
            .iter()
            .any(crate::live::Live::has_question);
        self.graphs.work.is_following() && !is_asking && !self.graphs.is_closing
    }

    /// Applies all events and carries out all commands that wait.
    pub(crate) async fn drain(&mut self) -> Result<(), Halt> {
        loop {
            if let Some((graph, command)) = self.graphs.work.commands.pop_front() {
                if let Some(place) = self.graphs.place(&graph) {
                    self.carry_out(place, command).await?;
                }
            } else if let Some((graph, event)) = self.graphs.work.events.pop_front() {
                let mut events = vec![event];
                while self
                    .graphs
                    .work
                    .events
                    .front()
                    .is_some_and(|(id, _)| *id == graph)
                {
                    events.extend(self.graphs.work.events.pop_front().map(|(_, event)| event));
                }
                if let Some(place) = self.graphs.place(&graph) {
                    self.graphs.apply(place, events).await?;
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Takes the report of an executor.
    async fn reported(&mut self, key: Key, report: Report) {
        match report {
            Report::Finished(outcome) => {
                self.graphs.tell_end(&key, &outcome).await;
                reach("effect.answered").await;
                self.graphs.work.finish(&key, outcome);
            }
            Report::Spawned(run) => {
                reach("child.spawned").await;
                let node = self.graphs.place(&key.graph);
                let node = node.and_then(|place| self.graphs.lives[place].graph.node(&key.id));
                if node.is_none_or(|node| node.aborting || node.attempt != key.attempt) {
                    let host = self.graphs.hands.host.clone();
                    self.graphs.work.end_child(host, run);
                    return self.graphs.work.finish(
                        &key,
                        failed(Code::ChildCancelled, "it was cancelled", Sent::Yes),
                    );
                }
                let (id, attempt) = (key.id.clone(), key.attempt);
                let on = Suspension::Child {
                    run: run.to_string(),
                };
                let event = Event::Suspended { id, attempt, on };
                self.graphs
                    .work
                    .events
                    .push_back((key.graph.clone(), event));
                let hands = self.graphs.hands.clone();
                let follow = async move { Report::Finished(agent::follow(&hands, run).await) };
                self.graphs.work.follow(key, run, follow);
            }
        }
    }

    /// Fires the timers that are due. One of an aborted attempt ends its grace, and its task.
    fn fire(&mut self) {
        for key in self.graphs.work.due(self.graphs.hands.clock.now()) {
            let node = self.graphs.place(&key.graph);
            let node = node.and_then(|place| self.graphs.lives[place].graph.node(&key.id));
            if node.is_some_and(|node| node.aborting) {
                self.graphs.work.abort(&key);
            }
            let Key { graph, id, attempt } = key;
            self.graphs
                .work
                .events
                .push_back((graph, Event::TimerFired { id, attempt }));
        }
    }
}

impl<H: AgentHost> RunGraphs<H> {
    /// Applies events to a graph and stores it. Its commands wait. Gives whether the rules refused one.
    pub(crate) async fn apply(&mut self, place: usize, events: Vec<Event>) -> Result<bool, Halt> {
        let now = self.hands.clock.now();
        let live = &mut self.lives[place];
        let (mut stores, mut is_refused) = (false, false);
        for event in events {
            let mut has_changed = false;
            for command in step(&mut live.graph, event, now) {
                match command {
                    Command::Note(change) => {
                        live.is_dirty = true;
                        live.is_told = false;
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
                    Command::Count(Counted::Refused) => is_refused = true,
                    Command::Count(Counted::Late) => {
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
        if stores {
            self.save(place).await?;
        }
        Ok(is_refused)
    }

    /// Stores a graph. This run stops driving a graph that another run has taken over.
    pub(crate) async fn save(&mut self, place: usize) -> Result<(), Halt> {
        let Err(error) = self.keep.driven.save(&self.lives[place].graph).await else {
            return Ok(());
        };
        self.kept(place, error)
    }

    /// Handles a record that was not stored.
    pub(crate) fn kept(&mut self, place: usize, error: KeepError) -> Result<(), Halt> {
        let live = &mut self.lives[place];
        let graph = live.graph.id.clone();
        match error {
            KeepError::LeaseLost { run, .. } => {
                tracing::warn!(graph = %graph, run.id = run, "another run drives the graph now, this one stops");
                live.is_closed = true;
                self.work.drop_graph(&graph);
                Ok(())
            }
            KeepError::Full { what, most } => {
                tracing::warn!(graph = %graph, what, most, "a record of the graph is full, nothing new starts");
                let is_first = !std::mem::replace(&mut live.is_full, true);
                self.work.call_off(&graph);
                if is_first {
                    self.work.events.push_back((graph, Event::BudgetGone));
                }
                Ok(())
            }
            error if self.is_closing => {
                tracing::warn!(graph = %graph, "the last state of the graph is not stored: {error}");
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    /// Tells the user that a call ended.
    async fn tell_end(&mut self, key: &Key, outcome: &Outcome) {
        let Some(place) = self.place(&key.graph) else {
            return;
        };
        let Some(node) = self.lives[place].graph.node(&key.id) else {
            return;
        };
        if !carry::is_told(node) {
            return;
        }
        let room = self.speaker.room();
        let (result, error) = match outcome {
            Outcome::Ok { output, .. } if carry::may_see(node) => {
                let value = match &output.value {
                    serde_json::Value::Object(object) => object.clone(),
                    other => protocol::JsonObject::from_iter([("value".to_owned(), other.clone())]),
                };
                (Some(room.shown(value)), None)
            }
            Outcome::Ok { .. } => (Some(protocol::JsonObject::new()), None),
            Outcome::Err(failure) => {
                let message = format!("{}: {}", failure.code, failure.message);
                (None, Some(room.half().beginning(&message).to_owned()))
            }
        };
        let payload = ToolCallCompletedPayload {
            tool_call_id: carry::call_id(key),
            tool_name: node.target().to_owned(),
            result,
            error,
        };
        self.speaker
            .send(known(ResultType::ToolCallCompleted, &payload))
            .await;
    }
}

/// A failure that is not tried again.
pub(crate) fn failed(code: Code, message: &str, sent: Sent) -> Outcome {
    Outcome::Err(Failure::new(code, message, sent))
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
