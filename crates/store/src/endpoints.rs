//! Runner endpoints.

use protocol::admin::{DeltaMode, EndpointMode};
use protocol::id::{EndpointId, WorkspaceId};
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, DatabaseTransaction, EntityTrait, IntoActiveModel, QueryFilter,
    QueryOrder, QuerySelect,
};
use serde_json::Value;

use crate::agents::{ORIGIN_API, ORIGIN_CONFIG};
use crate::entity::runner_endpoints;
use crate::error::{StoreError, parsed, parsed_json, signed, unsigned};
use crate::health::delete_health;
use crate::model::registry::EndpointAddress;
use crate::mutation::Mutation;
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::EndpointRepository;
use crate::runners::delete_runners;
use crate::sql::{Sql, SqlRow, locked};

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
    /// Maximum concurrent runs.
    pub max_runs: Option<u64>,
    /// `healthy`, `unreachable`, `unhealthy` or `unknown`.
    pub health: String,
    pub health_reason: Option<String>,
    /// Accepted and rejected manifests of the last discovery, as the API shows them.
    pub findings: Value,
    pub discovered_at: Option<i64>,
    /// Epoch milliseconds.
    pub next_check_at: i64,
    pub version: i64,
    pub created_at: i64,
}

impl EndpointRecord {
    pub fn address(&self) -> EndpointAddress {
        EndpointAddress {
            id: self.id,
            base_url: self.base_url.clone(),
            mode: self.mode,
            delta_mode: self.delta_mode,
            secret: self.secret.clone(),
            headers: self.headers.clone(),
        }
    }
}

/// Creates, changes or removes an endpoint.
#[derive(Clone, Debug)]
pub enum SaveEndpoint {
    /// Over the API; the name must be free.
    Create(Box<EndpointRecord>),
    /// From the config file: found by name; keeps its id and its discovery results.
    Configure(Box<EndpointRecord>),
    /// Over the API, with its runners.
    Delete {
        id: EndpointId,
        workspace: WorkspaceId,
    },
    /// Disables endpoints missing from the config file, and deletes their runners.
    DisableUnnamed {
        workspace: WorkspaceId,
        names: Vec<String>,
    },
}

impl Mutation for SaveEndpoint {
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
                    .filter(runner_endpoints::Column::Origin.eq(ORIGIN_CONFIG))
                    .filter(runner_endpoints::Column::Name.is_not_in(names.clone()))
                    .all(tx)
                    .await?;
                for row in gone {
                    // Lock the endpoint before its runners, like discovery, so a running discovery cannot
                    // re-insert them. From now on the API owns it, so it can be deleted.
                    let why =
                        "it is gone from the configuration file; delete it, or name it there again";
                    runner_endpoints::Entity::update_many()
                        .col_expr(runner_endpoints::Column::Enabled, Expr::value(false))
                        .col_expr(runner_endpoints::Column::Origin, Expr::value(ORIGIN_API))
                        .col_expr(runner_endpoints::Column::Health, Expr::value("unknown"))
                        .col_expr(runner_endpoints::Column::HealthReason, Expr::value(why))
                        .filter(runner_endpoints::Column::Id.eq(row.id.as_str()))
                        .exec(tx)
                        .await?;
                    delete_runners(tx, &row.id).await?;
                }
                Ok(None)
            }
        }
    }

    // The creator needs the generated secret, even after a lost commit reply.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        let Self::Create(record) = self else {
            return Ok(false);
        };
        let created = runner_endpoints::Entity::find_by_id(record.id.to_string());
        Ok(created.one(tx).await?.is_some())
    }
}

async fn configure(
    tx: &DatabaseTransaction,
    record: &EndpointRecord,
) -> Result<EndpointRecord, StoreError> {
    let existing = runner_endpoints::Entity::find()
        .filter(runner_endpoints::Column::WorkspaceId.eq(record.workspace.as_str()))
        .filter(runner_endpoints::Column::Name.eq(record.name.as_str()));
    // A discovery may write concurrently.
    let Some(existing) = locked(tx, existing).one(tx).await? else {
        let row = to_row(record).into_active_model();
        runner_endpoints::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        return Ok(record.clone());
    };
    let row = runner_endpoints::Model {
        // Agents and runs refer to the id, and the next discovery compares with these results.
        id: existing.id,
        version: existing.version + 1,
        created_at: existing.created_at,
        health: existing.health,
        health_reason: existing.health_reason,
        findings: existing.findings,
        discovered_at: existing.discovered_at,
        asked_at: existing.asked_at,
        ..to_row(record)
    };
    // All columns: `into_active_model` marks loaded values as unchanged, and the update would write none.
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
        .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()));
    let row = locked(tx, row).one(tx).await?;
    let Some(row) = row else { return Ok(None) };
    // The next start would create it again from the config file.
    if row.origin != ORIGIN_CONFIG {
        runner_endpoints::Entity::delete_by_id(row.id.clone())
            .exec(tx)
            .await?;
        delete_runners(tx, &row.id).await?;
        delete_health(tx, &row.id).await?;
    }
    endpoint_record(row).map(Some)
}

