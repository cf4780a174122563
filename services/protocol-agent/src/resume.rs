//! Start of a run: takes over graphs of earlier runs and delivers answers of persons to them.

use std::time::Duration;

use action_graph::declaration::{GraphDecision, Intent};
use action_graph::ids::GraphId;
use action_graph::node::{NodeState, Wait};
use action_graph::rules::StandingApproval;
use action_graph::schedule::{
    ActionOutcome, Actor, Command, Denial, Execute, GraphEvent, RecoveredAttempt,
};
use action_graph::transcript::TranscriptTurn;
use protocol::id::RunId;
use protocol::interaction::InteractionSubmission;
use tokio::time::sleep;

use crate::execute::human::{self, Consent};
use crate::execute::{AttemptReport, agent};
use crate::failure::Halt;
use crate::host::GraphAgentHost;
use crate::live::LiveGraph;
use crate::plan_approval;
use crate::records::{
    Adoption, LoadedRecords, PendingQuestion, QuestionSubject, Resumed, Submission, pattern,
};
use crate::session::{GraphDriver, ProtocolSession, RunTranscript};
use crate::work::AttemptKey;

/// Maximum attempts to take over a graph of a live run, for an answer to it.
const LOOKS: u32 = 20;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Effect of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmissionEffect {
    /// The graph continues.
    Woken,
    /// Another run drives the graph; the next run takes the answer from the inbox.
    Left,
    /// No open graph waits for the answer.
    Stale,
}

/// Take-over of graphs and delivery of answers.
struct GraphTakeover<'a, H> {
    driver: &'a mut GraphDriver<H>,
    transcript: &'a mut RunTranscript,
    /// Graphs that other runs drive.
    busy: &'a mut Vec<GraphId>,
}

impl<H: GraphAgentHost> ProtocolSession<H> {
    fn takeover(&mut self) -> GraphTakeover<'_, H> {
        GraphTakeover {
            driver: &mut self.driver,
            transcript: &mut self.transcript,
            busy: &mut self.busy,
        }
    }

    /// Delivers an answer to its graph.
    pub(crate) async fn submitted(
        &mut self,
        answer: &InteractionSubmission,
    ) -> Result<SubmissionEffect, Halt> {
        let submission = Submission {
            interaction: answer.interaction_id.clone(),
            action: answer.action_id.clone(),
            values: answer.values.clone(),
            at: self.driver.graphs.env.clock.now(),
        };
        self.takeover().receive(&submission).await
    }

    /// Takes over graphs and answers of earlier runs.
    pub(crate) async fn resume(&mut self, loaded: LoadedRecords) -> Result<(), Halt> {
        for resumed in loaded.mine {
            self.takeover().take_over(resumed).await?;
        }
        for submission in loaded.inbox {
            let interaction = submission.interaction.clone();
            self.takeover().receive(&submission).await?;
            self.driver.drain().await?;
            // Removed after the graph is stored: a crash in between delivers it twice, which is harmless.
            if let Err(error) = self.driver.graphs.records.forget_answer(&interaction).await {
                tracing::warn!(
                    "cannot remove a delivered answer from the inbox, the next run ignores it: {error}"
                );
            }
        }
        for (graph, why) in loaded.lost {
            tracing::warn!(graph = %graph, "a graph is lost: {why}");
            let text = format!("Work of an earlier run ({graph}) is lost: {why}");
            self.lost.push(text);
        }
        self.busy = loaded.busy.into_iter().map(|(graph, _)| graph).collect();
        Ok(())
    }

    /// Pulls steering inputs: requests become turns, answers are delivered to their graphs.
    pub(crate) async fn take_steering(&mut self) -> Result<(), Halt> {
        let env = &self.driver.graphs.env;
        if !env.context.context.available_apis.steering_pull {
            return Ok(());
        }
        let items = match env.host.pull_steering().await {
            Ok(items) => items,
            Err(error) if error.is_cancelled() || error.is_deadline_exceeded() => {
                return Err(error.into());
            }
            Err(error) => {
                tracing::warn!(
                    code = error.code,
                    "cannot pull steering messages, the run continues without them"
                );
                return Ok(());
            }
        };
        for item in items {
            if let Some(answer) = &item.input.interaction {
                self.submitted(answer).await?;
            } else if let Some(turn) = crate::history::of_input(&item.input) {
                if let TranscriptTurn::User { text, .. } = &turn {
                    self.goal.clone_from(text);
                }
                self.transcript.push(turn);
            }
        }
        Ok(())
    }
}

