//! One run of a harness: workspace, session, prompts, results, and one terminal result.

use std::time::{Duration, SystemTime};

use agent_core::RunFailure;
use agent_core::failure::terminal;
use protocol::context::AgentRunContext;
use protocol::host_api::SteeringMode;
use runner_kit::host::{Blob, Host};
use runner_kit::{ResultSender, RunError, RunHandle};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::{HarnessSession, Opening};
use crate::config::Config;
use crate::failure::{
    EMPTY_INPUT, EMPTY_RESPONSE, MCP_FAILED, TURN_FAILED, WORKSPACE_FAILED, with_error_line,
};
use crate::files::{self, AnswerFiles, Outgoing};
use crate::input;
use crate::launch::{self, PreparedLaunch};
use crate::permission::PermissionDecider;
use crate::relay::RelayKey;
use crate::relay::model_faults::ModelFaults;
use crate::relay::tool_gate::ToolGate;
use crate::service::Harness;
use crate::shorten::cut;
use crate::speaker::TurnWriter;
use crate::supervisor::GRACE;
use crate::turn::{
    MAX_TURNS, OpenSession, REFUSED, SessionStart, StopSignal, TurnPrompt, TurnStage,
};
use crate::usage::Usage;
use crate::workspace::RunWorkspace;
use clock::Clock;

/// Keys of conversation state.
const SESSION_ID: &str = "external.session_id";
const SESSION_RUNNER: &str = "external.session_runner";
const DIRECTORY: &str = "external.working_directory";
/// Maximum steering messages that become turns of one run.
const MAX_FOLLOW_UPS: usize = 256;

/// State of one run after its preparation.
struct HarnessRun {
    context: AgentRunContext,
    host: Host,
    config: Config,
    workspace: RunWorkspace,
    stage: TurnStage,
    harness: Harness,
    usage: Usage,
    faults: ModelFaults,
}

