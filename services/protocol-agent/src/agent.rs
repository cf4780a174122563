//! One run from its start to its single terminal result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use action_graph::accept::RepairBudget;
use action_graph::rules::AgentRules;
use action_graph::schedule::GraphEvent;
use action_graph::transcript::TranscriptTurn;
use agent_core::failure::terminal;
use agent_core::usage::UsageLog;
use futures_util::FutureExt as _;
use protocol::context::AgentRunContext;
use protocol::id::RunnerId;
use protocol::manifest::AgentRunnerManifest;
use protocol::message::Message;
use protocol::result::{AgentRunResult, RunOutcome};
use protocol::run::AgentRun;
use runner_kit::{
    CancellationToken, ResultSender, ResultStream, RunHandle, Runner, results, stream,
};
use tokio::time::Instant;

use crate::catalog;
use crate::config::Config;
use crate::ending::{Limit, SessionEnd};
use crate::execute::ExecutorEnv;
use crate::failure::{CONFIG_INVALID, Halt, NO_INPUT, NO_MODEL, RunFailure, timeout};
use crate::history;
use crate::host::GraphAgentHost;
use crate::live::GraphWait;
use crate::manifest::manifest;
use crate::model::ModelChain;
use crate::program;
use crate::records::{GraphRecords, RunIdentity};
use crate::resume::SubmissionEffect;
use crate::run_clock::{RunClock, millis};
use crate::session::{GraphDriver, ProtocolSession, RunGraphs, RunTranscript};
use crate::turn::converse_plainly;
use crate::work::AttemptTasks;
use crate::writer::ResultWriter;

/// Reserve before the deadline for the end of a run.
const MARGIN: Duration = Duration::from_secs(5);
/// Maximum share of the run's time for the margin: one part in ten.
const MARGIN_PART: u32 = 10;
/// Maximum wait for attempts to end after a cancel.
const GRACE: Duration = Duration::from_secs(6);
/// Timeout of the host call that reads the run's cancel status.
const ASK_TIME: Duration = Duration::from_secs(2);
/// Default duration of a run without a deadline of the gateway.
const NO_DEADLINE: Duration = Duration::from_hours(1);

/// The agent. It has no state between runs and supports any number of concurrent runs.
#[derive(Debug)]
pub struct ProtocolAgent {
    id: RunnerId,
}

impl ProtocolAgent {
    /// Agent with this runner id.
    pub fn new(id: RunnerId) -> Self {
        Self { id }
    }

    /// Agent as a [`Runner`] for a router.
    pub fn runner(id: RunnerId) -> Arc<dyn Runner> {
        Arc::new(Self::new(id))
    }
}

impl Runner for ProtocolAgent {
    fn manifest(&self) -> AgentRunnerManifest {
        manifest(self.id.clone())
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        run_on(run.context, run.host, run.cancel)
    }
}

/// Runs the agent on a host. The last result is always the terminal result.
pub(crate) fn run_on(
    context: AgentRunContext,
    host: impl GraphAgentHost,
    cancel: CancellationToken,
) -> ResultStream {
    stream(move |out| async move {
        let usage = UsageLog::default();
        let ended = work(context, host, out.clone(), cancel, usage.clone()).await;
        let terminal = match ended {
            Ok(SessionEnd {
                reason,
                outcome: Some(outcome),
            }) => AgentRunResult {
                usage: usage.total(),
                ..results::run_completed_with_outcome(reason, outcome)
            },
            ended => terminal(ended.map(|end| end.reason), usage.total()),
        };
        out.send(terminal).await;
        Ok(())
    })
}

async fn work(
    context: AgentRunContext,
    host: impl GraphAgentHost,
    out: ResultSender,
    cancel: CancellationToken,
    usage: UsageLog,
) -> Result<SessionEnd, RunFailure> {
    let config = Config::read(&context.config, &context.resources);
    let config = config.map_err(|invalid| RunFailure::new(CONFIG_INVALID, invalid.to_string()))?;
    let is_program = context.event.event_type == program::GRAPH_RUN;
    if is_program && !config.rules.enabled {
        let message = "/protocol-enabled must be true in the agent's config: it runs graphs";
        return Err(RunFailure::new(CONFIG_INVALID, message));
    }
    // Graphs of programs, and answers to their questions, need no model.
    if config.models.is_empty() && !program::needs_no_model(&context) {
        let message = "no model is granted: set `model` of the agent's config to a model that its resource policy grants";
        return Err(RunFailure::new(NO_MODEL, message));
    }
    let clock = RunClock::start();
    let end = end_of(&context, &config, clock);
    let writer = ResultWriter::new(out, &context);
    let is_enabled = config.rules.enabled;
    let mut env = ExecutorEnv {
        host,
        context: Arc::new(context),
        config: Arc::new(config),
        catalog: Arc::default(),
        clock,
        usage,
        end,
    };
    let role = cancel.run_until_cancelled(role(&env)).await;
    let role = match role {
        Some(role) => role.map_err(failure_of)?,
        None => return Err(RunFailure::cancelled()),
    };
    if !is_enabled {
        let ended = converse_plainly(env, role, writer, cancel).boxed().await;
        return ended.map_err(failure_of);
    }
    let catalog = catalog::open(&env.host, &env.context, &env.config).boxed();
    let catalog = match cancel.run_until_cancelled(catalog).await {
        Some(catalog) => catalog.map_err(|error| failure_of(error.into()))?,
        None => return Err(RunFailure::cancelled()),
    };
    env.catalog = Arc::new(catalog);
    run_session(env, role, writer, cancel).boxed().await
}

