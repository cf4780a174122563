//! Codex over its app server: JSON-RPC on standard input and output.

mod items;

use std::path::Path;

use agent_core::RunFailure;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::failure::{MCP_FAILED, SESSION_LOST, TURN_FAILED, protocol_error};
use crate::peer::HarnessPeer;
use crate::permission::{Decided, OpenPermissions};
use crate::process::Launch;
use crate::rpc::{RpcError, RpcMessage};
use crate::turn::{OpenSession, StopSignal, TurnPrompt, TurnStage, sleep_until, stopped_or};
use items::TurnItems;

/// Id of an approval request, and the permissions that it requests by name, if any.
type CodexRequest = (Value, Option<Value>);

/// Client of one Codex app server process with one thread.
pub(crate) struct Codex {
    peer: HarnessPeer,
    thread: String,
}

impl Codex {
    pub(crate) fn start(launch: Launch) -> Result<Self, RunFailure> {
        Ok(Self {
            peer: HarnessPeer::start(launch)?,
            thread: String::new(),
        })
    }

    async fn initialize(&mut self, stop: &StopSignal) -> Result<(), RunFailure> {
        let params = json!({
            "clientInfo": {"name": "runnel", "title": "Runnel", "version": env!("CARGO_PKG_VERSION")},
            "capabilities": {"experimentalApi": true},
        });
        let response = self.peer.startup_call("initialize", params, stop).await?;
        response.map_err(|error| error.failure_of("initialize"))?;
        self.peer.outbox.notify("initialized", json!({})).await
    }

    /// Initializes the protocol, then resumes the stored thread or starts a new one.
    pub(crate) async fn open_session(
        &mut self,
        stored: Option<&str>,
        directory: &Path,
        stop: &StopSignal,
    ) -> Result<OpenSession, RunFailure> {
        self.initialize(stop).await?;
        // Codex's own sandbox needs rights that ours takes away; `untrusted` asks for every command that may write.
        let params = json!({"cwd": directory, "approvalPolicy": "untrusted", "sandbox": "danger-full-access"});
        if let Some(id) = stored {
            let mut params = params.clone();
            params["threadId"] = id.into();
            // Past turns would be sent in full and are not needed.
            params["excludeTurns"] = true.into();
            match self
                .peer
                .startup_call("thread/resume", params, stop)
                .await?
            {
                Ok(_) => {
                    id.clone_into(&mut self.thread);
                    return Ok(OpenSession::resumed(id));
                }
                Err(error) => tracing::info!(
                    error.code,
                    "the stored thread is unknown to Codex, a new one is started"
                ),
            }
        }
        let started = self.peer.startup_call("thread/start", params, stop).await?;
        let started = started.map_err(|error| error.failure_of("thread/start"))?;
        let Some(id) = started["thread"]["id"].as_str() else {
            return Err(protocol_error(
                "`thread/start` was answered without a thread",
            ));
        };
        id.clone_into(&mut self.thread);
        Ok(OpenSession::created(id, stored))
    }

