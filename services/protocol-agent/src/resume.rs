//! The beginning of a run: graphs of earlier runs go on, and answers of persons reach them.

use std::time::Duration;

use action_graph::declaration::{Decision, Intent};
use action_graph::ids::GraphId;
use action_graph::node::{State, Wait};
use action_graph::schedule::{Actor, Command, Denial, Event, Execute, Found, Outcome};
use action_graph::transcript::Turn;
use protocol::id::RunId;
use protocol::interaction::InteractionSubmission;
use tokio::time::sleep;

use crate::execute::human::{self, Consent};
use crate::execute::{Report, agent};
use crate::failure::Halt;
use crate::host::AgentHost;
use crate::keep::{Adopted, Ask, Asked, Loaded, Resumed, Submission, pattern};
use crate::live::Live;
use crate::session::{GraphDriver, Session, Transcript};
use crate::work::Key;

/// Times that a graph of a live run is looked at, for an answer to it.
const LOOKS: u32 = 20;
/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// The effect of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// It woke its graph.
    Woken,
    /// Another run drives the graph; its next run takes the answer.
    Left,
    /// No open graph waits for it.
    Stale,
}

/// Takes over graphs of earlier runs, and gives answers to the graphs that asked.
struct Takeover<'a, H> {
    driver: &'a mut GraphDriver<H>,
    transcript: &'a mut Transcript,
    /// Graphs that other runs drive.
    busy: &'a mut Vec<GraphId>,
}

