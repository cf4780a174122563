//! The objects that each administrative work may change.

use std::sync::Arc;

use protocol::change::ObjectKind;
use protocol::id::WorkspaceId;

use super::{Administered, ChangedObjects, INSTALLATION, WhichObjects};
use crate::agent_skills::{RegisterSkill, WithdrawSkill};
use crate::agents::SaveAgent;
use crate::api_keys::{ApiKeyRecord, RevokeApiKey};
use crate::approvals::{CreateApproval, RevokeApproval};
use crate::endpoints::SaveEndpoint;
use crate::knowledge::{BaseKey, DeleteDocument, FinishIndexing};
use crate::pauses::{PauseScope, ResumePause, SetPause};
use crate::schedules::SaveSchedule;
use crate::sources::SaveSource;
use crate::usage::{ResetBudget, SetBudget};
use crate::webhooks::SaveWebhook;
use crate::workspaces::CreateWorkspace;

impl ChangedObjects {
    fn by_key(kind: ObjectKind, workspace: &WorkspaceId, key: &[&str]) -> Self {
        Self {
            kind,
            workspace: workspace.to_string(),
            which: WhichObjects::Key(key.iter().map(|&value| value.to_owned()).collect()),
        }
    }

    fn by_id(kind: ObjectKind, workspace: &WorkspaceId, id: &impl ToString) -> Vec<Self> {
        vec![Self::by_key(kind, workspace, &[&id.to_string()])]
    }

    fn by_name(kind: ObjectKind, workspace: &WorkspaceId, name: &str) -> Vec<Self> {
        vec![Self {
            kind,
            workspace: workspace.to_string(),
            which: WhichObjects::Name(name.to_owned()),
        }]
    }

    fn configured_except(kind: ObjectKind, workspace: &WorkspaceId, names: &[String]) -> Vec<Self> {
        vec![Self {
            kind,
            workspace: workspace.to_string(),
            which: WhichObjects::ConfiguredExcept(names.to_vec()),
        }]
    }

    fn of_pause(scope: &PauseScope) -> Vec<Self> {
        let workspace = scope.workspace().map_or(INSTALLATION, WorkspaceId::as_str);
        vec![Self {
            kind: ObjectKind::Pause,
            workspace: workspace.to_owned(),
            which: WhichObjects::Key(vec![scope.key()]),
        }]
    }

    fn of_document(base: &BaseKey, document_id: &str) -> Vec<Self> {
        let key = [base.kb_id.as_str(), document_id];
        vec![Self::by_key(ObjectKind::Document, &base.workspace, &key)]
    }
}

/// Shares work across retries without a copy.
impl<W: Administered> Administered for Arc<W> {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        W::changed_objects(self)
    }
}

impl Administered for SaveAgent {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let kind = ObjectKind::Agent;
        match self {
            Self::Create { id, workspace, .. }
            | Self::Update { id, workspace, .. }
            | Self::Delete { id, workspace, .. } => ChangedObjects::by_id(kind, workspace, id),
            Self::Configure {
                workspace, spec, ..
            } => ChangedObjects::by_name(kind, workspace, &spec.name),
            Self::DisableUnnamed {
                workspace, names, ..
            } => ChangedObjects::configured_except(kind, workspace, names),
        }
    }
}

impl Administered for SaveEndpoint {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let kind = ObjectKind::RunnerEndpoint;
        match self {
            Self::Create(record) => ChangedObjects::by_id(kind, &record.workspace, &record.id),
            Self::Configure(record) => {
                ChangedObjects::by_name(kind, &record.workspace, &record.name)
            }
            Self::Delete { id, workspace } => ChangedObjects::by_id(kind, workspace, id),
            Self::DisableUnnamed { workspace, names } => {
                ChangedObjects::configured_except(kind, workspace, names)
            }
        }
    }
}

