//! Ends of a run: answers, reports, waits and limits, each with a message for the user.

use std::fmt::Write as _;

use action_graph::graph::{Graph, GraphStatus};
use action_graph::node::{Node, NodeState};
use action_graph::record::{Metrics, result_record};
use action_graph::transcript::TranscriptTurn;
use protocol::child_run::WAITING_CHILD;
use protocol::result::RunOutcome;

use crate::failpoint::reach;
use crate::host::GraphAgentHost;
use crate::live::{GraphWait, LiveGraph};
use crate::session::{ProtocolSession, RunGraphs, RunTranscript, budget};

/// Finish reason of a run that waits for a person.
pub(crate) const WAITING_USER: &str = "waiting_user";
/// Finish reason of a run that waits for a timer.
pub(crate) const WAITING: &str = "waiting";
/// Finish reason of a run that reached a limit.
pub(crate) const LIMIT: &str = "limit";
/// Finish reason of an answer after a graph that did not complete.
pub(crate) const ACTIONS_FAILED: &str = "actions_failed";
/// Finish reason of a regular answer.
pub(crate) const STOP: &str = "stop";
/// Maximum actions listed in a message about a limit.
const LISTED: usize = 40;

/// Successful end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionEnd {
    pub(crate) reason: &'static str,
    pub(crate) outcome: Option<RunOutcome>,
}

/// Limit that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Declarations,
    Tokens,
    /// The time of the run.
    Deadline,
}

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Ends the run with an answer. Waiting graphs stay open.
    pub(crate) async fn answer(&mut self, text: &str, outcome: RunOutcome) -> SessionEnd {
        let text = with_losses(&mut self.lost, text);
        self.driver.graphs.writer.complete(&text).await;
        reach("answer.sent").await;
        self.transcript.turns.push(TranscriptTurn::Answer { text });
        // Turns before graphs: a crash in between repeats an observation, but never loses the answer.
        self.driver.graphs.store_turns(&self.transcript).await;
        self.driver.graphs.close_all().await;
        let reason = if self.driver.graphs.any_needs(GraphWait::Child) {
            WAITING_CHILD
        } else {
            answer_reason(&self.driver.graphs.live_graphs)
        };
        self.ended(reason, outcome)
    }

    /// Ends the run without a message, unless `text` or lost graphs need one.
    pub(crate) async fn end_silently(&mut self, text: &str, outcome: RunOutcome) -> SessionEnd {
        if !text.trim().is_empty() || !self.lost.is_empty() {
            return self.answer(text, outcome).await;
        }
        self.driver.graphs.store_turns(&self.transcript).await;
        self.driver.graphs.close_all().await;
        self.ended(answer_reason(&self.driver.graphs.live_graphs), outcome)
    }

    /// Ends the run because a graph waits. The message is its note, or the list of waiting actions.
    pub(crate) async fn wait(&mut self) -> SessionEnd {
        let graphs = self.driver.graphs.live_graphs.iter();
        let waiting = graphs.filter(|live| live.waits());
        let notes: Vec<_> = waiting.map(|live| note_of(&live.graph)).collect();
        let text = with_losses(&mut self.lost, &notes.join("\n\n"));
        self.driver.graphs.writer.complete(&text).await;
        self.driver.graphs.store_turns(&self.transcript).await;
        self.driver.graphs.close_all().await;
        let graphs = &self.driver.graphs;
        let waits_for_child = |live: &LiveGraph| !live.is_closed && live.waits_for_child();
        let reason = if graphs.live_graphs.iter().any(waits_for_child) {
            WAITING_CHILD
        } else if graphs.any_needs(GraphWait::User) {
            WAITING_USER
        } else {
            WAITING
        };
        self.ended(reason, RunOutcome::NeedInput)
    }

    /// Successful end. Only the parent of a delegated run gets an outcome.
    fn ended(&self, reason: &'static str, outcome: RunOutcome) -> SessionEnd {
        let outcome = self.driver.rules.delegated.then_some(outcome);
        SessionEnd { reason, outcome }
    }

    /// Ends the run at a limit. The message lists done and open actions.
    pub(crate) async fn end_at(&mut self, limit: Limit) -> SessionEnd {
        let mut text = match limit {
            Limit::Declarations => format!(
                "I stopped: {} declarations were made in this run, which is the limit.",
                self.declarations
            ),
            Limit::Tokens => {
                let budgets = &self.driver.graphs.env.config.budgets;
                let max_tokens = budgets.tokens.unwrap_or_default();
                format!("I stopped: the {max_tokens} tokens of this run are used up.")
            }
            Limit::Deadline => "I stopped: the time of this run is over.".to_owned(),
        };
        let graphs = &self.driver.graphs;
        text = graphs.progress(&text);
        let continues = graphs.live_graphs.iter().any(LiveGraph::waits)
            // At the deadline, moving graphs stay stored and continue in the next run.
            || limit == Limit::Deadline && graphs.any_needs(GraphWait::Moving);
        text.push_str(if continues {
            "\n\nThe open steps continue with your next message."
        } else {
            "\n\nTell me how to continue."
        });
        let ended = self.answer(&text, RunOutcome::NotDone).await;
        SessionEnd {
            reason: match ended.reason {
                WAITING_CHILD => WAITING_CHILD,
                _ => LIMIT,
            },
            ..ended
        }
    }
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Appends the lists of done and open actions of all open graphs to a text.
    pub(crate) fn progress(&self, text: &str) -> String {
        let open = self.live_graphs.iter();
        let open = open.filter(|live| !live.is_closed);
        let nodes: Vec<_> = open.flat_map(|live| live.graph.declared()).collect();
        let (done, open): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| is_done(node));
        let mut text = text.to_owned();
        list(&mut text, "Done", done.into_iter());
        list(&mut text, "Not done", open.into_iter());
        text
    }

    /// Stores the turns of this run for later runs. An error does not fail the run.
    pub(crate) async fn store_turns(&mut self, transcript: &RunTranscript) {
        let own = transcript.turns.iter().skip(transcript.earlier);
        let own = own
            .filter(|turn| !matches!(turn, TranscriptTurn::Notice(_)))
            .cloned()
            .collect();
        let now = self.env.clock.now();
        match self.records.finish(own, now).await {
            // `Refused`: the run has no conversation, so no later run could read them.
            Ok(()) | Err(crate::records::RecordsError::Refused(_)) => {}
            Err(error) => tracing::warn!(
                "cannot store the turns of this run, later runs read the history: {error}"
            ),
        }
    }

    /// Closes all graphs that only the model could still change.
    pub(crate) async fn close_all(&mut self) {
        for position in 0..self.live_graphs.len() {
            if self.live_graphs[position].need() == GraphWait::Model {
                self.close(position).await;
            }
        }
    }

    /// Closes a graph and stores its record. After an error, the next run closes it.
    pub(crate) async fn close(&mut self, position: usize) {
        let (tokens_in, tokens_out) = self.env.usage.tokens();
        let metrics = Metrics {
            model_calls: self.env.usage.calls(),
            tokens_in,
            tokens_out,
            wall_ms: self.env.clock.elapsed_ms(),
            ..Metrics::default()
        };
        let budget = budget(self.env.config.budgets.window);
        let now = self.env.clock.now();
        let live = &mut self.live_graphs[position];
        live.is_closed = true;
        let runs = self.records.driven.runs(live.id());
        let diagnostics = live.diagnostics.clone();
        let record = result_record(&live.graph, diagnostics, metrics, runs, budget, now);
        if let Err(error) = self.records.close(&live.graph, &record).await {
            tracing::warn!(graph = %live.graph.id, "the graph is not closed, the next run closes it: {error}");
        }
    }
}

