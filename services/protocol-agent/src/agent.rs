//! One run from its start to its one terminal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use action_graph::accept::RepairBudget;
use action_graph::rules::Rules;
use action_graph::schedule::Event;
use action_graph::transcript::Turn;
use futures_util::FutureExt as _;
use protocol::context::AgentRunContext;
use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use protocol::message::Message;
use protocol::result::AgentRunResult;
use protocol::run::AgentRun;
use runner_kit::{CancellationToken, ResultStream, Results, Run, Runner, results, stream};
use tokio::time::Instant;

use crate::catalog;
use crate::clock::{Clock, millis};
use crate::config::Config;
use crate::ending::{Ended, Limit};
use crate::execute::Hands;
use crate::failure::{CONFIG_INVALID, Failure, Halt, NO_INPUT, NO_MODEL};
use crate::history;
use crate::host::AgentHost;
use crate::keep::{Keep, Me};
use crate::live::Need;
use crate::manifest::manifest;
use crate::model::Models;
use crate::resume::Received;
use crate::session::{GraphDriver, RunGraphs, Session, Transcript};
use crate::speaker::Speaker;
use crate::turn::converse_plainly;
use crate::usage::UsageLog;
use crate::work::Work;

/// Time before the deadline that is kept for the end of a run.
const MARGIN: Duration = Duration::from_secs(5);
/// Most part of the time that the margin takes.
const MARGIN_PART: u32 = 10;
/// Longest wait for attempts to end after a cancel.
const GRACE: Duration = Duration::from_secs(6);
/// Longest question about the cancel of this run.
const ASK_TIME: Duration = Duration::from_secs(2);
/// Time of a run whose gateway names no deadline.
const NO_DEADLINE: Duration = Duration::from_hours(1);

/// The agent. It keeps nothing between runs; any number of them go on at once.
#[derive(Debug)]
pub struct ProtocolAgent {
    id: RunnerId,
}

impl ProtocolAgent {
    /// The agent under that id.
    pub fn new(id: RunnerId) -> Self {
        Self { id }
    }

    /// The same, ready to be served.
    pub fn runner(id: RunnerId) -> Arc<dyn Runner> {
        Arc::new(Self::new(id))
    }
}

impl Runner for ProtocolAgent {
    fn manifest(&self) -> AgentRunnerManifest {
        manifest(self.id.clone())
    }

    fn run(&self, run: Run) -> ResultStream {
        run_on(run.context, run.host, run.cancel)
    }
}

/// Runs on that host. The last result is the terminal, whatever happens.
pub(crate) fn run_on(
    context: AgentRunContext,
    host: impl AgentHost,
    cancel: CancellationToken,
) -> ResultStream {
    stream(move |out| async move {
        let usage = UsageLog::default();
        let ended = work(context, host, out.clone(), cancel, usage.clone()).await;
        let terminal = match ended {
            Ok(Ended {
                reason,
                outcome: Some(outcome),
            }) => results::run_completed_with_outcome(reason, outcome),
            Ok(Ended {
                reason,
                outcome: None,
            }) => results::run_completed_because(reason),
            Err(failure) => results::run_failed(failure.code, failure.message, failure.retryable),
        };
        out.send(AgentRunResult {
            usage: usage.total(),
            ..terminal
        })
        .await;
        Ok(())
    })
}

async fn work(
    context: AgentRunContext,
    host: impl AgentHost,
    out: Results,
    cancel: CancellationToken,
    usage: UsageLog,
) -> Result<Ended, Failure> {
    let config = Config::read(&context.config, &context.resources);
    let config = config.map_err(|invalid| Failure::new(CONFIG_INVALID, invalid.to_string()))?;
    if config.models.is_empty() {
        let message = "no model is granted: set `model` of the agent's config to a model that its resource policy grants";
        return Err(Failure::new(NO_MODEL, message));
    }
    let clock = Clock::start();
    let end = end_of(&context, &config, clock);
    let speaker = Speaker::new(out, &context);
    let is_enabled = config.rules.enabled;
    let mut hands = Hands {
        host,
        context: Arc::new(context),
        config: Arc::new(config),
        catalog: Arc::default(),
        clock,
        usage,
        end,
    };
    let role = cancel.run_until_cancelled(role(&hands)).await;
    let role = match role {
        Some(role) => role.map_err(failure_of)?,
        None => return Err(Failure::cancelled()),
    };
    if !is_enabled {
        let ended = converse_plainly(hands, role, speaker, cancel).boxed().await;
        return ended.map_err(failure_of);
    }
    let catalog = catalog::open(&hands.host, &hands.context, &hands.config).boxed();
    let catalog = match cancel.run_until_cancelled(catalog).await {
        Some(catalog) => catalog.map_err(|error| failure_of(error.into()))?,
        None => return Err(Failure::cancelled()),
    };
    hands.catalog = Arc::new(catalog);
    run_session(hands, role, speaker, cancel).boxed().await
}

