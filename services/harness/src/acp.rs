//! The Agent Client Protocol, version 1, as its client: <https://agentclientprotocol.com>.

mod blocks;
mod tools;

use std::path::Path;

use agent_core::RunFailure;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::failure::{EXITED, MCP_FAILED, SESSION_LOST, TURN_FAILED, protocol_error};
use crate::peer::HarnessPeer;
use crate::permission::{ActionKind, Decided, OpenPermissions, PermissionDecision};
use crate::process::Launch;
use crate::rpc::{METHOD_NOT_FOUND, RpcError, RpcMessage};
use crate::turn::{
    OpenSession, REFUSED, StopSignal, TurnPrompt, TurnStage, sleep_until, stopped_or,
};
use blocks::Accepts;
use tools::AcpToolCalls;

/// Supported protocol version. A harness that answers `initialize` with another one is rejected.
const VERSION: u64 = 1;

/// Client of one harness process over ACP.
pub(crate) struct Acp {
    peer: HarnessPeer,
    agent: Value,
    session: String,
    /// Additional members of `session/new`, `session/resume` and `session/load`.
    extra: Map<String, Value>,
}

/// MCP server of the run: the relay's URL and key. Every session is opened with it.
pub(crate) struct AcpMcpServer {
    pub(crate) url: String,
    pub(crate) key: String,
}

/// The id and parameters of `session/request_permission`.
type PermissionRequest = (Value, Value);

impl Acp {
    /// Starts the process. `session`: additional members of the requests that open a session.
    pub(crate) fn start(launch: Launch, session: Map<String, Value>) -> Result<Self, RunFailure> {
        Ok(Self {
            peer: HarnessPeer::start(launch)?,
            agent: Value::Null,
            session: String::new(),
            extra: session,
        })
    }

    async fn initialize(&mut self, stop: &StopSignal) -> Result<(), RunFailure> {
        // No file system or terminal of the client: the harness uses its own, which the sandbox confines.
        let params = json!({
            "protocolVersion": VERSION,
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
            "clientInfo": {"name": "runnel", "title": "Runnel", "version": env!("CARGO_PKG_VERSION")},
        });
        let response = self.peer.startup_call("initialize", params, stop).await?;
        self.agent = response.map_err(|error| error.failure_of("initialize"))?;
        if self.agent["protocolVersion"].as_u64() != Some(VERSION) {
            let version = &self.agent["protocolVersion"];
            return Err(protocol_error(format!(
                "the harness speaks version {version} of ACP, and version {VERSION} is needed: install a release that has it"
            )));
        }
        Ok(())
    }

    /// Initializes the protocol, then resumes or loads the stored session, or opens a new one.
    pub(crate) async fn open_session(
        &mut self,
        stored: Option<&str>,
        directory: &Path,
        mcp: &AcpMcpServer,
        stop: &StopSignal,
    ) -> Result<OpenSession, RunFailure> {
        self.initialize(stop).await?;
        let params = self.session_params(directory, mcp)?;
        if let Some(id) = stored
            && self.resume(id, &params, stop).await?
        {
            id.clone_into(&mut self.session);
            return Ok(OpenSession::resumed(id));
        }
        let opened = self.peer.startup_call("session/new", params, stop).await?;
        let opened = opened.map_err(|error| {
            // ACP has no error code for a failed MCP connection; the text is the only hint.
            let is_mcp = error.message.to_ascii_lowercase().contains("mcp");
            let failure = error.failure_of("session/new");
            let code = if is_mcp { MCP_FAILED } else { failure.code };
            RunFailure { code, ..failure }
        })?;
        let Some(id) = opened["sessionId"].as_str() else {
            return Err(protocol_error(
                "`session/new` was answered without a sessionId",
            ));
        };
        id.clone_into(&mut self.session);
        Ok(OpenSession::created(id, stored))
    }