impl EndpointRepository<'_> {
    pub async fn find_endpoint(
        self,
        workspace: &WorkspaceId,
        id: EndpointId,
    ) -> Result<Option<EndpointRecord>, StoreError> {
        let row = runner_endpoints::Entity::find_by_id(id.to_string())
            .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
            .one(&self.db.readers)
            .await?;
        row.map(endpoint_record).transpose()
    }

    /// Address of an endpoint of the workspace.
    pub async fn find_endpoint_address(
        self,
        workspace: &WorkspaceId,
        id: EndpointId,
    ) -> Result<Option<EndpointAddress>, StoreError> {
        let select = format!("{ADDRESSES} WHERE e.id = $1 AND e.workspace_id = $2");
        let key = vec![id.to_string().into(), workspace.as_str().into()];
        let found = self.db.readers.query_sql(select, key).await?;
        found.first().map(read_address).transpose()
    }

    /// Workspace and name of an endpoint, for metrics only, never for clients.
    pub async fn find_endpoint_name(
        self,
        id: EndpointId,
    ) -> Result<Option<(WorkspaceId, String)>, StoreError> {
        let found: Option<(String, String)> = runner_endpoints::Entity::find_by_id(id.to_string())
            .select_only()
            .column(runner_endpoints::Column::WorkspaceId)
            .column(runner_endpoints::Column::Name)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        Ok(found.map(|(workspace, name)| (WorkspaceId(workspace), name)))
    }

    pub async fn find_endpoint_by_name(
        self,
        workspace: &WorkspaceId,
        name: &str,
    ) -> Result<Option<EndpointRecord>, StoreError> {
        let row = runner_endpoints::Entity::find()
            .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(runner_endpoints::Column::Name.eq(name))
            .one(&self.db.readers)
            .await?;
        row.map(endpoint_record).transpose()
    }

    /// Endpoints of the workspace by name, after `after`.
    pub async fn list_endpoints(
        self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<EndpointRecord>, StoreError> {
        let own = runner_endpoints::Column::WorkspaceId.eq(workspace.as_str());
        let page = PageOf {
            rows: runner_endpoints::Entity::find()
                .filter(own.clone())
                .filter(runner_endpoints::Column::Name.gt(after.unwrap_or_default()))
                .order_by_asc(runner_endpoints::Column::Name),
            key: runner_endpoints::Column::Id,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<String>(&self.db.readers, bound.into()).await?;
        found.try_map(endpoint_record)
    }

    /// Names of the enabled endpoints, each with true if it comes from the config file.
    pub async fn enabled_endpoints(
        self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<(String, bool)>, StoreError> {
        let enabled = runner_endpoints::Entity::find()
            .select_only()
            .column(runner_endpoints::Column::Name)
            .column(runner_endpoints::Column::Origin)
            .filter(runner_endpoints::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(runner_endpoints::Column::Enabled.eq(true))
            .order_by_asc(runner_endpoints::Column::Name);
        let enabled = enabled.into_tuple::<(String, String)>();
        let enabled = enabled.all(&self.db.readers).await?.into_iter();
        Ok(enabled
            .map(|(name, origin)| (name, origin == ORIGIN_CONFIG))
            .collect())
    }
}

const ADDRESSES: &str =
    "SELECT e.id, e.base_url, e.mode, e.delta_mode, e.secret, e.headers FROM runner_endpoints e";

/// Addresses of the endpoints that serve runners of the workspace's agents.
pub(crate) async fn bound_endpoints(
    conn: &impl Sql,
    workspace: &WorkspaceId,
) -> Result<Vec<EndpointAddress>, StoreError> {
    let select = format!(
        "{ADDRESSES} WHERE e.workspace_id = $1 AND EXISTS (SELECT 1 FROM runners r, agents a \
         WHERE r.workspace_id = $1 AND r.endpoint_id = e.id AND a.workspace_id = $1 AND a.runner_id = r.runner_id)"
    );
    let found = conn.query_sql(select, vec![workspace.as_str().into()]);
    found.await?.iter().map(read_address).collect()
}

fn read_address(row: &SqlRow) -> Result<EndpointAddress, StoreError> {
    let id = row.text("id")?;
    Ok(EndpointAddress {
        id: parsed("runner_endpoints.id", &id, &id)?,
        base_url: row.text("base_url")?,
        mode: parsed_json("runner_endpoints.mode", &id, &quoted(&row.text("mode")?))?,
        delta_mode: parsed_json(
            "runner_endpoints.delta_mode",
            &id,
            &quoted(&row.text("delta_mode")?),
        )?,
        secret: row.text("secret")?,
        headers: row.text("headers")?,
    })
}

pub(crate) fn endpoint_record(row: runner_endpoints::Model) -> Result<EndpointRecord, StoreError> {
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
        max_runs: row
            .max_runs
            .map(|limit| unsigned("runner_endpoints.max_runs", &row.id, limit))
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
        next_check_at: row.next_check_at,
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
        next_check_at: record.next_check_at,
        asked_at: 0,
        max_runs: record.max_runs.map(signed),
    }
}
