//! Runners found by discovery.

use domain::manifest::Discovered;
use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use sea_orm::{ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder};

use crate::entity::runners;
use crate::error::{StoreError, parsed};
use crate::model::registry::{RunnerRecord, RunnerStatus};
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::EndpointRepository;
use crate::sql::SqlRow;

impl RunnerStatus {
    /// The name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Incompatible => "incompatible",
            Self::Absent => "absent",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Accepted, Self::Incompatible, Self::Absent]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

impl RunnerRecord {
    /// True when agents can be bound to it.
    pub fn is_bindable(&self) -> bool {
        self.status == RunnerStatus::Accepted
    }
}

/// A runner as discovery found it.
#[derive(Clone, Debug)]
pub struct FoundRunner {
    pub id: RunnerId,
    /// Reason why agents cannot be bound; `None` when they can.
    pub incompatible: Option<String>,
    pub manifest: String,
}

impl FoundRunner {
    /// Accepted and incompatible runners of a discovery.
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

impl EndpointRepository<'_> {
    /// A runner of the workspace.
    pub async fn find_runner(
        self,
        workspace: &WorkspaceId,
        id: &RunnerId,
    ) -> Result<Option<RunnerRecord>, StoreError> {
        let key = (workspace.to_string(), id.to_string());
        let row = runners::Entity::find_by_id(key)
            .one(&self.db.readers)
            .await?;
        row.map(runner_record).transpose()
    }

    /// Runners of the workspace by id, after `after`.
    pub async fn list_runners(
        self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<RunnerRecord>, StoreError> {
        let own = runners::Column::WorkspaceId.eq(workspace.as_str());
        let page = PageOf {
            rows: runners::Entity::find()
                .filter(own.clone())
                .filter(runners::Column::RunnerId.gt(after.unwrap_or_default()))
                .order_by_asc(runners::Column::RunnerId),
            key: runners::Column::RunnerId,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<String>(&self.db.readers, bound.into()).await?;
        found.try_map(runner_record)
    }

    /// The runners of an endpoint, by id.
    pub async fn runners_of(
        self,
        workspace: &WorkspaceId,
        endpoint: EndpointId,
    ) -> Result<Vec<RunnerRecord>, StoreError> {
        let rows = runners::Entity::find()
            .filter(runners::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(runners::Column::EndpointId.eq(endpoint.to_string()))
            .order_by_asc(runners::Column::RunnerId)
            .all(&self.db.readers)
            .await?;
        rows.into_iter().map(runner_record).collect()
    }

    /// Subset of these runners served by other endpoints.
    pub async fn runners_elsewhere(
        self,
        workspace: &WorkspaceId,
        endpoint: EndpointId,
        ids: &[RunnerId],
    ) -> Result<Vec<RunnerRecord>, StoreError> {
        served_elsewhere(&self.db.readers, workspace, endpoint, ids).await
    }
}

/// Subset of these runners owned by other endpoints. An absent runner keeps its endpoint. Otherwise another
/// endpoint could take its id after a single broken list.
pub(crate) async fn served_elsewhere(
    conn: &impl ConnectionTrait,
    workspace: &WorkspaceId,
    endpoint: EndpointId,
    ids: &[RunnerId],
) -> Result<Vec<RunnerRecord>, StoreError> {
    let rows = runners::Entity::find()
        .filter(runners::Column::WorkspaceId.eq(workspace.as_str()))
        .filter(runners::Column::RunnerId.is_in(ids.iter().map(ToString::to_string)))
        .filter(runners::Column::EndpointId.ne(endpoint.to_string()))
        .order_by_asc(runners::Column::RunnerId)
        .all(conn)
        .await?;
    rows.into_iter().map(runner_record).collect()
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

/// A runner from a result row.
pub(crate) fn read_runner(row: &SqlRow) -> Result<RunnerRecord, StoreError> {
    runner_record(runners::Model {
        workspace_id: row.text("workspace_id")?,
        runner_id: row.text("runner_id")?,
        endpoint_id: row.text("endpoint_id")?,
        status: row.text("status")?,
        reason: row.text_if_any("reason")?,
        manifest: row.text("manifest")?,
        manifest_sha256: row.text("manifest_sha256")?,
        seen_at: row.number("seen_at")?,
    })
}

pub(crate) fn runner_record(row: runners::Model) -> Result<RunnerRecord, StoreError> {
    Ok(RunnerRecord {
        id: parsed("runners.runner_id", &row.runner_id, &row.runner_id)?,
        endpoint_id: parsed("runners.endpoint_id", &row.runner_id, &row.endpoint_id)?,
        status: RunnerStatus::parse(&row.status).ok_or_else(|| StoreError::Corrupt {
            column: "runners.status",
            row: row.runner_id.clone(),
        })?,
        reason: row.reason,
        manifest: row.manifest,
        manifest_sha256: row.manifest_sha256,
        seen_at: row.seen_at,
    })
}
