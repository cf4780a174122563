//! A catalogue, a conversation, and outputs of a model.

use std::collections::BTreeMap;
use std::path::Path;

use action_graph::accept::{OutputVerdict, Repair, accept};
use action_graph::action::{Effect, ExecutorKind, Idempotency, Resolved};
use action_graph::catalog::{Catalog, CatalogEntry, Cost};
use action_graph::code::Code;
use action_graph::declaration::{DecisionChoice, GraphDecision};
use action_graph::graph::Graph;
use action_graph::ids::GraphId;
use action_graph::json::canonical;
use action_graph::node::{ActionOutput, Node, NodeState, Sent};
use action_graph::output::ModelOutput;
use action_graph::policy::Visibility;
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{AgentRules, KnownAction, KnownFacts, KnownGraph};
use action_graph::schedule::{
    ActionOutcome, Command, Denial, GraphEvent, RecoveredAttempt, Suspension, Why, step,
};
use action_graph::validate::{AcceptedDeclaration, Context};
use serde_json::{Value, json};

/// Inputs of validation in tests.
#[derive(Clone)]
pub(crate) struct TestInputs {
    pub(crate) catalog: Catalog,
    pub(crate) known: KnownFacts,
    pub(crate) rules: AgentRules,
}

impl TestInputs {
    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            catalog: &self.catalog,
            known: &self.known,
            rules: &self.rules,
        }
    }

    pub(crate) fn accept_output(&self, output: &ModelOutput) -> OutputVerdict {
        accept(output, self.context())
    }

    #[track_caller]
    pub(crate) fn accepted(&self, output: &ModelOutput) -> AcceptedDeclaration {
        match self.accept_output(output) {
            OutputVerdict::Accepted(accepted) => *accepted,
            other => panic!("not accepted: {other:#?}"),
        }
    }

    #[track_caller]
    pub(crate) fn refused(&self, output: &ModelOutput) -> Repair {
        match self.accept_output(output) {
            OutputVerdict::Repair(repair) => *repair,
            other => panic!("not refused: {other:#?}"),
        }
    }

    /// Codes of a verdict, with their places.
    pub(crate) fn codes(&self, output: &ModelOutput) -> Vec<(Code, String)> {
        let diagnostics = match self.accept_output(output) {
            OutputVerdict::Accepted(accepted) => accepted.diagnostics,
            OutputVerdict::Repair(repair) => repair.diagnostics,
            OutputVerdict::Content(_) => Vec::new(),
        };
        diagnostics
            .into_iter()
            .map(|one| (one.code, one.pointer))
            .collect()
    }
}