impl<H: GraphAgentHost> GraphTakeover<'_, H> {
    async fn take_over(&mut self, resumed: Resumed) -> Result<(), Halt> {
        let Resumed {
            mut graph,
            diagnostics,
            observations,
            found,
        } = resumed;
        graph.settings.can_ask = self.driver.graphs.can_ask();
        let mut live = LiveGraph::new(graph, diagnostics);
        let uncertain: Vec<_> = live
            .uncertain()
            .map(|node| (node.action.id.clone(), node.attempt))
            .collect();
        // Forms and approvals have waiting states of their own.
        let subjects = found.asks.iter().flat_map(|ask| &ask.about);
        let subjects = subjects.map(|one| (one.id.clone(), one.attempt));
        live.questioned = subjects.filter(|one| uncertain.contains(one)).collect();
        let id = live.id().clone();
        self.transcript.turns.extend(observations);
        self.driver.graphs.live_graphs.push(live);
        let position = self.driver.graphs.live_graphs.len() - 1;
        for (action, attempt, at) in found.timers {
            let (graph, id) = (id.clone(), action);
            let key = AttemptKey { graph, id, attempt };
            self.driver.graphs.work.set_timer(at, key);
        }
        let mut events = found.events;
        // Its first run may have died between the open and the begin; a second begin only examines the graph again.
        events.push(GraphEvent::Begin);
        let graph = &self.driver.graphs.live_graphs[position].graph;
        // Only a decision of the model starts a plan.
        if !graph.begun && graph.info.intent == Intent::Plan {
            events.clear();
        }
        self.driver.graphs.apply(position, events).await?;
        for (id, attempt, run) in found.children {
            self.recover_child(position, id, attempt, run).await?;
        }
        if !found.unsent.is_empty() && self.driver.graphs.can_ask() {
            // Queued, not sent: the event of this run may be the answer.
            let command = Command::AskApproval(found.unsent);
            self.driver.graphs.work.commands.push_back((id, command));
        }
        Ok(())
    }

    /// Reads the state of an earlier run's child run, and follows it if it is live.
    async fn recover_child(
        &mut self,
        position: usize,
        id: action_graph::ids::ActionId,
        attempt: u32,
        run: String,
    ) -> Result<(), Halt> {
        let graph = self.driver.graphs.live_graphs[position].id().clone();
        let child = match run.parse::<RunId>() {
            Ok(run) => self.driver.graphs.env.host.child_run(run, 0).await?,
            Err(_) => None,
        };
        let found = match child {
            None => RecoveredAttempt::Unknown,
            Some(child) if child.status.is_terminal() => {
                RecoveredAttempt::Ended(agent::outcome_of(&child))
            }
            Some(child) => {
                let id = id.clone();
                let key = AttemptKey { graph, id, attempt };
                let env = self.driver.graphs.env.clone();
                let run = child.run_id;
                let follow = async move { AttemptReport::Finished(agent::follow(&env, run).await) };
                self.driver.graphs.work.follow(key, run, follow);
                RecoveredAttempt::Alive
            }
        };
        let event = GraphEvent::Recovered { id, attempt, found };
        self.driver.graphs.apply(position, vec![event]).await?;
        Ok(())
    }

    async fn receive(&mut self, submission: &Submission) -> Result<SubmissionEffect, Halt> {
        let id = &submission.interaction;
        if let Some((graph, ask)) = self.driver.graphs.records.driven.ask(id) {
            return self.wake(&graph, &ask, submission).await;
        }
        // Question ids begin with the id of their graph.
        let graph = id.split('.').next().unwrap_or_default();
        let graph = GraphId(graph.to_owned());
        // Only a graph of a live run can become available later.
        if !self.busy.contains(&graph) {
            return Ok(SubmissionEffect::Stale);
        }
        // The other run may be ending: an answer can arrive before its terminal result.
        for _ in 0..LOOKS {
            match self.driver.graphs.records.adopt(&graph).await? {
                Adoption::Mine(resumed) => {
                    self.busy.retain(|one| *one != graph);
                    self.take_over(*resumed).await?;
                    return match self.driver.graphs.records.driven.ask(id) {
                        Some((graph, ask)) => self.wake(&graph, &ask, submission).await,
                        None => Ok(SubmissionEffect::Stale),
                    };
                }
                Adoption::Busy { .. } => sleep(PAUSE).await,
                Adoption::Gone | Adoption::Lost(_) => return Ok(SubmissionEffect::Stale),
            }
        }
        self.driver.graphs.records.leave_answer(submission).await?;
        Ok(SubmissionEffect::Left)
    }

    /// Applies an answer to the actions of its question.
    async fn wake(
        &mut self,
        graph: &GraphId,
        ask: &PendingQuestion,
        submission: &Submission,
    ) -> Result<SubmissionEffect, Halt> {
        let Some(position) = self.driver.graphs.position(graph) else {
            return Ok(SubmissionEffect::Stale);
        };
        let mut events = Vec::new();
        for about in &ask.about {
            let graph = &self.driver.graphs.live_graphs[position].graph;
            let Some(node) = graph.node(&about.id) else {
                continue;
            };
            match node.state {
                NodeState::Waiting(Wait::Approval) => {
                    let by = ask.reference();
                    events.push(self.consent(position, about, submission, by).await?);
                }
                NodeState::Waiting(Wait::User) => {
                    let execute = Execute {
                        id: node.action.id.clone(),
                        attempt: node.attempt,
                        target: node.target().to_owned(),
                        input: node.input.clone().unwrap_or_default(),
                        key: String::new(),
                        timeout_ms: None,
                        approved_by: None,
                    };
                    let mut outcome: ActionOutcome = human::outcome(&execute, submission);
                    if plan_approval::is_question(&execute.id) {
                        outcome = plan_approval::outcome(outcome);
                        let graph = &mut self.driver.graphs.live_graphs[position].graph;
                        plan_approval::note_answer(graph, &execute.id, ask.reference());
                    }
                    let (id, attempt) = (execute.id, execute.attempt);
                    events.push(GraphEvent::Finished {
                        id,
                        attempt,
                        outcome,
                    });
                }
                NodeState::Uncertain => {
                    let decision = GraphDecision {
                        graph: graph.id.clone(),
                        action: Some(about.id.clone()),
                        choice: human::verdict(submission),
                        reason: "the user knows".to_owned(),
                        input: None,
                    };
                    let by = Actor::Human;
                    events.push(GraphEvent::Decide { decision, by });
                }
                // Answered, cancelled or expired in the meantime.
                _ => {}
            }
        }
        if events.is_empty() {
            return Ok(SubmissionEffect::Stale);
        }
        self.driver.graphs.apply(position, events).await?;
        Ok(SubmissionEffect::Woken)
    }

    /// Event for an approval. An approval for the conversation is stored.
    async fn consent(
        &mut self,
        position: usize,
        about: &QuestionSubject,
        submission: &Submission,
        by: Option<String>,
    ) -> Result<GraphEvent, Halt> {
        let consent = human::consent_of(&about.id, submission);
        let ids = vec![(about.id.clone(), about.hash.clone().unwrap_or_default())];
        if consent == Consent::Refuse {
            let ids = vec![about.id.clone()];
            let why = Denial::Refused;
            return Ok(GraphEvent::Denied { ids, why });
        }
        let graph = &self.driver.graphs.live_graphs[position].graph;
        let node = graph.node(&about.id);
        let resolved =
            node.and_then(|node| Some((node.action.resolved.clone()?, node.input.clone()?)));
        if let (Consent::Conversation, Some((resolved, input))) = (consent, resolved) {
            let standing = StandingApproval {
                given_by: by.clone(),
                ..pattern(&resolved.target, &resolved.effects, &input)
            };
            match self.driver.graphs.records.allow(&standing).await {
                Ok(()) => {
                    // Graphs copied the approvals at their opening.
                    for live in &mut self.driver.graphs.live_graphs {
                        live.graph.settings.standing.push(standing.clone());
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        "cannot store an approval for the conversation, it applies to one call: {error}"
                    );
                }
            }
        }
        Ok(GraphEvent::Approved { ids, by })
    }
}
