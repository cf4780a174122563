//! Claude Code over its own protocol: `claude -p` with JSON lines on standard input and output.

mod events;

use std::ffi::OsStr;

use agent_core::RunFailure;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::config::PermissionMode;
use crate::directory::Directory;
use crate::failure::{MCP_FAILED, TURN_FAILED};
use crate::permission::{Decided, OpenPermissions, PermissionDecision};
use crate::preset::claude_code::{GRANTED, READING};
use crate::process::{HarnessProcess, Launch};
use crate::rpc::{RpcReceiver, RpcSender, open};
use crate::turn::{
    MAX_TURNS, OpenSession, REFUSED, TurnPrompt, TurnStage, sleep_until, stopped_or,
};
use events::TurnEvents;

/// Maximum project folders searched for a session file.
const MAX_PROJECTS: usize = 1_000;

/// Claude Code process. The command line selects its session, so no request opens one.
pub(crate) struct Claude {
    process: HarnessProcess,
    outbox: RpcSender,
    inbox: RpcReceiver,
    interrupts: u64,
}

/// Parameters of the command line.
pub(crate) struct ClaudeStart<'a> {
    pub(crate) launch: Launch,
    pub(crate) model: &'a str,
    pub(crate) mode: PermissionMode,
    pub(crate) mcp_url: String,
    pub(crate) home: &'a Directory,
}

impl Claude {
    /// Starts the process with the stored session if its file still exists, else with a new one.
    pub(crate) fn start(
        mut start: ClaudeStart<'_>,
        stored: Option<&str>,
    ) -> Result<(Self, OpenSession), RunFailure> {
        // `--resume` with an unknown id ends the process; look for the file first.
        let existing = stored.filter(|id| has_session_file(start.home, id));
        let (flag, session) = if let Some(id) = existing {
            ("--resume", OpenSession::resumed(id))
        } else {
            let id = Uuid::new_v4().to_string();
            ("--session-id", OpenSession::created(&id, stored))
        };
        // Claude Code expands the variable itself, so that the arguments, visible in `ps`, hold no secret.
        let mcp = json!({"mcpServers": {"runnel": {
            "type": "http", "url": start.mcp_url, "headers": {"Authorization": "Bearer ${ANTHROPIC_AUTH_TOKEN}"},
        }}});
        let mcp = mcp.to_string();
        let reading = READING.join(",");
        let mut args = vec![
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--verbose",
            "--include-partial-messages",
            "--permission-prompt-tool",
            "stdio",
            "--permission-mode",
            "default",
            "--setting-sources",
            "",
            "--strict-mcp-config",
            "--mcp-config",
            &mcp,
            "--model",
            start.model,
            "--allowedTools",
            GRANTED,
            flag,
            &session.id,
        ];
        // `--tools` removes all others from the model's view; `--allowedTools` would only skip their permission.
        if start.mode == PermissionMode::ReadOnly {
            args.extend(["--tools", &reading]);
        }
        start.launch.args.extend(args.into_iter().map(Into::into));
        let (process, stdin, stdout) = HarnessProcess::start(start.launch)?;
        let (outbox, inbox) = open(stdin, stdout);
        let claude = Self {
            process,
            outbox,
            inbox,
            interrupts: 0,
        };
        Ok((claude, session))
    }