/// Runs a harness for one event.
pub(crate) async fn run(
    run: RunHandle,
    out: ResultSender,
    harness: Harness,
) -> Result<(), RunError> {
    let service = &harness.service;
    let config = Config::read(
        &run.context.config,
        &run.context.resources,
        &service.settings,
    )?;
    let workspaces = service.workspaces.clone();
    let (conversation, named) = (conversation_of(&run.context), config.directory.clone());
    // Blocking: the change of a large workspace's owner takes seconds.
    let workspace =
        tokio::task::spawn_blocking(move || workspaces.open(&conversation, named.as_deref()));
    let workspace = workspace.await.map_err(|error| unusable(error.into()))??;
    files::make_folders(&workspace.directory).map_err(unusable)?;
    let renamed_settings = match config.directory {
        // In a directory of the operator, settings are the operator's own.
        Some(_) => Vec::new(),
        None => files::rename_settings(&workspace.directory).map_err(unusable)?,
    };
    let permissions = PermissionDecider::new(
        &config,
        &workspace.path,
        &run.context,
        run.host.clone(),
        out.clone(),
    );
    let faults = ModelFaults::new(out.clone());
    let gate = ToolGate::new(permissions.clone(), &run.context.resources, out.clone());
    let opened = service.relay.open(run.host.clone(), faults.clone(), gate);
    let prepared = launch::prepare(&harness, &config, &workspace, &opened)?;
    let stop = StopSignal {
        cancel: run.cancel.clone(),
        // Stop before the gateway's deadline, which would end the turn abruptly.
        until: config
            .timeout
            .map(|timeout| Instant::now() + timeout - ending_time(timeout)),
        spent: opened.spent().clone(),
        grace: config
            .timeout
            .map_or(GRACE, |timeout| ending_time(timeout) / 2),
    };
    let writer = TurnWriter::new(out.clone(), &run.context, &config);
    for name in renamed_settings {
        let renamed = format!("{name} in the workspace was renamed: settings there are not read");
        writer.log(renamed).await;
    }
    let stage = TurnStage {
        writer,
        permissions,
        shows_reasoning: config.shows_reasoning,
        stop,
    };
    let work = HarnessRun {
        context: run.context,
        host: run.host,
        config,
        workspace,
        stage,
        harness,
        usage: opened.usage().clone(),
        faults,
    };
    let ended = work.work(prepared, &opened).await;
    out.send(terminal(ended, opened.usage().total())).await;
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unusable(error: std::io::Error) -> RunFailure {
    RunFailure::new(
        WORKSPACE_FAILED,
        format!("the workspace cannot be used: {error}"),
    )
}

/// Runs blocking file operations outside the async worker threads.
async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Share of the timeout for a clean end of the turn. The gateway's deadline is the same `timeout`.
fn ending_time(timeout: Duration) -> Duration {
    (timeout / 5).min(GRACE * 2)
}

/// Key of the conversation, shared by all agents of its workspace; without a conversation, a key of the run.
fn conversation_of(context: &AgentRunContext) -> String {
    let conversation = context.conversation.as_ref();
    let id = conversation.and_then(|conversation| {
        let workspace = conversation.workspace_id.as_deref().unwrap_or_default();
        let thread = conversation.thread_id.as_deref().unwrap_or_default();
        let id = conversation.conversation_id.as_deref()?;
        // NUL as separator: different triples must not form the same key.
        Some(format!("{workspace}\0{id}\0{thread}"))
    });
    id.unwrap_or_else(|| format!("\0run\0{}", context.run_id))
}

impl HarnessRun {
    /// Starts the harness, runs all turns, and ends it. Returns the finish reason of the last turn.
    async fn work(
        mut self,
        prepared: PreparedLaunch,
        opened: &RelayKey,
    ) -> Result<String, RunFailure> {
        let stored = self.stored_session();
        let opening = Opening {
            settings: &self.harness.settings,
            config: &self.config,
            workspace: &self.workspace,
            access: opened,
            stored: stored.as_deref(),
            stop: &self.stage.stop,
        };
        let (mut agent, session) = HarnessSession::open(prepared, opening).await?;
        let ended = self.converse(&mut agent, session).await;
        let lines = agent.end().await;
        match ended {
            // A cancel needs no explanation from standard error.
            Err(failure) if !failure.is_cancelled() => {
                if !lines.is_empty() {
                    let text = cut(&lines.join("\n"), 16_000);
                    self.stage.writer.log(text).await;
                }
                Err(with_error_line(failure, &lines))
            }
            ended => ended,
        }
    }

    async fn converse(
        &mut self,
        agent: &mut HarnessSession,
        session: OpenSession,
    ) -> Result<String, RunFailure> {
        // Before the first turn: the next run resumes the session even if this one fails.
        self.remember(&session.id).await;
        let mut prompt = self.prompt(&self.context.input.clone()).await?;
        if input::is_empty(&prompt) {
            return Err(RunFailure::new(
                EMPTY_INPUT,
                "the event has neither text nor files",
            ));
        }
        self.introduce(&mut prompt, session.start).await?;
        let mut reason = self.turn(agent, &prompt).await?;
        let mut follow_ups = 0;
        while follow_ups < MAX_FOLLOW_UPS {
            let waiting = self.pull().await;
            if waiting.is_empty() {
                break;
            }
            for input in waiting {
                follow_ups += 1;
                let prompt = self.prompt(&input).await?;
                if !input::is_empty(&prompt) {
                    reason = self.turn(agent, &prompt).await?;
                }
            }
        }
        Ok(reason)
    }

    /// Stored session of the conversation, if it belongs to this runner.
    fn stored_session(&self) -> Option<String> {
        let state = &self.context.state.conversation;
        let text = |key: &str| state.get(key).and_then(Value::as_str);
        let is_ours = text(SESSION_RUNNER) == Some(self.harness.id().to_string().as_str());
        let stored = text(SESSION_ID).filter(|_| is_ours && self.config.reuses_session);
        stored.map(str::to_owned)
    }

    /// Stores session, runner and directory in the conversation's state, for the next run.
    async fn remember(&self, session: &str) {
        let state = &self.context.state.conversation;
        let directory = self.workspace.path.to_string_lossy();
        for (key, value) in [
            (SESSION_ID, session),
            (SESSION_RUNNER, &self.harness.id().to_string()),
            (DIRECTORY, &directory),
        ] {
            // Unchanged values would only add events.
            if state.get(key).and_then(Value::as_str) != Some(value) {
                self.stage.writer.remember(key, json!(value)).await;
            }
        }
    }

    /// Prepends introduction and history to the first prompt of a new session.
    async fn introduce(
        &mut self,
        prompt: &mut TurnPrompt,
        start: SessionStart,
    ) -> Result<(), RunFailure> {
        if start == SessionStart::Resumed {
            return Ok(());
        }
        let mut before = input::preamble(&self.context, &self.config, &self.workspace.path);
        if start == SessionStart::Lost {
            let history = input::history(&self.context, &self.host).await?;
            if !history.is_empty() {
                before.push_str("\n\n");
                before.push_str(&history);
            }
            let lost = "the earlier session of this conversation could not be resumed; a new one was opened";
            self.stage.writer.log(lost).await;
        }
        prompt.text = format!("{before}\n\nThe user writes:\n{}", prompt.text);
        Ok(())
    }

    async fn prompt(
        &self,
        input: &protocol::context::AgentInput,
    ) -> Result<TurnPrompt, RunFailure> {
        let mut prompt = input::prompt(input, &self.host, &self.workspace.directory).await?;
        if !self.config.accepts_images(&self.config.model) {
            prompt.name_images();
        }
        Ok(prompt)
    }

    async fn turn(
        &mut self,
        agent: &mut HarnessSession,
        prompt: &TurnPrompt,
    ) -> Result<String, RunFailure> {
        // Wall clock: outbox files are selected by their modification time.
        let began = Clock::system().now();
        self.faults.begin_turn();
        let reason = agent.turn(prompt, &mut self.stage).await?;
        if let Some(failure) = self.faults.explain(self.stage.writer.text()) {
            return Err(RunFailure::new(TURN_FAILED, failure));
        }
        // Harnesses ignore an unreachable MCP server silently.
        if !self.context.resources.tools.is_empty() && !self.usage.has_tools() {
            return Err(RunFailure::new(
                MCP_FAILED,
                "the harness has not connected the run's MCP server, and worked without its tools",
            ));
        }
        let files = self.deliver(began).await;
        if !self.stage.writer.has_answered() {
            match reason.as_str() {
                REFUSED => self
                    .stage
                    .writer
                    .note("(The model refused to answer.)".to_owned()),
                MAX_TURNS => self
                    .stage
                    .writer
                    .note("(The agent reached its limit of turns.)".to_owned()),
                _ => {}
            }
        }
        if !self.stage.writer.complete(files).await {
            let message = "the harness ended its turn without an answer";
            return Err(RunFailure::new(EMPTY_RESPONSE, message));
        }
        Ok(reason)
    }

    /// Uploads new files of the outbox sequentially and returns their ids. The answer names undelivered files.
    async fn deliver(&mut self, began: SystemTime) -> Vec<String> {
        let directory = self.workspace.directory.clone();
        let found = in_thread(move || files::outgoing(&directory, began)).await;
        let mut found = found.unwrap_or_else(|error| {
            let mut nothing = AnswerFiles::default();
            nothing.record_undelivered("./outbox", &format!("it cannot be read ({error})"));
            nothing
        });
        let mut ids = Vec::new();
        for file in std::mem::take(&mut found.files) {
            let name = file.name.clone();
            match self.upload(file).await {
                Ok(id) => ids.push(id),
                Err(reason) => found.record_undelivered(&name, &reason),
            }
        }
        if let Some(note) = found.note() {
            tracing::info!(
                run.id = self.context.run_id,
                "some files of an answer are not delivered, it names them"
            );
            self.stage.writer.new_paragraph();
            self.stage.writer.append(&note).await;
        }
        ids
    }

    /// Uploads a file and returns its id. The error is a reason for the answer's text.
    async fn upload(&self, file: Outgoing) -> Result<String, String> {
        let name = file.name.clone();
        let bytes = in_thread(move || file.bytes()).await;
        let bytes = bytes.map_err(|error| match error.kind() {
            std::io::ErrorKind::FileTooLarge => files::too_large(),
            _ => format!("it cannot be read ({error})"),
        })?;
        let blob = Blob {
            // Untrusted content: a neutral type keeps browsers from executing it.
            content_type: "application/octet-stream".to_owned(),
            bytes,
        };
        let artifact = self.host.artifacts().create(&name, blob).await;
        let artifact =
            artifact.map_err(|error| format!("the gateway refused it ({})", error.code))?;
        Ok(artifact.artifact_id)
    }

    /// Pulls steering messages that arrived during the run. An error ends the steering, not the run.
    async fn pull(&self) -> Vec<protocol::context::AgentInput> {
        if !self.context.context.available_apis.steering_pull {
            return Vec::new();
        }
        match self.host.pull_steering(SteeringMode::All, None).await {
            Ok(items) => items.into_iter().map(|item| item.input).collect(),
            Err(error) => {
                tracing::warn!(
                    run.id = self.context.run_id,
                    code = error.code,
                    "cannot pull steering messages, the run ends with its current turn"
                );
                Vec::new()
            }
        }
    }
}
