//! Every model output gets a verdict within bounds, runs only granted tools, and ends.

pub mod carrier;
pub mod fenced;
pub mod reference;
pub mod transcript;

use std::sync::LazyLock;

use action_graph::accept::{OutputVerdict, Repair, accept};
use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use action_graph::code::Code;
use action_graph::ids::{GraphId, is_action_id};
use action_graph::node::{ActionOutput, Sent};
use action_graph::output::ModelOutput;
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{AgentRules, CarrierMode, KnownFacts, Recovery};
use action_graph::schedule::{ActionFailure, ActionOutcome, Suspension, Why, step};
use action_graph::transcript::{TranscriptTurn, notice, protocol_turn, render};
use action_graph::validate::{AcceptedDeclaration, Context};
use action_graph::{Command, Graph, GraphEvent};
use serde_json::json;

/// Constant part of a declaration's byte limit, beyond a multiple of its text.
const BASE: usize = 4 << 10;

/// The facts for the verdict on an output.
struct JudgedFacts {
    catalog: Catalog,
    facts: KnownFacts,
    rules: AgentRules,
}

static FLAT: LazyLock<JudgedFacts> = LazyLock::new(|| world(CarrierMode::Flat));
static FENCED: LazyLock<JudgedFacts> = LazyLock::new(|| world(CarrierMode::Fenced));

fn world(carrier: CarrierMode) -> JudgedFacts {
    let path =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let free = || json!({"type": "object"});
    let tool = |name, schema| CatalogEntry::new(ExecutorKind::Tool, name, "Acts.", schema);
    let mut refused = tool("admin", free());
    refused.granted = false;
    let mut facts = KnownFacts::default();
    facts.goal = "Fix it.".to_owned();
    facts.event = json!({"list": [1, "x", null]});
    (facts.can_persist, facts.can_ask, facts.remaining_ms) = (true, true, 60_000);
    let mut rules = AgentRules::default();
    (rules.enabled, rules.carrier) = (true, carrier);
    rules.recovery = Recovery {
        text: true,
        delegation: true,
        ..Recovery::default()
    };
    JudgedFacts {
        catalog: Catalog::new(vec![
            tool("read", path).acting(&[Effect::Read], Idempotency::Safe),
            tool("list", free()).acting(&[Effect::Read], Idempotency::Safe),
            tool("send", free()).acting(&[Effect::Send], Idempotency::Unsafe),
            tool("mystery", free()),
            refused,
            CatalogEntry::new(ExecutorKind::Agent, "helper", "Helps.", free()),
        ]),
        facts,
        rules,
    }
}

impl JudgedFacts {
    fn check_output(&self, output: &ModelOutput) {
        let (catalog, facts, rules) = (&self.catalog, &self.facts, &self.rules);
        let context = Context {
            catalog,
            known: facts,
            rules,
        };
        let size = output.raw().len();
        match accept(output, context) {
            OutputVerdict::Content(_) => panic!("the agent declares"),
            OutputVerdict::Repair(repair) => check_repair(&repair, size),
            OutputVerdict::Accepted(accepted) => {
                self.check_accepted(&accepted, size);
                let graph = GraphId::from_random(7);
                let graph = Graph::new(graph, *accepted, rules, facts, Vec::new());
                self.play(graph, size);
            }
        }
    }

    fn check_accepted(&self, accepted: &AcceptedDeclaration, size: usize) {
        let declaration = &accepted.declaration;
        let limits = &self.rules.limits;
        let actions = declaration.actions();
        assert!(actions.len() <= limits.full_actions);
        assert!(accepted.diagnostics.len() <= limits.diagnostics);
        let sections = declaration.source.sections.values();
        assert!(sections.map(|one| one.text.len()).sum::<usize>() <= size);
        let stored = serde_json::to_string(declaration).expect("a declaration is JSON").len();
        let max = 8 * size + (actions.len() + 1) * BASE;
        assert!(stored <= max, "{stored} bytes of {size}");
        for (index, action) in actions.iter().enumerate() {
            assert!(is_action_id(action.id.as_str()));
            assert!(action.resolved.is_some());
            let is_same = |other: &action_graph::action::Action| other.id == action.id;
            assert!(
                !actions[..index].iter().any(is_same),
                "{} is twice",
                action.id
            );
        }
    }

    /// Runs a graph with one failure in three: it ends, and starts only granted tools.
    fn play(&self, mut graph: Graph, size: usize) {
        let (mut events, mut why, mut started) = (vec![GraphEvent::Begin], None, 0);
        let max_steps = 128 * 8 * 5 * 4;
        for now in 0_u64.. {
            let Some(event) = events.pop() else { break };
            assert!(now < max_steps, "no end");
            for command in step(&mut graph, event, now) {
                match command {
                    Command::Execute(one) | Command::Ask(one) => {
                        started += 1;
                        let kind = graph.node(&one.id).map(action_graph::node::Node::kind);
                        let entry = kind.and_then(|kind| self.catalog.find(kind, &one.target));
                        assert!(entry.is_some_and(|entry| entry.granted), "{}", one.target);
                        let (id, attempt) = (one.id, one.attempt);
                        let outcome = outcome(started);
                        events.push(GraphEvent::Finished {
                            id,
                            attempt,
                            outcome,
                        });
                    }
                    Command::SpawnChild(one) => {
                        let (id, attempt) = (one.id, one.attempt);
                        let on = Suspension::External;
                        events.push(GraphEvent::Suspended { id, attempt, on });
                    }
                    Command::SetTimer { id, attempt, .. } => {
                        events.push(GraphEvent::TimerFired { id, attempt });
                    }
                    Command::Quiescent(reason) => why = Some(reason),
                    _ => {}
                }
            }
        }
        let budget = ObservationBudget {
            window: 8_000,
            count: &estimate,
        };
        let turn = protocol_turn(&graph, why.unwrap_or(Why::Waiting), budget);
        check_turns(&[TranscriptTurn::Protocol(turn)]);
        let max_bytes = 64 * size + (graph.nodes.len() + 1) * BASE;
        let stored = serde_json::to_string(&graph)
            .expect("a graph is JSON")
            .len();
        assert!(stored <= max_bytes, "{stored} bytes of {size}");
    }
}

fn outcome(number: usize) -> ActionOutcome {
    if number.is_multiple_of(3) {
        let mut failure = ActionFailure::new(Code::ToolError, "it failed", Sent::Maybe);
        failure.retryable = true;
        return ActionOutcome::Err(failure);
    }
    ActionOutcome::Ok {
        output: ActionOutput::json(json!({"value": number, "list": [1, 2]})),
        satisfying: true,
    }
}

fn check_repair(repair: &Repair, size: usize) {
    assert!(!repair.diagnostics.is_empty() && repair.diagnostics.len() <= 8);
    for one in &repair.diagnostics {
        assert!(one.message.chars().count() <= 300, "{}", one.message);
        assert!(one.allowed.len() <= 12);
        assert!(one.pointer.len() <= 2 * size + 100, "{}", one.pointer);
    }
    assert!(repair.raw.len() <= 64 << 10);
    check_turns(&[TranscriptTurn::Notice(notice(repair))]);
}

/// A transcript has exactly the tags of its turns, whatever they hold.
fn check_turns(turns: &[TranscriptTurn]) {
    let text = render(turns);
    assert_eq!(text.matches("<turn").count(), turns.len());
    assert_eq!(text.matches("</turn").count(), turns.len());
}
