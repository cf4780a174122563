//! Fixtures: a catalogue, declarations for it, and runs that store them.

use std::collections::BTreeSet;

use action_graph::accept::{OutputVerdict, accept};
use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use action_graph::declaration::DeclarationSource;
use action_graph::graph::{Graph, Millis};
use action_graph::ids::GraphId;
use action_graph::json::canonical;
use action_graph::node::{ActionOutput, NodeState};
use action_graph::output::ModelOutput;
use action_graph::record::{Metrics, ResultRecord, result_record};
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{AgentRules, KnownFacts};
use action_graph::schedule::{ActionOutcome, Command, GraphEvent, step};
use action_graph::validate::Context;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use protocol::run::RunStatus;
use serde_json::{Value, json};

use crate::records::{GraphRecords, LoadedRecords, OpenOutcome, PendingQuestion, RunIdentity};
use crate::testing::memory::Memory;

pub(super) const NOW: Millis = 1_800_000_000_000;

pub(super) fn me(host: &Memory) -> RunIdentity {
    RunIdentity {
        run: host.run().to_owned(),
        has_conversation: true,
        event: format!("e-{}", host.run()),
        has_state: true,
        has_runs: true,
    }
}

pub(super) async fn load(host: &Memory) -> (GraphRecords<Memory>, LoadedRecords) {
    load_at(host, NOW).await
}

pub(super) async fn load_at(host: &Memory, now: Millis) -> (GraphRecords<Memory>, LoadedRecords) {
    let loading: BoxFuture<'_, _> = GraphRecords::load(host.clone(), me(host), now).boxed();
    loading.await.unwrap()
}

fn catalog() -> Catalog {
    let schema = || json!({"type": "object"});
    let tool = |name| CatalogEntry::new(ExecutorKind::Tool, name, "Does something.", schema());
    Catalog::new(vec![
        tool("look").acting(&[Effect::Read], Idempotency::Safe),
        tool("write").acting(&[Effect::Write], Idempotency::Keyed),
        tool("notify").acting(&[Effect::Unknown], Idempotency::Unsafe),
        tool("mail").acting(&[Effect::Send], Idempotency::Unsafe),
        CatalogEntry::new(ExecutorKind::Agent, "helper", "Helps.", schema()),
    ])
}

/// An action of the full DSL: its id, the tool, and further fields.
pub(super) fn action(id: &str, tool: &str, more: Value) -> Value {
    let kind = if tool == "helper" { "agent" } else { "tool" };
    let mut action = json!({"type": "action", "id": id, "title": id, "description": "Do it.", "reason": "Needed.",
        "operation": tool, "executor": {"type": kind, "target": tool}, "input": {"of": id}});
    let Value::Object(more) = more else {
        panic!("fields, not {more}");
    };
    action.as_object_mut().unwrap().extend(more);
    action
}

/// A durable declaration of these actions, as the model writes it.
pub(super) fn declared(actions: &[Value]) -> ModelOutput {
    let envelope = json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "Work", "persist": true,
        "payload": {"type": "action_graph", "actions": actions}});
    let json = canonical(&envelope);
    let text = format!("```json agent-protocol\n{json}\n```\n## user.visible\n\nI work.\n");
    ModelOutput::text(&text)
}

/// The graph of a declaration, and its source.
#[track_caller]
pub(super) fn graph_of(id: &str, output: &ModelOutput) -> (Graph, DeclarationSource) {
    let catalog = catalog();
    let rules = AgentRules {
        enabled: true,
        ..AgentRules::default()
    };
    let facts = KnownFacts {
        goal: "Do the work.".to_owned(),
        event: json!({"list": [1, 2, 3, 4, 5, 6, 7]}),
        can_persist: true,
        can_ask: true,
        remaining_ms: 600_000,
        ..KnownFacts::default()
    };
    let context = Context {
        catalog: &catalog,
        known: &facts,
        rules: &rules,
    };
    let accepted = match accept(output, context) {
        OutputVerdict::Accepted(accepted) => *accepted,
        other => panic!("not accepted: {other:#?}"),
    };
    let source = accepted.declaration.source.clone();
    let id = GraphId(id.to_owned());
    let graph = Graph::new(id, accepted, &rules, &facts, Vec::new());
    assert!(graph.is_durable());
    (graph, source)
}

/// A graph of these actions that is stored and has begun; the commands of its begin are not carried out.
pub(super) async fn begun(
    records: &mut GraphRecords<Memory>,
    id: &str,
    actions: &[Value],
) -> Graph {
    let output = declared(actions);
    let (mut graph, source) = graph_of(id, &output);
    let ordinal = id.trim_start_matches("g_").parse().unwrap();
    let raw = output.raw();
    let opened = records.open(ordinal, &graph, &source, &raw, &[], NOW).await;
    assert_eq!(opened.unwrap(), OpenOutcome::New);
    step(&mut graph, GraphEvent::Begin, NOW);
    records.driven.save(&graph).await.unwrap();
    graph
}

/// A first run with a stored graph of these actions.
pub(super) async fn started(actions: &[Value]) -> (Memory, GraphRecords<Memory>, Graph) {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let graph = begun(&mut records, "g_1", actions).await;
    (host, records, graph)
}

/// The run after the first one, which ends so.
pub(super) async fn next_run(
    first: &Memory,
    status: RunStatus,
) -> (GraphRecords<Memory>, LoadedRecords) {
    first.end(status);
    load(&first.begin("r2")).await
}

pub(super) async fn asks(
    records: &mut GraphRecords<Memory>,
    graph: &Graph,
    question: PendingQuestion,
) {
    let stored = records.driven.store_question(graph, question).await;
    stored.unwrap();
}

/// Ends an attempt with this value.
pub(super) fn finish(graph: &mut Graph, id: &str, value: Value) -> Vec<Command> {
    let attempt = graph.node(&id.into()).unwrap().attempt;
    let outcome = ActionOutcome::done(ActionOutput::json(value));
    let id = id.into();
    let event = GraphEvent::Finished {
        id,
        attempt,
        outcome,
    };
    step(graph, event, NOW + 5)
}

#[track_caller]
pub(super) fn state(graph: &Graph, id: &str) -> NodeState {
    graph.node(&id.into()).unwrap().state
}

pub(super) fn record(graph: &Graph, runs: Vec<String>, now: Millis) -> ResultRecord {
    let budget = ObservationBudget {
        window: 100_000,
        count: &estimate,
    };
    result_record(graph, Vec::new(), Metrics::default(), runs, budget, now)
}

/// Ids of the bodies of a graph.
pub(super) fn names(host: &Memory, graph: &str) -> BTreeSet<String> {
    let world = host.world();
    let stored = world.documents.get(&format!("apd.g.{graph}"));
    let bodies = stored.iter().flat_map(|stored| stored.bodies.keys());
    bodies.cloned().collect()
}
