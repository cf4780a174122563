//! The scheduler: a pure function from a graph, an event and a time to commands.

mod decide;
mod finish;
mod quiescent;
mod recovered;
mod revise;
mod settle;
mod start;
mod stop;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::{Action, Effect};
use crate::code::Code;
use crate::declaration::Decision;
use crate::graph::{Graph, Millis, Stop, Transition};
use crate::ids::ActionId;
use crate::node::{Output, Sent, State, Wait};

/// What happened outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Start the graph, or look at it again.
    Begin,
    /// The executor took the attempt.
    Started {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
    },
    /// The attempt ended.
    Finished {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
        /// Its end.
        outcome: Outcome,
    },
    /// The attempt goes on without the runner's help.
    Suspended {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
        /// What it waits for.
        on: Suspension,
    },
    /// The runner works on a suspended attempt again.
    Woken {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
    },
    /// A timer of [`Command::SetTimer`] is due.
    TimerFired {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
    },
    /// A person approved bound arguments.
    Approved {
        /// The actions, with the hashes that the approval named.
        ids: Vec<(ActionId, String)>,
    },
    /// An approval did not come.
    Denied {
        /// The actions.
        ids: Vec<ActionId>,
        /// Why.
        why: Denial,
    },
    /// A decision.
    Decide {
        /// The decision.
        decision: Decision,
        /// Its author.
        by: Actor,
    },
    /// New actions instead of those that have not started; validated as a whole before.
    Revise {
        /// All actions that shall be pending afterwards.
        actions: Vec<Action>,
    },
    /// End the graph.
    Cancel,
    /// End one action.
    CancelAction {
        /// The action.
        id: ActionId,
    },
    /// What a take-over found out about an attempt.
    Recovered {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
        /// The finding.
        found: Found,
    },
    /// The time of the graph is over.
    Deadline,
    /// The budget is used up: running actions may end, others do not start.
    BudgetGone,
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has an output.
    Ok {
        /// The output.
        output: Output,
        /// Whether the work was done.
        satisfying: bool,
    },
    /// It failed.
    Err(Failure),
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The stable name.
    pub code: Code,
    /// What happened, for the model.
    pub message: String,
    /// Whether the call was sent.
    pub sent: Sent,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// A delay that the other side asks for, in milliseconds.
    pub retry_after: Option<u32>,
    /// Random change of the delay in thousandths, −200 to 200, drawn by the caller.
    pub jitter: i16,
}

impl Failure {
    /// A failure that is not tried again.
    pub fn new(code: Code, message: &str, sent: Sent) -> Self {
        Self {
            code,
            message: message.to_owned(),
            sent,
            retryable: false,
            retry_after: None,
            jitter: 0,
        }
    }
}

/// What a suspended attempt waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suspension {
    /// An answer of the user.
    User,
    /// A child run.
    Child {
        /// Its id.
        run: String,
    },
    /// Something outside that will report.
    External,
    /// A time.
    Timer {
        /// When.
        at: Millis,
    },
}

/// Why an approval did not come: three outcomes, never one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    /// The user refused.
    Refused,
    /// The question expired.
    Expired,
    /// No surface can ask.
    Unavailable,
}

/// The author of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The model.
    Model,
    /// A person.
    Human,
    /// A status tool that the operator configured.
    StatusTool,
}

/// What a take-over found out about an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// No output is stored.
    Nothing,
    /// Its end is stored, or known.
    Ended(Outcome),
    /// It still runs or waits outside.
    Alive,
    /// The other side does not know it.
    Unknown,
}

/// What the service carries out, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Show and log a change.
    Note(Transition),
    /// Store the graph before going on; durable graphs alone.
    Persist(Level),
    /// Ask the executor to end an attempt.
    Abort {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
        /// Time to confirm, in milliseconds.
        grace_ms: u32,
    },
    /// Run a tool, word, pipeline or service, after a second check of its arguments.
    Execute(Execute),
    /// Start a child run; its assignment is stored first.
    SpawnChild(Execute),
    /// Ask the user a question; the action waits already.
    Ask(Execute),
    /// Ask for approvals, in one form.
    AskApproval(Vec<ApprovalRequest>),
    /// Call [`Event::TimerFired`] at this time.
    SetTimer {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
        /// When.
        at: Millis,
    },
    /// Go on with a suspended attempt whose timer is due.
    Resume {
        /// The action.
        id: ActionId,
        /// The attempt.
        attempt: u32,
    },
    /// Count something that changed nothing.
    Count(Counted),
    /// Nothing moves without the outside: observe and report.
    Quiescent(Why),
}

/// One attempt to carry out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Execute {
    /// The action.
    pub id: ActionId,
    /// The attempt.
    pub attempt: u32,
    /// Name of the executor.
    pub target: String,
    /// Bound arguments.
    pub input: Value,
    /// Idempotency key: the same for each retry of a keyed action.
    pub key: String,
    /// Longest run in milliseconds, where the action has a limit of its own.
    pub timeout_ms: Option<u32>,
}