/// Finish reason of an answer.
fn answer_reason(graphs: &[LiveGraph]) -> &'static str {
    // The newest graph decides: the model replaces failed graphs by later ones.
    let newest = graphs.last().filter(|live| !live.waits());
    match newest.map(|live| live.graph.status()) {
        Some(GraphStatus::Failed | GraphStatus::Blocked | GraphStatus::Canceled) => ACTIONS_FAILED,
        _ => STOP,
    }
}

/// Prepends the lines about lost graphs to a text.
fn with_losses(lost: &mut Vec<String>, text: &str) -> String {
    // Taken, so that each line is sent once.
    let mut lines = std::mem::take(lost);
    lines.push(text.to_owned());
    lines.join("\n\n")
}

/// Note of a graph, or the titles of its waiting actions.
fn note_of(graph: &Graph) -> String {
    let note = graph.info.note.trim();
    if !note.is_empty() {
        return note.to_owned();
    }
    let waiting = graph
        .declared()
        .filter(|node| matches!(node.state, NodeState::Waiting(_)));
    let titles: Vec<_> = waiting.map(|node| node.action.title.as_str()).collect();
    if titles.is_empty() {
        "I wait.".to_owned()
    } else {
        format!("Waiting: {}", titles.join(", "))
    }
}

fn is_done(node: &Node) -> bool {
    node.state == NodeState::Completed && node.satisfying || node.state == NodeState::Skipped
}

fn list<'a>(text: &mut String, heading: &str, nodes: impl Iterator<Item = &'a Node>) {
    let nodes: Vec<_> = nodes.collect();
    if nodes.is_empty() {
        return;
    }
    let _ = write!(text, "\n\n{heading}:");
    for node in nodes.iter().take(LISTED) {
        let _ = write!(text, "\n- {}{}", node.action.title, why_not(node));
    }
    if nodes.len() > LISTED {
        let _ = write!(text, "\n- and {} more", nodes.len() - LISTED);
    }
}

/// Reason for an unfinished step, as text for the user.
fn why_not(node: &Node) -> String {
    let why = match node.state {
        NodeState::Completed if node.satisfying => return String::new(),
        NodeState::Skipped => return " (not needed)".to_owned(),
        NodeState::Completed => "ended without the requested result",
        NodeState::Uncertain => "it is not known whether it happened",
        NodeState::Waiting(_) => "waits",
        NodeState::Running | NodeState::FanOut => "was under way",
        NodeState::Pending => "was not started",
        NodeState::Blocked(_) => "needs a step that did not succeed",
        NodeState::Canceled => "was cancelled",
        NodeState::Failed => {
            let error = node.error.as_ref();
            let message =
                error.map_or("", |error| error.message.lines().next().unwrap_or_default());
            // Messages of tools may be long reports; a list shows the beginning of the first line.
            let short: String = message.chars().take(120).collect();
            return format!(": failed, {short}");
        }
    };
    format!(": {why}")
}