/// When work must have ended: the earlier of the two deadlines, less a margin for the end itself.
fn end_of(context: &AgentRunContext, config: &Config, clock: Clock) -> Instant {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since the epoch")]
    let now = clock.now() as f64 / 1_000.0;
    let host = context.runtime.deadline_at.map(|at| (at - now).max(0.0));
    let host = host.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = host.unwrap_or(NO_DEADLINE);
    let time = config.timeout.map_or(time, |own| own.min(time));
    Instant::now() + time.saturating_sub(MARGIN.min(time / MARGIN_PART))
}

/// The role of the agent: the prompt of the entry, else that of the configuration.
async fn role(hands: &Hands<impl AgentHost>) -> Result<Vec<Message>, Halt> {
    if !hands.context.context.available_apis.prompt_get {
        return Ok(hands.config.prompt.clone());
    }
    let prompt = hands.host.prompt().await?;
    Ok(prompt.unwrap_or_else(|| hands.config.prompt.clone()))
}

async fn run_session<H: AgentHost>(
    hands: Hands<H>,
    role: Vec<Message>,
    speaker: Speaker,
    cancel: CancellationToken,
) -> Result<Ended, Failure> {
    let opened = open(hands, role, speaker, cancel.clone()).boxed();
    let Some(opened) = cancel.run_until_cancelled(opened).await else {
        return Err(Failure::cancelled());
    };
    let (mut session, loaded) = opened.map_err(failure_of)?;
    let begun = session.begin(loaded).boxed().await;
    let ended = match begun {
        Ok(Some(ended)) => Ok(ended),
        Ok(None) => session.converse().boxed().await,
        Err(halt) => Err(halt),
    };
    match ended {
        Ok(ended) => {
            session.driver.graphs.work.finish_asides().await;
            Ok(ended)
        }
        Err(halt) => session.halt(halt).boxed().await,
    }
}

/// Reads the run's records and history.
async fn open<H: AgentHost>(
    hands: Hands<H>,
    prompt: Vec<Message>,
    speaker: Speaker,
    cancel: CancellationToken,
) -> Result<(Session<H>, crate::keep::Loaded), Halt> {
    let record = own_record(&hands).await?;
    let attempt = record.as_ref().map_or(1, |run| run.dispatch_attempts);
    let attempt = u32::try_from(attempt).unwrap_or(1).max(1);
    let is_child =
        is_child_event(&hands.context) || record.is_some_and(|run| run.parent_run_id.is_some());
    let me = Me::of(&hands.context, attempt);
    let now = hands.clock.now();
    let (keep, mut loaded) = Keep::load(hands.host.clone(), me, now).await?;
    let digests = std::mem::take(&mut loaded.digests);
    let turns = history::before(&hands.host, &hands.context, digests).await?;
    let rules = Rules {
        delegated: is_child,
        ..hands.config.rules.clone()
    };
    let session = Session {
        models: Models::new(hands.config.models.clone()),
        goal: hands.context.input.text.clone().unwrap_or_default(),
        driver: GraphDriver {
            graphs: RunGraphs {
                hands,
                keep,
                speaker,
                lives: Vec::new(),
                work: Work::default(),
                is_closing: false,
            },
            cancel,
            rules,
            extras: Vec::new(),
        },
        prompt,
        transcript: Transcript::new(turns),
        declarations: 0,
        repeats: BTreeMap::new(),
        repairs: RepairBudget::default(),
        lost: Vec::new(),
        busy: Vec::new(),
    };
    Ok((session, loaded))
}

/// Whether the event asks for a child run.
fn is_child_event(context: &AgentRunContext) -> bool {
    context.event.source == "run" && context.event.data.contains_key("parent_run_id")
}

