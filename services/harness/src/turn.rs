//! Types shared by all protocol adapters: prompt, handles of a turn, and stop signal.

use std::path::PathBuf;
use std::time::Duration;

use agent_core::RunFailure;
use runner_kit::CancellationToken;
use tokio::time::Instant;

use crate::failure::{BUDGET_EXCEEDED, TIMEOUT};
use crate::permission::{Decided, PermissionDecider};
use crate::speaker::TurnWriter;
use crate::usage::Spent;

/// Finish reason of a turn whose model refused to answer.
pub(crate) const REFUSED: &str = "content_filter";
/// Finish reason of a turn that reached its limit of model calls, as ACP names it.
pub(crate) const MAX_TURNS: &str = "max_turn_requests";

/// Content of one prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnPrompt {
    pub(crate) text: String,
    pub(crate) files: Vec<PromptFile>,
}

/// File of a prompt. The workspace holds a copy.
#[derive(Clone, Debug)]
pub(crate) struct PromptFile {
    pub(crate) name: String,
    pub(crate) mime_type: String,
    pub(crate) bytes: Vec<u8>,
    /// Path relative to the workspace.
    pub(crate) path: PathBuf,
}

/// Output, permission and stop handles of one turn.
pub(crate) struct TurnStage {
    pub(crate) writer: TurnWriter,
    pub(crate) permissions: PermissionDecider,
    pub(crate) shows_reasoning: bool,
    pub(crate) stop: StopSignal,
}

/// Reasons to stop a run early: cancel, exhausted budget, and timeout.
#[derive(Clone)]
pub(crate) struct StopSignal {
    pub(crate) cancel: CancellationToken,
    /// End of the configured timeout.
    pub(crate) until: Option<Instant>,
    /// Fires when a budget of the run is used up.
    pub(crate) spent: Spent,
    /// Time for a turn to end after the cancel request.
    pub(crate) grace: Duration,
}

impl TurnStage {
    /// Records a refused permission and its reason as a note of the turn.
    pub(crate) fn note_refusal<Request>(&mut self, decided: &Decided<Request>) {
        let Some(reason) = decided.decision.reason() else {
            return;
        };
        let title = crate::shorten::cut(&decided.title, 200);
        self.writer.note(format!(
            "(Permission for “{title}” was not given: {reason}.)"
        ));
    }
}

impl TurnPrompt {
    /// Replaces images by lines with their paths, for a model without image input.
    pub(crate) fn name_images(&mut self) {
        let is_image = |file: &mut PromptFile| file.mime_type.starts_with("image/");
        for file in self.files.extract_if(.., is_image) {
            self.text.push_str(&file.line());
        }
    }
}

impl PromptFile {
    /// Text that names the file and its path for a harness.
    pub(crate) fn line(&self) -> String {
        format!(
            "\n\n[file {} ({}) is at ./{}]",
            self.name,
            self.mime_type,
            self.path.display()
        )
    }
}

impl StopSignal {
    /// Waits for cancel, budget or timeout; returns the failure.
    pub(crate) async fn reached(&self) -> RunFailure {
        let over = async {
            match self.until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.cancel.cancelled() => RunFailure::cancelled(),
            message = self.spent.reached() => RunFailure::new(BUDGET_EXCEEDED, message),
            () = over => RunFailure::new(TIMEOUT, "the run has reached the `timeout` of its agent").retryable(),
        }
    }
}

/// Session that is ready for prompts.
#[derive(Debug)]
pub(crate) struct OpenSession {
    pub(crate) id: String,
    pub(crate) start: SessionStart,
}

impl OpenSession {
    /// The stored session.
    pub(crate) fn resumed(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            start: SessionStart::Resumed,
        }
    }

    /// New session; it replaces the stored one.
    pub(crate) fn created(id: &str, stored: Option<&str>) -> Self {
        Self {
            id: id.to_owned(),
            start: stored.map_or(SessionStart::New, |_| SessionStart::Lost),
        }
    }
}

/// Origin of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStart {
    New,
    Resumed,
    /// The stored session could not be resumed; a new one replaces it.
    Lost,
}

/// Sleeps until `end`; pends without one.
pub(crate) async fn sleep_until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Reason of the stop, or `failure` if the run was not stopping.
pub(crate) fn stopped_or(
    stopping: Option<(RunFailure, Instant)>,
    failure: RunFailure,
) -> RunFailure {
    stopping.map_or(failure, |(failure, _)| failure)
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use futures_util::StreamExt as _;
    use protocol::result::AgentRunResult;
    use runner_kit::ResultSender;

    use super::*;
    use crate::config::PermissionMode;

    /// Handles of a streaming run in this mode.
    pub(crate) fn stage(out: &ResultSender, mode: PermissionMode) -> TurnStage {
        let access = runner_kit::testing::offline_access();
        let request = runner_kit::testing::run_request("plugin:a/b/c", "hi", &access).unwrap();
        let mut context = request.context;
        context.delivery.supports_streaming = true;
        let host = runner_kit::host::HostClient::new().host(access, None, 0);
        let config = crate::preset::testing::config(mode);
        TurnStage {
            writer: TurnWriter::new(out.clone(), &context, &config),
            permissions: PermissionDecider::new(
                &config,
                Path::new("/tmp"),
                &context,
                host,
                out.clone(),
            ),
            shows_reasoning: false,
            stop: StopSignal {
                cancel: CancellationToken::new(),
                until: None,
                spent: Spent::default(),
                grace: Duration::ZERO,
            },
        }
    }

    /// Results that a turn sends.
    pub(crate) async fn results_of<Turn>(
        turn: impl FnOnce(ResultSender) -> Turn + Send + 'static,
    ) -> Vec<AgentRunResult>
    where
        Turn: Future<Output = ()> + Send + 'static,
    {
        let results = runner_kit::stream(move |out| async move {
            turn(out).await;
            Ok(())
        });
        results.map(Result::unwrap).collect().await
    }

    /// Text of all completed messages.
    pub(crate) fn completed(results: &[AgentRunResult]) -> String {
        let messages = results.iter().filter(|it| it.kind == "message.completed");
        let texts = messages.map(|it| it.data["message"]["content"].as_str().unwrap());
        texts.collect()
    }
}