fn tool(name: &str, description: &str, schema: Value) -> CatalogEntry {
    CatalogEntry::new(ExecutorKind::Tool, name, description, schema)
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

pub(crate) fn entries() -> Vec<CatalogEntry> {
    let text = || json!({"type": "string"});
    let read = |entry: CatalogEntry| entry.acting(&[Effect::Read], Idempotency::Safe);
    let agent =
        |name, line| CatalogEntry::new(ExecutorKind::Agent, name, line, json!({"type": "object"}));
    let mut ungranted = read(tool("admin", "Change settings.", object(json!({}), &[])));
    ungranted.granted = false;
    let mut offline = read(tool("offline", "Is away.", object(json!({}), &[])));
    offline.available = false;
    let mut private = read(tool("salaries", "Read salaries.", object(json!({}), &[])));
    private.visibility = Visibility::RuntimeOnly;
    let mut statue = agent("statue", "Takes no work.");
    statue.can_execute = false;
    let mut costly = agent("researcher", "Researches questions on the web.").able(&["research"]);
    costly.cost = Cost::High;
    vec![
        read(tool(
            "read",
            "Read a file of the workspace.",
            object(
                json!({"path": text(), "lines": {"type": "integer", "minimum": 1}}),
                &["path"],
            ),
        ))
        .able(&["filesystem", "read"]),
        read(tool(
            "glob",
            "Find files by pattern.",
            object(json!({"pattern": text()}), &["pattern"]),
        ))
        .able(&["filesystem", "search"]),
        read(tool("list", "List things.", json!({"type": "object"}))),
        tool(
            "write_file",
            "Write a file.",
            object(json!({"path": text(), "text": text()}), &["path", "text"]),
        )
        .acting(&[Effect::Write], Idempotency::Keyed),
        tool(
            "send_mail",
            "Send a mail.",
            object(json!({"to": text(), "text": text()}), &["to", "text"]),
        )
        .acting(&[Effect::Send], Idempotency::Unsafe),
        tool("delete_all", "Delete everything.", object(json!({}), &[]))
            .acting(&[Effect::Delete], Idempotency::Unsafe),
        tool("mystery", "Does something.", json!({"type": "object"})),
        ungranted,
        offline,
        private,
        statue,
        costly,
        agent("code-reviewer", "Reviews code changes and reports risks.")
            .able(&["code_review", "frontend"]),
        CatalogEntry::new(
            ExecutorKind::Service,
            "billing",
            "Invoices of customers.",
            json!({"type": "object"}),
        )
        .able(&["invoices"]),
        CatalogEntry::new(
            ExecutorKind::Pipeline,
            "nightly",
            "Runs the nightly checks.",
            json!({"type": "object"}),
        ),
    ]
}

/// An agent that may declare, in a conversation with two earlier graphs.
pub(crate) fn world() -> TestInputs {
    let action = |status: &str, satisfying, output: Value| KnownAction {
        status: status.to_owned(),
        satisfying,
        private: false,
        summary: "found two files".to_owned(),
        output: Some(output),
        error: None,
    };
    let mut salaries = action("completed", true, json!({"sum": 1}));
    salaries.private = true;
    let done = KnownGraph {
        id: GraphId("g_done".to_owned()),
        open: false,
        expired: false,
        actions: BTreeMap::from([
            (
                "found".into(),
                action("completed", true, json!({"files": ["a", "b"], "text": "x"})),
            ),
            ("broke".into(), action("failed", false, Value::Null)),
            ("salaries".into(), salaries),
            (
                "long".into(),
                action("completed", true, "x".repeat(70_000).into()),
            ),
        ]),
    };
    let mut pending = action("running", false, Value::Null);
    pending.output = None;
    let open = KnownGraph {
        id: GraphId("g_open".to_owned()),
        open: true,
        expired: false,
        actions: BTreeMap::from([("pending".into(), pending)]),
    };
    let gone = KnownGraph {
        id: GraphId("g_gone".to_owned()),
        open: false,
        expired: true,
        actions: BTreeMap::new(),
    };
    TestInputs {
        catalog: Catalog::new(entries()),
        known: KnownFacts {
            goal: "Fix the buttons of the toolbar.".to_owned(),
            event: json!({"message": {"text": "Fix it"}, "list": [1, 2, 3]}),
            graphs: vec![gone, done, open],
            can_persist: true,
            can_ask: true,
            remaining_ms: 60_000,
            ..KnownFacts::default()
        },
        rules: AgentRules {
            enabled: true,
            ..AgentRules::default()
        },
    }
}

/// Cases of a property: `RUNNEL_GRAPHS`, else the default, with which a debug test ends within seconds.
pub(crate) fn cases(default: u32) -> u32 {
    let set = std::env::var_os("RUNNEL_GRAPHS").and_then(|text| text.to_str()?.parse().ok());
    set.unwrap_or(default)
}

/// A carrier call of kind act.
pub(crate) fn act(calls: Value) -> ModelOutput {
    ModelOutput::carrier(json!({"kind": "act", "message": "I look.", "calls": calls}).to_string())
}

/// One call of the tool `read`, with further fields.
pub(crate) fn read_call(id: &str, more: Value) -> Value {
    let mut call = json!({"id": id, "type": "tool", "name": "read", "args": {"path": "a"}});
    for (key, value) in more.as_object().expect("fields") {
        call[key] = value.clone();
    }
    call
}

/// One action of the full DSL that reads, with further fields.
pub(crate) fn read_action(id: &str, more: Value) -> Value {
    let mut action = json!({"type": "action", "id": id, "title": id, "description": "Read.", "reason": "Needed.",
        "operation": "read", "executor": {"type": "tool", "target": "read"}, "input": {"path": "a"}});
    for (key, value) in more.as_object().expect("fields") {
        action[key] = value.clone();
    }
    action
}

/// An envelope of the full DSL around actions, with further fields.
pub(crate) fn envelope(actions: Value, more: Value) -> Value {
    let mut envelope = json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "Work",
        "payload": {"type": "action_graph", "actions": actions}});
    for (key, value) in more.as_object().expect("fields") {
        envelope[key] = value.clone();
    }
    envelope
}

/// A text with the block and the text after it.
pub(crate) fn fenced(envelope: &Value, after: &str) -> ModelOutput {
    let text = format!(
        "```json agent-protocol\n{}\n```\n{after}",
        canonical(envelope)
    );
    ModelOutput::text(&text)
}

/// Compares with a file under `tests/golden`; `RUNNEL_BLESS=1` writes it.
#[track_caller]
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("RUNNEL_BLESS").is_some() {
        std::fs::write(&path, text).expect("the golden file can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == text,
        "{name} differs (RUNNEL_BLESS=1 writes it):\n--- expected\n{expected}\n--- found\n{text}"
    );
}

/// The graph of an output that is accepted.
#[track_caller]
pub(crate) fn graph_of(world: &TestInputs, output: &ModelOutput) -> Graph {
    let accepted = world.accepted(output);
    let id = GraphId("g_test".to_owned());
    Graph::new(id, accepted, &world.rules, &world.known, Vec::new())
}

