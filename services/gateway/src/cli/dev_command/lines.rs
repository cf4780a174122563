//! One line for each ended run, and for each change of a runner.

use clock::Clock;
use protocol::run::RunStatus;
use telemetry::time_of_day;

use crate::dev::RunLine;
use cli::output;
use cli::{ACTIONS_FAILED, INCOMPLETE, tail, waits_for};

/// `12:03:11 hello ✓ 1.3 s 358 tok "What is Runnel?"`
pub(super) fn ended(run: &RunLine) -> String {
    format!("{} {}", time_of_day(run.ended_at_ms), summary(run))
}

/// `12:03:11 runner fast …`
pub(super) fn runner(text: &str) -> String {
    let now = Clock::system().now_ms();
    format!("{} runner {text}", time_of_day(now))
}

fn summary(run: &RunLine) -> String {
    let waiting = run.reason.as_deref().and_then(waits_for);
    let is_incomplete = run.reason.as_deref() == Some(ACTIONS_FAILED);
    let mark = match run.status {
        RunStatus::Completed if waiting.is_some() => '…',
        RunStatus::Completed if is_incomplete => '!',
        RunStatus::Completed => '✓',
        RunStatus::Cancelled => '–',
        _ => '✗',
    };
    let mut parts = vec![
        run.agent.clone(),
        mark.to_string(),
        format!("{:.1} s", seconds(run.duration_ms)),
    ];
    if let Some(tokens) = run.tokens {
        parts.push(format!("{tokens} tok"));
    }
    if let Some(waiting) = waiting {
        parts.push(format!("waiting ({waiting})"));
    }
    if run.status == RunStatus::Completed && is_incomplete {
        parts.push(INCOMPLETE.to_owned());
    }
    if run.status == RunStatus::Cancelled {
        parts.push("cancelled".to_owned());
    } else if let Some((code, message)) = &run.failure {
        parts.push(format!(
            "{code}: {message} (endpoint {}, run {})",
            run.endpoint, run.run_id
        ));
    }
    if let Some(parent) = run.parent {
        parts.push(format!("↳ of {}", tail(&parent.to_string())));
    }
    if let Some(text) = &run.text {
        parts.push(format!("\"{text}\""));
    }
    // A runner's message may have several lines.
    output::without_controls(&parts.join(" ").replace(['\n', '\t'], " "))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a duration of years is exact to the second"
)]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::RunId;

    fn run(status: RunStatus) -> RunLine {
        RunLine {
            ended_at_ms: 0,
            agent: "hello".to_owned(),
            status,
            reason: None,
            duration_ms: 1_340,
            tokens: Some(358),
            parent: None,
            text: Some("What is Runnel?".to_owned()),
            failure: None,
            endpoint: "runner".to_owned(),
            run_id: RunId(uuid::Uuid::nil()),
        }
    }

    #[test]
    fn summarises_runs_on_one_line() {
        let completed = run(RunStatus::Completed);
        assert_eq!(
            summary(&completed),
            "hello ✓ 1.3 s 358 tok \"What is Runnel?\""
        );
        let waiting = RunLine {
            reason: Some("waiting_child".to_owned()),
            ..run(RunStatus::Completed)
        };
        assert_eq!(
            summary(&waiting),
            "hello … 1.3 s 358 tok waiting (child) \"What is Runnel?\""
        );
        let incomplete = RunLine {
            reason: Some("actions_failed".to_owned()),
            ..run(RunStatus::Completed)
        };
        assert_eq!(
            summary(&incomplete),
            "hello ! 1.3 s 358 tok actions failed \"What is Runnel?\""
        );
        let child = RunLine {
            parent: Some(RunId(uuid::Uuid::nil())),
            ..run(RunStatus::Completed)
        };
        assert_eq!(
            summary(&child),
            "hello ✓ 1.3 s 358 tok ↳ of 00000000 \"What is Runnel?\""
        );
        let failure = ("boom".to_owned(), "it\nbroke\u{1b}[2J".to_owned());
        let failed = RunLine {
            tokens: None,
            failure: Some(failure.clone()),
            ..run(RunStatus::Failed)
        };
        assert_eq!(
            summary(&failed),
            "hello ✗ 1.3 s boom: it broke[2J (endpoint runner, run 00000000-0000-0000-0000-000000000000) \
             \"What is Runnel?\""
        );
        let cancelled = RunLine {
            text: None,
            failure: Some(failure),
            ..run(RunStatus::Cancelled)
        };
        assert_eq!(summary(&cancelled), "hello – 1.3 s 358 tok cancelled");
    }
}
