//! Runs and their endings.

use protocol::id::{AgentId, ApiKeyId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::principal::Principal;
use protocol::raw::RawJson;
use protocol::run::RunStatus;
use serde_json::{Value, json};

use crate::authorization::denials::DENIED_CALLS;
use crate::trace::TraceParent;

/// A row of the run ledger. Times are epoch milliseconds.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: RunId,
    pub workspace: WorkspaceId,
    pub event_id: String,
    /// Parent of a child run. `None`: an event started the run.
    pub parent_run_id: Option<RunId>,
    /// The ended run of the same event that this run repeats.
    pub retry_of: Option<RunId>,
    /// Sequence of the result in that run's ledger after which this run begins. `None`: it begins with the event.
    pub retry_from: Option<u64>,
    /// The API key that posted the event, answered the question or requested the retry, if known.
    pub posted_by: Option<ApiKeyId>,
    /// Span of the event, if traces are exported.
    pub trace_parent: Option<TraceParent>,
    pub agent_id: AgentId,
    pub agent_version: i64,
    pub runner_id: RunnerId,
    pub endpoint_id: EndpointId,
    /// Key of the conversation's row.
    pub conversation_key: Option<String>,
    pub status: RunStatus,
    pub status_reason: Option<String>,
    pub attempt: u32,
    pub fencing_token: i64,
    pub last_sequence: u64,
    pub deadline_at: i64,
    pub cancel_requested_at: Option<i64>,
    /// Cause of the cancel request, if known.
    pub cancelled_by: Option<Principal>,
    /// SHA-256 of the authorization snapshot as canonical JSON.
    pub snapshot_sha256: String,
    pub output: Option<RawJson>,
    pub error: Option<RawJson>,
    pub usage: Option<RawJson>,
    pub metadata: RawJson,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
    /// Time at which the retention deleted its events.
    pub pruned_at: Option<i64>,
}

/// Failure by which the gateway ends a run: a code and a message (`docs/protocol.md`, Failures of a run).
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
    /// Becomes `metadata.details` of the event.
    pub details: Value,
    /// True if a new run of the same event may succeed.
    pub retryable: bool,
}

impl Failure {
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Value::Null,
            retryable: code.retryable(),
        }
    }

    /// Creates the ending of a run whose cancel was accepted.
    pub fn cancelled() -> Self {
        Self::new(FailureCode::Cancelled, "the run was cancelled")
    }

    /// Returns the same failure with details.
    #[must_use]
    pub fn with_details(self, details: Value) -> Self {
        Self { details, ..self }
    }

    /// Returns the `data` of the `run.failed` event. `message` and `error` are equal.
    pub fn data(&self) -> Value {
        json!({
            "code": self.code.as_str(), "message": self.message, "error": self.message,
            "retryable": self.retryable,
        })
    }

    /// Returns the `error` of the run: `{code, message, retryable}`.
    pub fn error(&self) -> Value {
        json!({"code": self.code.as_str(), "message": self.message, "retryable": self.retryable})
    }
}

macro_rules! failure_codes {
    ($($variant:ident = $text:literal, retryable $retryable:literal;)+) => {
        /// Codes of `run.failed` that the gateway sets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FailureCode { $($variant),+ }

        impl FailureCode {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the code on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Returns true if a new run of the same event may succeed.
            pub fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable),+ }
            }
        }
    };
}

