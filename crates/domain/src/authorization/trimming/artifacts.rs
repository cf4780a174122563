//! Artifacts, and the operator's files that are read like them.

use protocol::JsonObject;
use protocol::resources::{ArtifactOperation, FileResource};

use super::Trimming;
use crate::authorization::{Decision, Layer};

/// Why files of events are open without a grant.
const OF_EVENT: &str = "it came with an event that this agent had in this conversation";

impl Trimming<'_> {
    /// The operator's files that may be read, as the runner sees them.
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

    /// Files that come with events belong to the events, like their input: no layer has to name them.
    pub(in crate::authorization) fn event_artifacts(&mut self) {
        self.decisions.push(Decision {
            kind: "event_artifact".into(),
            id: "event".to_owned(),
            operation: "read".into(),
            granted: true,
            layer: Layer::EventScope,
            rule: OF_EVENT.into(),
        });
    }

    /// Which are granted: metadata, read. Creating needs no flag of its own.
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
                ArtifactOperation::Create => {}
            }
        }
        granted
    }
}