    /// Runs one turn: sends the prompt and shows items until `turn/completed`. Returns the finish reason.
    pub(crate) async fn turn(
        &mut self,
        prompt: &TurnPrompt,
        stage: &mut TurnStage,
    ) -> Result<String, RunFailure> {
        let input = items::input(prompt);
        let request_id = self
            .peer
            .request(
                "turn/start",
                json!({"threadId": self.thread, "input": input}),
            )
            .await?;
        let mut items = TurnItems::default();
        let mut turn = Value::Null;
        let mut open = OpenPermissions::<CodexRequest>::new();
        let mut stopping: Option<(RunFailure, Instant)> = None;
        let stop = stage.stop.clone();
        let stopped = stop.reached();
        tokio::pin!(stopped);
        loop {
            let end = stopping.as_ref().map(|(_, end)| *end);
            tokio::select! {
                frame = self.peer.inbox.next() => match frame? {
                    None => return Err(stopped_or(stopping, self.peer.process.ended().await)),
                    Some(RpcMessage::Response { id, result }) if id == request_id => match result {
                        Ok(result) => turn = result["turn"]["id"].clone(),
                        Err(error) => return Err(refused(&error)),
                    },
                    Some(RpcMessage::Response { .. }) => {}
                    Some(RpcMessage::Notification { method, params }) => {
                        if method == "turn/completed" && params["threadId"] == self.thread.as_str() {
                            return match stopping {
                                Some((failure, _)) => Err(failure),
                                None => ended(&params["turn"]),
                            };
                        }
                        check_mcp(&method, &params)?;
                        if params["threadId"] == self.thread.as_str() {
                            items.show(&method, &params, stage).await;
                        }
                    }
                    Some(RpcMessage::Request { id, method, params }) => {
                        match items.permission(&method, &params) {
                            Some(permission) => {
                                let request = (id, items::granted(&method, &params));
                                if let Some(decided) = open.ask(request, permission, &stage.permissions) {
                                    self.answer(&decided, stage).await?;
                                }
                            }
                            None if method == "mcpServer/elicitation/request" => {
                                // The relay decides calls of the run's own server; a second question is redundant.
                                let is_ours = params["serverName"] == "runnel";
                                let action = if is_ours { "accept" } else { "decline" };
                                self.peer.outbox.answer(&id, json!({"action": action, "content": {}})).await?;
                            }
                            None => self.peer.outbox.refuse(&id, &method).await?,
                        }
                    }
                },
                decided = open.decided() => self.answer(&decided, stage).await?,
                failure = &mut stopped, if stopping.is_none() => {
                    stopping = Some((failure, Instant::now() + stop.grace));
                    let params = json!({"threadId": self.thread, "turnId": turn});
                    self.peer.request("turn/interrupt", params).await?;
                    for decided in open.close() {
                        self.answer(&decided, stage).await?;
                    }
                }
                () = sleep_until(end), if end.is_some() => {
                    return Err(stopped_or(stopping, RunFailure::cancelled()));
                }
            }
        }
    }

    async fn answer(
        &self,
        decided: &Decided<CodexRequest>,
        stage: &mut TurnStage,
    ) -> Result<(), RunFailure> {
        stage.note_refusal(decided);
        let (id, requested) = &decided.request;
        let answer = items::answer(requested.as_ref(), decided.decision.is_allowed());
        self.peer.outbox.answer(id, answer).await
    }

    /// See [`HarnessProcess::stop`](crate::process::Process::stop).
    pub(crate) async fn end(self) -> Vec<String> {
        self.peer.process.stop().await
    }
}

fn refused(error: &RpcError) -> RunFailure {
    // The app server has no code for a lost thread; only its message names the thread.
    let code = if error.message.contains("thread") {
        SESSION_LOST
    } else {
        TURN_FAILED
    };
    RunFailure::new(code, format!("the turn was refused: {}", error.message))
}

/// Fails if the MCP server of the run did not connect: the run's tools would be missing silently.
fn check_mcp(method: &str, params: &Value) -> Result<(), RunFailure> {
    let is_status = method == "mcpServer/startupStatus/updated" && params["name"] == "runnel";
    if is_status && params["status"] == "failed" {
        let error = params["error"].as_str().unwrap_or("no reason");
        return Err(RunFailure::new(
            MCP_FAILED,
            format!("Codex could not connect the run's MCP server: {error}"),
        ));
    }
    Ok(())
}

fn ended(turn: &Value) -> Result<String, RunFailure> {
    match turn["status"].as_str() {
        Some("failed") => {
            let error = turn["error"]["message"].as_str().unwrap_or("no reason");
            Err(RunFailure::new(
                TURN_FAILED,
                format!("the turn failed: {}", crate::shorten::cut(error, 2_000)),
            ))
        }
        Some("interrupted") => Err(RunFailure::new(
            TURN_FAILED,
            "Codex interrupted the turn by itself",
        )),
        _ => Ok("stop".to_owned()),
    }
}