    /// Reopens the stored session by `session/resume`, else by `session/load`. `false`: open a new session.
    async fn resume(
        &mut self,
        id: &str,
        params: &Value,
        stop: &StopSignal,
    ) -> Result<bool, RunFailure> {
        let capabilities = self.agent["agentCapabilities"].clone();
        let resumes = !capabilities["sessionCapabilities"]["resume"].is_null();
        let loads = capabilities["loadSession"] == true;
        let mut params = params.clone();
        params["sessionId"] = id.into();
        if resumes {
            match self
                .peer
                .startup_call("session/resume", params.clone(), stop)
                .await?
            {
                Ok(_) => return Ok(true),
                // Qwen Code announces `session/resume` without having it; try `session/load` next.
                Err(error) if error.code == METHOD_NOT_FOUND => {}
                Err(error) => return Ok(lost(&error)),
            }
        }
        if loads {
            return match self.peer.startup_call("session/load", params, stop).await? {
                // Qwen Code loads an unknown session as an empty one; a real session repeats its messages.
                Ok(_) => Ok(self.peer.dropped() > 0),
                Err(error) => Ok(lost(&error)),
            };
        }
        Ok(false)
    }

    fn session_params(&self, directory: &Path, mcp: &AcpMcpServer) -> Result<Value, RunFailure> {
        let Some(directory) = directory.to_str() else {
            return Err(protocol_error("the workspace's path is not UTF-8"));
        };
        if self.agent["agentCapabilities"]["mcpCapabilities"]["http"] != true {
            return Err(RunFailure::new(
                MCP_FAILED,
                "the harness takes no MCP server over HTTP: install a release that has it",
            ));
        }
        let bearer = format!("Bearer {}", mcp.key);
        let server = json!({
            "type": "http", "name": "runnel", "url": mcp.url,
            "headers": [{"name": "Authorization", "value": bearer}],
        });
        let mut params = json!({"cwd": directory, "mcpServers": [server]});
        for (name, value) in &self.extra {
            params[name] = value.clone();
        }
        Ok(params)
    }

