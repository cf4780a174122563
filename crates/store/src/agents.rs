//! Agents.

use protocol::admin::{AgentSpec, Fault};
use protocol::id::{AgentId, WorkspaceId};
use protocol::principal::{Principal, PrincipalKind};
use sea_orm::sea_query::Expr;
use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter};
use serde_json::json;

use crate::agent_skills::delete_skills;
use crate::entity::agents;
use crate::error::{StoreError, parsed, parsed_json};
use crate::generations::delete_generations;
use crate::model::registry::AgentRecord;
use crate::mutation::Mutation;
use crate::runs::principal_if_any;
use crate::sql::{SqlRow, locked};
use crate::state::delete_bodies_of_agent;
use crate::storage::{AreaAccess, area_lock, discard_area};

mod reads;

/// Origin of an object. Objects from the config file are read-only in the API.
pub(crate) const ORIGIN_CONFIG: &str = "config";
pub(crate) const ORIGIN_API: &str = "api";

/// Creates or changes an agent.
#[derive(Clone, Debug)]
pub enum SaveAgent {
    Create {
        id: AgentId,
        workspace: WorkspaceId,
        spec: AgentSpec,
        by: Principal,
        at: i64,
    },
    /// Over the API; `if_match`: the expected current version.
    Update {
        id: AgentId,
        workspace: WorkspaceId,
        spec: AgentSpec,
        if_match: Option<i64>,
        by: Principal,
        at: i64,
    },
    /// Over the API.
    Delete {
        id: AgentId,
        workspace: WorkspaceId,
        if_match: Option<i64>,
    },
    /// From the config file: found by name, changed only if different.
    Configure {
        new_id: AgentId,
        workspace: WorkspaceId,
        spec: AgentSpec,
        /// Faults by the runner's schema; they disable the agent.
        refused: Vec<Fault>,
        at: i64,
    },
    /// Disables agents missing from the config file.
    DisableUnnamed {
        workspace: WorkspaceId,
        names: Vec<String>,
        at: i64,
    },
}

/// Result of a save.
#[derive(Clone, Debug, PartialEq)]
pub enum SavedAgent {
    Saved(Box<AgentRecord>),
    Done,
    Unknown,
    /// The config file owns it.
    ReadOnly,
    /// The current version differs.
    Mismatch(i64),
}

impl Mutation for SaveAgent {
    type Output = SavedAgent;
    const SAVEPOINT: bool = true;

