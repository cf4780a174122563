//! Ends of following a run before the run ends.

use crate::gateway::Unreachable;

/// Reason to stop following a run early.
pub(super) enum FollowStop {
    Left,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for FollowStop {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Unreachable> for FollowStop {
    fn from(error: Unreachable) -> Self {
        Self::Failed(error.into())
    }
}
