//! The scheduler: a pure function from a graph, an event and a time to commands.

mod command;
mod decide;
mod event;
mod finish;
mod quiescent;
mod recovered;
mod revise;
mod settle;
mod start;
mod stop;

pub use command::{ApprovalRequest, Command, Counted, Execute, Level, Why};
pub use event::{Actor, Denial, Event, Failure, Found, Outcome, Suspension};

use crate::code::Code;
use crate::graph::{Graph, Millis, Stop, Transition};
use crate::ids::ActionId;
use crate::node::{State, Wait};

/// Applies an event. Total: an event that fits no state is counted and changes nothing.
pub fn step(graph: &mut Graph, event: Event, now: Millis) -> Vec<Command> {
    if !graph.is_linked() {
        graph.relink();
    }
    let looks_again = matches!(event, Event::Begin);
    let mut step = StepState {
        graph,
        now,
        notes: Vec::new(),
        effects: Vec::new(),
        changed: looks_again,
    };
    step.apply(event);
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
    fn apply(&mut self, event: Event) {
        match event {
            Event::Begin => self.graph.begun = true,
            Event::Started { id, attempt } => self.attempts().started(&id, attempt),
            Event::Finished {
                id,
                attempt,
                outcome,
            } => self.attempts().finished(&id, attempt, outcome),
            Event::Suspended { id, attempt, on } => self.attempts().suspended(&id, attempt, on),
            Event::Woken { id, attempt } => self.attempts().woken(&id, attempt),
            Event::TimerFired { id, attempt } => self.attempts().timer_fired(&id, attempt),
            Event::Approved { ids } => self.decisions().approved(&ids),
            Event::Denied { ids, why } => self.decisions().denied(&ids, why),
            Event::Decide { decision, by } => self.decisions().decide(&decision, by),
            Event::Revise { actions, constants } => self.decisions().revise(actions, constants),
            Event::Cancel => self.stop(Stop::Canceled),
            Event::CancelAction { id } => self.cancel_action(&id),
            Event::Recovered { id, attempt, found } => {
                self.attempts().recovered(&id, attempt, found);
            }
            Event::Deadline => self.stop(Stop::Deadline),
            Event::BudgetGone => self.stop(Stop::Budget),
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
    fn count(&mut self, what: Counted) {
        self.effects.push(Command::Count(what));
    }

    /// The place of an action that has this attempt open; counts the event as late otherwise.
    fn open(&mut self, id: &ActionId, attempt: u32) -> Option<usize> {
        let place = self.graph.place(id).filter(|&place| {
            let node = &self.graph.nodes[place];
            node.has_open_attempt() && node.attempt == attempt
        });
        if place.is_none() {
            self.count(Counted::Late);
        }
        place
    }

    /// Moves a node, and notes it.
    fn go(&mut self, place: usize, to: State, why: Option<Code>) {
        let node = &mut self.graph.nodes[place];
        let from = std::mem::replace(&mut node.state, to);
        node.why = why;
        if to != State::Waiting(Wait::Retry) {
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
        if self.graph.transitions.len() >= self.graph.settings.transitions {
            self.graph.transitions.pop_front();
        }
        self.graph.transitions.push_back(transition.clone());
        self.notes.push(Command::Note(transition));
        self.changed = true;
    }

    /// Orders the commands: notes, storage, effects, and the reason why nothing moves.
    fn close(mut self) -> Vec<Command> {
        let why = self.changed.then(|| self.quiescent()).flatten();
        let has_effects = self
            .effects
            .iter()
            .any(|one| !matches!(one, Command::Count(_)));
        let mut commands = self.notes;
        if self.graph.is_durable() && (self.changed || has_effects) {
            let level = match why {
                Some(Why::Finished | Why::Canceled) => Level::Closed,
                _ if has_effects => Level::Effect,
                _ => Level::Progress,
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
        if let Some(place) = self.step.open(id, attempt)
            && let Some(last) = self.step.graph.nodes[place].attempts.last_mut()
        {
            last.started = now;
        }
    }

    fn suspended(&mut self, id: &ActionId, attempt: u32, on: Suspension) {
        let Some(place) = self.step.open(id, attempt) else {
            return;
        };
        let node = &mut self.step.graph.nodes[place];
        if node.state != State::Running || node.aborting {
            return self.step.count(Counted::Refused);
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
        self.step.go(place, State::Waiting(wait), None);
    }

    fn woken(&mut self, id: &ActionId, attempt: u32) {
        let Some(place) = self.step.open(id, attempt) else {
            return;
        };
        match self.step.graph.nodes[place].state {
            State::Waiting(_) => self.step.go(place, State::Running, None),
            _ => self.step.count(Counted::Late),
        }
    }

    fn timer_fired(&mut self, id: &ActionId, attempt: u32) {
        let place = self.step.graph.place(id);
        let place = place.filter(|&place| self.step.graph.nodes[place].attempt == attempt);
        let Some(place) = place else {
            return self.step.count(Counted::Late);
        };
        let node = &self.step.graph.nodes[place];
        match node.state {
            State::Waiting(Wait::Retry) => self.step.go(place, State::Pending, None),
            State::Waiting(Wait::Timer) => {
                self.step.go(place, State::Running, None);
                let id = id.clone();
                self.step.effects.push(Command::Resume { id, attempt });
            }
            State::Running if node.aborting => self.step.grace_over(place),
            _ => self.step.count(Counted::Late),
        }
    }
}