    fn lock(&self) -> Option<String> {
        let Self::Delete { id, workspace, .. } = self else {
            // A delete discards the agent's storage area, which requires the area's lock.
            return None;
        };
        Some(area_lock(&AreaAccess::of_agent(workspace, *id)))
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<SavedAgent, StoreError> {
        match self {
            Self::Create {
                id,
                workspace,
                spec,
                by,
                at,
            } => insert(tx, *id, workspace, ORIGIN_API, columns(spec, &[], by), *at).await,
            Self::Update {
                id,
                workspace,
                spec,
                if_match,
                by,
                at,
            } => match changeable(tx, workspace, *id, *if_match).await? {
                Ok(row) => update(tx, row, ORIGIN_API, columns(spec, &[], by), *at).await,
                Err(refused) => Ok(refused),
            },
            Self::Delete {
                id,
                workspace,
                if_match,
            } => match changeable(tx, workspace, *id, *if_match).await? {
                Ok(agents::Model { id: row, .. }) => {
                    agents::Entity::delete_by_id(row.as_str()).exec(tx).await?;
                    delete_skills(tx, &row).await?;
                    delete_generations(tx, &row).await?;
                    discard_area(tx, &AreaAccess::of_agent(workspace, *id)).await?;
                    delete_bodies_of_agent(tx, &row).await?;
                    Ok(SavedAgent::Done)
                }
                Err(refused) => Ok(refused),
            },
            Self::Configure {
                new_id,
                workspace,
                spec,
                refused,
                at,
            } => {
                let new = columns(spec, refused, &PrincipalKind::Config.into());
                let existing = agents::Entity::find()
                    .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
                    .filter(agents::Column::Name.eq(spec.name.as_str()));
                // Locked, because replicas that start together apply the same config file.
                match locked(tx, existing).one(tx).await? {
                    None => insert(tx, *new_id, workspace, ORIGIN_CONFIG, new, *at).await,
                    Some(row) if is_unchanged(&row, &new) => {
                        Ok(SavedAgent::Saved(Box::new(agent_record(row)?)))
                    }
                    Some(row) => update(tx, row, ORIGIN_CONFIG, new, *at).await,
                }
            }
            Self::DisableUnnamed {
                workspace,
                names,
                at,
            } => {
                agents::Entity::update_many()
                    .col_expr(agents::Column::Enabled, Expr::value(false))
                    // From now on the API owns it, so it can be changed or deleted.
                    .col_expr(agents::Column::Origin, Expr::value(ORIGIN_API))
                    .col_expr(agents::Column::Refused, Expr::value(None::<String>))
                    .col_expr(agents::Column::UpdatedAt, Expr::value(*at))
                    .col_expr(
                        agents::Column::UpdatedBy,
                        Expr::value(PrincipalKind::Config.as_str()),
                    )
                    .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
                    .filter(agents::Column::Origin.eq(ORIGIN_CONFIG))
                    .filter(agents::Column::Name.is_not_in(names.clone()))
                    .exec(tx)
                    .await?;
                Ok(SavedAgent::Done)
            }
        }
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        let Self::Create { id, .. } = self else {
            return Ok(false);
        };
        let created = agents::Entity::find_by_id(id.to_string());
        Ok(created.one(tx).await?.is_some())
    }
}

/// The row, if the API may change it. Locked, so replicas change it one after the other.
async fn changeable(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    id: AgentId,
    if_match: Option<i64>,
) -> Result<Result<agents::Model, SavedAgent>, StoreError> {
    let query = agents::Entity::find_by_id(id.to_string())
        .filter(agents::Column::WorkspaceId.eq(workspace.as_str()));
    let row = locked(tx, query).one(tx).await?;
    Ok(match row {
        None => Err(SavedAgent::Unknown),
        // The next start would overwrite the change with the config file.
        Some(row) if row.origin == ORIGIN_CONFIG => Err(SavedAgent::ReadOnly),
        Some(row) if if_match.is_some_and(|version| version != row.version) => {
            Err(SavedAgent::Mismatch(row.version))
        }
        Some(row) => Ok(row),
    })
}

fn is_unchanged(row: &agents::Model, new: &agents::Model) -> bool {
    row.origin == ORIGIN_CONFIG
        && row.enabled == new.enabled
        && row.refused == new.refused
        && row.spec == new.spec
}

fn spec_json(spec: &AgentSpec) -> String {
    domain::canonical::canonical_json(spec)
}

async fn insert(
    tx: &DatabaseTransaction,
    id: AgentId,
    workspace: &WorkspaceId,
    origin: &str,
    new: agents::Model,
    at: i64,
) -> Result<SavedAgent, StoreError> {
    let row = agents::Model {
        id: id.to_string(),
        workspace_id: workspace.to_string(),
        origin: origin.to_owned(),
        version: 1,
        created_at: at,
        updated_at: at,
        ..new
    };
    let active = agents::ActiveModel::from(row.clone());
    agents::Entity::insert(active)
        .exec_without_returning(tx)
        .await?;
    Ok(SavedAgent::Saved(Box::new(agent_record(row)?)))
}

async fn update(
    tx: &DatabaseTransaction,
    old: agents::Model,
    origin: &str,
    new: agents::Model,
    at: i64,
) -> Result<SavedAgent, StoreError> {
    let row = agents::Model {
        id: old.id,
        workspace_id: old.workspace_id,
        origin: origin.to_owned(),
        version: old.version + 1,
        created_at: old.created_at,
        updated_at: at,
        ..new
    };
    let active = sea_orm::IntoActiveModel::into_active_model(row.clone());
    // All columns: `into_active_model` marks loaded values as unchanged, and the update would write none.
    agents::Entity::update(sea_orm::ActiveModelTrait::reset_all(active))
        .exec(tx)
        .await?;
    Ok(SavedAgent::Saved(Box::new(agent_record(row)?)))
}

/// Columns derived from a specification, its faults and the principal of the change.
fn columns(spec: &AgentSpec, refused: &[Fault], by: &Principal) -> agents::Model {
    agents::Model {
        id: String::new(),
        workspace_id: String::new(),
        name: spec.name.clone(),
        origin: String::new(),
        enabled: spec.enabled && refused.is_empty(),
        priority: spec.priority,
        scope_kind: spec.scope.kind.as_str().to_owned(),
        scope_bot: spec.scope.bot_id.clone().unwrap_or_default(),
        scope_conversation: spec.scope.conversation_id.clone().unwrap_or_default(),
        runner_id: spec.runner_id.to_string(),
        spec: spec_json(spec),
        version: 0,
        created_at: 0,
        updated_at: 0,
        refused: (!refused.is_empty()).then(|| json!(refused).to_string()),
        updated_by: Some(by.stored()),
    }
}

/// An agent from a result row.
pub(crate) fn read_agent(row: &SqlRow) -> Result<AgentRecord, StoreError> {
    agent_record(agents::Model {
        id: row.text("id")?,
        workspace_id: row.text("workspace_id")?,
        name: row.text("name")?,
        origin: row.text("origin")?,
        enabled: row.flag("enabled")?,
        priority: row.number("priority")?,
        scope_kind: row.text("scope_kind")?,
        scope_bot: row.text("scope_bot")?,
        scope_conversation: row.text("scope_conversation")?,
        runner_id: row.text("runner_id")?,
        spec: row.text("spec")?,
        version: row.number("version")?,
        created_at: row.number("created_at")?,
        updated_at: row.number("updated_at")?,
        refused: row.text_if_any("refused")?,
        updated_by: row.text_if_any("updated_by")?,
    })
}

pub(crate) fn agent_record(row: agents::Model) -> Result<AgentRecord, StoreError> {
    let mut spec: AgentSpec = parsed_json("agents.spec", &row.id, &row.spec)?;
    // The column decides: an agent missing from the config file is disabled without a change of its specification.
    spec.enabled = row.enabled;
    let refused = match &row.refused {
        Some(faults) => parsed_json("agents.refused", &row.id, faults)?,
        None => Vec::new(),
    };
    let updated_by = principal_if_any("agents.updated_by", &row.id, row.updated_by.as_deref())?;
    Ok(AgentRecord {
        id: parsed("agents.id", &row.id, &row.id)?,
        workspace: WorkspaceId(row.workspace_id),
        origin: row.origin,
        spec,
        version: row.version,
        created_at: row.created_at,
        updated_at: row.updated_at,
        updated_by,
        refused,
    })
}