/// End of work: the earlier of both deadlines, minus a margin for the end of the run itself.
fn end_of(context: &AgentRunContext, config: &Config, clock: RunClock) -> Instant {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since the epoch")]
    let now = clock.now() as f64 / 1_000.0;
    // The clocks of gateway and runner may differ, so the deadline may lie in the past.
    let host = context.runtime.deadline_at.map(|at| (at - now).max(0.0));
    let host = host.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = host.unwrap_or(NO_DEADLINE);
    let time = config.timeout.map_or(time, |own| own.min(time));
    Instant::now() + time.saturating_sub(MARGIN.min(time / MARGIN_PART))
}

/// Role of the agent: the prompt of the entry, otherwise of the configuration.
async fn role(env: &ExecutorEnv<impl GraphAgentHost>) -> Result<Vec<Message>, Halt> {
    if !env.context.context.available_apis.prompt_get {
        return Ok(env.config.prompt.clone());
    }
    let prompt = env.host.prompt().await?;
    Ok(prompt.unwrap_or_else(|| env.config.prompt.clone()))
}

async fn run_session<H: GraphAgentHost>(
    env: ExecutorEnv<H>,
    role: Vec<Message>,
    writer: ResultWriter,
    cancel: CancellationToken,
) -> Result<SessionEnd, RunFailure> {
    let opened = open(env, role, writer, cancel.clone()).boxed();
    let Some(opened) = cancel.run_until_cancelled(opened).await else {
        return Err(RunFailure::cancelled());
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
            // Cancels of child runs need the run's token, which expires with the run.
            session.driver.graphs.work.finish_detached().await;
            Ok(ended)
        }
        Err(halt) => session.halt(halt).boxed().await,
    }
}

/// Loads records and history, and creates the session.
async fn open<H: GraphAgentHost>(
    env: ExecutorEnv<H>,
    prompt: Vec<Message>,
    writer: ResultWriter,
    cancel: CancellationToken,
) -> Result<(ProtocolSession<H>, crate::records::LoadedRecords), Halt> {
    let record = own_record(&env).await?;
    let is_child =
        is_child_event(&env.context) || record.is_some_and(|run| run.parent_run_id.is_some());
    let me = RunIdentity::of(&env.context);
    let now = env.clock.now();
    let (records, mut loaded) = GraphRecords::load(env.host.clone(), me, now).await?;
    let digests = std::mem::take(&mut loaded.digests);
    let turns = history::before(&env.host, &env.context, digests).await?;
    let rules = AgentRules {
        delegated: is_child,
        ..env.config.rules.clone()
    };
    let session = ProtocolSession {
        models: ModelChain::new(env.config.models.clone()),
        goal: env.context.input.text.clone().unwrap_or_default(),
        driver: GraphDriver {
            graphs: RunGraphs {
                env,
                records,
                writer,
                live_graphs: Vec::new(),
                work: AttemptTasks::default(),
                is_closing: false,
            },
            cancel,
            rules,
            extras: Vec::new(),
        },
        prompt,
        transcript: RunTranscript::new(turns),
        declarations: 0,
        repeats: BTreeMap::new(),
        repairs: RepairBudget::default(),
        lost: Vec::new(),
        busy: Vec::new(),
    };
    Ok((session, loaded))
}

/// True if the event starts a child run.
fn is_child_event(context: &AgentRunContext) -> bool {
    context.event.source == "run" && context.event.data.contains_key("parent_run_id")
}

