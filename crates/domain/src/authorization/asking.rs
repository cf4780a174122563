//! What a run may ask of persons.

use super::{AuthorizationSnapshot, NotGranted};

impl AuthorizationSnapshot {
    /// Whether a question to a person is stored and can be answered.
    pub fn interaction_request(&self) -> Result<(), NotGranted> {
        self.granted("interactions:request")
    }
}
