//! Runner endpoints and the runners that discovery found there.

use domain::manifest::Discovered;
use protocol::admin::{DeltaMode, EndpointMode};
use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveModelTrait, ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction,
    EntityTrait, IntoActiveModel, QueryFilter, QueryOrder, QuerySelect,
};
use serde_json::Value;

use crate::agents::FROM_CONFIG;
use crate::connect::Store;
use crate::digest::sha256_hex;
use crate::entity::{runner_endpoints, runners};
use crate::error::{StoreError, parsed, parsed_json};
use crate::writer::Work;

/// A registered endpoint. `secret` and `headers` are sealed under the master key.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointRecord {
    pub id: EndpointId,
    pub workspace: WorkspaceId,
    pub name: String,
    pub origin: String,
    pub enabled: bool,
    pub base_url: String,
    pub mode: EndpointMode,
    pub delta_mode: DeltaMode,
    pub secret: String,
    pub headers: String,
    pub manifests: Option<Vec<Value>>,
    /// `healthy`, `unreachable` or `unknown`.
    pub health: String,
    pub health_reason: Option<String>,
    /// What the last discovery accepted and rejected, as the API shows it.
    pub findings: Value,
    pub discovered_at: Option<i64>,
    pub version: i64,
    pub created_at: i64,
}

/// A runner of the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerRecord {
    pub id: RunnerId,
    pub endpoint_id: EndpointId,
    pub accepted: bool,
    pub reason: Option<String>,
    /// The manifest as JSON.
    pub manifest: String,
    pub seen_at: i64,
}

/// A runner as discovery found it.
#[derive(Clone, Debug)]
pub struct FoundRunner {
    pub id: RunnerId,
    /// Why it cannot be bound; `None` when it can.
    pub incompatible: Option<String>,
    pub manifest: String,
}

impl FoundRunner {
    /// All that can be listed of a discovery.
    pub fn of(discovered: &Discovered) -> Vec<Self> {
        let accepted = discovered.accepted.iter().map(|found| Self {
            id: found.manifest.id.clone(),
            incompatible: None,
            manifest: domain::canonical::canonical_json(&found.manifest),
        });
        let incompatible = discovered.incompatible.iter().map(|found| Self {
            id: found.id.clone(),
            incompatible: Some(found.reason.clone()),
            manifest: found.raw.to_string(),
        });
        accepted.chain(incompatible).collect()
    }
}

/// Creates, changes or removes an endpoint.
#[derive(Clone, Debug)]
pub enum SaveEndpoint {
    /// Over the API; the name must be free.
    Create(Box<EndpointRecord>),
    /// From the config file: found by name, keeps its id and what was discovered.
    Configure(Box<EndpointRecord>),
    /// Over the API, with its runners.
    Delete {
        id: EndpointId,
        workspace: WorkspaceId,
    },
    /// Disables what the config file no longer names, and its runners with it.
    DisableUnnamed {
        workspace: WorkspaceId,
        names: Vec<String>,
    },
}

impl Work for SaveEndpoint {
    type Output = Option<EndpointRecord>;
    const SAVEPOINT: bool = true;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<EndpointRecord>, StoreError> {
        match self {
            Self::Create(record) => {
                let row = to_row(record).into_active_model();
                runner_endpoints::Entity::insert(row)
                    .exec_without_returning(tx)
                    .await?;
                Ok(Some((**record).clone()))
            }
            Self::Configure(record) => configure(tx, record).await.map(Some),
            Self::Delete { id, workspace } => delete(tx, *id, workspace).await,
            Self::DisableUnnamed { workspace, names } => {
                let gone = runner_endpoints::Entity::find()
                    .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
                    .filter(runner_endpoints::Column::Origin.eq(FROM_CONFIG))
                    .filter(runner_endpoints::Column::Name.is_not_in(names.clone()))
                    .all(tx)
                    .await?;
                for row in gone {
                    delete_runners(tx, &row.id).await?;
                    runner_endpoints::Entity::update_many()
                        .col_expr(runner_endpoints::Column::Enabled, Expr::value(false))
                        .filter(runner_endpoints::Column::Id.eq(row.id.as_str()))
                        .exec(tx)
                        .await?;
                }
                Ok(None)
            }
        }
    }
}

