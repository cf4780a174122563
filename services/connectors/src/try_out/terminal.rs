//! Results in a form for people.

use std::io::{self, Write};
use std::process::ExitCode;

use connectors::driver::{NewFile, RunHost};
use connectors::machine::HistoryMessage;
use connectors::upstream::failure::ConnectorFailure;
use protocol::JsonObject;
use protocol::interaction::{AwaitedInteraction, InteractionRequest};
use protocol::result::{AgentRunResult, ResultType};
use serde_json::{Value, json};

/// Maximum characters of a value in one line.
const SHOWN: usize = 200;

/// Prints the results of one run to standard output.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    /// The conversation's state, as far as the run changed it.
    state: JsonObject,
    /// The current line holds the text of deltas.
    is_in_text: bool,
    has_printed_text: bool,
    has_failed: bool,
    broken: Option<io::Error>,
}

impl Terminal {
    /// Prints one result.
    pub(crate) fn show(&mut self, result: &AgentRunResult) -> io::Result<()> {
        let mut out = io::stdout().lock();
        self.print(result, &mut out)?;
        out.flush()
    }

    /// The exit code of the process after the end of the run.
    pub(crate) fn end(self) -> anyhow::Result<ExitCode> {
        match self.broken {
            Some(error) => Err(error.into()),
            None if self.has_failed => Ok(ExitCode::FAILURE),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn print(&mut self, result: &AgentRunResult, out: &mut impl Write) -> io::Result<()> {
        let data = json!(result.data);
        let text = |pointer: &str| {
            data.pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let kind = ResultType::parse(&result.kind);
        if kind == Some(ResultType::MessageDelta) {
            return self.print_delta(text("/chunk/content"), text("/chunk/all_content"), out);
        }
        // Deltas print without a line break, so end their line before any other result.
        if std::mem::take(&mut self.is_in_text) {
            writeln!(out)?;
        }
        match kind {
            Some(ResultType::MessageCompleted) => {
                // The deltas printed this text already.
                if !self.has_printed_text {
                    writeln!(out, "{}", text("/message/content"))?;
                }
                match &data["file_ids"] {
                    Value::Array(ids) if !ids.is_empty() => writeln!(out, "[files] {}", json!(ids)),
                    _ => Ok(()),
                }
            }
            Some(ResultType::ToolCallStarted) => {
                writeln!(
                    out,
                    "[tool] {} {}",
                    text("/tool_name"),
                    short(&data["parameters"])
                )
            }
            Some(ResultType::ToolCallCompleted) => {
                let result = if data["error"].is_null() {
                    &data["result"]
                } else {
                    &data["error"]
                };
                writeln!(out, "[tool] {} -> {}", text("/tool_name"), short(result))
            }
            Some(ResultType::ProcessorLog) => {
                writeln!(out, "[{}] {}", text("/level"), text("/text"))
            }
            Some(ResultType::StateUpdated) => {
                self.state
                    .insert(text("/key").to_owned(), data["value"].clone());
                writeln!(out, "[state] {} = {}", text("/key"), short(&data["value"]))
            }
            Some(ResultType::ActionRequested) => {
                writeln!(out, "[question] {}", text("/payload/fallback_text"))
            }
            Some(ResultType::RunCompleted) => self.print_end(result, text("/finish_reason"), out),
            Some(ResultType::RunFailed) => self.print_failure(&data, out),
            _ => writeln!(out, "[{}] {}", result.kind, short(&data)),
        }
    }

    fn print_delta(&mut self, piece: &str, all: &str, out: &mut impl Write) -> io::Result<()> {
        self.is_in_text = true;
        self.has_printed_text = true;
        if piece.is_empty() {
            // A terminal cannot take back printed text, so mark the replacement.
            return write!(out, "\n[replaced]\n{all}");
        }
        write!(out, "{piece}")
    }

    fn print_end(
        &mut self,
        result: &AgentRunResult,
        reason: &str,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if let Some(usage) = &result.usage {
            writeln!(out, "[usage] {}", json!(usage))?;
        }
        writeln!(out, "[completed] {reason}")?;
        self.print_state(out)
    }

    fn print_failure(&mut self, data: &Value, out: &mut impl Write) -> io::Result<()> {
        self.has_failed = true;
        let text = |key: &str| data[key].as_str().unwrap_or_default();
        let again = if data["retryable"] == true {
            " (retryable)"
        } else {
            ""
        };
        writeln!(out, "[failed] {}{again}: {}", text("code"), text("message"))?;
        if let Some(pointer) = data["details"]["pointer"].as_str() {
            writeln!(out, "  key: {pointer}")?;
        }
        let details = data["details"].as_object().into_iter().flatten();
        for (key, value) in details.filter(|(key, _)| *key != "pointer") {
            writeln!(out, "  {key}: {}", short(value))?;
        }
        self.print_state(out)
    }

    /// Prints the argument that continues the conversation.
    fn print_state(&self, out: &mut impl Write) -> io::Result<()> {
        if self.state.is_empty() {
            return Ok(());
        }
        writeln!(out, "to continue: --state '{}'", json!(self.state))
    }
}

fn short(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    text.chars().take(SHOWN).collect()
}

impl RunHost for Terminal {
    async fn tell(&mut self, result: AgentRunResult) {
        // The driver cannot fail on a broken pipe, so report the error at the end.
        if let Err(error) = self.show(&result) {
            self.broken = Some(error);
        }
    }

    async fn history(&mut self, _messages: u32) -> Vec<HistoryMessage> {
        Vec::new()
    }

    /// Always expired: the terminal has no input for answers.
    async fn answer(
        &mut self,
        _question: &InteractionRequest,
    ) -> Result<AwaitedInteraction, ConnectorFailure> {
        Ok(AwaitedInteraction::Expired)
    }

    async fn save(&mut self, file: NewFile) -> Result<String, String> {
        Ok(format!(
            "{} ({}, {} bytes)",
            file.name,
            file.mime_type,
            file.bytes.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(results: &[Value]) -> String {
        let (mut terminal, mut out) = (Terminal::default(), Vec::new());
        for result in results {
            let mut result = result.clone();
            result["run_id"] = json!("r");
            let result: AgentRunResult = serde_json::from_value(result).unwrap();
            terminal.print(&result, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn results_are_printed_for_people() {
        let text = printed(&[
            json!({"type": "message.delta", "data": {"chunk": {"content": "He"}}}),
            json!({"type": "message.delta", "data": {"chunk": {"content": "llo"}}}),
            json!({"type": "tool.call.started", "data": {"tool_name": "find", "parameters": {"q": 1}}}),
            json!({"type": "processor.log", "data": {"level": "warning", "text": "slow"}}),
            json!({"type": "state.updated", "data": {"scope": "conversation", "key": "k", "value": "v"}}),
            json!({"type": "message.completed", "data": {"message": {"content": "Hello"}}}),
            json!({"type": "run.completed", "data": {"finish_reason": "stop"}, "usage": {"total_tokens": 3}}),
        ]);
        assert_eq!(
            text,
            "Hello\n[tool] find {\"q\":1}\n[warning] slow\n[state] k = v\n\
             [usage] {\"total_tokens\":3}\n[completed] stop\nto continue: --state '{\"k\":\"v\"}'\n"
        );
    }

    #[test]
    fn failures_show_their_key() {
        let data = json!({
            "code": "dify.config_invalid", "message": "/api-key is required", "retryable": false,
            "details": {"pointer": "/api-key", "status": 401},
        });
        assert_eq!(
            printed(&[json!({"type": "run.failed", "data": data})]),
            "[failed] dify.config_invalid: /api-key is required\n  key: /api-key\n  status: 401\n"
        );
    }
}