/// The run's row in the ledger: its attempt, and whether another run started it.
async fn own_record(hands: &Hands<impl AgentHost>) -> Result<Option<AgentRun>, Halt> {
    if !hands.context.context.available_apis.run_get {
        return Ok(None);
    }
    match hands.host.run().await {
        Ok(run) => Ok(Some(run)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn failure_of(halt: Halt) -> Failure {
    match halt {
        Halt::Cancelled => Failure::cancelled(),
        Halt::Deadline => Failure::timeout(),
        Halt::Failed(failure) => failure,
    }
}

impl<H: AgentHost> Session<H> {
    /// Takes over earlier work, then the event: an answer of a person, or a request. Gives an end where the event
    /// asks for nothing more.
    async fn begin(&mut self, loaded: crate::keep::Loaded) -> Result<Option<Ended>, Halt> {
        // Open graphs stay as they are stored.
        if let Some(ended) = self.command().await? {
            return Ok(Some(ended));
        }
        self.resume(loaded).await?;
        let context = Arc::clone(&self.driver.graphs.hands.context);
        if let Some(answer) = &context.input.interaction {
            return Ok(match self.submitted(answer).await? {
                Received::Woken => None,
                Received::Left => Some(self.answer_briefly("Another run still works on this. Your answer is stored and taken up by the next one.").await),
                Received::Stale => Some(self.answer_briefly("This question is not open any more.").await),
            });
        }
        if let Some(turn) = history::of_input(&context.input) {
            self.transcript.push(turn);
        } else if self.driver.graphs.lives.is_empty() {
            let message =
                "the event has no text and no files: bind the agent to events that have an input";
            return Err(Halt::Failed(Failure::new(NO_INPUT, message)));
        }
        Ok(None)
    }

    async fn answer_briefly(&mut self, text: &str) -> Ended {
        self.answer(text, protocol::result::RunOutcome::NotDone)
            .await
    }

    /// Ends a run that was stopped: what runs is cancelled or left to the next run, and its last state is stored.
    async fn halt(&mut self, halt: Halt) -> Result<Ended, Failure> {
        self.driver.graphs.is_closing = true;
        let ended = match halt {
            Halt::Cancelled if is_cancelled_by_user(&self.driver.graphs.hands.host).await => {
                self.driver.stop(false, || Event::Cancel, GRACE).await;
                self.keep_turns().await;
                Err(Failure::cancelled())
            }
            // The server stops: graphs that are stored go on with the next event.
            Halt::Cancelled => Err(Failure::cancelled()),
            Halt::Deadline => {
                let grace = MARGIN / 2;
                self.driver.stop(true, || Event::Deadline, grace).await;
                self.keep_turns().await;
                Ok(self.end_at(Limit::Deadline).await)
            }
            Halt::Failed(failure) => {
                self.keep_turns().await;
                Err(failure)
            }
        };
        if ended.is_err() {
            self.transcript
                .turns
                .retain(|turn| !matches!(turn, Turn::Notice(_)));
        }
        let asides = self.driver.graphs.work.finish_asides();
        if tokio::time::timeout(ASK_TIME, asides).await.is_err() {
            tracing::warn!("child runs were not asked to end in time");
        }
        ended
    }
}

impl<H: AgentHost> GraphDriver<H> {
    /// Stops the graphs of the run. `keeps_stored`: those that are stored stay as they are for the next run.
    async fn stop(&mut self, keeps_stored: bool, event: impl Fn() -> Event, grace: Duration) {
        for place in 0..self.graphs.lives.len() {
            let live = &self.graphs.lives[place];
            let id = live.id().clone();
            let is_stored = self.graphs.keep.driven.holds(&id);
            if live.is_closed {
                continue;
            }
            if keeps_stored && is_stored {
                self.graphs.work.drop_graph(&id);
            } else if !matches!(live.need(), Need::Plan | Need::Nothing) {
                let event = event();
                self.graphs.work.events.push_back((id, event));
            }
        }
        let end = Instant::now() + grace;
        tracing::debug!(
            grace_ms = millis(grace),
            "the graphs of the run are stopped"
        );
        if let Err(halt) = self.drive_until(end).await {
            tracing::warn!(?halt, "some attempts did not end in time");
        }
    }
}

/// Whether the gateway cancelled the run, and not the server that stops.
async fn is_cancelled_by_user(host: &impl AgentHost) -> bool {
    let asked = tokio::time::timeout(ASK_TIME, host.run()).await;
    match asked {
        Ok(Ok(run)) => run.cancel_requested_at.is_some() || run.status.is_terminal(),
        Ok(Err(error)) => error.is_cancelled(),
        Err(_) => false,
    }
}
