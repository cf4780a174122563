//! Accepted declarations: new graphs, plans, decisions, revisions, and expansions of stored results.

use action_graph::declaration::{GraphDecision, Intent, Payload, ReportSpec};
use action_graph::graph::Graph;
use action_graph::ids::GraphId;
use action_graph::report::render_report;
use action_graph::rules::KnownFacts;
use action_graph::schedule::{GraphEvent, Why};
use action_graph::transcript::{TranscriptTurn, expansion_turn, protocol_turn};
use action_graph::validate::AcceptedDeclaration;
use protocol::result::RunOutcome;
use uuid::Uuid;

use super::{TurnStep, sentence_notice};
use crate::failure::Halt;
use crate::host::GraphAgentHost;
use crate::live::{GraphWait, LiveGraph};
use crate::plan_approval;
use crate::records::{OpenOutcome, RecordsError};
use crate::session::{ProtocolSession, RunGraphs, budget};

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Executes an accepted declaration until its first wait.
    pub(super) async fn declare(
        &mut self,
        accepted: AcceptedDeclaration,
        raw: &str,
        facts: &KnownFacts,
    ) -> Result<TurnStep, Halt> {
        self.declarations += 1;
        let note = &accepted.declaration.note;
        self.driver.graphs.writer.note(note).await;
        let intent = accepted.declaration.intent;
        match (intent, accepted.declaration.payload.clone()) {
            (Intent::ExpandRef, Payload::ExpandRef { refs }) => {
                let graph = GraphId(String::new());
                let answers = self.driver.expand(&graph, &refs).await?;
                self.transcript
                    .push(TranscriptTurn::Protocol(expansion_turn("expand", &answers)));
            }
            (Intent::Decide | Intent::Cancel, Payload::Decision(decision)) => {
                self.decided(decision).await?;
            }
            (Intent::Revise, Payload::ActionGraph { .. }) => self.revise(accepted, facts).await?,
            (_, Payload::FinalReportSpec(spec)) => {
                return self.final_report(accepted, &spec, facts).await;
            }
            _ => match accepted.repeats.clone() {
                Some(graph) => self.repeat(&graph, &accepted),
                None => self.open(accepted, raw, facts).await?,
            },
        }
        Ok(TurnStep::GoOn)
    }

    /// Opens the graph of a declaration. Refusals become notices for the model.
    pub(crate) async fn open(
        &mut self,
        accepted: AcceptedDeclaration,
        raw: &str,
        facts: &KnownFacts,
    ) -> Result<(), Halt> {
        let accepted = match plan_approval::with_question(&self.driver, accepted, facts) {
            Ok(accepted) => accepted,
            Err(why) => {
                let line = format!("Nothing was executed: {why}.");
                self.transcript.push(sentence_notice(&line));
                return Ok(());
            }
        };
        let id = GraphId::from_random(Uuid::new_v4().as_u128());
        let source = accepted.declaration.source.clone();
        let diagnostics = accepted.diagnostics.clone();
        let is_plan = accepted.declaration.intent == Intent::Plan;
        let graph = Graph::new(
            id.clone(),
            accepted,
            &self.driver.rules,
            facts,
            self.driver.graphs.records.standing(),
        );
        let hash = graph.info.semantic_sha256.clone();
        // Stored before its first action: a crash must not lose a started effect.
        if graph.is_durable() && self.driver.graphs.records.can_persist() {
            let now = self.driver.graphs.env.clock.now();
            match self
                .driver
                .graphs
                .records
                .open(self.declarations, &graph, &source, raw, &diagnostics, now)
                .await
            {
                Ok(OpenOutcome::New) => {}
                Ok(OpenOutcome::Exists(made)) => {
                    // The run declared it before a restart, and has taken its graph over.
                    self.transcript.push(sentence_notice(&format!(
                        "This declaration made the graph {made} before: see its turn."
                    )));
                    return Ok(());
                }
                Err(error @ (RecordsError::Full { .. } | RecordsError::QuotaExceeded(_))) => {
                    let line = format!("Nothing was executed: {error}.");
                    self.transcript.push(sentence_notice(&line));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.repeats.insert(hash, (id, 1));
        let end = raw.floor_char_boundary(self.driver.rules.limits.raw_bytes);
        let mut live = LiveGraph::new(graph, diagnostics);
        live.raw = Some(raw[..end].to_owned());
        self.driver.graphs.live_graphs.push(live);
        let position = self.driver.graphs.live_graphs.len() - 1;
        if is_plan {
            self.driver.graphs.show_all().await;
            let window = self.driver.graphs.env.config.budgets.window;
            let turn = plan(&self.driver.graphs.live_graphs[position].graph, window);
            self.transcript.push(turn);
            return Ok(());
        }
        let begin = vec![GraphEvent::Begin];
        self.driver.graphs.apply(position, begin).await?;
        Ok(())
    }

    /// Answers a repeated declaration with its stored results. Nothing runs.
    fn repeat(&mut self, graph: &GraphId, accepted: &AcceptedDeclaration) {
        let hash = accepted.declaration.source.semantic_sha256.clone();
        self.repeats.insert(hash, (graph.clone(), 2));
        let budget = budget(self.driver.graphs.env.config.budgets.window);
        if let Some(live) = self.driver.graphs.live(graph) {
            let why = live.why.unwrap_or(Why::Finished);
            let turn = TranscriptTurn::Protocol(protocol_turn(&live.graph, why, budget));
            self.transcript.push(turn);
        }
        self.transcript.push(sentence_notice(
            "The same work was declared before. Nothing ran again: these are its results.",
        ));
    }

    async fn decided(&mut self, decision: GraphDecision) -> Result<(), Halt> {
        let graph = decision.graph.clone();
        match self.driver.graphs.decide(decision).await? {
            Ok(()) => {
                // A decision without an effect still needs a response to the model.
                self.transcript.needs_model |=
                    self.driver.graphs.position(&graph).is_some_and(|position| {
                        self.driver.graphs.live_graphs[position].why.is_some()
                    });
            }
            Err(why) => self.transcript.push(sentence_notice(&format!(
                "The decision was refused: {why}."
            ))),
        }
        Ok(())
    }

    async fn revise(
        &mut self,
        accepted: AcceptedDeclaration,
        facts: &KnownFacts,
    ) -> Result<(), Halt> {
        let accepted = match plan_approval::with_question(&self.driver, accepted, facts) {
            Ok(accepted) => accepted,
            Err(why) => {
                let line = format!("The revision was refused: {why}.");
                self.transcript.push(sentence_notice(&line));
                return Ok(());
            }
        };
        let base = accepted.declaration.base.clone();
        let position = base
            .as_ref()
            .and_then(|base| self.driver.graphs.position(base));
        let (Some(position), Payload::ActionGraph { actions, .. }) =
            (position, accepted.declaration.payload)
        else {
            self.transcript.push(sentence_notice(
                "The revision was refused: its base is no open graph.",
            ));
            return Ok(());
        };
        let constants = accepted.constants;
        let event = GraphEvent::Revise { actions, constants };
        if self.driver.graphs.apply(position, vec![event]).await? {
            self.transcript.push(sentence_notice(
                "The revision was refused: it changes actions that have started.",
            ));
        }
        Ok(())
    }

    /// Ends the run with a report of earlier results, without actions.
    async fn final_report(
        &mut self,
        accepted: AcceptedDeclaration,
        spec: &ReportSpec,
        facts: &KnownFacts,
    ) -> Result<TurnStep, Halt> {
        let id = GraphId::from_random(Uuid::new_v4().as_u128());
        let graph = Graph::new(id, accepted, &self.driver.rules, facts, Vec::new());
        match render_report(&graph, spec) {
            Ok(text) => Ok(TurnStep::End(self.answer(&text, RunOutcome::Ok).await)),
            Err(missing) => {
                self.transcript.push(sentence_notice(&missing.to_string()));
                Ok(TurnStep::GoOn)
            }
        }
    }
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Closes the oldest graphs that wait for the model, so that another one can be opened within the limit.
    pub(crate) async fn evict_graphs(&mut self, max_open: usize) {
        let open = self
            .live_graphs
            .iter()
            .filter(|live| live.facts().open)
            .count();
        let mut surplus = (open + 1).saturating_sub(max_open);
        for position in 0..self.live_graphs.len() {
            let live = &self.live_graphs[position];
            if surplus > 0 && live.need() == GraphWait::Model && live.facts().open {
                self.close(position).await;
                surplus -= 1;
            }
        }
    }
}

/// Turn that shows a plan to the model. A decision starts the plan.
fn plan(graph: &Graph, window: usize) -> TranscriptTurn {
    let mut turn = protocol_turn(graph, Why::Finished, budget(window));
    turn.next =
        Some("planned, nothing runs: start it with the decision execute, or answer".to_owned());
    TranscriptTurn::Protocol(turn)
}
