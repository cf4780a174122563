//! Plays a graph to its end in a random order, with suspensions, late events and restores, and checks each step.

use std::collections::BTreeMap;

use action_graph::code::Code;
use action_graph::graph::Graph;
use action_graph::ids::ActionId;
use action_graph::node::{ActionOutput, BlockReason, Node, NodeState, Wait};
use action_graph::schedule::{
    ActionFailure, ActionOutcome, Command, Denial, GraphEvent, Suspension, Why, step,
};
use serde_json::json;

use super::oracle::OracleEnd;
use super::spec::{AttemptEnd, Spec, SpecKind, id, index_of, sent_of};

/// A small generator of random choices.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(super) fn below(&mut self, max: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % max.max(1)
    }
}

/// Possible next events.
#[derive(Clone, Debug, PartialEq)]
enum Pending {
    Attempt {
        id: ActionId,
        attempt: u32,
        suspended: bool,
    },
    Timer {
        id: ActionId,
        attempt: u32,
        at: u64,
    },
    Approval {
        id: ActionId,
        hash: String,
    },
}

pub(super) struct Player<'a> {
    spec: &'a Spec,
    pub(super) graph: Graph,
    dice: Dice,
    pending: Vec<Pending>,
    past: Vec<GraphEvent>,
    now: u64,
    iterations: BTreeMap<ActionId, u8>,
    pub(super) steps: usize,
    pub(super) executed: usize,
    pub(super) last_why: Option<Why>,
    pub(super) stopped: bool,
}

impl<'a> Player<'a> {
    pub(super) fn new(spec: &'a Spec, seed: u64) -> Self {
        Self {
            spec,
            graph: spec.graph(),
            dice: Dice::new(seed),
            pending: Vec::new(),
            past: Vec::new(),
            now: 0,
            iterations: BTreeMap::new(),
            steps: 0,
            executed: 0,
            last_why: None,
            stopped: false,
        }
    }

    /// Plays until nothing can happen.
    pub(super) fn play(&mut self) {
        self.send(GraphEvent::Begin);
        while let Some(event) = self.next() {
            self.send(event);
            self.disturb();
            let max = 20 * self.spec.max_attempts();
            assert!(self.steps <= max, "no end after {} steps", self.steps);
        }
    }

    /// One event of those that may happen.
    fn next(&mut self) -> Option<GraphEvent> {
        if self.pending.is_empty() {
            return None;
        }
        let index = self.dice.below(self.pending.len());
        let one = self.pending[index].clone();
        match one {
            Pending::Attempt {
                id,
                attempt,
                suspended,
            } => {
                let is_human = self.spec.actions[index_of(&id).0].kind == SpecKind::Human;
                match self.dice.below(8) {
                    0 if !suspended && !is_human => {
                        let on = match self.dice.below(2) {
                            0 => Suspension::External,
                            _ => Suspension::Child {
                                run: "r".to_owned(),
                            },
                        };
                        return Some(GraphEvent::Suspended { id, attempt, on });
                    }
                    1 if suspended && !is_human => {
                        return Some(GraphEvent::Woken { id, attempt });
                    }
                    _ => {}
                }
                self.pending.remove(index);
                let outcome = self.outcome(&id, attempt);
                Some(GraphEvent::Finished {
                    id,
                    attempt,
                    outcome,
                })
            }
            Pending::Timer { id, attempt, at } => {
                self.pending.remove(index);
                self.now = self.now.max(at);
                Some(GraphEvent::TimerFired { id, attempt })
            }
            Pending::Approval { id, hash } => {
                self.pending.remove(index);
                match self.spec.actions[index_of(&id).0].approval {
                    Some(false) => Some(GraphEvent::Denied {
                        ids: vec![id],
                        why: Denial::Refused,
                    }),
                    _ => Some(GraphEvent::Approved {
                        ids: vec![(id, hash)],
                        by: None,
                    }),
                }
            }
        }
    }

    fn outcome(&mut self, id: &ActionId, attempt: u32) -> ActionOutcome {
        let spec = &self.spec.actions[index_of(id).0];
        match self.spec.step(id, attempt) {
            AttemptEnd::Err { retryable, sent } => {
                let mut failure = ActionFailure::new(Code::ToolError, "it failed", sent_of(sent));
                failure.retryable = retryable;
                failure.jitter = 100;
                ActionOutcome::Err(failure)
            }
            step => {
                let round = self.iterations.entry(id.clone()).or_default();
                *round += 1;
                let done = spec.repeat.is_some_and(|(_, done)| *round >= done);
                let output = ActionOutput::json(json!({"value": 7, "done": done}));
                ActionOutcome::Ok {
                    output,
                    satisfying: step == AttemptEnd::Ok,
                }
            }
        }
    }

    /// Late events change nothing, and a restored graph has the same future.
    fn disturb(&mut self) {
        if self.dice.below(6) == 0 && !self.past.is_empty() {
            let index = self.dice.below(self.past.len());
            let late = self.past[index].clone();
            let before = self.graph.clone();
            let commands = step(&mut self.graph, late.clone(), self.now);
            let is_count = |command: &Command| matches!(command, Command::Count(_));
            assert!(commands.iter().all(is_count), "{late:?} gave {commands:?}");
            assert_eq!(self.graph, before, "{late:?} changed the graph");
        }
        if self.dice.below(8) == 0 {
            let text = serde_json::to_string(&self.graph).expect("it is stored");
            self.graph = serde_json::from_str(&text).expect("it is restored");
        }
    }