async fn configure(
    tx: &DatabaseTransaction,
    record: &EndpointRecord,
) -> Result<EndpointRecord, StoreError> {
    let known = runner_endpoints::Entity::find()
        .filter(runner_endpoints::Column::WorkspaceId.eq(record.workspace.as_str()))
        .filter(runner_endpoints::Column::Name.eq(record.name.as_str()))
        .one(tx)
        .await?;
    let Some(known) = known else {
        let row = to_row(record).into_active_model();
        runner_endpoints::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        return Ok(record.clone());
    };
    let row = runner_endpoints::Model {
        id: known.id,
        version: known.version + 1,
        created_at: known.created_at,
        health: known.health,
        health_reason: known.health_reason,
        findings: known.findings,
        discovered_at: known.discovered_at,
        ..to_row(record)
    };
    let active = row.clone().into_active_model().reset_all();
    runner_endpoints::Entity::update(active).exec(tx).await?;
    endpoint_record(row)
}

async fn delete(
    tx: &DatabaseTransaction,
    id: EndpointId,
    workspace: &WorkspaceId,
) -> Result<Option<EndpointRecord>, StoreError> {
    let row = runner_endpoints::Entity::find_by_id(id.to_string())
        .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
        .one(tx)
        .await?;
    let Some(row) = row else { return Ok(None) };
    if row.origin != FROM_CONFIG {
        delete_runners(tx, &row.id).await?;
        runner_endpoints::Entity::delete_by_id(row.id.clone())
            .exec(tx)
            .await?;
    }
    endpoint_record(row).map(Some)
}

async fn delete_runners(conn: &impl ConnectionTrait, endpoint: &str) -> Result<(), StoreError> {
    runners::Entity::delete_many()
        .filter(runners::Column::EndpointId.eq(endpoint))
        .exec(conn)
        .await?;
    Ok(())
}

/// Writes what a discovery found. Runners that the endpoint no longer lists are removed.
#[derive(Clone, Debug)]
pub struct SaveDiscovery {
    pub workspace: WorkspaceId,
    pub endpoint_id: EndpointId,
    /// The endpoint whose ids may be taken over.
    pub replaces: Option<EndpointId>,
    pub found: Vec<FoundRunner>,
    pub health: String,
    pub health_reason: Option<String>,
    pub findings: Value,
    pub at: i64,
}

impl Work for SaveDiscovery {
    /// Ids that belong to another endpoint, with its id: nothing is written when there are any.
    type Output = Vec<(RunnerId, EndpointId)>;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        let ids = self.found.iter().map(|found| found.id.to_string());
        let taken = runners::Entity::find()
            .filter(runners::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(runners::Column::RunnerId.is_in(ids))
            .filter(runners::Column::EndpointId.ne(self.endpoint_id.to_string()))
            .all(tx)
            .await?;
        let mut conflicts = Vec::new();
        for row in taken {
            let record = runner_record(row)?;
            if self.replaces != Some(record.endpoint_id) {
                conflicts.push((record.id, record.endpoint_id));
            }
        }
        if !conflicts.is_empty() {
            return Ok(conflicts);
        }
        delete_runners(tx, &self.endpoint_id.to_string()).await?;
        for found in &self.found {
            self.insert(tx, found).await?;
        }
        self.update_endpoint(tx).await?;
        Ok(Vec::new())
    }
}

