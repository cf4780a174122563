//! Ends of a run: answers, reports, waits and limits, each with a message that a person can read.

use std::fmt::Write as _;

use action_graph::graph::Graph;
use action_graph::node::{Node, State};
use action_graph::record::{Metrics, result_record};
use action_graph::transcript::Turn;
use protocol::child_run::WAITING_CHILD;
use protocol::result::RunOutcome;

use crate::failpoint::reach;
use crate::host::AgentHost;
use crate::live::Need;
use crate::session::{RunGraphs, Session, budget};

/// The finish reason of a run whose answer comes from a person.
pub(crate) const WAITING_USER: &str = "waiting_user";
/// The finish reason of a run whose graph waits for a time.
pub(crate) const WAITING: &str = "waiting";
/// The finish reason of a run that reached a limit.
pub(crate) const LIMIT: &str = "limit";
/// The finish reason of an answer.
pub(crate) const STOP: &str = "stop";
/// Actions that a message about a limit lists.
const LISTED: usize = 40;

/// How a run ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) reason: &'static str,
    pub(crate) outcome: Option<RunOutcome>,
}

/// A limit that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Declarations of the run.
    Declarations,
    /// Tokens of the run.
    Tokens,
    /// The time of the run.
    Deadline,
}

impl<H: AgentHost> Session<H> {
    /// Ends with an answer. Graphs that wait for something else stay open.
    pub(crate) async fn answer(&mut self, text: &str, outcome: RunOutcome) -> Ended {
        let text = with_losses(&mut self.lost, text);
        self.driver.graphs.speaker.complete(&text).await;
        reach("answer.sent").await;
        self.transcript.turns.push(Turn::Answer { text });
        self.keep_turns().await;
        self.driver.graphs.close_all().await;
        let waits = self
            .driver
            .graphs
            .lives
            .iter()
            .any(|live| live.need() == Need::Child);
        Ended {
            reason: if waits { WAITING_CHILD } else { STOP },
            outcome: self.driver.rules.delegated.then_some(outcome),
        }
    }

    /// Ends without a further word, or with this one.
    pub(crate) async fn end_silently(&mut self, text: &str, outcome: RunOutcome) -> Ended {
        if !text.trim().is_empty() || !self.lost.is_empty() {
            return self.answer(text, outcome).await;
        }
        self.keep_turns().await;
        self.driver.graphs.close_all().await;
        Ended {
            reason: STOP,
            outcome: self.driver.rules.delegated.then_some(outcome),
        }
    }

    /// Ends because a graph waits: with its note as the message, and what it waits for.
    pub(crate) async fn wait(&mut self) -> Ended {
        let waiting = self.driver.graphs.lives.iter().filter(|live| live.waits());
        let notes: Vec<_> = waiting.map(|live| note_of(&live.graph)).collect();
        let text = with_losses(&mut self.lost, &notes.join("\n\n"));
        self.driver.graphs.speaker.complete(&text).await;
        self.keep_turns().await;
        self.driver.graphs.close_all().await;
        let is = |need| {
            self.driver
                .graphs
                .lives
                .iter()
                .any(|live| live.need() == need)
        };
        let has_child = self
            .driver
            .graphs
            .lives
            .iter()
            .any(|live| !live.is_closed && live.waits_for_child());
        let reason = match (has_child, is(Need::User)) {
            (true, _) => WAITING_CHILD,
            (false, true) => WAITING_USER,
            (false, false) => WAITING,
        };
        Ended {
            reason,
            outcome: self.driver.rules.delegated.then_some(RunOutcome::NeedInput),
        }
    }

