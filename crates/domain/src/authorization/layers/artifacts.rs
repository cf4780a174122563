//! Artifacts and the operator's files, which are read in the same way.

use protocol::JsonObject;
use protocol::resources::{ArtifactOperation, FileResource};

use super::LayerEvaluation;
use crate::authorization::{Decision, Layer};

/// Rule that opens event files without a grant.
const OF_EVENT: &str = "it came with an event that this agent had in this conversation";

impl LayerEvaluation<'_> {
    /// Returns the readable files of the operator, as the runner sees them.
    pub(in crate::authorization) fn files(&mut self, files: &[FileResource]) -> Vec<JsonObject> {
        let mut granted = Vec::new();
        for file in files {
            let checks = [
                (
                    Layer::Manifest,
                    self.manifest.permissions.files.contains(&file.kind),
                    "",
                ),
                (
                    Layer::AgentPolicy,
                    self.agent.resource_policy.files.names(&file.name),
                    "resource_policy.files does not name it",
                ),
            ];
            if self.decide("files", &file.name, file.kind.as_str(), &checks) {
                granted.push(file.to_json());
            }
        }
        granted
    }

    /// Event files belong to the event, like its input, and need no grant of a layer.
    pub(in crate::authorization) fn event_artifacts(&mut self) {
        // Recorded without a check, so that an audit shows why the file was readable.
        self.decisions.push(Decision {
            kind: "event_artifact".into(),
            id: "event".to_owned(),
            operation: "read".into(),
            granted: true,
            layer: Layer::EventScope,
            rule: OF_EVENT.into(),
        });
    }

    /// Decides `metadata` and `read`. `create` has no flag of its own.
    pub(in crate::authorization) fn artifacts(&mut self) -> (bool, bool) {
        let mut granted = (false, false);
        for &operation in ArtifactOperation::ALL {
            let checks = [
                (
                    Layer::Manifest,
                    self.manifest.permissions.artifacts.contains(&operation),
                    "",
                ),
                (
                    Layer::AgentPolicy,
                    self.agent.resource_policy.artifacts.contains(&operation),
                    "resource_policy.artifacts does not name it",
                ),
            ];
            let decided = self.decide("artifacts", "run", operation.as_str(), &checks);
            match operation {
                ArtifactOperation::Metadata => granted.0 = decided,
                ArtifactOperation::Read => granted.1 = decided,
                // The results of a run create artifacts, so no API call has a flag for it.
                ArtifactOperation::Create => {}
            }
        }
        granted
    }
}
