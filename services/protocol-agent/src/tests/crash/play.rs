//! Plays a conversation to its end, in which one run dies.

use std::collections::BTreeMap;
use std::sync::Arc;

use action_graph::json::pretty;
use futures_util::StreamExt as _;
use protocol::context::AgentRunContext;
use protocol::id::RunId;
use protocol::message::Message;
use protocol::result::AgentRunResult;
use protocol::run::RunStatus;
use runner_kit::CancellationToken;
use serde_json::{Value, json};

use crate::agent::run_on;
use crate::failpoint::{Kill, with};
use crate::records::{GraphRecords, RunIdentity};
use crate::testing::{
    GraphTestHost, ToolReply, answer, context, ending, fence, final_message, later, questions,
    submitted,
};

/// Runs of one conversation that a test allows.
const RUNS: usize = 8;

/// Declarations of the model, and failures of its tools before they succeed.
#[derive(Clone, Debug)]
pub(super) struct CrashCase {
    declaration: Value,
    pub(super) fails: usize,
    /// A tool that always fails.
    pub(super) breaks: Option<&'static str>,
    /// Replacements of the actions that wait for a failed one.
    pub(super) revised: Option<Vec<Value>>,
}

/// State at the end.
pub(super) struct EndState {
    pub(super) host: GraphTestHost,
    /// The record of the graph without times, runs and ids.
    pub(super) record: Value,
    pub(super) died: bool,
    pub(super) runs: usize,
    /// Attempts may differ, because a person decided about an unknown outcome.
    doubted: bool,
}

/// An action of the full DSL: its id, the tool or agent, and further fields.
pub(super) fn action(id: &str, tool: &str, more: Value) -> Value {
    let (kind, input) = match tool {
        "writer" => ("agent", json!({"prompt": "Write."})),
        _ => ("tool", json!({"x": id})),
    };
    let mut action = json!({"type": "action", "id": id, "title": id, "description": "Do it.", "reason": "Needed.",
        "operation": tool, "executor": {"type": kind, "target": tool}, "input": input});
    let Value::Object(more) = more else {
        panic!("fields, not {more}");
    };
    action.as_object_mut().unwrap().extend(more);
    action
}

impl CrashCase {
    pub(super) fn of(actions: &[Value]) -> Self {
        let declaration = json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "Work",
            "persist": true, "payload": {"type": "action_graph", "actions": actions}});
        Self {
            declaration,
            fails: 0,
            breaks: None,
            revised: None,
        }
    }

    /// Model output for this request: a declaration, replacements for failed actions, and an answer to results.
    fn think(&self, request: &str) -> Message {
        let Some((_, graph)) = request.rsplit_once("run_id: `") else {
            return self.declared();
        };
        match &self.revised {
            Some(actions) if !request.contains("### Result for d") => {
                let (graph, _) = graph.split_once('`').unwrap();
                let mut revision = self.declaration.clone();
                revision["intent"] = json!("revise");
                revision["base"] = json!(graph);
                revision["payload"]["actions"] = json!(actions);
                fence(&revision)
            }
            _ => answer("It is done."),
        }
    }

    /// A gateway with this model and these tools.
    pub(super) fn host(&self) -> GraphTestHost {
        let host = GraphTestHost::new();
        let case = self.clone();
        host.script().mind = Some(Arc::new(move |request| case.think(request)));
        host.memory.world().keyed.insert("note".to_owned());
        let fails = vec![ToolReply::Fails("rate_limited"); self.fails];
        let note = fails
            .into_iter()
            .chain([ToolReply::Says(json!({"did": "note"}))]);
        host.tool("note", note);
        host.tool(
            "look",
            [ToolReply::Says(json!({"list": [1, 2, 3, 4, 5, 6, 7]}))],
        );
        for tool in ["send", "mystery"] {
            host.tool(tool, [ToolReply::Says(json!({"did": tool}))]);
        }
        if let Some(tool) = self.breaks {
            host.tool(tool, [ToolReply::Fails("runtime_error")]);
        }
        host
    }

    /// The model's declaration.
    pub(super) fn declared(&self) -> Message {
        fence(&self.declaration)
    }
}