    /// Runs one turn: sends the prompt and shows updates until its response. Returns the stop reason.
    pub(crate) async fn turn(
        &mut self,
        prompt: &TurnPrompt,
        stage: &mut TurnStage,
    ) -> Result<String, RunFailure> {
        let blocks = blocks::blocks(prompt, Accepts::read(&self.agent));
        let params = json!({"sessionId": self.session, "prompt": blocks});
        let turn = self.peer.request("session/prompt", params).await?;
        let mut tools = AcpToolCalls::default();
        let mut open = OpenPermissions::<PermissionRequest>::new();
        let stop = stage.stop.clone();
        let mut stopping: Option<(RunFailure, Instant)> = None;
        let stopped = stop.reached();
        tokio::pin!(stopped);
        loop {
            let end = stopping.as_ref().map(|(_, end)| *end);
            tokio::select! {
                frame = self.peer.inbox.next() => match frame? {
                    None => return Err(stopped_or(stopping, self.peer.process.ended().await)),
                    Some(RpcMessage::Response { id, result }) if id == turn => {
                        return match stopping {
                            Some((failure, _)) => Err(failure),
                            None => ended(result),
                        };
                    }
                    Some(RpcMessage::Response { .. }) => {}
                    Some(RpcMessage::Notification { method, params }) => {
                        if method == "session/update" && params["sessionId"] == self.session.as_str() {
                            tools.show(&params["update"], stage).await;
                        }
                    }
                    Some(RpcMessage::Request { id, method, params }) if method == "session/request_permission" => {
                        let permission = tools.permission(&params);
                        if let Some(decided) = open.ask((id, params), permission, &stage.permissions) {
                            self.answer(&decided, stage).await?;
                        }
                    }
                    Some(RpcMessage::Request { id, method, .. }) => self.peer.outbox.refuse(&id, &method).await?,
                },
                decided = open.decided() => self.answer(&decided, stage).await?,
                failure = &mut stopped, if stopping.is_none() => {
                    // Keep reading after the cancel: the turn may still end cleanly within its grace period.
                    stopping = Some((failure, Instant::now() + stop.grace));
                    self.peer.outbox.notify("session/cancel", json!({"sessionId": self.session})).await?;
                    // Some harnesses wait for ever for the answer to a permission of a cancelled turn.
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
        decided: &Decided<PermissionRequest>,
        stage: &mut TurnStage,
    ) -> Result<(), RunFailure> {
        stage.note_refusal(decided);
        let (id, params) = &decided.request;
        let outcome = outcome(params, decided.decision);
        self.peer.outbox.answer(id, outcome).await
    }

    /// See [`HarnessProcess::stop`](crate::process::Process::stop).
    pub(crate) async fn end(self) -> Vec<String> {
        self.peer.process.stop().await
    }
}

/// Logs that the stored session cannot be reopened. Returns `false`: no session is open.
fn lost(error: &RpcError) -> bool {
    tracing::info!(
        error.code,
        "the stored session is unknown to the harness, a new one is opened"
    );
    false
}

/// Response to a permission request: an offered option, or `cancelled`.
fn outcome(params: &Value, decision: PermissionDecision) -> Value {
    let options = params["options"].as_array().map_or(&[][..], Vec::as_slice);
    let of_kind = |kind: &str| options.iter().find(|option| option["kind"] == kind);
    let picked = match decision {
        // Once is enough: the service remembers permissions itself, and can revoke them.
        PermissionDecision::Allowed => of_kind("allow_once").or_else(|| of_kind("allow_always")),
        PermissionDecision::Cancelled => None,
        PermissionDecision::Refused
        | PermissionDecision::Expired
        | PermissionDecision::Unavailable
        | PermissionDecision::TooMany
        | PermissionDecision::TooLong => {
            of_kind("reject_once").or_else(|| of_kind("reject_always"))
        }
    };
    let mut outcome = match picked {
        Some(option) => {
            json!({"outcome": {"outcome": "selected", "optionId": option["optionId"]}})
        }
        None => json!({"outcome": {"outcome": "cancelled"}}),
    };
    if let Some(reason) = decision.reason() {
        outcome["_meta"] = json!({"runnel": {"reason": reason}});
    }
    outcome
}

fn ended(result: Result<Value, RpcError>) -> Result<String, RunFailure> {
    let result = result.map_err(|error| {
        let lost = error
            .message
            .to_ascii_lowercase()
            .contains("session not found");
        let code = if lost { SESSION_LOST } else { TURN_FAILED };
        RunFailure::new(code, format!("the turn failed: {}", error.message))
    })?;
    let reason = match result["stopReason"].as_str() {
        Some("end_turn") | None => "stop",
        Some("max_tokens") => "length",
        Some("refusal") => REFUSED,
        // Cancels of this side return before; here the harness stopped without a request.
        Some("cancelled") => {
            return Err(
                RunFailure::new(EXITED, "the harness cancelled the turn by itself").retryable(),
            );
        }
        Some(other) => other,
    };
    Ok(reason.to_owned())
}

/// Action kind of an ACP tool call; `other` if it names none.
fn kind_of(call: &Value) -> ActionKind {
    ActionKind::of_acp(call["kind"].as_str().unwrap_or("other"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_offered_option() {
        let params = json!({"options": [
            {"optionId": "a", "kind": "allow_always"}, {"optionId": "o", "kind": "allow_once"},
            {"optionId": "r", "kind": "reject_once"},
        ]});
        for (decision, expected) in [
            (
                PermissionDecision::Allowed,
                json!({"outcome": "selected", "optionId": "o"}),
            ),
            (
                PermissionDecision::Refused,
                json!({"outcome": "selected", "optionId": "r"}),
            ),
            (
                PermissionDecision::Expired,
                json!({"outcome": "selected", "optionId": "r"}),
            ),
            (
                PermissionDecision::Cancelled,
                json!({"outcome": "cancelled"}),
            ),
        ] {
            assert_eq!(
                outcome(&params, decision)["outcome"],
                expected,
                "{decision:?}"
            );
        }
        let none = outcome(&json!({}), PermissionDecision::Allowed);
        assert_eq!(none["outcome"]["outcome"], "cancelled");
    }

    #[test]
    fn reads_the_end_of_a_turn() {
        assert_eq!(
            ended(Ok(json!({"stopReason": "max_tokens"}))).unwrap(),
            "length"
        );
        assert_eq!(
            ended(Ok(json!({"stopReason": "cancelled"})))
                .unwrap_err()
                .code,
            EXITED
        );
    }
}
