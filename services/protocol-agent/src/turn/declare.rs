//! Accepted declarations: new graphs, plans, decisions, revisions, and requests for more of stored results.

use action_graph::declaration::{Decision, Intent, Payload, ReportSpec};
use action_graph::graph::Graph;
use action_graph::ids::GraphId;
use action_graph::report::render_report;
use action_graph::rules::Known;
use action_graph::schedule::{Event, Why};
use action_graph::transcript::{Turn, expansion_turn, protocol_turn};
use action_graph::validate::Accepted;
use protocol::result::RunOutcome;
use uuid::Uuid;

use super::{Next, say};
use crate::failure::Halt;
use crate::host::AgentHost;
use crate::keep::{KeepError, Opened};
use crate::live::{Live, Need};
use crate::session::{RunGraphs, Session, budget};

impl<H: AgentHost> Session<H> {
    /// Carries an accepted declaration out, as far as it does not have to wait.
    pub(super) async fn declare(
        &mut self,
        accepted: Accepted,
        raw: &str,
        known: &Known,
    ) -> Result<Next, Halt> {
        self.declarations += 1;
        self.driver
            .graphs
            .speaker
            .note(&accepted.declaration.note)
            .await;
        let intent = accepted.declaration.intent;
        match (intent, accepted.declaration.payload.clone()) {
            (Intent::ExpandRef, Payload::ExpandRef { refs }) => {
                let graph = GraphId(String::new());
                let answers = self.driver.expand(&graph, &refs).await?;
                self.transcript
                    .push(Turn::Protocol(expansion_turn("expand", &answers)));
            }
            (Intent::Decide | Intent::Cancel, Payload::Decision(decision)) => {
                self.decided(decision).await?;
            }
            (Intent::Revise, Payload::ActionGraph { .. }) => self.revise(accepted).await?,
            (_, Payload::FinalReportSpec(spec)) => {
                return self.final_report(accepted, &spec, known).await;
            }
            _ => match accepted.repeats.clone() {
                Some(graph) => self.repeat(&graph, &accepted),
                None => self.open(accepted, raw, known).await?,
            },
        }
        Ok(Next::GoOn)
    }