    /// Ends at a limit: what is done, what is not, and why.
    pub(crate) async fn end_at(&mut self, limit: Limit) -> Ended {
        let mut text = match limit {
            Limit::Declarations => format!(
                "I stopped: {} declarations were made in this run, which is the limit.",
                self.declarations
            ),
            Limit::Tokens => {
                let most = self
                    .driver
                    .graphs
                    .hands
                    .config
                    .budgets
                    .tokens
                    .unwrap_or_default();
                format!("I stopped: the {most} tokens of this run are used up.")
            }
            Limit::Deadline => "I stopped: the time of this run is over.".to_owned(),
        };
        let open = self
            .driver
            .graphs
            .lives
            .iter()
            .filter(|live| !live.is_closed);
        let nodes: Vec<_> = open.flat_map(|live| live.graph.declared()).collect();
        list(
            &mut text,
            "Done",
            nodes.iter().copied().filter(|node| is_done(node)),
        );
        list(
            &mut text,
            "Not done",
            nodes.iter().copied().filter(|node| !is_done(node)),
        );
        let goes_on = self
            .driver
            .graphs
            .lives
            .iter()
            .any(crate::live::Live::waits)
            || limit == Limit::Deadline
                && self
                    .driver
                    .graphs
                    .lives
                    .iter()
                    .any(|live| live.need() == Need::Moving);
        text.push_str(if goes_on {
            "\n\nThe open steps go on with your next message."
        } else {
            "\n\nTell me how to go on."
        });
        let ended = self.answer(&text, RunOutcome::NotDone).await;
        Ended {
            reason: if ended.reason == WAITING_CHILD {
                WAITING_CHILD
            } else {
                LIMIT
            },
            ..ended
        }
    }

    /// Keeps the turns of this run for later ones.
    pub(crate) async fn keep_turns(&mut self) {
        let own = self.transcript.turns.iter().skip(self.transcript.earlier);
        let own = own
            .filter(|turn| !matches!(turn, Turn::Notice(_)))
            .cloned()
            .collect();
        let now = self.driver.graphs.hands.clock.now();
        match self.driver.graphs.keep.finish(own, now).await {
            Ok(()) | Err(crate::keep::KeepError::Refused(_)) => {}
            Err(error) => tracing::warn!("the turns of this run are not kept: {error}"),
        }
    }
}

impl<H: AgentHost> RunGraphs<H> {
    /// Closes the graphs that nothing waits for any more.
    pub(crate) async fn close_all(&mut self) {
        for place in 0..self.lives.len() {
            if self.lives[place].need() == Need::Model {
                self.close(place).await;
            }
        }
    }

    /// Closes a graph with its record.
    pub(crate) async fn close(&mut self, place: usize) {
        let (tokens_in, tokens_out) = self.hands.usage.tokens();
        let metrics = Metrics {
            model_calls: self.hands.usage.calls(),
            tokens_in,
            tokens_out,
            wall_ms: self.hands.clock.elapsed_ms(),
            ..Metrics::default()
        };
        let budget = budget(self.hands.config.budgets.window);
        let now = self.hands.clock.now();
        let live = &mut self.lives[place];
        live.is_closed = true;
        let runs = self.keep.driven.runs(live.id());
        let diagnostics = live.diagnostics.clone();
        let record = result_record(&live.graph, diagnostics, metrics, runs, budget, now);
        if let Err(error) = self.keep.close(&live.graph, &record).await {
            tracing::warn!(graph = %live.graph.id, "the graph is not closed, the next run closes it: {error}");
        }
    }
}

/// The text after the lines about lost graphs. Each line is sent once.
fn with_losses(lost: &mut Vec<String>, text: &str) -> String {
    let mut lines = std::mem::take(lost);
    lines.push(text.to_owned());
    lines.join("\n\n")
}

/// The note of a graph, or its title and what it waits for.
fn note_of(graph: &Graph) -> String {
    let note = graph.info.note.trim();
    if !note.is_empty() {
        return note.to_owned();
    }
    let waiting = graph
        .declared()
        .filter(|node| matches!(node.state, State::Waiting(_)));
    let titles: Vec<_> = waiting.map(|node| node.action.title.as_str()).collect();
    if titles.is_empty() {
        "I wait.".to_owned()
    } else {
        format!("Waiting: {}", titles.join(", "))
    }
}

fn is_done(node: &Node) -> bool {
    node.state == State::Completed && node.satisfying || node.state == State::Skipped
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

/// Why a step is not done, in words for a person.
fn why_not(node: &Node) -> String {
    let why = match node.state {
        State::Completed if node.satisfying => return String::new(),
        State::Skipped => return " (not needed)".to_owned(),
        State::Completed => "ended without the result that was asked for",
        State::Uncertain => "it is not known whether it happened",
        State::Waiting(_) => "waits",
        State::Running | State::FanOut => "was under way",
        State::Pending => "was not started",
        State::Blocked(_) => "needs a step that did not succeed",
        State::Canceled => "was cancelled",
        State::Failed => {
            let error = node.error.as_ref();
            let message =
                error.map_or("", |error| error.message.lines().next().unwrap_or_default());
            let short: String = message.chars().take(120).collect();
            return format!(": failed, {short}");
        }
    };
    format!(": {why}")
}