/// The first event, as the context of this run.
pub(super) fn request(run: &str) -> AgentRunContext {
    let config = json!({"carrier": "fenced", "effects": {"note": {"effects": ["write"], "idempotency": "keyed"}}});
    later(&context("Do the work.", &config), run, &format!("e-{run}"))
}

/// The approval of a person.
pub(super) fn submit(run: &str, question: &Value) -> AgentRunContext {
    let id = question["interaction_id"].as_str().unwrap();
    submitted(&request(run), run, id, "allow_once", &json!({}))
}

/// One run; `None`: it died.
pub(super) async fn one(
    host: &GraphTestHost,
    context: AgentRunContext,
    kill: Option<Kill>,
) -> Option<Vec<AgentRunResult>> {
    until(host, context, kill, CancellationToken::new()).await
}

/// The same, until it is cancelled.
pub(super) async fn until(
    host: &GraphTestHost,
    context: AgentRunContext,
    kill: Option<Kill>,
    cancel: CancellationToken,
) -> Option<Vec<AgentRunResult>> {
    let mut host = host.begin(&context.run_id);
    let gateway = host.memory.clone();
    host.memory = gateway.dying(kill.as_ref());
    let results = run_on(context, host, cancel);
    let results = results.map(Result::unwrap).collect::<Vec<_>>();
    let results = with(kill, results).await;
    let failed = |results: &Vec<AgentRunResult>| ending(results).0 == "run.failed";
    let status = match &results {
        Some(results) if !failed(results) => RunStatus::Completed,
        _ => RunStatus::Failed,
    };
    gateway.end(status);
    if let Some(results) = &results {
        let terminals = results.iter().filter(|one| one.kind.starts_with("run."));
        assert_eq!(terminals.count(), 1, "one terminal: {results:?}");
    }
    results
}

/// Plays a case to its end; a run that dies is followed by another one.
pub(super) async fn play(case: &CrashCase, mut kill: Option<Kill>) -> EndState {
    let host = case.host();
    // A failure that was not stored is forgotten, and its attempt made again.
    let (mut died, mut doubted, mut log) = (false, case.fails > 0, Vec::new());
    let (mut context, mut unheard) = (request("r1"), None);
    for at in 1..=RUNS {
        let next = format!("r{}", at + 1);
        let is_answer = context.input.interaction.is_some();
        let results = one(&host, context.clone(), kill.clone()).await;
        let Some(results) = results else {
            (died, kill) = (true, None);
            unheard = is_answer.then_some(context);
            end_children(&host);
            context = request(&next);
            continue;
        };
        assert_eq!(ending(&results).0, "run.completed", "{results:#?}");
        log.push((final_message(&results), ending(&results).1.to_owned()));
        end_children(&host);
        if let Some(question) = questions(&results).pop() {
            unheard = None;
            let id = question["interaction_id"].as_str().unwrap().to_owned();
            let is_doubt = id.contains(".outcome.");
            doubted |= is_doubt;
            let word = match is_doubt {
                false => "allow_once",
                true if happened(&host, &id) => "happened",
                true => "again",
            };
            context = submitted(&request(&next), &next, &id, word, &json!({}));
        } else if let Some(unheard) = unheard.take() {
            // The run that had the answer died before it took the graph over: the gateway gives it to another one.
            context = later(&unheard, &next, &format!("e-{next}"));
        } else if !heads(&host).is_empty() {
            context = request(&next);
        } else {
            let record = record(&host).await;
            return EndState {
                host,
                record,
                died,
                runs: at,
                doubted,
            };
        }
    }
    panic!("it does not end: {log:#?}");
}

/// The heads of open graphs.
pub(super) fn heads(host: &GraphTestHost) -> BTreeMap<String, Value> {
    let world = host.memory.world();
    let open = world.documents.iter();
    let open = open.filter_map(|(key, one)| Some((key.clone(), one.bodies.get("head")?.clone())));
    open.collect()
}

/// True if the effect of a question happened, by the record of the tool.
fn happened(host: &GraphTestHost, interaction: &str) -> bool {
    let mut parts = interaction.split('.');
    let (graph, action) = (parts.next().unwrap(), parts.next().unwrap());
    let world = host.memory.world();
    let head = &world.documents[&format!("apd.g.{graph}")].bodies["head"];
    let nodes = head["stored"]["graph"]["nodes"].as_array().unwrap();
    let is_action = |node: &&Value| node["action"]["id"] == action;
    let node = nodes.iter().find(is_action).unwrap();
    let last = node["attempts"].as_array().unwrap().last().unwrap();
    world.happened(last["key"].as_str().unwrap())
}

