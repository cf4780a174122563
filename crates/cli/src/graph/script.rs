//! Scripted executors: catalogue, answers and approvals.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use action_graph::code::Code;
use action_graph::fence::{FencedBlocks, find};
use action_graph::node::{ActionOutput, Sent};
use action_graph::policy::Visibility;
use action_graph::schedule::{ActionFailure, ActionOutcome};
use anyhow::bail;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::graph::read::ModelFile;

/// Id of the graph, fixed for reproducible output.
pub(super) const GRAPH_ID: &str = "g_scripted";
/// Time limit on the virtual clock, in milliseconds.
pub(super) const REMAINING_MS: u64 = 3_600_000;
/// Executor for `auto` without a script.
const AUTO: &str = "scripted";
/// Maximum number of executors in a script.
const MAX_TOOLS: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptFile {
    /// The user's request, for `input:user.goal`.
    #[serde(default)]
    goal: String,
    /// The event of the run, for `input:event`.
    #[serde(default)]
    event: Value,
    /// Tools, agents, pipelines, services, and questions to the user (`type = "human"`).
    #[serde(default)]
    tools: Vec<Tool>,
}

/// One executor with its answers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    #[serde(rename = "type", default = "tool")]
    kind: ExecutorKind,
    #[serde(default)]
    description: String,
    /// JSON Schema of its arguments; absent: any object.
    schema: Option<Value>,
    /// Effects; absent: unknown.
    #[serde(default)]
    effects: BTreeSet<Effect>,
    #[serde(default)]
    idempotency: Idempotency,
    #[serde(default)]
    capabilities: Vec<String>,
    #[serde(default)]
    visibility: Visibility,
    #[serde(default = "yes")]
    granted: bool,
    #[serde(default = "yes")]
    available: bool,
    /// The user's reply to an approval request; absent: the call waits.
    approve: Option<bool>,
    /// Answers of successive calls; the last one repeats. Absent: a call returns its arguments.
    #[serde(default)]
    answers: Vec<ScriptedResult>,
}

/// The answer of one call: `output` or `error`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedResult {
    output: Option<Value>,
    /// Message of a failure.
    error: Option<String>,
    /// Code of a failure.
    #[serde(default = "tool_error")]
    code: Code,
    /// Delivery of the failed call.
    #[serde(default = "sent")]
    sent: Sent,
    /// True if a retry of a failed call may succeed.
    #[serde(default)]
    retryable: bool,
    /// True if the work was done, so that edges to dependents open.
    #[serde(default = "yes")]
    satisfying: bool,
}

fn tool() -> ExecutorKind {
    ExecutorKind::Tool
}

fn tool_error() -> Code {
    Code::ToolError
}

fn sent() -> Sent {
    Sent::Yes
}

fn yes() -> bool {
    true
}

/// A script with unique executors and complete answers.
pub(super) struct ReplayScript {
    pub(super) goal: String,
    pub(super) event: Value,
    catalog: Catalog,
    approvals: BTreeMap<(ExecutorKind, String), bool>,
    answers: BTreeMap<(ExecutorKind, String), Vec<ScriptedResult>>,
    is_open: bool,
}

impl ReplayScript {
    /// Validates a script. Fails on duplicates, on answers with neither or both parts, and on executors that
    /// cannot be scripted.
    pub(super) fn new(file: ScriptFile) -> anyhow::Result<Self> {
        if file.tools.len() > MAX_TOOLS {
            bail!("/tools has more than {MAX_TOOLS} entries");
        }
        let mut script = Self {
            goal: file.goal,
            event: file.event,
            catalog: Catalog::default(),
            approvals: BTreeMap::new(),
            answers: BTreeMap::new(),
            is_open: false,
        };
        let mut entries = Vec::new();
        let mut names = BTreeSet::new();
        for (index, tool) in file.tools.into_iter().enumerate() {
            let at = format!("/tools/{index}");
            let key = (tool.kind, tool.name.clone());
            if tool.kind == ExecutorKind::Runtime {
                bail!("{at}/type: the runtime's own words cannot be scripted");
            }
            if tool.kind == ExecutorKind::Human && !["ask", "approve"].contains(&&*tool.name) {
                bail!("{at}/name: a question is `ask` or `approve`");
            }
            if !names.insert(key.clone()) {
                bail!("{at}/name: `{}` is there twice", tool.name);
            }
            check_answers(&at, &tool.answers)?;
            if let Some(is_approved) = tool.approve {
                script.approvals.insert(key.clone(), is_approved);
            }
            if !tool.answers.is_empty() {
                script.answers.insert(key, tool.answers.clone());
            }
            if tool.kind != ExecutorKind::Human {
                entries.push(entry(tool));
            }
        }
        script.catalog = Catalog::new(entries);
        Ok(script)
    }