impl<H: AgentHost> Session<H> {
    fn takeover(&mut self) -> Takeover<'_, H> {
        Takeover {
            driver: &mut self.driver,
            transcript: &mut self.transcript,
            busy: &mut self.busy,
        }
    }

    /// Gives an answer to the graph that asked.
    pub(crate) async fn submitted(
        &mut self,
        answer: &InteractionSubmission,
    ) -> Result<Received, Halt> {
        let submission = Submission {
            interaction: answer.interaction_id.clone(),
            action: answer.action_id.clone(),
            values: answer.values.clone(),
            at: self.driver.graphs.hands.clock.now(),
        };
        self.takeover().receive(&submission).await
    }

    /// Takes over what earlier runs left.
    pub(crate) async fn resume(&mut self, loaded: Loaded) -> Result<(), Halt> {
        for resumed in loaded.mine {
            self.takeover().take_over(resumed).await?;
        }
        for submission in loaded.inbox {
            let interaction = submission.interaction.clone();
            self.takeover().receive(&submission).await?;
            self.driver.drain().await?;
            if let Err(error) = self.driver.graphs.keep.inbox.taken(&interaction).await {
                tracing::warn!("an answer that was taken stays in the inbox: {error}");
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

    /// Takes what was sent to the conversation meanwhile: requests become turns, answers reach their graphs.
    pub(crate) async fn take_steering(&mut self) -> Result<(), Halt> {
        if !self
            .driver
            .graphs
            .hands
            .context
            .context
            .available_apis
            .steering_pull
        {
            return Ok(());
        }
        let items = match self.driver.graphs.hands.host.pull_steering().await {
            Ok(items) => items,
            Err(error) if error.is_cancelled() || error.is_deadline_exceeded() => {
                return Err(error.into());
            }
            Err(error) => {
                tracing::warn!(code = error.code, "what came meanwhile cannot be read");
                return Ok(());
            }
        };
        for item in items {
            if let Some(answer) = &item.input.interaction {
                self.submitted(answer).await?;
            } else if let Some(turn) = crate::history::of_input(&item.input) {
                if let Turn::User { text, .. } = &turn {
                    self.goal.clone_from(text);
                }
                self.transcript.push(turn);
            }
        }
        Ok(())
    }
}

impl<H: AgentHost> Takeover<'_, H> {
    async fn take_over(&mut self, resumed: Resumed) -> Result<(), Halt> {
        let Resumed {
            mut graph,
            diagnostics,
            observations,
            events,
            children,
            timers,
            asks,
            unasked,
        } = resumed;
        graph.settings.can_ask = self.driver.graphs.can_ask();
        let mut live = Live::new(graph, diagnostics);
        let uncertain: Vec<_> = live
            .uncertain()
            .map(|node| (node.action.id.clone(), node.attempt))
            .collect();
        let asked = asks.iter().flat_map(|ask| &ask.about);
        let asked = asked.map(|one| (one.id.clone(), one.attempt));
        live.asked = asked.filter(|one| uncertain.contains(one)).collect();
        let id = live.id().clone();
        self.transcript.turns.extend(observations);
        self.driver.graphs.lives.push(live);
        let place = self.driver.graphs.lives.len() - 1;
        for (action, attempt, at) in timers {
            let key = Key {
                graph: id.clone(),
                id: action,
                attempt,
            };
            self.driver.graphs.work.set_timer(at, key);
        }
        let mut events = events;
        events.push(Event::Begin);
        let graph = &self.driver.graphs.lives[place].graph;
        if !graph.begun && graph.info.intent == Intent::Plan {
            events.clear();
        }
        self.driver.graphs.apply(place, events).await?;
        for child in children {
            self.look_at_child(place, child).await?;
        }
        if !unasked.is_empty() && self.driver.graphs.can_ask() {
            // After the event of this run, which may be the answer.
            let command = Command::AskApproval(unasked);
            self.driver.graphs.work.commands.push_back((id, command));
        }
        Ok(())
    }

    /// Reads a child run of an earlier run: ended, gone, or followed from now on.
    async fn look_at_child(
        &mut self,
        place: usize,
        (id, attempt, run): (action_graph::ids::ActionId, u32, String),
    ) -> Result<(), Halt> {
        let graph = self.driver.graphs.lives[place].id().clone();
        let child = match run.parse::<RunId>() {
            Ok(run) => self.driver.graphs.hands.host.child_run(run, 0).await?,
            Err(_) => None,
        };
        let found = match child {
            None => Found::Unknown,
            Some(child) if child.status.is_terminal() => Found::Ended(agent::outcome_of(&child)),
            Some(child) => {
                let key = Key {
                    graph,
                    id: id.clone(),
                    attempt,
                };
                let hands = self.driver.graphs.hands.clone();
                let run = child.run_id;
                let follow = async move { Report::Finished(agent::follow(&hands, run).await) };
                self.driver.graphs.work.follow(key, run, follow);
                Found::Alive
            }
        };
        self.driver
            .graphs
            .apply(place, vec![Event::Recovered { id, attempt, found }])
            .await?;
        Ok(())
    }

    async fn receive(&mut self, submission: &Submission) -> Result<Received, Halt> {
        if let Some((graph, ask)) = self.driver.graphs.keep.driven.ask(&submission.interaction) {
            return self.wake(&graph, &ask, submission).await;
        }
        // The id of a question begins with its graph.
        let graph = submission.interaction.split('.').next().unwrap_or_default();
        let graph = GraphId(graph.to_owned());
        if !self.busy.contains(&graph) {
            return Ok(Received::Stale);
        }
        for _ in 0..LOOKS {
            match self.driver.graphs.keep.adopt(&graph).await? {
                Adopted::Mine(resumed) => {
                    self.busy.retain(|one| *one != graph);
                    self.take_over(*resumed).await?;
                    return match self.driver.graphs.keep.driven.ask(&submission.interaction) {
                        Some((graph, ask)) => self.wake(&graph, &ask, submission).await,
                        None => Ok(Received::Stale),
                    };
                }
                Adopted::Busy { .. } => sleep(PAUSE).await,
                Adopted::Gone | Adopted::Lost(_) => return Ok(Received::Stale),
            }
        }
        self.driver.graphs.keep.inbox.leave(submission).await?;
        Ok(Received::Left)
    }

    /// Wakes the actions that a question was about.
    async fn wake(
        &mut self,
        graph: &GraphId,
        ask: &Ask,
        submission: &Submission,
    ) -> Result<Received, Halt> {
        let Some(place) = self.driver.graphs.place(graph) else {
            return Ok(Received::Stale);
        };
        let mut events = Vec::new();
        for about in &ask.about {
            let Some(node) = self.driver.graphs.lives[place].graph.node(&about.id) else {
                continue;
            };
            match node.state {
                State::Waiting(Wait::Approval) => {
                    events.push(self.consent(place, about, submission).await?);
                }
                State::Waiting(Wait::User) => {
                    let execute = Execute {
                        id: node.action.id.clone(),
                        attempt: node.attempt,
                        target: node.target().to_owned(),
                        input: node.input.clone().unwrap_or_default(),
                        key: String::new(),
                        timeout_ms: None,
                    };
                    let outcome: Outcome = human::outcome(&execute, submission);
                    let (id, attempt) = (execute.id, execute.attempt);
                    events.push(Event::Finished {
                        id,
                        attempt,
                        outcome,
                    });
                }
                State::Uncertain => {
                    let decision = Decision {
                        graph: graph.clone(),
                        action: Some(about.id.clone()),
                        choice: human::verdict(submission),
                        reason: "the user knows".to_owned(),
                        input: None,
                    };
                    events.push(Event::Decide {
                        decision,
                        by: Actor::Human,
                    });
                }
                _ => {}
            }
        }
        if events.is_empty() {
            return Ok(Received::Stale);
        }
        self.driver.graphs.apply(place, events).await?;
        Ok(Received::Woken)
    }

    /// The event of an approval. One for the conversation is stored, and holds for graphs of this run at once.
    async fn consent(
        &mut self,
        place: usize,
        about: &Asked,
        submission: &Submission,
    ) -> Result<Event, Halt> {
        let consent = human::consent_of(&about.id, submission);
        let ids = vec![(about.id.clone(), about.hash.clone().unwrap_or_default())];
        if consent == Consent::Refuse {
            let ids = vec![about.id.clone()];
            let why = Denial::Refused;
            return Ok(Event::Denied { ids, why });
        }
        let node = self.driver.graphs.lives[place].graph.node(&about.id);
        let resolved =
            node.and_then(|node| Some((node.action.resolved.clone()?, node.input.clone()?)));
        if let (Consent::Conversation, Some((resolved, input))) = (consent, resolved) {
            let standing = pattern(&resolved.target, &resolved.effects, &input);
            match self.driver.graphs.keep.approvals.allow(&standing).await {
                Ok(()) => {
                    for live in &mut self.driver.graphs.lives {
                        live.graph.settings.standing.push(standing.clone());
                    }
                }
                Err(error) => {
                    tracing::warn!("an approval for the conversation counts once: {error}");
                }
            }
        }
        Ok(Event::Approved { ids })
    }
}
