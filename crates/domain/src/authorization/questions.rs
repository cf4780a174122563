//! Questions of a run to users.

use super::{AuthorizationSnapshot, NotGranted};

impl AuthorizationSnapshot {
    /// Checks that a question is stored and can be answered.
    pub fn interaction_request(&self) -> Result<(), NotGranted> {
        self.granted("interactions:request")
    }

    /// Checks that a person is asked about a tool call with an unknown outcome.
    pub fn unknown_effect_question(&self) -> Result<(), NotGranted> {
        self.granted("interactions:unknown_effect")
    }
}