    /// Runs one turn: sends the prompt and shows messages until its result. Returns the finish reason.
    pub(crate) async fn turn(
        &mut self,
        prompt: &TurnPrompt,
        stage: &mut TurnStage,
    ) -> Result<String, RunFailure> {
        let content = crate::claude::events::content(prompt);
        let message = json!({
            "type": "user", "message": {"role": "user", "content": content},
            "parent_tool_use_id": null, "session_id": "default",
        });
        self.outbox.send(&message).await?;
        let mut events = TurnEvents::default();
        let mut open = OpenPermissions::<Value>::new();
        let mut stopping: Option<(RunFailure, Instant)> = None;
        let stop = stage.stop.clone();
        let stopped = stop.reached();
        tokio::pin!(stopped);
        loop {
            let end = stopping.as_ref().map(|(_, end)| *end);
            tokio::select! {
                line = self.inbox.next_line() => {
                    let Some(line) = line? else {
                        return Err(stopped_or(stopping, self.process.ended().await));
                    };
                    // Package runners print greetings to standard output; a bounded number of lines is skipped.
                    let Ok(Value::Object(message)) = serde_json::from_str(&line) else {
                        self.inbox.count_noise(&line)?;
                        continue;
                    };
                    match message.get("type").and_then(Value::as_str).unwrap_or_default() {
                        "control_request" => self.ask(message, stage, &mut open).await?,
                        "result" => {
                            // An interrupted turn has a result, too; the reason of the stop is the outcome.
                            if let Some((failure, _)) = stopping {
                                return Err(failure);
                            }
                            let reason = ended(&message)?;
                            events.finish(&message, stage).await;
                            return Ok(reason);
                        }
                        "system" => {
                            check_mcp(&message)?;
                            if let Some(retry) = events::retry(&Value::Object(message)) {
                                stage.writer.log(retry).await;
                            }
                        }
                        _ => events.show(&Value::Object(message), stage).await,
                    }
                }
                decided = open.decided() => self.answer(&decided, stage).await?,
                failure = &mut stopped, if stopping.is_none() => {
                    stopping = Some((failure, Instant::now() + stop.grace));
                    self.interrupts += 1;
                    let request_id = format!("interrupt-{}", self.interrupts);
                    let request = json!({"subtype": "interrupt"});
                    self.outbox.send(&json!({"type": "control_request", "request_id": request_id, "request": request})).await?;
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

    /// Handles a control request: decides a permission concurrently with the turn, refuses all others.
    async fn ask(
        &self,
        request: Map<String, Value>,
        stage: &mut TurnStage,
        open: &mut OpenPermissions<Value>,
    ) -> Result<(), RunFailure> {
        let request = Value::Object(request);
        // Claude Code waits for a response to each control request, also to unknown ones.
        if request["request"]["subtype"] != "can_use_tool" {
            let response = json!({"subtype": "error", "request_id": request["request_id"], "error": "not supported"});
            return self
                .outbox
                .send(&json!({"type": "control_response", "response": response}))
                .await;
        }
        let permission = events::permission(&request["request"]);
        match open.ask(request, permission, &stage.permissions) {
            Some(decided) => self.answer(&decided, stage).await,
            None => Ok(()),
        }
    }

    async fn answer(
        &self,
        decided: &Decided<Value>,
        stage: &mut TurnStage,
    ) -> Result<(), RunFailure> {
        stage.note_refusal(decided);
        let answer = answer(&decided.request, decided.decision);
        self.outbox.send(&answer).await
    }

    /// See [`HarnessProcess::stop`].
    pub(crate) async fn end(self) -> Vec<String> {
        self.process.stop().await
    }
}

/// Searches the project folders for the file of a session.
fn has_session_file(home: &Directory, id: &str) -> bool {
    // The id comes from conversation state and becomes a file name and an argument.
    if id.parse::<Uuid>().is_err() {
        return false;
    }
    let folder = |of: &Directory, name: &str| of.folder(OsStr::new(name));
    let projects = folder(home, ".claude").and_then(|claude| folder(&claude, "projects"));
    let Ok(projects) = projects else {
        return false;
    };
    let file = format!("{id}.jsonl");
    let names = projects.names(MAX_PROJECTS).unwrap_or_default();
    // Folder names derive from working directories by a rule of Claude Code's that may change.
    let mut folders = names.iter().filter_map(|name| projects.folder(name).ok());
    folders.any(|project| project.read(OsStr::new(&file)).is_ok())
}

/// Fails if the MCP server of the run did not connect: the run's tools would be missing silently.
fn check_mcp(message: &Map<String, Value>) -> Result<(), RunFailure> {
    let servers = message.get("mcp_servers").and_then(Value::as_array);
    let mut servers = servers.into_iter().flatten();
    let ours = servers.find(|server| server["name"] == "runnel");
    match ours.and_then(|server| server["status"].as_str()) {
        Some(status @ ("failed" | "needs-auth")) => Err(RunFailure::new(
            MCP_FAILED,
            format!("Claude Code could not connect the run's MCP server ({status})"),
        )),
        _ => Ok(()),
    }
}

fn answer(request: &Value, decision: PermissionDecision) -> Value {
    let response = match decision.reason() {
        // The protocol requires `updatedInput`; the original input leaves the call unchanged.
        _ if decision.is_allowed() => {
            json!({"behavior": "allow", "updatedInput": request["request"]["input"]})
        }
        reason => {
            let reason = reason.unwrap_or("the run was cancelled");
            json!({"behavior": "deny", "message": format!("The permission was not given: {reason}.")})
        }
    };
    let response =
        json!({"subtype": "success", "request_id": request["request_id"], "response": response});
    json!({"type": "control_response", "response": response})
}

fn ended(result: &Map<String, Value>) -> Result<String, RunFailure> {
    let text = |name: &str| result.get(name).and_then(Value::as_str);
    let kind = text("subtype").unwrap_or_default();
    match kind {
        "error_max_turns" => return Ok(MAX_TURNS.to_owned()),
        "error_max_budget_usd" => return Ok("max_budget".to_owned()),
        _ => {}
    }
    if result.get("is_error") == Some(&Value::Bool(true)) || kind.starts_with("error") {
        let errors = result
            .get("errors")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let errors: Vec<_> = errors.filter_map(Value::as_str).collect();
        let reason = text("result").map_or_else(|| errors.join("; "), str::to_owned);
        // Claude Code reports failed model requests with the subtype `success` and `is_error`.
        let kind = match kind {
            "" | "success" => String::new(),
            kind => format!(" ({kind})"),
        };
        let reason = crate::shorten::cut(&reason, 2_000);
        return Err(RunFailure::new(
            TURN_FAILED,
            format!("the turn failed{kind}: {reason}"),
        ));
    }
    Ok(match text("stop_reason") {
        Some("max_tokens") => "length",
        Some("refusal") => REFUSED,
        _ => "stop",
    }
    .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_reason_reaches_model() {
        let request = json!({"request_id": "r", "request": {"input": {"command": "ls"}}});
        let allowed = answer(&request, PermissionDecision::Allowed);
        assert_eq!(
            allowed["response"]["response"]["updatedInput"]["command"],
            "ls"
        );
        let expired = answer(&request, PermissionDecision::Expired);
        assert_eq!(expired["response"]["response"]["behavior"], "deny");
        assert!(
            expired["response"]["response"]["message"]
                .as_str()
                .unwrap()
                .contains("nobody answered in time")
        );
    }

    #[test]
    fn fails_run_on_mcp_connection_failure() {
        let init = |status: &str| json!({"mcp_servers": [{"name": "runnel", "status": status}]});
        assert!(check_mcp(init("connected").as_object().unwrap()).is_ok());
        let failure = check_mcp(init("failed").as_object().unwrap()).unwrap_err();
        assert_eq!(failure.code, MCP_FAILED);
    }

    #[test]
    fn limits_of_turns_are_no_stop() {
        let of = |result: Value| ended(result.as_object().unwrap());
        for (result, reason) in [
            (json!({"subtype": "success", "is_error": false}), "stop"),
            (
                json!({"subtype": "error_max_turns", "is_error": false}),
                MAX_TURNS,
            ),
            (
                json!({"subtype": "error_max_turns", "is_error": true}),
                MAX_TURNS,
            ),
            (
                json!({"subtype": "error_max_budget_usd", "is_error": false}),
                "max_budget",
            ),
            (
                json!({"subtype": "success", "stop_reason": "max_tokens"}),
                "length",
            ),
        ] {
            assert_eq!(of(result.clone()).unwrap(), reason, "{result}");
        }
        for (result, message) in [
            (
                json!({"subtype": "success", "is_error": true, "result": "API Error: 400"}),
                "the turn failed: API Error: 400",
            ),
            (
                json!({"subtype": "error_during_execution", "is_error": false, "errors": ["it broke"]}),
                "the turn failed (error_during_execution): it broke",
            ),
        ] {
            assert_eq!(of(result).unwrap_err().message, message);
        }
    }
}
