//! Error codes of a harness run (`run.failed`).

use agent_core::RunFailure;
use runner_kit::host::HostError;

use crate::shorten::cut;

/// The command is not installed or not executable.
pub(crate) const COMMAND_NOT_FOUND: &str = "harness.command_not_found";
/// The harness did not answer `initialize` or open its session in time.
pub(crate) const START_TIMEOUT: &str = "harness.start_timeout";
/// The process exited before its session was open, or in the middle of a turn.
pub(crate) const EXITED: &str = "harness.exited";
/// The process sent frames that violate the protocol or exceed the size limit.
pub(crate) const PROTOCOL_ERROR: &str = "harness.protocol_error";
/// The session was lost in the middle of a run.
pub(crate) const SESSION_LOST: &str = "harness.session_lost";
/// The MCP server of the gateway could not be connected.
pub(crate) const MCP_FAILED: &str = "harness.mcp_failed";
/// A turn ended without text, files or a refusal.
pub(crate) const EMPTY_RESPONSE: &str = "harness.empty_response";
/// A budget of the run is used up.
pub(crate) const BUDGET_EXCEEDED: &str = "harness.budget_exceeded";
/// The configured time of the run has passed.
pub(crate) const TIMEOUT: &str = "harness.timeout";
/// The event has neither text nor files.
pub(crate) const EMPTY_INPUT: &str = "harness.empty_input";
/// The agent's configuration cannot be run.
pub(crate) const CONFIG_INVALID: &str = "harness.config_invalid";
/// The workspace cannot be used.
pub(crate) const WORKSPACE_FAILED: &str = "harness.workspace_failed";
/// The model refused or failed, as the harness reports it.
pub(crate) const TURN_FAILED: &str = "harness.turn_failed";

/// Failure by frames that violate the protocol.
pub(crate) fn protocol_error(message: impl Into<String>) -> RunFailure {
    RunFailure::new(PROTOCOL_ERROR, message)
}

/// Appends the line of standard error that names the cause. Codes that name it themselves stay unchanged.
pub(crate) fn with_error_line(mut failure: RunFailure, lines: &[String]) -> RunFailure {
    let is_unclear = [
        EXITED,
        COMMAND_NOT_FOUND,
        START_TIMEOUT,
        PROTOCOL_ERROR,
        EMPTY_RESPONSE,
    ];
    let is_needed = is_unclear.contains(&failure.code);
    if let Some(line) = error_line(lines).filter(|_| is_needed) {
        failure.message.push_str("; from its standard error: ");
        // Clients show the message in a chat; the full output is in the run's log.
        failure.message.push_str(&cut(line, 300));
    }
    failure
}

/// First line that reports an error, otherwise the last line with words.
pub(crate) fn error_line(lines: &[String]) -> Option<&str> {
    let is_error = |line: &&String| {
        let line = line.to_ascii_lowercase();
        let reports = [
            "error",
            "fatal",
            "panicked",
            "cannot",
            "not found",
            "no such file",
            "denied",
        ];
        reports.iter().any(|word| line.contains(word)) && !line.contains("warn")
    };
    let has_words = |line: &&String| line.chars().filter(|char| char.is_alphanumeric()).count() > 2;
    // Stack traces and advice follow the first report.
    let first = lines.iter().find(is_error);
    first
        .or_else(|| lines.iter().rfind(has_words))
        .map(String::as_str)
}

/// Failure of a run by a failed host call.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn of_host(error: HostError) -> RunFailure {
    // The gateway answers calls of an ended run with these errors; report the end, not the call.
    if error.is_cancelled() {
        return RunFailure::cancelled();
    }
    if error.is_deadline_exceeded() {
        return RunFailure::new(TIMEOUT, "the run has reached its deadline").retryable();
    }
    RunFailure {
        retryable: error.retryable,
        ..RunFailure::new(
            "harness.host_call_failed",
            format!("a call of the host API failed: {error}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn names_first_error_line() {
        for (text, line) in [
            (
                "/x/cli.js:3\nimport a from 'b'\n^^^\nSyntaxError: no export 'a'\n    at run (x.js:1)\nNode.js v18.0.0",
                "SyntaxError: no export 'a'",
            ),
            (
                "WARN deprecated, an error later\nError: no key\n{\n  code: 1\n}",
                "Error: no key",
            ),
            (
                "/usr/bin/env: 'node': No such file or directory",
                "/usr/bin/env: 'node': No such file or directory",
            ),
            ("starting\nbye now\n}", "bye now"),
        ] {
            assert_eq!(error_line(&lines(text)), Some(line));
        }
        assert_eq!(error_line(&[]), None);
    }

    #[test]
    fn reported_reasons_need_no_standard_error() {
        let lines = lines("Codex could not find bubblewrap\n}");
        for clear in [RunFailure::new(TURN_FAILED, "400"), RunFailure::cancelled()] {
            let message = clear.message.clone();
            assert_eq!(with_error_line(clear, &lines).message, message);
        }
        let exited = with_error_line(RunFailure::new(EXITED, "it exited"), &lines);
        assert!(exited.message.ends_with("could not find bubblewrap"));
    }
}
