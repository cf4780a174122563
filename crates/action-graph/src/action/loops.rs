//! Bounded loops of an action: over a list, and until a condition holds.

use serde::{Deserialize, Serialize};

use crate::action::Condition;
use crate::reference::Reference;

/// One run of the action for each item of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForEach {
    /// The list.
    pub items: Reference,
    /// Items at most, 1 to 64.
    pub max: u16,
    /// Failed items that the action survives.
    pub max_failures: u16,
    /// Items before the first one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: u32,
    /// Treatment of more items than `max`.
    #[serde(default, skip_serializing_if = "Rest::is_refused")]
    pub rest: Rest,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature of `skip_serializing_if`"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Treatment of items after the slice of a `for_each`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// The action fails.
    #[default]
    Refuse,
    /// They are left out, and counted.
    Leave,
}

impl Rest {
    /// The name in declarations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Leave => "leave",
        }
    }

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature of `skip_serializing_if`"
    )]
    fn is_refused(&self) -> bool {
        *self == Self::Refuse
    }
}

/// Bounded repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Iterations at most, 1 to 8.
    pub max: u8,
    /// Ends the repetition.
    pub until: Condition,
    /// Pause between iterations, at most a minute.
    pub delay_ms: u32,
}
