//! Built-in words of the runtime: wait, merge, checkpoint, summarize, expand, decide.

use action_graph::code::Code;
use action_graph::declaration::{ExpandItem, GraphDecision};
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::Graph;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::{ActionOutput, NodeState, Sent};
use action_graph::policy::Visibility;
use action_graph::reference::{Reference, ResultPart};
use action_graph::result::expand::{Expanded, expand};
use action_graph::result::summary::{summary_of, text_of};
use action_graph::result::tokens::estimate;
use action_graph::schedule::{ActionOutcome, Actor, Execute, GraphEvent, Suspension};
use action_graph::transcript::{TranscriptTurn, expansion_turn};
use action_graph::validate::check_input;
use action_graph::words::{decision, expansions};
use serde_json::{Map, Value, json};

use crate::execute::{AttemptReport, runtime};
use crate::failure::Halt;
use crate::host::GraphAgentHost;
use crate::run_clock::millis;
use crate::session::{GraphDriver, RunGraphs};
use crate::work::AttemptKey;

/// Reserve between the end of a wait and the end of the run, in milliseconds.
const MARGIN: u64 = 10_000;

impl<H: GraphAgentHost> GraphDriver<H> {
    /// Executes a word of the runtime.
    pub(super) async fn word(&mut self, position: usize, execute: Execute) -> Result<(), Halt> {
        let key = AttemptKey::new(self.graphs.live_graphs[position].id(), &execute);
        let arguments = execute.input.as_object().cloned().unwrap_or_default();
        let outcome = match execute.target.as_str() {
            "wait" => {
                self.wait_until(position, &key, &execute);
                return Ok(());
            }
            "merge" => runtime::merge(&execute),
            "summarize" => {
                let env = self.graphs.env.clone();
                let work = async move {
                    AttemptReport::Finished(runtime::summarize(&env, &execute).await)
                };
                self.graphs.work.start(key, work);
                return Ok(());
            }
            "checkpoint" => {
                self.graphs.save(position).await?;
                let is_stored = self.graphs.live_graphs[position].graph.is_durable()
                    && self.graphs.records.can_persist();
                ActionOutcome::done(ActionOutput::json(json!({"stored": is_stored})))
            }
            "expand" => self.expand_word(position, &arguments).await?,
            "decide" => self.decide_word(&arguments).await?,
            other => ActionOutcome::failed(
                Code::UnknownWord,
                &format!("there is no word `{other}`"),
                Sent::No,
            ),
        };
        self.graphs.work.finish(&key, outcome);
        Ok(())
    }

    /// Suspends an action until a timer fires. The next run continues a longer wait of a stored graph.
    fn wait_until(&mut self, position: usize, key: &AttemptKey, execute: &Execute) {
        let wait = execute.input.get("ms").and_then(Value::as_u64).unwrap_or(0);
        let max_wait = millis(self.graphs.env.left()).saturating_sub(MARGIN);
        // Only a stored graph survives the run, so that a later run can continue the wait.
        if wait > max_wait && !self.graphs.live_graphs[position].graph.is_durable() {
            let message = format!("at most {max_wait} ms are left");
            self.graphs.work.finish(
                key,
                ActionOutcome::failed(Code::WaitTooLong, &message, Sent::No),
            );
            return;
        }
        let at = self.graphs.env.clock.now().saturating_add(wait);
        self.graphs.work.suspend(key, Suspension::Timer { at });
    }

    async fn expand_word(
        &mut self,
        position: usize,
        arguments: &Map<String, Value>,
    ) -> Result<ActionOutcome, Halt> {
        let items = match expansions(arguments, &self.rules.limits) {
            Ok(items) => items,
            Err(faults) => return Ok(faulty(&faults)),
        };
        let graph = self.graphs.live_graphs[position].id().clone();
        let answers = self.expand(&graph, &items).await?;
        let shown = answers.iter().map(
            |one| json!({"ref": one.reference, "tokens": one.tokens, "of_tokens": one.of_tokens}),
        );
        let shown = Value::Array(shown.collect());
        self.extras
            .push(TranscriptTurn::Protocol(expansion_turn(&graph.0, &answers)));
        Ok(ActionOutcome::done(ActionOutput::json(shown)))
    }

    /// Expands references to stored results within token bounds. Private results count as missing.
    pub(crate) async fn expand(
        &mut self,
        from: &GraphId,
        items: &[ExpandItem],
    ) -> Result<Vec<Expanded>, Halt> {
        // Read all texts first: `expand` takes a synchronous function.
        let mut texts = Vec::new();
        for item in items {
            texts.push(self.stored_text(from, &item.reference).await?);
        }
        let mut texts = texts.into_iter();
        Ok(expand(items, &mut |_| texts.next().flatten(), &estimate))
    }