fn end_children(host: &GraphTestHost) {
    let children: Vec<RunId> = host.script().spawned.iter().map(|(_, id)| *id).collect();
    for child in children {
        host.end_child(child, json!({"status": "completed", "text": "written"}));
    }
}

/// The record of the one closed graph, without times, runs and ids.
pub(super) async fn record(host: &GraphTestHost) -> Value {
    let reader = host.begin("reader");
    let me = RunIdentity::of(&request("reader"));
    let (mut records, loaded) = GraphRecords::load(reader, me, 0).await.unwrap();
    assert!(
        loaded.mine.is_empty() && loaded.lost.is_empty(),
        "{loaded:?}"
    );
    let mut records = records.closed_records().await;
    assert_eq!(records.len(), 1, "one graph is closed");
    let mut record = records.remove(0);
    let object = record.as_object_mut().unwrap();
    let id = object.remove("run_id").unwrap();
    for name in ["time", "gateway_runs", "declaration", "metrics"] {
        object.remove(name);
    }
    for action in object["actions"].as_array_mut().unwrap() {
        let action = action.as_object_mut().unwrap();
        action.remove("time_ms");
        action.remove("assignment");
        for attempt in action["attempts"].as_array_mut().unwrap() {
            let attempt = attempt.as_object_mut().unwrap();
            for name in ["key", "started", "ended"] {
                attempt.remove(name);
            }
        }
    }
    let mut text = record.to_string().replace(id.as_str().unwrap(), "g");
    for (at, (_, child)) in host.script().spawned.iter().enumerate() {
        text = text.replace(&child.to_string(), &format!("child-{at}"));
    }
    serde_json::from_str(&text).unwrap()
}

/// The same record, the same effects, one observation for each decision point.
pub(super) fn compare(twin: &EndState, end: &EndState, what: &str) {
    let (mut here, mut there) = (end.record.clone(), twin.record.clone());
    if end.doubted {
        for record in [&mut here, &mut there] {
            blur(record);
        }
    }
    let (here, there) = (pretty(&here), pretty(&there));
    for (here, there) in here.lines().zip(there.lines()) {
        assert_eq!(here, there, "{what}");
    }
    assert_eq!(here.len(), there.len(), "{what}");
    for tool in ["mystery", "send", "note"] {
        let (here, there) = (
            end.host.memory.effects(tool),
            twin.host.memory.effects(tool),
        );
        assert_eq!(here, there, "{what}: effects of {tool}");
    }
    let children = |end: &EndState| end.host.script().spawned.len();
    assert_eq!(children(end), children(twin), "{what}: children");
    for one in [twin, end] {
        once(&one.host, what);
    }
}

/// Removes parts that depend on a person's decision about an unknown outcome.
fn blur(record: &mut Value) {
    for action in record["actions"].as_array_mut().unwrap() {
        for name in ["attempts", "summary", "summary_source", "delivered"] {
            action.as_object_mut().unwrap().remove(name);
        }
    }
}

/// Each decision point has one observation.
pub(super) fn once(host: &GraphTestHost, what: &str) {
    let world = host.memory.world();
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for (graph, document) in &world.documents {
        let ids = document.bodies.keys();
        for rest in ids.filter_map(|id| id.strip_prefix("observation.")) {
            let point = rest.split('.').next().unwrap();
            *made.entry(format!("{graph} {point}")).or_default() += 1;
        }
    }
    assert!(made.values().all(|count| *count == 1), "{what}: {made:?}");
    assert!(!made.is_empty(), "{what}");
}

/// Kills a run at every pass of a failpoint.
pub(super) async fn sweep(case: &CrashCase, point: &'static str) -> usize {
    let twin = play(case, None).await;
    for at in 0.. {
        let end = play(case, Some(Kill::after(point, at))).await;
        if !end.died {
            return at;
        }
        compare(&twin, &end, &format!("{point} {at}"));
    }
    0
}