/// One approval that is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The action.
    pub id: ActionId,
    /// Its label.
    pub title: String,
    /// Name of the executor.
    pub target: String,
    /// Bound arguments.
    pub input: Value,
    /// Its effects.
    pub effects: Vec<Effect>,
    /// Hash over executor, arguments and effects: the approval covers exactly these.
    pub hash: String,
}

/// Why a graph is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A state changed.
    Progress,
    /// An effect follows: carry out nothing before it is stored.
    Effect,
    /// All actions are final.
    Closed,
}

/// Events that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// It belongs to an attempt that is over, or to no action.
    Late,
    /// The rules do not allow it.
    Refused,
}

/// Why nothing moves: the only moments of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// All actions are settled, and no decision is due.
    Finished,
    /// A decision is due: a failure blocks others, or an effect is uncertain.
    Decide,
    /// The user is asked.
    UserNeeded,
    /// An approval is asked for.
    PermissionNeeded,
    /// A child, a timer or something outside is waited for.
    Waiting,
    /// The graph was stopped, and its running actions ended.
    Canceled,
}

/// Applies an event. Total: an event that fits no state is counted and changes nothing.
pub fn step(graph: &mut Graph, event: Event, now: Millis) -> Vec<Command> {
    if !graph.is_linked() {
        graph.relink();
    }
    let looks_again = matches!(event, Event::Begin);
    let mut turn = Turn {
        graph,
        now,
        notes: Vec::new(),
        effects: Vec::new(),
        changed: looks_again,
    };
    turn.apply(event);
    if turn.graph.begun {
        turn.settle_all();
        turn.start_ready();
    }
    turn.close()
}

/// One step in progress.
struct Turn<'a> {
    graph: &'a mut Graph,
    now: Millis,
    notes: Vec<Command>,
    effects: Vec<Command>,
    changed: bool,
}

impl Turn<'_> {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Begin => self.graph.begun = true,
            Event::Started { id, attempt } => self.started(&id, attempt),
            Event::Finished {
                id,
                attempt,
                outcome,
            } => self.finished(&id, attempt, outcome),
            Event::Suspended { id, attempt, on } => self.suspended(&id, attempt, on),
            Event::Woken { id, attempt } => self.woken(&id, attempt),
            Event::TimerFired { id, attempt } => self.timer_fired(&id, attempt),
            Event::Approved { ids } => self.approved(&ids),
            Event::Denied { ids, why } => self.denied(&ids, why),
            Event::Decide { decision, by } => self.decide(&decision, by),
            Event::Revise { actions } => self.revise(actions),
            Event::Cancel => self.stop(Stop::Canceled),
            Event::CancelAction { id } => self.cancel_action(&id),
            Event::Recovered { id, attempt, found } => self.recovered(&id, attempt, found),
            Event::Deadline => self.stop(Stop::Deadline),
            Event::BudgetGone => self.stop(Stop::Budget),
        }
    }

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

    fn started(&mut self, id: &ActionId, attempt: u32) {
        let now = self.now;
        if let Some(place) = self.open(id, attempt)
            && let Some(last) = self.graph.nodes[place].attempts.last_mut()
        {
            last.started = now;
        }
    }

    fn suspended(&mut self, id: &ActionId, attempt: u32, on: Suspension) {
        let Some(place) = self.open(id, attempt) else {
            return;
        };
        let node = &mut self.graph.nodes[place];
        if node.state != State::Running || node.aborting {
            return self.count(Counted::Refused);
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
                self.effects.push(Command::SetTimer { id, attempt, at });
                Wait::Timer
            }
        };
        self.go(place, State::Waiting(wait), None);
    }

    fn woken(&mut self, id: &ActionId, attempt: u32) {
        let Some(place) = self.open(id, attempt) else {
            return;
        };
        match self.graph.nodes[place].state {
            State::Waiting(_) => self.go(place, State::Running, None),
            _ => self.count(Counted::Late),
        }
    }

    fn timer_fired(&mut self, id: &ActionId, attempt: u32) {
        let place = self.graph.place(id);
        let place = place.filter(|&place| self.graph.nodes[place].attempt == attempt);
        let Some(place) = place else {
            return self.count(Counted::Late);
        };
        let node = &self.graph.nodes[place];
        match node.state {
            State::Waiting(Wait::Retry) => self.go(place, State::Pending, None),
            State::Waiting(Wait::Timer) => {
                self.go(place, State::Running, None);
                let id = id.clone();
                self.effects.push(Command::Resume { id, attempt });
            }
            State::Running if node.aborting => self.grace_over(place),
            _ => self.count(Counted::Late),
        }
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