    pub(super) fn send(&mut self, event: GraphEvent) {
        let is_final = matches!(
            event,
            GraphEvent::Finished { .. } | GraphEvent::Approved { .. } | GraphEvent::Denied { .. }
        );
        if is_final {
            self.past.push(event.clone());
        }
        self.stopped |= matches!(
            event,
            GraphEvent::Cancel | GraphEvent::Deadline | GraphEvent::BudgetGone
        );
        let commands = step(&mut self.graph, event, self.now);
        self.steps += 1;
        self.stopped |= self.graph.stop.is_some();
        let changed = !commands.iter().all(|one| matches!(one, Command::Count(_)));
        for one in &mut self.pending {
            if let Pending::Attempt { id, suspended, .. } = one {
                *suspended = self
                    .graph
                    .node(id)
                    .is_some_and(|node| node.state != NodeState::Running);
            }
        }
        let mut why = None;
        for command in commands {
            match command {
                Command::Execute(execute) | Command::SpawnChild(execute) => {
                    self.check_start(&execute.id);
                    self.executed += 1;
                    let (id, attempt) = (execute.id, execute.attempt);
                    self.pending.push(Pending::Attempt {
                        id,
                        attempt,
                        suspended: false,
                    });
                }
                Command::Ask(execute) => {
                    self.check_edges(&execute.id);
                    let (id, attempt) = (execute.id, execute.attempt);
                    self.pending.push(Pending::Attempt {
                        id,
                        attempt,
                        suspended: true,
                    });
                }
                Command::SetTimer { id, attempt, at } => {
                    self.pending.push(Pending::Timer { id, attempt, at });
                }
                Command::AskApproval(requests) => {
                    self.pending
                        .extend(requests.into_iter().map(|one| Pending::Approval {
                            id: one.id,
                            hash: one.hash,
                        }));
                }
                Command::Quiescent(reason) => why = Some(reason),
                _ => {}
            }
        }
        let graph = &self.graph;
        self.pending.retain(|one| match one {
            Pending::Attempt { id, .. } => graph.node(id).is_some_and(Node::has_open_attempt),
            Pending::Approval { id, .. } => graph
                .node(id)
                .is_some_and(|node| node.state == NodeState::Waiting(Wait::Approval)),
            Pending::Timer { .. } => true,
        });
        if changed {
            self.check_quiescent(why);
        }
        self.last_why = why.or(self.last_why);
    }

    /// Nothing moves exactly when no attempt runs and no retry is timed.
    fn check_quiescent(&self, why: Option<Why>) {
        let moves = |one: &Pending| match one {
            Pending::Attempt { suspended, .. } => !suspended,
            Pending::Timer { id, attempt, .. } => self.graph.node(id).is_some_and(|node| {
                node.state == NodeState::Waiting(Wait::Retry) && node.attempt == *attempt
            }),
            Pending::Approval { .. } => false,
        };
        let is_moving = self.pending.iter().any(moves);
        assert_eq!(why.is_none(), is_moving, "{why:?} with {:?}", self.pending);
        match why {
            Some(Why::UserNeeded | Why::PermissionNeeded | Why::Waiting) => {
                assert!(!self.pending.is_empty());
            }
            Some(Why::Finished | Why::Canceled) => {
                let is_open = |one: &Pending| !matches!(one, Pending::Timer { .. });
                assert!(
                    !self.pending.iter().any(is_open),
                    "{why:?} with {:?}",
                    self.pending
                );
            }
            _ => {}
        }
    }

    /// Slots and lanes at the start of an attempt.
    fn check_start(&self, id: &ActionId) {
        assert!(!self.stopped, "{id} starts after the stop");
        self.check_edges(id);
        let own = &self.spec.actions[index_of(id).0];
        let mut running = 0;
        for one in &self.pending {
            let Pending::Attempt {
                id: other,
                suspended,
                ..
            } = one
            else {
                continue;
            };
            let spec = &self.spec.actions[index_of(other).0];
            running += usize::from(!suspended && spec.kind != SpecKind::Human);
            let is_same_tool = matches!(own.kind, SpecKind::Tool(_)) && own.kind == spec.kind;
            assert!(
                !(is_same_tool && own.acts() && spec.acts()),
                "{id} and {other} share a target"
            );
            let is_shared = own.writes.is_some() && own.writes == spec.writes;
            assert!(!is_shared, "{id} and {other} share a resource");
        }
        assert!(
            running < usize::from(self.spec.parallel.min(4)),
            "{id} has no slot"
        );
    }

    fn check_edges(&self, id: &ActionId) {
        let spec = &self.spec.actions[index_of(id).0];
        let node_of = |index: usize| self.graph.node(&super::spec::id(index)).expect("a node");
        for need in spec.needs() {
            let node = node_of(need);
            assert!(
                node.satisfying && node.is_settled(),
                "{id} starts before a{need}"
            );
        }
        if let Some((other, _)) = spec.when {
            assert!(
                node_of(other).is_settled(),
                "{id} starts before its condition"
            );
        }
        let node = self.graph.node(id).expect("a node");
        assert!(node.iteration < spec.rounds(), "{id} repeats too often");
        assert!(
            node.attempt <= u32::from(spec.rounds()) * u32::from(spec.tries()),
            "{id} has too many attempts"
        );
    }
}

/// The end that a graph gave an action.
pub(super) fn end_in(graph: &Graph, index: usize) -> OracleEnd {
    let node = graph.node(&id(index)).expect("a node");
    match node.state {
        NodeState::Completed => OracleEnd::Completed {
            opens: node.satisfying,
        },
        NodeState::Failed => OracleEnd::Failed {
            opens: node.satisfying,
        },
        NodeState::Skipped => OracleEnd::Skipped,
        NodeState::Blocked(BlockReason::Dependency) => OracleEnd::BlockedByOther,
        NodeState::Blocked(BlockReason::Input) => OracleEnd::BlockedByInput,
        NodeState::Uncertain => OracleEnd::Uncertain,
        _ => OracleEnd::Stuck,
    }
}
