//! Harness process with a JSON-RPC connection.

use std::time::Duration;

use agent_core::RunFailure;
use serde_json::Value;

use crate::failure::START_TIMEOUT;
use crate::process::{HarnessProcess, Launch};
use crate::rpc::{RpcError, RpcMessage, RpcReceiver, RpcSender, open};
use crate::turn::StopSignal;

/// Process, and both directions of its JSON-RPC connection.
pub(crate) struct HarnessPeer {
    pub(crate) process: HarnessProcess,
    pub(crate) outbox: RpcSender,
    pub(crate) inbox: RpcReceiver,
    next_id: u64,
    start_time: Duration,
    /// Message chunks received before the last response.
    dropped: u64,
}

impl HarnessPeer {
    pub(crate) fn start(launch: Launch) -> Result<Self, RunFailure> {
        let start_time = launch.start_time;
        let (process, stdin, stdout) = HarnessProcess::start(launch)?;
        let (outbox, inbox) = open(stdin, stdout);
        Ok(Self {
            process,
            outbox,
            inbox,
            next_id: 0,
            start_time,
            dropped: 0,
        })
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Result<u64, RunFailure> {
        self.next_id += 1;
        self.outbox.request(self.next_id, method, params).await?;
        Ok(self.next_id)
    }

    /// Calls a method during startup, with the start timeout. Drops notifications: a loaded session repeats its past.
    pub(crate) async fn startup_call(
        &mut self,
        method: &str,
        params: Value,
        stop: &StopSignal,
    ) -> Result<Result<Value, RpcError>, RunFailure> {
        let id = self.request(method, params).await?;
        let start_time = self.start_time;
        tokio::select! {
            // Retryable: a slow start, such as of a package runner, may succeed the next time.
            answered = tokio::time::timeout(start_time, self.response(id)) => answered.unwrap_or_else(|_| {
                let seconds = start_time.as_secs();
                Err(RunFailure::new(START_TIMEOUT, format!("the harness has not answered `{method}` in {seconds} s")).retryable())
            }),
            failure = stop.reached() => Err(failure),
        }
    }

    /// Message chunks received during the last startup call. After `session/load`, 0 means an unknown session.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    async fn response(&mut self, id: u64) -> Result<Result<Value, RpcError>, RunFailure> {
        self.dropped = 0;
        loop {
            match self.inbox.next().await? {
                None => return Err(self.process.ended().await),
                Some(RpcMessage::Response {
                    id: answered,
                    result,
                }) if answered == id => return Ok(result),
                // No turn runs, so no permission can be decided.
                Some(RpcMessage::Request { id, method, .. }) => {
                    self.outbox.refuse(&id, &method).await?;
                }
                Some(RpcMessage::Notification { params, .. }) => {
                    let update = params["update"]["sessionUpdate"]
                        .as_str()
                        .unwrap_or_default();
                    self.dropped += u64::from(update.ends_with("message_chunk"));
                }
                Some(RpcMessage::Response { .. }) => {}
            }
        }
    }
}
