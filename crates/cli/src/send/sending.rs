//! A message, its run, and the runs that continue after its questions.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value};

use super::LineInput;
use super::message_run::{FirstInterrupt, MessageRun};
use super::questions::delivery;
use crate::gateway::Gateway;
use crate::output::OutputFormat;

/// Maximum time that a message waits for a busy gateway. The client packages have the same.
const PATIENCE: Duration = Duration::from_mins(1);

/// End of the work on a message.
#[derive(Clone, Copy)]
pub(super) enum FollowEnd {
    Ended(ExitCode),
    /// A Ctrl-C ended it; the run may continue.
    Left,
}

/// A message, its run, and the runs that continue after its questions.
pub(super) struct Sending<'a> {
    gateway: &'a Gateway,
    format: OutputFormat,
    /// Answers questions; without it they stay open.
    input: Option<&'a mut LineInput>,
    /// Time that a message waits for a busy gateway.
    patience: Duration,
}

impl<'a> Sending<'a> {
    pub(super) fn new(
        gateway: &'a Gateway,
        format: OutputFormat,
        input: Option<&'a mut LineInput>,
    ) -> Self {
        Self {
            gateway,
            format,
            input,
            patience: PATIENCE,
        }
    }

    /// Fails at once if the gateway is busy.
    pub(super) fn without_wait(self) -> Self {
        Self {
            patience: Duration::ZERO,
            ..self
        }
    }

    /// Posts an event and follows its run. Fails if there is no run. A failed run sets the exit code. The run's id
    /// is stored in `run_id` as soon as the gateway sends it.
    pub(super) async fn post(
        self,
        mut event: Map<String, Value>,
        run_id: &mut Option<String>,
    ) -> anyhow::Result<FollowEnd> {
        if self.input.is_some() {
            // Without the declaration, runners do not ask questions.
            event.entry("delivery").or_insert_with(delivery);
        }
        let mut run = MessageRun::new(self.gateway, self.format, FirstInterrupt::Cancels)?;
        if let Err(stop) = run.post(&Value::Object(event), run_id, self.patience).await {
            return run.stopped(stop);
        }
        self.follow(run).await
    }

    /// Follows a run from its first event.
    pub(super) async fn watch(self, id: &str) -> anyhow::Result<FollowEnd> {
        let mut run = MessageRun::new(self.gateway, self.format, FirstInterrupt::Leaves)?;
        run.id = id.to_owned();
        self.follow(run).await
    }

    async fn follow(mut self, mut run: MessageRun<'a>) -> anyhow::Result<FollowEnd> {
        loop {
            let code = match run.follow(self.input.as_deref_mut()).await {
                Ok(code) => code,
                Err(stop) => return run.stopped(stop),
            };
            let Some(next) = run.next.take() else {
                return Ok(FollowEnd::Ended(code));
            };
            run = MessageRun::new(self.gateway, self.format, run.first_interrupt)?;
            run.id = next;
        }
    }
}
