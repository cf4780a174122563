//! Pauses: an operator holds the dispatch of runs.

use serde::{Deserialize, Serialize};

use crate::id::AgentId;
use crate::principal::Principal;

/// Maximum characters of the reason of a pause or of a job.
pub const REASON_CHARS: usize = 200;
/// Maximum and default of `runs_per_second`.
pub const MAX_RUNS_PER_SECOND: u32 = 1000;
pub const DEFAULT_RUNS_PER_SECOND: u32 = 100;

/// Effect of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// New events are accepted; their runs stay `created`. Live runs go on.
    Hold,
    /// Like `hold`, and host calls of live runs wait.
    Freeze,
    /// Like `hold`, and live runs are cancelled.
    Stop,
    /// The pause ends: held runs are dispatched at a rate. Only in answers.
    Resuming,
}

impl PauseMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Hold, Self::Freeze, Self::Stop, Self::Resuming];

    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Freeze => "freeze",
            Self::Stop => "stop",
            Self::Resuming => "resuming",
        }
    }

    /// Parses the name of a mode.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

/// Runs that a pause holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PauseTarget {
    /// Runs of all workspaces.
    All,
    Workspace,
    Agent,
}

/// Body of the routes that pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// `hold`, `freeze` or `stop`.
    pub mode: PauseMode,
    /// 1 to 200 characters. Shown with the pause; `status_reason` of the runs that `stop` cancels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PauseRequest {
    /// Returns the JSON pointer of the first invalid member and the error message.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.mode == PauseMode::Resuming {
            return Some(("/mode", "must be hold, freeze or stop"));
        }
        reason_fault(self.reason.as_deref())
    }
}

/// Returns the JSON pointer and the error message of a reason that is not valid.
pub fn reason_fault(reason: Option<&str>) -> Option<(&'static str, &'static str)> {
    let is_valid = |reason: &str| {
        let length = reason.chars().count();
        (1..=REASON_CHARS).contains(&length) && !reason.contains(char::is_control)
    };
    let is_wrong = reason.is_some_and(|reason| !is_valid(reason));
    is_wrong.then_some((
        "/reason",
        "must have 1 to 200 characters and no control characters",
    ))
}

/// Body of the routes that end a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumePauseRequest {
    /// Held runs that all replicas together dispatch in a second, 1 to 1000. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_per_second: Option<u32>,
}

impl ResumePauseRequest {
    /// Returns the JSON pointer of the first invalid member and the error message.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let rate = self.runs_per_second?;
        let is_valid = (1..=MAX_RUNS_PER_SECOND).contains(&rate);
        (!is_valid).then_some(("/runs_per_second", "must be 1 to 1000"))
    }
}

/// A pause in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pause {
    pub target: PauseTarget,
    /// Absent for `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Only for `agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub agent_id: Option<AgentId>,
    pub mode: PauseMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only while `resuming`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_per_second: Option<u32>,
    /// The API key that paused.
    pub paused_by: Principal,
    /// Epoch seconds.
    pub paused_at: i64,
    /// Number of held runs in the caller's workspace, at most 10,000. Absent for callers of role owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_runs: Option<u64>,
}

/// Response to `GET /v1/pauses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseList {
    /// All pauses that hold runs of the caller's workspace; for callers of role owner, those of `all` and of
    /// workspaces. At most 1000.
    pub items: Vec<Pause>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_pauses_by_pointer() {
        let fault = |mode, reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            let request = PauseRequest { mode, reason };
            request.fault().map(|(pointer, _)| pointer)
        };
        assert_eq!(fault(PauseMode::Hold, None), None);
        assert_eq!(fault(PauseMode::Stop, Some(&"ä".repeat(200))), None);
        assert_eq!(fault(PauseMode::Resuming, None), Some("/mode"));
        for reason in ["", "a\nb", &"a".repeat(201)] {
            assert_eq!(fault(PauseMode::Freeze, Some(reason)), Some("/reason"));
        }
    }

    #[test]
    fn bounds_rate_of_resume() {
        let fault = |rate| {
            let request = ResumePauseRequest {
                runs_per_second: rate,
            };
            request.fault().is_some()
        };
        for rate in [None, Some(1), Some(1000)] {
            assert!(!fault(rate), "{rate:?}");
        }
        assert!(fault(Some(0)) && fault(Some(1001)));
    }
}