    /// Makes the graph of a declaration. It is stored before anything of it runs.
    async fn open(&mut self, accepted: Accepted, raw: &str, known: &Known) -> Result<(), Halt> {
        let id = GraphId::from_random(Uuid::new_v4().as_u128());
        let source = accepted.declaration.source.clone();
        let diagnostics = accepted.diagnostics.clone();
        let is_plan = accepted.declaration.intent == Intent::Plan;
        let graph = Graph::new(
            id.clone(),
            accepted,
            &self.driver.rules,
            known,
            self.driver.graphs.keep.approvals.standing(),
        );
        let hash = graph.info.semantic_sha256.clone();
        if graph.is_durable() && self.driver.graphs.keep.can_persist() {
            let now = self.driver.graphs.hands.clock.now();
            match self
                .driver
                .graphs
                .keep
                .open(self.declarations, &graph, &source, raw, &diagnostics, now)
                .await
            {
                Ok(Opened::New) => {}
                Ok(Opened::Exists(made)) => {
                    // The same declaration of this run, made before a restart: its graph was taken over.
                    self.transcript.push(say(&format!(
                        "This declaration made the graph {made} before: see its turn."
                    )));
                    return Ok(());
                }
                Err(error @ (KeepError::Full { .. } | KeepError::NoRoom(_))) => {
                    let line = format!("Nothing was executed: {error}.");
                    self.transcript.push(say(&line));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.repeats.insert(hash, (id, 1));
        let end = raw.floor_char_boundary(self.driver.rules.limits.raw_bytes);
        let mut live = Live::new(graph, diagnostics);
        live.raw = Some(raw[..end].to_owned());
        self.driver.graphs.lives.push(live);
        let place = self.driver.graphs.lives.len() - 1;
        if is_plan {
            self.driver.graphs.show_all().await;
            let window = self.driver.graphs.hands.config.budgets.window;
            let turn = plan(&self.driver.graphs.lives[place].graph, window);
            self.transcript.push(turn);
            return Ok(());
        }
        self.driver.graphs.apply(place, vec![Event::Begin]).await?;
        Ok(())
    }

    /// The same work again: its stored results answer it, and nothing runs.
    fn repeat(&mut self, graph: &GraphId, accepted: &Accepted) {
        let hash = accepted.declaration.source.semantic_sha256.clone();
        self.repeats.insert(hash, (graph.clone(), 2));
        let budget = budget(self.driver.graphs.hands.config.budgets.window);
        let live = self
            .driver
            .graphs
            .lives
            .iter()
            .find(|live| live.id() == graph);
        if let Some(live) = live {
            let why = live.why.unwrap_or(Why::Finished);
            let turn = Turn::Protocol(protocol_turn(&live.graph, why, budget));
            self.transcript.push(turn);
        }
        self.transcript.push(say(
            "The same work was declared before. Nothing ran again: these are its results.",
        ));
    }

    async fn decided(&mut self, decision: Decision) -> Result<(), Halt> {
        let graph = decision.graph.clone();
        match self.driver.graphs.decide(decision).await? {
            Ok(()) => {
                // A decision that moves nothing is still an answer to the model.
                self.transcript.needs_model |= self
                    .driver
                    .graphs
                    .place(&graph)
                    .is_some_and(|place| self.driver.graphs.lives[place].why.is_some());
            }
            Err(why) => self
                .transcript
                .push(say(&format!("The decision was refused: {why}."))),
        }
        Ok(())
    }

    async fn revise(&mut self, accepted: Accepted) -> Result<(), Halt> {
        let base = accepted.declaration.base.clone();
        let place = base
            .as_ref()
            .and_then(|base| self.driver.graphs.place(base));
        let (Some(place), Payload::ActionGraph { actions, .. }) =
            (place, accepted.declaration.payload)
        else {
            self.transcript
                .push(say("The revision was refused: its base is no open graph."));
            return Ok(());
        };
        let constants = accepted.constants;
        let event = Event::Revise { actions, constants };
        if self.driver.graphs.apply(place, vec![event]).await? {
            self.transcript.push(say(
                "The revision was refused: it changes actions that have started.",
            ));
        }
        Ok(())
    }

    /// A report over earlier results, without work of its own.
    async fn final_report(
        &mut self,
        accepted: Accepted,
        spec: &ReportSpec,
        known: &Known,
    ) -> Result<Next, Halt> {
        let id = GraphId::from_random(Uuid::new_v4().as_u128());
        let graph = Graph::new(id, accepted, &self.driver.rules, known, Vec::new());
        match render_report(&graph, spec) {
            Ok(text) => Ok(Next::End(self.answer(&text, RunOutcome::Ok).await)),
            Err(missing) => {
                self.transcript.push(say(&missing.to_string()));
                Ok(Next::GoOn)
            }
        }
    }
}

impl<H: AgentHost> RunGraphs<H> {
    /// Closes the oldest graphs that only the model could still move, so that another one may be opened.
    pub(super) async fn make_room(&mut self, most: usize) {
        let open = self.lives.iter().filter(|live| live.known().open).count();
        let mut surplus = (open + 1).saturating_sub(most);
        for place in 0..self.lives.len() {
            let live = &self.lives[place];
            if surplus > 0 && live.need() == Need::Model && live.known().open {
                self.close(place).await;
                surplus -= 1;
            }
        }
    }
}

/// The turn that shows a plan to the model: it runs once a decision says so.
fn plan(graph: &Graph, window: usize) -> Turn {
    let mut turn = protocol_turn(graph, Why::Finished, budget(window));
    turn.next =
        Some("planned, nothing runs: start it with the decision execute, or answer".to_owned());
    Turn::Protocol(turn)
}
