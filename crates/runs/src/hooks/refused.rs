//! Refusal of a value by a hook.

use protocol::hook::HookMoment;
use serde::{Deserialize, Serialize};

/// A value that a hook refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRefused {
    pub hook: String,
    pub moment: HookMoment,
    pub cause: HookCause,
}

/// Cause of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookCause {
    /// The hook denied the value, with a reason for the caller.
    Denied(String),
    /// The hook did not answer as documented, and is closed on failure.
    Unavailable,
}

impl HookRefused {
    /// Error code for the caller and for the audit log.
    pub fn code(&self) -> &'static str {
        match self.cause {
            HookCause::Denied(_) => "hook_denied",
            HookCause::Unavailable => "hook_unavailable",
        }
    }

    /// Rule of the audit entry.
    pub fn rule(&self) -> String {
        format!("hook {} on {}", self.hook, self.moment.as_str())
    }
}

impl std::fmt::Display for HookRefused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (hook, moment) = (&self.hook, self.moment.as_str());
        match &self.cause {
            HookCause::Denied(reason) if reason.is_empty() => {
                write!(formatter, "the hook {hook} denied this ({moment})")
            }
            HookCause::Denied(reason) => {
                write!(
                    formatter,
                    "the hook {hook} denied this ({moment}): {reason}"
                )
            }
            HookCause::Unavailable => write!(
                formatter,
                "the hook {hook} does not answer, so this is refused ({moment}); try again later, or have its operator \
                 repair it"
            ),
        }
    }
}

impl std::error::Error for HookRefused {}