/// Begins a graph and ends its attempts by `outcome`; agents without one wait for a child run.
pub(crate) fn play(
    graph: &mut Graph,
    outcome: &dyn Fn(&str) -> Option<ActionOutcome>,
) -> Option<Why> {
    go_on(graph, GraphEvent::Begin, outcome)
}

/// The same from an event on.
pub(crate) fn go_on(
    graph: &mut Graph,
    event: GraphEvent,
    outcome: &dyn Fn(&str) -> Option<ActionOutcome>,
) -> Option<Why> {
    let (mut events, mut why, mut now) = (vec![event], None, 1_000);
    while let Some(event) = events.pop() {
        now += 10;
        for command in step(graph, event, now) {
            match command {
                Command::Execute(one) => {
                    let (id, attempt) = (one.id, one.attempt);
                    let outcome = outcome(id.as_str());
                    events.extend(outcome.map(|outcome| finish(id.as_str(), attempt, outcome)));
                }
                Command::SpawnChild(one) => {
                    let (id, attempt) = (one.id, one.attempt);
                    let run = "run_child".to_owned();
                    let on = Suspension::Child { run };
                    events.push(match outcome(id.as_str()) {
                        Some(outcome) => finish(id.as_str(), attempt, outcome),
                        None => GraphEvent::Suspended { id, attempt, on },
                    });
                }
                Command::SetTimer { id, attempt, .. } => {
                    events.push(GraphEvent::TimerFired { id, attempt });
                }
                Command::Quiescent(reason) => why = Some(reason),
                _ => {}
            }
        }
    }
    why
}

/// One action of the full DSL that reads.
pub(crate) fn reads(id: &str) -> Value {
    read_action(id, json!({}))
}

/// A block of the full DSL around these actions.
pub(crate) fn block(actions: Value) -> ModelOutput {
    fenced(&envelope(actions, json!({})), "")
}

/// One call of the tool `read`.
pub(crate) fn read(id: &str) -> Value {
    read_call(id, json!({}))
}

/// Calls of the tool `read`: `b` depends on `a`.
pub(crate) fn a_then_b() -> Value {
    json!([read("a"), read_call("b", json!({"depends": "a"}))])
}

/// Decisions of validation about the first action.
#[track_caller]
pub(crate) fn resolved(accepted: &AcceptedDeclaration) -> Resolved {
    let first = accepted.declaration.actions()[0].resolved.clone();
    first.expect("it is resolved")
}

#[track_caller]
pub(crate) fn node<'a>(graph: &'a Graph, id: &str) -> &'a Node {
    graph.node(&id.into()).expect("a node")
}

pub(crate) fn states<const N: usize>(graph: &Graph, ids: [&str; N]) -> [NodeState; N] {
    ids.map(|id| node(graph, id).state)
}

pub(crate) fn why_of(graph: &Graph, id: &str) -> Option<Code> {
    node(graph, id).why
}

pub(crate) fn finish(id: &str, attempt: u32, outcome: ActionOutcome) -> GraphEvent {
    let id = id.into();
    GraphEvent::Finished {
        id,
        attempt,
        outcome,
    }
}

pub(crate) fn timer(id: &str, attempt: u32) -> GraphEvent {
    let id = id.into();
    GraphEvent::TimerFired { id, attempt }
}

pub(crate) fn recovered(id: &str, attempt: u32, found: RecoveredAttempt) -> GraphEvent {
    let id = id.into();
    GraphEvent::Recovered { id, attempt, found }
}

pub(crate) fn denied(id: &str, why: Denial) -> GraphEvent {
    let ids = vec![id.into()];
    GraphEvent::Denied { ids, why }
}

pub(crate) fn decision(
    graph: &Graph,
    action: Option<&str>,
    choice: DecisionChoice,
) -> GraphDecision {
    GraphDecision {
        graph: graph.id.clone(),
        action: action.map(Into::into),
        choice,
        reason: String::new(),
        input: None,
    }
}

pub(crate) fn done(text: &str) -> ActionOutcome {
    ActionOutcome::done(ActionOutput::text(text))
}

pub(crate) fn unsatisfying(text: &str) -> ActionOutcome {
    let output = ActionOutput::text(text);
    ActionOutcome::Ok {
        output,
        satisfying: false,
    }
}

pub(crate) fn ok(value: Value) -> Option<ActionOutcome> {
    let output = match &value {
        Value::String(text) => ActionOutput::text(text),
        _ => ActionOutput::json(value),
    };
    Some(ActionOutcome::done(output))
}

pub(crate) fn failed(code: Code, message: &str) -> Option<ActionOutcome> {
    Some(ActionOutcome::failed(code, message, Sent::Yes))
}

pub(crate) fn budget() -> ObservationBudget<'static> {
    ObservationBudget {
        window: 200_000,
        count: &estimate,
    }
}