impl Administered for SaveWebhook {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let kind = ObjectKind::Webhook;
        match self {
            Self::Create(record) | Self::Update { record, .. } => {
                ChangedObjects::by_id(kind, &record.workspace, &record.id)
            }
            Self::Configure(record) => {
                ChangedObjects::by_name(kind, &record.workspace, &record.name)
            }
            Self::Rotate { id, workspace, .. } | Self::Delete { id, workspace, .. } => {
                ChangedObjects::by_id(kind, workspace, id)
            }
            Self::DisableUnnamed {
                workspace, names, ..
            } => ChangedObjects::configured_except(kind, workspace, names),
        }
    }
}

impl Administered for SaveSource {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let kind = ObjectKind::Source;
        match self {
            Self::Create(record) => ChangedObjects::by_id(kind, &record.workspace, &record.id),
            Self::Configure(record) => {
                ChangedObjects::by_name(kind, &record.workspace, &record.name)
            }
            Self::Rotate { id, workspace, .. } | Self::Delete { id, workspace, .. } => {
                ChangedObjects::by_id(kind, workspace, id)
            }
            Self::DisableUnnamed {
                workspace, names, ..
            } => ChangedObjects::configured_except(kind, workspace, names),
        }
    }
}

impl Administered for SaveSchedule {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let kind = ObjectKind::Schedule;
        match self {
            Self::Create(record) | Self::Update { record, .. } => {
                ChangedObjects::by_id(kind, &record.workspace, &record.id)
            }
            Self::Configure(record) => {
                ChangedObjects::by_name(kind, &record.workspace, &record.spec.name)
            }
            Self::Pause { id, workspace, .. } | Self::Delete { id, workspace, .. } => {
                ChangedObjects::by_id(kind, workspace, id)
            }
            Self::DisableUnnamed {
                workspace, names, ..
            } => ChangedObjects::configured_except(kind, workspace, names),
        }
    }
}

impl Administered for ApiKeyRecord {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::by_id(ObjectKind::ApiKey, &self.workspace, &self.id)
    }
}

impl Administered for RevokeApiKey {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::by_id(ObjectKind::ApiKey, &self.workspace, &self.id)
    }
}

impl Administered for CreateWorkspace {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let id = &self.workspace.id;
        let mut objects = ChangedObjects::by_id(ObjectKind::Workspace, id, id);
        objects.extend(self.key.changed_objects());
        objects
    }
}

impl Administered for SetBudget {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::by_id(ObjectKind::Budget, &self.workspace, &self.name)
    }
}

impl Administered for ResetBudget {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::by_id(ObjectKind::Budget, &self.workspace, &self.name)
    }
}

impl Administered for SetPause {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::of_pause(&self.0.scope)
    }
}

impl Administered for ResumePause {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::of_pause(&self.scope)
    }
}

impl Administered for RegisterSkill {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let (agent, name) = (self.agent_id.to_string(), &self.skill.skill_name);
        let key = [agent.as_str(), name.as_str()];
        vec![ChangedObjects::by_key(
            ObjectKind::Skill,
            &self.workspace,
            &key,
        )]
    }
}

impl Administered for WithdrawSkill {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let agent = self.agent_id.to_string();
        let key = [agent.as_str(), self.skill_name.as_str()];
        vec![ChangedObjects::by_key(
            ObjectKind::Skill,
            &self.workspace,
            &key,
        )]
    }
}

impl Administered for FinishIndexing {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::of_document(&self.base, &self.document_id)
    }
}

impl Administered for DeleteDocument {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::of_document(&self.base, &self.document_id)
    }
}

impl Administered for CreateApproval {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        let Self(record) = self;
        ChangedObjects::by_id(ObjectKind::Approval, &record.workspace, &record.id)
    }
}

impl Administered for RevokeApproval {
    fn changed_objects(&self) -> Vec<ChangedObjects> {
        ChangedObjects::by_id(ObjectKind::Approval, &self.workspace, &self.id)
    }
}
