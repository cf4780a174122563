//! The scheduler: a pure function from a graph, an event and a time to commands.

mod command;
mod decide;
mod event;
mod finish;
mod settle;
mod start;
mod stop;

pub use command::{ApprovalRequest, Command, Execute, IgnoredEvent, PersistLevel, Why};
pub use event::{
    ActionFailure, ActionOutcome, Actor, Denial, GraphEvent, RecoveredAttempt, Suspension,
};

use crate::code::Code;
use crate::graph::{Graph, Millis, StopReason, Transition};
use crate::ids::ActionId;
use crate::node::{NodeState, Wait};

/// Applies an event. Total: an event that fits no state is counted and changes nothing.
pub fn step(graph: &mut Graph, event: GraphEvent, now: Millis) -> Vec<Command> {
    // Restored and deserialised graphs have no links.
    if !graph.is_linked() {
        graph.relink();
    }
    // `Begin` evaluates a graph again although no state changes, for example after a restore.
    let looks_again = matches!(event, GraphEvent::Begin);
    let mut step = StepState {
        graph,
        now,
        notes: Vec::new(),
        effects: Vec::new(),
        changed: looks_again,
    };
    step.apply(event);
    // A plan takes decisions and revisions, but starts nothing.
    if step.graph.begun {
        ReadyRules { step: &mut step }.settle_all();
        ReadyRules { step: &mut step }.start_ready();
    }
    step.close()
}

/// One step in progress.
struct StepState<'a> {
    graph: &'a mut Graph,
    now: Millis,
    notes: Vec<Command>,
    effects: Vec<Command>,
    changed: bool,
}

/// Events of attempts: progress, ends, and recovery after a take-over.
struct AttemptEvents<'s, 'g> {
    step: &'s mut StepState<'g>,
}

/// Decisions, approvals and revisions.
struct DecisionEvents<'s, 'g> {
    step: &'s mut StepState<'g>,
}

/// Rules that settle and start pending actions.
struct ReadyRules<'s, 'g> {
    step: &'s mut StepState<'g>,
}

impl<'g> StepState<'g> {
    fn apply(&mut self, event: GraphEvent) {
        match event {
            GraphEvent::Begin => self.graph.begun = true,
            GraphEvent::Started { id, attempt } => self.attempts().started(&id, attempt),
            GraphEvent::Finished {
                id,
                attempt,
                outcome,
            } => self.attempts().finished(&id, attempt, outcome),
            GraphEvent::Suspended { id, attempt, on } => {
                self.attempts().suspended(&id, attempt, on);
            }
            GraphEvent::Woken { id, attempt } => self.attempts().woken(&id, attempt),
            GraphEvent::TimerFired { id, attempt } => self.attempts().timer_fired(&id, attempt),
            GraphEvent::Approved { ids, by } => self.decisions().approved(&ids, by.as_ref()),
            GraphEvent::Denied { ids, why } => self.decisions().denied(&ids, why),
            GraphEvent::Decide { decision, by } => self.decisions().decide(&decision, by),
            GraphEvent::Revise { actions, constants } => {
                self.decisions().revise(actions, constants);
            }
            GraphEvent::Cancel => self.stop(StopReason::Canceled),
            GraphEvent::CancelAction { id } => self.cancel_action(&id),
            GraphEvent::Recovered { id, attempt, found } => {
                self.attempts().recovered(&id, attempt, found);
            }
            GraphEvent::Deadline => self.stop(StopReason::Deadline),
            GraphEvent::BudgetGone => self.stop(StopReason::Budget),
        }
    }

    fn attempts(&mut self) -> AttemptEvents<'_, 'g> {
        AttemptEvents { step: self }
    }

    fn decisions(&mut self) -> DecisionEvents<'_, 'g> {
        DecisionEvents { step: self }
    }
}