    async fn stored_text(
        &mut self,
        from: &GraphId,
        reference: &Reference,
    ) -> Result<Option<String>, Halt> {
        let (graph, action, part, pointer) = match reference {
            Reference::Action { id, part, pointer } => (from, id, *part, pointer),
            Reference::Runtime {
                graph,
                action: Some(id),
                part,
                pointer,
            } => (graph, id, *part, pointer),
            Reference::Declaration(graph) => return self.declared_text(graph).await,
            _ => return Ok(None),
        };
        if let Some(live) = self.graphs.live(graph) {
            return Ok(text_in(&live.graph, action, part, pointer));
        }
        let facts = self.graphs.records.graph_facts(&graph.0).await?;
        let facts = facts.iter().find(|one| one.id == *graph);
        let facts = facts.and_then(|one| one.actions.get(action));
        // Privacy outlives the graph: its record marks private results.
        let Some(facts) = facts.filter(|facts| !facts.private) else {
            return Ok(None);
        };
        Ok(match part {
            ResultPart::Output => {
                let output = self.graphs.records.archive.output(graph, action).await?;
                output.and_then(|value| as_text(value.pointer(pointer)?))
            }
            ResultPart::Summary => Some(facts.summary.clone()),
            ResultPart::Error => facts.error.clone(),
            ResultPart::Status => Some(facts.status.clone()),
        })
    }

    /// Declaration of a graph in the model's own text.
    async fn declared_text(&mut self, graph: &GraphId) -> Result<Option<String>, Halt> {
        let live = self.graphs.live(graph);
        match live.and_then(|live| live.raw.clone()) {
            Some(raw) => Ok(Some(raw)),
            None => Ok(self.graphs.records.declaration(graph).await?),
        }
    }

    async fn decide_word(&mut self, arguments: &Map<String, Value>) -> Result<ActionOutcome, Halt> {
        let decision = match decision(arguments, &self.rules.limits) {
            Ok(decision) => decision,
            Err(faults) => return Ok(faulty(&faults)),
        };
        let choice = decision.choice.as_str();
        Ok(match self.graphs.decide(decision).await? {
            Ok(()) => ActionOutcome::done(ActionOutput::json(json!({"decided": choice}))),
            Err(why) => ActionOutcome::failed(Code::ToolError, &why, Sent::No),
        })
    }
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Applies a decision of the model. The inner error is the reason of a refusal.
    pub(crate) async fn decide(
        &mut self,
        decision: GraphDecision,
    ) -> Result<Result<(), String>, Halt> {
        let Some(position) = self.position(&decision.graph) else {
            return Ok(Err(format!("`{}` is no open graph", decision.graph)));
        };
        let node = decision
            .action
            .as_ref()
            .map(|id| self.live_graphs[position].graph.node(id));
        if let (Some(input), Some(Some(node))) = (&decision.input, node) {
            // Replaced arguments skip the validation of a declaration.
            let faults = check_input(&node.action, input, &self.env.catalog);
            if let Some(fault) = faults.first() {
                return Ok(Err(format!("{}: {}", fault.pointer, fault.message)));
            }
        }
        let choice = decision.choice.as_str();
        let event = GraphEvent::Decide {
            decision,
            by: Actor::Model,
        };
        let is_refused = self.apply(position, vec![event]).await?;
        Ok(if is_refused {
            Err(format!("`{choice}` is not allowed in the present state"))
        } else {
            Ok(())
        })
    }
}

fn faulty(faults: &[Diagnostic]) -> ActionOutcome {
    let fault = faults.iter().find(|one| one.is_error());
    let message = fault.map_or_else(String::new, |one| {
        format!("{}: {}", one.pointer, one.message)
    });
    ActionOutcome::failed(Code::ArgsSchema, &message, Sent::No)
}

fn text_in(graph: &Graph, action: &ActionId, part: ResultPart, pointer: &str) -> Option<String> {
    let node = graph.node(action)?;
    // Private results stay hidden from the model.
    if node.visibility() > Visibility::Model {
        return None;
    }
    let output = node
        .output
        .as_ref()
        .filter(|_| node.state == NodeState::Completed);
    match part {
        ResultPart::Output if pointer.is_empty() => output.map(text_of),
        ResultPart::Output => as_text(output?.value.pointer(pointer)?),
        ResultPart::Summary => output.map(|output| summary_of(output).0),
        ResultPart::Error => node.error.as_ref().map(|error| error.message.clone()),
        ResultPart::Status => Some(node.state.status().as_str().to_owned()),
    }
}

fn as_text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        other => action_graph::json::pretty(other),
    })
}