/// Ledger row of this run, with its attempt and its parent. `None` without access.
async fn own_record(env: &ExecutorEnv<impl GraphAgentHost>) -> Result<Option<AgentRun>, Halt> {
    if !env.context.context.available_apis.run_get {
        return Ok(None);
    }
    match env.host.run().await {
        Ok(run) => Ok(Some(run)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn failure_of(halt: Halt) -> RunFailure {
    match halt {
        Halt::Cancelled => RunFailure::cancelled(),
        Halt::Deadline => timeout(),
        Halt::Failed(failure) => failure,
    }
}

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Takes over earlier work, then handles the event: an answer or a request. `Some`: the run ends with it.
    async fn begin(
        &mut self,
        loaded: crate::records::LoadedRecords,
    ) -> Result<Option<SessionEnd>, Halt> {
        // Before the take-over: a command leaves open graphs as they are stored.
        if let Some(ended) = self.command().await? {
            return Ok(Some(ended));
        }
        self.resume(loaded).await?;
        // Results of earlier runs precede the event of this run in the transcript.
        self.driver.observe_ended(&mut self.transcript).await?;
        let context = Arc::clone(&self.driver.graphs.env.context);
        if let Some(answer) = &context.input.interaction {
            return Ok(match self.submitted(answer).await? {
                SubmissionEffect::Woken => None,
                SubmissionEffect::Left => Some(self.answer("Another run still works on this. Your answer is stored and taken up by the next one.", RunOutcome::NotDone).await),
                SubmissionEffect::Stale => Some(self.answer("This question is not open any more.", RunOutcome::NotDone).await),
            });
        }
        if let Some(declaration) = program::declared(&context) {
            let declaration = declaration.map_err(Halt::Failed)?;
            program::begin(self, declaration).await?;
        } else if let Some(turn) = history::of_input(&context.input) {
            self.transcript.push(turn);
        } else if self.driver.graphs.live_graphs.is_empty() {
            let message =
                "the event has no text and no files: bind the agent to events that have an input";
            return Err(Halt::Failed(RunFailure::new(NO_INPUT, message)));
        }
        Ok(None)
    }

    /// Ends a stopped run: cancels its attempts or leaves them to the next run, and stores the last state.
    async fn halt(&mut self, halt: Halt) -> Result<SessionEnd, RunFailure> {
        self.driver.graphs.is_closing = true;
        let ended = match halt {
            Halt::Cancelled if is_cancelled_by_user(&self.driver.graphs.env.host).await => {
                self.driver.stop(false, || GraphEvent::Cancel, GRACE).await;
                if let Err(halt) = self.driver.observe_ended(&mut self.transcript).await {
                    tracing::warn!(?halt, "the next run observes the cancelled graphs");
                }
                self.driver.graphs.store_turns(&self.transcript).await;
                Err(RunFailure::cancelled())
            }
            // The server stops: the next event continues the stored graphs.
            Halt::Cancelled => Err(RunFailure::cancelled()),
            Halt::Deadline => {
                let grace = MARGIN / 2;
                self.driver.stop(true, || GraphEvent::Deadline, grace).await;
                self.driver.graphs.store_turns(&self.transcript).await;
                Ok(self.end_at(Limit::Deadline).await)
            }
            Halt::Failed(failure) => {
                self.driver.graphs.store_turns(&self.transcript).await;
                Err(failure)
            }
        };
        if ended.is_err() {
            self.transcript
                .turns
                .retain(|turn| !matches!(turn, TranscriptTurn::Notice(_)));
        }
        let asides = self.driver.graphs.work.finish_detached();
        if tokio::time::timeout(ASK_TIME, asides).await.is_err() {
            tracing::warn!("cannot cancel all child runs in time, they end at their own deadlines");
        }
        ended
    }
}

impl<H: GraphAgentHost> GraphDriver<H> {
    /// Stops the graphs of the run. `keeps_stored`: stored graphs stay unchanged for the next run.
    async fn stop(&mut self, keeps_stored: bool, event: impl Fn() -> GraphEvent, grace: Duration) {
        for position in 0..self.graphs.live_graphs.len() {
            let live = &self.graphs.live_graphs[position];
            let id = live.id().clone();
            let is_stored = self.graphs.records.driven.holds(&id);
            if live.is_closed {
                continue;
            }
            if keeps_stored && is_stored {
                self.graphs.work.drop_graph(&id);
            } else if !matches!(live.need(), GraphWait::Plan | GraphWait::Nothing) {
                self.graphs.work.push(&id, event());
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

/// Distinguishes a cancel by the gateway from a stop of this server.
async fn is_cancelled_by_user(host: &impl GraphAgentHost) -> bool {
    let response = tokio::time::timeout(ASK_TIME, host.run()).await;
    match response {
        Ok(Ok(run)) => run.cancel_requested_at.is_some() || run.status.is_terminal(),
        // The gateway answers calls of a cancelled run with this error.
        Ok(Err(error)) => error.is_cancelled(),
        Err(_) => false,
    }
}