impl StepState<'_> {
    fn count(&mut self, what: IgnoredEvent) {
        self.effects.push(Command::Count(what));
    }

    /// The position of an action that has this attempt open; counts the event as late otherwise.
    fn open(&mut self, id: &ActionId, attempt: u32) -> Option<usize> {
        let position = self.graph.position(id).filter(|&position| {
            let node = &self.graph.nodes[position];
            node.has_open_attempt() && node.attempt == attempt
        });
        if position.is_none() {
            self.count(IgnoredEvent::Late);
        }
        position
    }

    /// Moves a node, and notes it.
    fn go(&mut self, position: usize, to: NodeState, why: Option<Code>) {
        let node = &mut self.graph.nodes[position];
        let from = std::mem::replace(&mut node.state, to);
        node.why = why;
        // The timer belongs to one wait: a later state must not inherit it.
        if to != NodeState::Waiting(Wait::Retry) {
            node.due = None;
        }
        let transition = Transition {
            seq: self.graph.seq + 1,
            at: self.now,
            id: node.action.id.clone(),
            attempt: node.attempt,
            from,
            to,
            why,
        };
        self.graph.seq += 1;
        // Bounded, because the transitions are part of the graph in memory.
        if self.graph.transitions.len() >= self.graph.settings.transitions {
            self.graph.transitions.pop_front();
        }
        self.graph.transitions.push_back(transition.clone());
        self.notes.push(Command::Note(transition));
        self.changed = true;
    }

    /// Orders the commands: notes, storage, effects, and the reason why nothing moves.
    fn close(mut self) -> Vec<Command> {
        // Without a change the last observation is still valid.
        let why = self.changed.then(|| self.quiescent()).flatten();
        // Counts are no effects: nothing has to be stored before them.
        let has_effects = self
            .effects
            .iter()
            .any(|one| !matches!(one, Command::Count(_)));
        let mut commands = self.notes;
        // Before the effects: after a crash the stored attempts tell which effects may have happened.
        if self.graph.is_durable() && (self.changed || has_effects) {
            let level = match why {
                Some(Why::Finished | Why::Canceled) => PersistLevel::Closed,
                _ if has_effects => PersistLevel::Effect,
                _ => PersistLevel::Progress,
            };
            commands.push(Command::Persist(level));
        }
        commands.append(&mut self.effects);
        commands.extend(why.map(Command::Quiescent));
        commands
    }
}

impl AttemptEvents<'_, '_> {
    fn started(&mut self, id: &ActionId, attempt: u32) {
        let now = self.step.now;
        if let Some(position) = self.step.open(id, attempt)
            && let Some(last) = self.step.graph.nodes[position].attempts.last_mut()
        {
            last.started = now;
        }
    }

    fn suspended(&mut self, id: &ActionId, attempt: u32, on: Suspension) {
        let Some(position) = self.step.open(id, attempt) else {
            return;
        };
        let node = &mut self.step.graph.nodes[position];
        // An aborted attempt may not begin a new wait: its end is awaited.
        if node.state != NodeState::Running || node.aborting {
            return self.step.count(IgnoredEvent::Refused);
        }
        let wait = match on {
            Suspension::User => Wait::User,
            Suspension::External => Wait::External,
            Suspension::Child { run } => {
                node.child = Some(run);
                Wait::Child
            }
            Suspension::Timer { at } => {
                let id = id.clone();
                self.step
                    .effects
                    .push(Command::SetTimer { id, attempt, at });
                Wait::Timer
            }
        };
        self.step.go(position, NodeState::Waiting(wait), None);
    }

    fn woken(&mut self, id: &ActionId, attempt: u32) {
        let Some(position) = self.step.open(id, attempt) else {
            return;
        };
        match self.step.graph.nodes[position].state {
            NodeState::Waiting(_) => self.step.go(position, NodeState::Running, None),
            _ => self.step.count(IgnoredEvent::Late),
        }
    }

    fn timer_fired(&mut self, id: &ActionId, attempt: u32) {
        let position = self.step.graph.position(id);
        let position =
            // A timer of an earlier attempt may fire late.
            position.filter(|&position| self.step.graph.nodes[position].attempt == attempt);
        let Some(position) = position else {
            return self.step.count(IgnoredEvent::Late);
        };
        let node = &self.step.graph.nodes[position];
        match node.state {
            NodeState::Waiting(Wait::Retry) => self.step.go(position, NodeState::Pending, None),
            NodeState::Waiting(Wait::Timer) => {
                self.step.go(position, NodeState::Running, None);
                let id = id.clone();
                self.step.effects.push(Command::Resume { id, attempt });
            }
            NodeState::Running if node.aborting => self.step.grace_over(position),
            _ => self.step.count(IgnoredEvent::Late),
        }
    }
}
