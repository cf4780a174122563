//! Executes a graph against a script on a virtual clock. Calls return at once, and timers advance the clock.

use std::collections::{BTreeMap, VecDeque};

use action_graph::action::ExecutorKind;
use action_graph::code::Code;
use action_graph::graph::{Graph, GraphStatus, Millis, Transition};
use action_graph::ids::ActionId;
use action_graph::node::{ActionOutput, Node, Sent};
use action_graph::schedule::{
    ActionOutcome, ApprovalRequest, Command, Denial, Execute, GraphEvent, Suspension, Why, step,
};
use action_graph::validate::check_bound;
use action_graph::words::{merge, summarize};
use serde_json::{Value, json};

use crate::graph::script::{GRAPH_ID, ReplayScript};

/// Maximum number of events: instances × attempts × iterations × 8.
const MAX_EVENTS: usize = 128 * 5 * 8 * 8;

/// An executed graph that is idle.
pub(super) struct ExecutedGraph {
    pub(super) graph: Graph,
    /// Reason of the idle state; `None` for a plan that has not started.
    pub(super) why: Option<Why>,
    pub(super) transitions: Vec<Transition>,
    /// Time on the virtual clock.
    pub(super) now: Millis,
}

impl ExecutedGraph {
    /// Completed, planned, or waiting for the user.
    pub(super) fn is_good(&self) -> bool {
        let is_waiting = matches!(
            self.why,
            None | Some(Why::UserNeeded | Why::PermissionNeeded | Why::Waiting)
        );
        is_waiting || self.graph.status() == GraphStatus::Completed
    }
}

/// Executes a graph until it is idle. `seen` receives each transition.
pub(super) fn execute(
    graph: Graph,
    script: &ReplayScript,
    seen: &mut dyn FnMut(&Transition),
) -> ExecutedGraph {
    debug_assert_eq!(graph.id.0, GRAPH_ID);
    let mut player = GraphExecutor {
        graph,
        script,
        queue: VecDeque::from([GraphEvent::Begin]),
        timers: BTreeMap::new(),
        calls: BTreeMap::new(),
        transitions: Vec::new(),
        why: None,
        now: 0,
    };
    for _ in 0..MAX_EVENTS {
        let Some(event) = player.next() else { break };
        // Each event has its own time, so that timestamps order the transitions.
        player.now += 1;
        for command in step(&mut player.graph, event, player.now) {
            player.carry_out(command, seen);
        }
    }
    ExecutedGraph {
        graph: player.graph,
        why: player.why,
        transitions: player.transitions,
        now: player.now,
    }
}

struct GraphExecutor<'a> {
    graph: Graph,
    script: &'a ReplayScript,
    queue: VecDeque<GraphEvent>,
    timers: BTreeMap<(Millis, ActionId), GraphEvent>,
    /// Number of calls per executor.
    calls: BTreeMap<(ExecutorKind, String), usize>,
    transitions: Vec<Transition>,
    why: Option<Why>,
    now: Millis,
}

impl GraphExecutor<'_> {
    /// The next event: a result, else the earliest timer, which advances the clock.
    fn next(&mut self) -> Option<GraphEvent> {
        if let Some(event) = self.queue.pop_front() {
            return Some(event);
        }
        let ((at, _), event) = self.timers.pop_first()?;
        self.now = self.now.max(at);
        Some(event)
    }

    fn carry_out(&mut self, command: Command, seen: &mut dyn FnMut(&Transition)) {
        match command {
            Command::Note(transition) => {
                seen(&transition);
                self.transitions.push(transition);
            }
            Command::Execute(call) | Command::SpawnChild(call) | Command::Ask(call) => {
                self.call(call);
            }
            Command::AskApproval(requests) => {
                for request in requests {
                    self.approve(request);
                }
            }
            Command::SetTimer { id, attempt, at } => {
                // Two timers can fire at the same time, so the key contains the action.
                let key = (at, id.clone());
                self.timers
                    .insert(key, GraphEvent::TimerFired { id, attempt });
            }
            Command::Resume { id, attempt } => {
                let output = ActionOutput::json(json!({"waited": true}));
                self.finish(id, attempt, ActionOutcome::done(output));
            }
            Command::Quiescent(why) => self.why = Some(why),
            // Nothing is stored, and an aborted call has returned already.
            Command::Persist(_) | Command::Abort { .. } | Command::Count(_) => {}
        }
    }

    fn call(&mut self, call: Execute) {
        let Some(node) = self.graph.node(&call.id) else {
            return;
        };
        let kind = node.kind();
        if let Some(outcome) = self.refused(node, &call.input) {
            self.finish(call.id, call.attempt, outcome);
            return;
        }
        if kind == ExecutorKind::Runtime {
            match run_builtin(&call.target, &call.input) {
                Reply::Done(outcome) => self.finish(call.id, call.attempt, outcome),
                Reply::Wait(ms) => {
                    let on = Suspension::Timer { at: self.now + ms };
                    let (id, attempt) = (call.id, call.attempt);
                    self.queue
                        .push_back(GraphEvent::Suspended { id, attempt, on });
                }
            }
            return;
        }
        let number = self.calls.entry((kind, call.target.clone())).or_default();
        let answer = self.script.answer(kind, &call.target, *number, &call.input);
        *number += 1;
        if let Some(outcome) = answer {
            self.finish(call.id, call.attempt, outcome);
        }
    }

    /// Validates arguments a second time, after bindings are replaced.
    fn refused(&self, node: &Node, input: &Value) -> Option<ActionOutcome> {
        let faults = check_bound(&node.action, input, self.script.catalog());
        let fault = faults.first()?;
        let (code, message) = (Code::ArgsSchema, &fault.message);
        Some(ActionOutcome::failed(code, message, Sent::No))
    }

    fn approve(&mut self, request: ApprovalRequest) {
        let kind = self.graph.node(&request.id).map(Node::kind);
        let reply = kind.and_then(|kind| self.script.approval(kind, &request.target));
        let event = match reply {
            None => return,
            Some(true) => GraphEvent::Approved {
                ids: vec![(request.id, request.hash)],
                by: None,
            },
            Some(false) => GraphEvent::Denied {
                ids: vec![request.id],
                why: Denial::Refused,
            },
        };
        self.queue.push_back(event);
    }

    fn finish(&mut self, id: ActionId, attempt: u32, outcome: ActionOutcome) {
        self.queue.push_back(GraphEvent::Finished {
            id,
            attempt,
            outcome,
        });
    }
}

/// Result of a function.
enum Reply {
    /// Completed at once.
    Done(ActionOutcome),
    /// Completed after this number of milliseconds.
    Wait(u64),
}

/// Runs a function with bound arguments. `expand` and `decide` fail, since there are no earlier graphs.
fn run_builtin(word: &str, input: &Value) -> Reply {
    let values = || -> Vec<Value> {
        let refs = input.get("refs").and_then(Value::as_array);
        refs.cloned().unwrap_or_default()
    };
    let done = |output| Reply::Done(ActionOutcome::done(output));
    match word {
        "wait" => Reply::Wait(input.get("ms").and_then(Value::as_u64).unwrap_or_default()),
        "merge" => done(merge(&values())),
        "summarize" => done(summarize(&values())),
        "checkpoint" => done(ActionOutput::json(json!({"stored": false}))),
        _ => {
            let message = format!("`{word}` needs an earlier graph of the conversation");
            Reply::Done(ActionOutcome::failed(Code::Unavailable, &message, Sent::No))
        }
    }
}