impl SaveDiscovery {
    async fn insert(
        &self,
        tx: &DatabaseTransaction,
        found: &FoundRunner,
    ) -> Result<(), StoreError> {
        let status = if found.incompatible.is_some() {
            "incompatible"
        } else {
            "accepted"
        };
        let row = runners::ActiveModel {
            workspace_id: Set(self.workspace.to_string()),
            runner_id: Set(found.id.to_string()),
            endpoint_id: Set(self.endpoint_id.to_string()),
            status: Set(status.to_owned()),
            reason: Set(found.incompatible.clone()),
            manifest: Set(found.manifest.clone()),
            manifest_sha256: Set(sha256_hex(found.manifest.as_bytes())),
            seen_at: Set(self.at),
        };
        let taken_over =
            OnConflict::columns([runners::Column::WorkspaceId, runners::Column::RunnerId])
                .update_columns([
                    runners::Column::EndpointId,
                    runners::Column::Status,
                    runners::Column::Reason,
                    runners::Column::Manifest,
                    runners::Column::ManifestSha256,
                    runners::Column::SeenAt,
                ])
                .to_owned();
        runners::Entity::insert(row)
            .on_conflict(taken_over)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }

    async fn update_endpoint(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        runner_endpoints::Entity::update_many()
            .col_expr(
                runner_endpoints::Column::Health,
                Expr::value(self.health.as_str()),
            )
            .col_expr(
                runner_endpoints::Column::HealthReason,
                Expr::value(self.health_reason.clone()),
            )
            .col_expr(
                runner_endpoints::Column::Findings,
                Expr::value(self.findings.to_string()),
            )
            .col_expr(runner_endpoints::Column::DiscoveredAt, Expr::value(self.at))
            .filter(runner_endpoints::Column::Id.eq(self.endpoint_id.to_string()))
            .exec(tx)
            .await?;
        Ok(())
    }
}

/// Notes that an endpoint did not answer; the runners it listed before stay.
#[derive(Clone, Debug)]
pub(crate) struct MarkHealth {
    pub(crate) endpoint_id: EndpointId,
    pub(crate) health: String,
    pub(crate) reason: Option<String>,
}

