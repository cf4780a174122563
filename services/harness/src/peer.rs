//! A harness process that speaks JSON-RPC.

use std::time::Duration;

use serde_json::Value;

use crate::failure::{HarnessFailure, START_TIMEOUT};
use crate::process::{HarnessProcess, Launch};
use crate::rpc::{RpcError, RpcMessage, RpcReceiver, RpcSender, open};
use crate::turn::StopSignal;

/// The process and both directions.
pub(crate) struct HarnessPeer {
    pub(crate) process: HarnessProcess,
    pub(crate) outbox: RpcSender,
    pub(crate) inbox: RpcReceiver,
    next_id: u64,
    start_time: Duration,
    /// Pieces of messages that came before the last response.
    dropped: u64,
}

impl HarnessPeer {
    /// Starts the process.
    pub(crate) fn start(launch: Launch) -> Result<Self, HarnessFailure> {
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

    /// Sends a request. Its id.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<u64, HarnessFailure> {
        self.next_id += 1;
        self.outbox.request(self.next_id, method, params).await?;
        Ok(self.next_id)
    }

    /// Calls a method of the start, and drops all notifications meanwhile: those of a loaded session repeat the past.
    pub(crate) async fn starting(
        &mut self,
        method: &str,
        params: Value,
        stop: &StopSignal,
    ) -> Result<Result<Value, RpcError>, HarnessFailure> {
        let id = self.request(method, params).await?;
        let start_time = self.start_time;
        tokio::select! {
            answered = tokio::time::timeout(start_time, self.response(id)) => answered.unwrap_or_else(|_| {
                let seconds = start_time.as_secs();
                Err(HarnessFailure::new(START_TIMEOUT, format!("the harness has not answered `{method}` in {seconds} s")).retryable())
            }),
            failure = stop.reached() => Err(failure),
        }
    }

    /// How many pieces of messages came before the last response: none where a session was loaded that has no past.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    async fn response(&mut self, id: u64) -> Result<Result<Value, RpcError>, HarnessFailure> {
        self.dropped = 0;
        loop {
            match self.inbox.next().await? {
                None => return Err(self.process.ended().await),
                Some(RpcMessage::Response {
                    id: answered,
                    result,
                }) if answered == id => return Ok(result),
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