failure_codes!(
    RunnerUnreachable = "runner.unreachable", retryable true;
    RunnerCircuitOpen = "runner.circuit_open", retryable true;
    RunnerHttpError = "runner.http_error", retryable true;
    RunnerBadContentType = "runner.bad_content_type", retryable false;
    RunnerFirstByteTimeout = "runner.first_byte_timeout", retryable true;
    RunnerIdleTimeout = "runner.idle_timeout", retryable true;
    RunnerStreamTruncated = "runner.stream_truncated", retryable true;
    RunnerProtocolViolation = "runner.protocol_violation", retryable false;
    RunnerOutputLimit = "runner.output_limit", retryable false;
    RunnerNoOutput = "runner.no_output", retryable false;
    RunnerOrphaned = "runner.orphaned", retryable true;
    RunnerLost = "runner.lost", retryable true;
    DeadlineExceeded = "deadline_exceeded", retryable true;
    Cancelled = "cancelled", retryable false;
    HostOrphaned = "host.orphaned", retryable true;
    HostShutdown = "host.shutdown", retryable true;
    HostInternal = "host.internal", retryable true;
);

impl FailureCode {
    /// Returns the status of a run that ends with this code.
    pub fn status(self) -> RunStatus {
        match self {
            Self::DeadlineExceeded => RunStatus::Timeout,
            Self::Cancelled => RunStatus::Cancelled,
            _ => RunStatus::Failed,
        }
    }
}

/// Prefix reserved for future codes of the gateway.
const RESERVED_PREFIX: &str = "host.";

/// Returns true for a code reserved for the gateway. Operators and clients act on these codes, so runners cannot use
/// them.
pub fn is_reserved_code(code: &str) -> bool {
    // Ignores case, white space and non-printing characters, so that no code looks like a reserved one.
    let plain: String = code
        .chars()
        .filter(char::is_ascii_graphic)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    let is_own = |reserved: &FailureCode| {
        let status = reserved.status();
        // A status as a code would contradict the status of the run.
        plain == reserved.as_str() || (status != RunStatus::Failed && plain == status.as_str())
    };
    plain.starts_with(RESERVED_PREFIX)
        || plain == DENIED_CALLS
        || FailureCode::ALL.iter().any(is_own)
}

/// Returns a run's deadline in epoch milliseconds, from the agent's `config.timeout` in seconds. An absent or
/// invalid timeout is 300 seconds. 0 or null selects the maximum.
pub fn deadline(timeout: Option<&Value>, now_ms: i64, max_ms: i64) -> i64 {
    const DEFAULT_SECONDS: f64 = 300.0;
    let seconds = if timeout.is_some_and(Value::is_null) {
        0.0
    } else {
        let seconds = timeout.and_then(Value::as_f64);
        // NaN and negative numbers fail this comparison.
        let seconds = seconds.filter(|seconds| *seconds >= 0.0);
        seconds.unwrap_or(DEFAULT_SECONDS)
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "clamped to the cap right after"
    )]
    let wanted_ms = if seconds > 0.0 {
        (seconds * 1000.0).ceil() as i64
    } else {
        max_ms
    };
    now_ms.saturating_add(wanted_ms.clamp(1, max_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_every_code_of_the_gateway() {
        let own = FailureCode::ALL.iter().map(|code| code.as_str());
        for code in own.chain([
            "timeout",
            "host.budget",
            "runner.denied_calls",
            "Host.Orphaned",
            " cancelled\u{200b}\n",
        ]) {
            assert!(is_reserved_code(code), "{code:?}");
        }
        for code in [
            "runner.error",
            "quota",
            "failed",
            "hosted",
            "my.timeout",
            "",
        ] {
            assert!(!is_reserved_code(code), "{code:?}");
        }
    }

    #[test]
    fn deadlines_are_always_set_and_capped() {
        let max_ms = 86_400_000;
        let check = |timeout: Option<Value>, expected| {
            assert_eq!(
                deadline(timeout.as_ref(), 1_000, max_ms),
                expected,
                "{timeout:?}"
            );
        };
        check(None, 301_000);
        check(Some(json!(1.5)), 2_500);
        check(Some(json!(0)), 1_000 + max_ms);
        check(Some(Value::Null), 1_000 + max_ms);
        check(Some(json!(1e300)), 1_000 + max_ms);
        for none in [json!("5m"), json!(-1), json!({})] {
            check(Some(none), 301_000);
        }
    }
}