    /// The executors of an output; each accepts any arguments and returns them.
    pub(super) fn open(model: &ModelFile) -> Self {
        let schema = || json!({"type": "object"});
        let named = named_executors(model).into_iter().map(|(kind, name)| {
            let entry = CatalogEntry::new(kind, &name, "Returns its arguments.", schema());
            entry.acting(&[Effect::Read], Idempotency::Safe)
        });
        let capabilities = capabilities(model);
        let capabilities: Vec<_> = capabilities.iter().map(String::as_str).collect();
        let auto = SCRIPTED_KINDS.map(|kind| {
            let entry = CatalogEntry::new(kind, AUTO, "Returns its arguments.", schema());
            let entry = entry.acting(&[Effect::Read], Idempotency::Safe);
            entry.able(&capabilities)
        });
        Self {
            goal: String::new(),
            event: Value::Null,
            catalog: Catalog::new(named.chain(auto).collect()),
            approvals: BTreeMap::new(),
            answers: BTreeMap::new(),
            is_open: true,
        }
    }

    /// True if any executor is allowed, because there is no script file.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The user's reply to an approval request; `None`: the call waits.
    pub(super) fn approval(&self, kind: ExecutorKind, name: &str) -> Option<bool> {
        self.approvals.get(&(kind, name.to_owned())).copied()
    }

    /// Result of the call with this index, from 0. `None`: a question that waits for the user.
    pub(super) fn answer(
        &self,
        kind: ExecutorKind,
        name: &str,
        call: usize,
        input: &Value,
    ) -> Option<ActionOutcome> {
        let answers = self.answers.get(&(kind, name.to_owned()));
        // Repeats the last answer, so that a script need not count retries.
        let answer = answers.and_then(|all| all.get(call).or(all.last()));
        match answer {
            Some(answer) => Some(answer.outcome()),
            None if kind == ExecutorKind::Human => None,
            None => Some(done(input.clone(), true)),
        }
    }
}

const SCRIPTED_KINDS: [ExecutorKind; 4] = [
    ExecutorKind::Tool,
    ExecutorKind::Agent,
    ExecutorKind::Pipeline,
    ExecutorKind::Service,
];

fn entry(tool: Tool) -> CatalogEntry {
    let schema = tool.schema.unwrap_or_else(|| json!({"type": "object"}));
    let mut entry = CatalogEntry::new(tool.kind, &tool.name, &tool.description, schema);
    entry.effects = tool.effects;
    entry.idempotency = tool.idempotency;
    entry.capabilities = tool.capabilities;
    entry.visibility = tool.visibility;
    entry.granted = tool.granted;
    entry.available = tool.available;
    entry
}

fn check_answers(at: &str, answers: &[ScriptedResult]) -> anyhow::Result<()> {
    for (index, answer) in answers.iter().enumerate() {
        if answer.output.is_some() == answer.error.is_some() {
            bail!("{at}/answers/{index}: give either `output` or `error`");
        }
    }
    Ok(())
}

impl ScriptedResult {
    fn outcome(&self) -> ActionOutcome {
        let Some(error) = &self.error else {
            let output = self.output.clone().unwrap_or_default();
            return done(output, self.satisfying);
        };
        let mut failure = ActionFailure::new(self.code, error, self.sent);
        failure.retryable = self.retryable;
        ActionOutcome::Err(failure)
    }
}

fn done(value: Value, satisfying: bool) -> ActionOutcome {
    let output = match &value {
        Value::String(text) => ActionOutput::text(text),
        _ => ActionOutput::json(value),
    };
    ActionOutcome::Ok { output, satisfying }
}

/// The JSON of a declaration; `null` without one.
pub(super) fn body(model: &ModelFile) -> Value {
    let text = match (model.output.calls.first(), find(&model.output.text)) {
        (Some(call), _) => call.arguments.as_str(),
        (None, FencedBlocks::One(block)) => block.body,
        (None, _) => return Value::Null,
    };
    serde_json::from_str(text).unwrap_or_default()
}

/// The calls or actions of a declaration, and the key of the object that names the executor.
fn executors(body: &Value) -> Vec<(Value, &'static str)> {
    let list = |pointer| body.pointer(pointer).and_then(Value::as_array);
    let calls = list("/calls").or_else(|| list("/input/calls"));
    let actions = list("/payload/actions");
    let calls = calls
        .into_iter()
        .flatten()
        .map(|call| (call.clone(), "name"));
    let actions = actions.into_iter().flatten();
    let actions = actions.map(|action| (action["executor"].clone(), "target"));
    calls.chain(actions).collect()
}

fn named_executors(model: &ModelFile) -> BTreeSet<(ExecutorKind, String)> {
    let body = body(model);
    let named = executors(&body).into_iter().filter_map(|(object, key)| {
        let kind = object.get("type").and_then(Value::as_str)?;
        let kind = SCRIPTED_KINDS
            .into_iter()
            .find(|one| one.as_str() == kind)?;
        let name = object.get(key).and_then(Value::as_str)?;
        let is_own = name == "auto" || name.starts_with("runtime.") || name.starts_with("human.");
        (!is_own).then(|| (kind, name.to_owned()))
    });
    named.take(MAX_TOOLS).collect()
}

fn capabilities(model: &ModelFile) -> BTreeSet<String> {
    let body = body(model);
    let lists = executors(&body).into_iter().filter_map(|(object, _)| {
        let list = object.get("capabilities").and_then(Value::as_array)?;
        Some(list.clone())
    });
    let texts = lists
        .flatten()
        .filter_map(|one| one.as_str().map(str::to_owned));
    texts.take(MAX_TOOLS).collect()
}
