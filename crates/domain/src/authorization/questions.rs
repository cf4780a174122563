//! Questions of a run to users.

use super::{AuthorizationSnapshot, NotGranted};

impl AuthorizationSnapshot {
    /// Checks that a question is stored and can be answered.
    pub fn interaction_request(&self) -> Result<(), NotGranted> {
        self.granted("interactions:request")
    }
}