impl Work for MarkHealth {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        runner_endpoints::Entity::update_many()
            .col_expr(
                runner_endpoints::Column::Health,
                Expr::value(self.health.as_str()),
            )
            .col_expr(
                runner_endpoints::Column::HealthReason,
                Expr::value(self.reason.clone()),
            )
            .filter(runner_endpoints::Column::Id.eq(self.endpoint_id.to_string()))
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl Store {
    /// Notes that an endpoint did not answer, and why.
    pub async fn mark_unreachable(
        &self,
        endpoint: EndpointId,
        reason: &str,
    ) -> Result<(), StoreError> {
        let reason = Some(reason.to_owned());
        self.write(MarkHealth {
            endpoint_id: endpoint,
            health: "unreachable".to_owned(),
            reason,
        })
        .await
    }

    /// An endpoint of the workspace.
    pub async fn find_endpoint(
        &self,
        workspace: &WorkspaceId,
        id: EndpointId,
    ) -> Result<Option<EndpointRecord>, StoreError> {
        let row = runner_endpoints::Entity::find_by_id(id.to_string())
            .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
            .one(&self.readers)
            .await?;
        row.map(endpoint_record).transpose()
    }

    /// An endpoint of the workspace by its name.
    pub async fn find_endpoint_by_name(
        &self,
        workspace: &WorkspaceId,
        name: &str,
    ) -> Result<Option<EndpointRecord>, StoreError> {
        let row = runner_endpoints::Entity::find()
            .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(runner_endpoints::Column::Name.eq(name))
            .one(&self.readers)
            .await?;
        row.map(endpoint_record).transpose()
    }

    /// Endpoints of the workspace by name, after `after`.
    pub async fn list_endpoints(
        &self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<EndpointRecord>, StoreError> {
        let rows = runner_endpoints::Entity::find()
            .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(runner_endpoints::Column::Name.gt(after.unwrap_or_default()))
            .order_by_asc(runner_endpoints::Column::Name)
            .limit(limit)
            .all(&self.readers)
            .await?;
        rows.into_iter().map(endpoint_record).collect()
    }

    /// Enabled endpoints of all workspaces that discovery has not reached.
    pub async fn unhealthy_endpoints(&self, limit: u64) -> Result<Vec<EndpointRecord>, StoreError> {
        let rows = runner_endpoints::Entity::find()
            .filter(runner_endpoints::Column::Enabled.eq(true))
            .filter(runner_endpoints::Column::Health.ne("healthy"))
            .limit(limit)
            .all(&self.readers)
            .await?;
        rows.into_iter().map(endpoint_record).collect()
    }

    /// A runner of the workspace.
    pub async fn find_runner(
        &self,
        workspace: &WorkspaceId,
        id: &RunnerId,
    ) -> Result<Option<RunnerRecord>, StoreError> {
        let key = (workspace.to_string(), id.to_string());
        let row = runners::Entity::find_by_id(key).one(&self.readers).await?;
        row.map(runner_record).transpose()
    }

    /// Runners of the workspace by id, after `after`.
    pub async fn list_runners(
        &self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<RunnerRecord>, StoreError> {
        let rows = runners::Entity::find()
            .filter(runners::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(runners::Column::RunnerId.gt(after.unwrap_or_default()))
            .order_by_asc(runners::Column::RunnerId)
            .limit(limit)
            .all(&self.readers)
            .await?;
        rows.into_iter().map(runner_record).collect()
    }
}

pub(crate) fn runner_record(row: runners::Model) -> Result<RunnerRecord, StoreError> {
    Ok(RunnerRecord {
        id: parsed("runners.runner_id", &row.runner_id, &row.runner_id)?,
        endpoint_id: parsed("runners.endpoint_id", &row.runner_id, &row.endpoint_id)?,
        accepted: row.status == "accepted",
        reason: row.reason,
        manifest: row.manifest,
        seen_at: row.seen_at,
    })
}

fn endpoint_record(row: runner_endpoints::Model) -> Result<EndpointRecord, StoreError> {
    let manifests = row.manifests.as_deref();
    Ok(EndpointRecord {
        id: parsed("runner_endpoints.id", &row.id, &row.id)?,
        mode: parsed_json("runner_endpoints.mode", &row.id, &quoted(&row.mode))?,
        delta_mode: parsed_json(
            "runner_endpoints.delta_mode",
            &row.id,
            &quoted(&row.delta_mode),
        )?,
        manifests: manifests
            .map(|text| parsed_json("runner_endpoints.manifests", &row.id, text))
            .transpose()?,
        findings: parsed_json("runner_endpoints.findings", &row.id, &row.findings)?,
        workspace: WorkspaceId(row.workspace_id),
        name: row.name,
        origin: row.origin,
        enabled: row.enabled,
        base_url: row.base_url,
        secret: row.secret,
        headers: row.headers,
        health: row.health,
        health_reason: row.health_reason,
        discovered_at: row.discovered_at,
        version: row.version,
        created_at: row.created_at,
    })
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn to_row(record: &EndpointRecord) -> runner_endpoints::Model {
    let mode = match record.mode {
        EndpointMode::Standard => "standard",
        EndpointMode::SingleUrl => "single_url",
    };
    let delta_mode = match record.delta_mode {
        DeltaMode::Increment => "increment",
        DeltaMode::Snapshot => "snapshot",
    };
    runner_endpoints::Model {
        id: record.id.to_string(),
        workspace_id: record.workspace.to_string(),
        name: record.name.clone(),
        origin: record.origin.clone(),
        enabled: record.enabled,
        base_url: record.base_url.clone(),
        mode: mode.to_owned(),
        delta_mode: delta_mode.to_owned(),
        secret: record.secret.clone(),
        headers: record.headers.clone(),
        manifests: record
            .manifests
            .as_ref()
            .map(|list| Value::from(list.clone()).to_string()),
        health: record.health.clone(),
        health_reason: record.health_reason.clone(),
        findings: record.findings.to_string(),
        discovered_at: record.discovered_at,
        version: record.version,
        created_at: record.created_at,
        updated_at: record.created_at,
    }
}
