//! Runners, as discovery found them.

use domain::manifest::Discovered;
use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter,
    QueryOrder, QuerySelect,
};
use serde_json::Value;

use crate::connect::Store;
use crate::digest::sha256_hex;
use crate::entity::{runner_endpoints, runners};
use crate::error::{StoreError, parsed};
use crate::writer::Work;

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
        // Gone or disabled meanwhile: its runners must not come back.
        if !self.update_endpoint(tx).await? {
            return Ok(Vec::new());
        }
        delete_runners(tx, &self.endpoint_id.to_string()).await?;
        for found in &self.found {
            self.insert(tx, found).await?;
        }
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

    async fn update_endpoint(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let updated = runner_endpoints::Entity::update_many()
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
            .filter(runner_endpoints::Column::Enabled.eq(true))
            .exec(tx)
            .await?;
        Ok(updated.rows_affected == 1)
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

pub(crate) async fn delete_runners(
    conn: &impl ConnectionTrait,
    endpoint: &str,
) -> Result<(), StoreError> {
    runners::Entity::delete_many()
        .filter(runners::Column::EndpointId.eq(endpoint))
        .exec(conn)
        .await?;
    Ok(())
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
