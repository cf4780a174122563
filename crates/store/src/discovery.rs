//! Stores discovery results: runners of an endpoint and its health.

use std::collections::{HashMap, HashSet};

use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ColumnTrait, DatabaseTransaction, EntityTrait, ExprTrait, PaginatorTrait, QueryFilter,
    QuerySelect,
};
use serde_json::Value;

use crate::entity::{agents, endpoint_health, runner_endpoints, runners};
use crate::error::{StoreError, parsed_json, signed};
use crate::health::write_health;
use crate::model::registry::RunnerStatus;
use crate::mutation::Mutation;
use crate::runners::{FoundRunner, served_elsewhere};
use crate::webhooks::note_endpoint;
use secrets::digest::sha256_hex;

/// Maximum delay in milliseconds between the replies of overlapping checks.
const MAX_CHECK_OVERLAP: i64 = 60_000;
const HEALTHY: &str = "healthy";
const UNKNOWN: &str = "unknown";

/// Stores a discovery result. A runner missing from the list becomes absent if an agent is bound to it, and is
/// deleted otherwise.
///
/// Results are dropped if the endpoint has changed, was disabled, or a later check has been stored.
#[derive(Clone, Debug)]
pub struct SaveDiscovery {
    pub workspace: WorkspaceId,
    pub endpoint_id: EndpointId,
    /// Version of the checked endpoint.
    pub version: i64,
    /// The endpoint that may lose its ids to this one.
    pub replaces: Option<EndpointId>,
    /// True when an operator requested this discovery. Otherwise the endpoint gets no unserved ids with bound
    /// agents, or it could take the ids of a deleted endpoint.
    pub may_claim: bool,
    pub found: Vec<FoundRunner>,
    /// Number of rejected manifests.
    pub rejected: u64,
    pub findings: Value,
    pub asked_at: i64,
    pub latency_ms: Option<i64>,
    pub next_check_at: i64,
    pub at: i64,
}

/// Stores a failed discovery with its reason; the runners stay.
#[derive(Clone, Debug)]
pub struct SaveFailure {
    pub endpoint_id: EndpointId,
    /// Version of the checked endpoint.
    pub version: i64,
    pub health: String,
    pub reason: String,
    pub asked_at: i64,
    pub latency_ms: Option<i64>,
    pub next_check_at: i64,
    pub at: i64,
}

/// Changes to the runners of an endpoint.
#[derive(Default)]
struct Changes {
    added: u64,
    changed: u64,
    removed: u64,
}

impl Changes {
    fn any(&self) -> bool {
        self.added + self.changed + self.removed > 0
    }
}

impl Mutation for SaveDiscovery {
    /// Refused ids, each with its owning endpoint, if any. One refused id prevents the complete write.
    type Output = Vec<(RunnerId, Option<EndpointId>)>;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        let ids: Vec<_> = self.found.iter().map(|found| found.id.clone()).collect();
        let taken = served_elsewhere(tx, &self.workspace, self.endpoint_id, &ids).await?;
        let mut conflicts: Vec<_> = taken
            .into_iter()
            .filter(|runner| self.replaces != Some(runner.endpoint_id))
            .map(|runner| (runner.id, Some(runner.endpoint_id)))
            .collect();
        if !self.may_claim {
            let unserved = self.unserved_with_agents(tx).await?;
            conflicts.extend(unserved.into_iter().map(|id| (id, None)));
        }
        if !conflicts.is_empty() {
            return Ok(conflicts);
        }
        let Some(before) = lock(tx, self.endpoint_id, self.version, self.asked_at).await? else {
            return Ok(Vec::new());
        };
        let changes = self.replace_runners(tx).await?;
        self.update_endpoint(tx).await?;
        let findings: Value =
            parsed_json("runner_endpoints.findings", &before.id, &before.findings)?;
        // The health history records changes only.
        if before.health != HEALTHY || changes.any() || findings != self.findings {
            self.write_health(tx, &changes).await?;
        }
        Ok(Vec::new())
    }
}

impl SaveDiscovery {
    /// Listed runners with bound agents that no endpoint serves.
    async fn unserved_with_agents(
        &self,
        tx: &DatabaseTransaction,
    ) -> Result<Vec<RunnerId>, StoreError> {
        let ids = self.found.iter().map(|found| found.id.to_string());
        let served: Vec<String> = runners::Entity::find()
            .select_only()
            .column(runners::Column::RunnerId)
            .filter(runners::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(runners::Column::RunnerId.is_in(ids.clone()))
            .into_tuple()
            .all(tx)
            .await?;
        let unserved = ids.filter(|id| !served.contains(id)).collect();
        let bound = self.bound(tx, unserved).await?;
        let found = self.found.iter().map(|found| &found.id);
        let is_bound = |id: &&RunnerId| bound.contains(&id.to_string());
        Ok(found.filter(is_bound).cloned().collect())
    }

    /// Subset of these runners with bound agents.
    async fn bound(
        &self,
        tx: &DatabaseTransaction,
        ids: Vec<String>,
    ) -> Result<Vec<String>, StoreError> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let bound = agents::Entity::find()
            .select_only()
            .column(agents::Column::RunnerId)
            .distinct()
            .filter(agents::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(agents::Column::RunnerId.is_in(ids))
            .into_tuple()
            .all(tx)
            .await?;
        Ok(bound)
    }

    async fn replace_runners(&self, tx: &DatabaseTransaction) -> Result<Changes, StoreError> {
        let registered = runners::Entity::find()
            .filter(runners::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(runners::Column::EndpointId.eq(self.endpoint_id.to_string()))
            .all(tx)
            .await?;
        let registered: HashMap<_, _> = registered
            .into_iter()
            .map(|row| (row.runner_id.clone(), row))
            .collect();
        let mut changes = Changes::default();
        for found in &self.found {
            let row = self.row(found);
            match registered.get(&row.runner_id) {
                Some(old) if old.status == RunnerStatus::Absent.as_str() => changes.added += 1,
                Some(old)
                    if old.status == row.status && old.manifest_sha256 == row.manifest_sha256 => {}
                Some(_) => changes.changed += 1,
                None => changes.added += 1,
            }
            self.upsert(tx, row).await?;
        }
        let listed: HashSet<_> = self
            .found
            .iter()
            .map(|found| found.id.to_string())
            .collect();
        let gone: Vec<_> = registered
            .into_values()
            .filter(|row| !listed.contains(&row.runner_id))
            .collect();
        changes.removed = gone
            .iter()
            .filter(|row| row.status != RunnerStatus::Absent.as_str())
            .count() as u64;
        self.remove_unlisted(tx, gone.into_iter().map(|row| row.runner_id).collect())
            .await?;
        Ok(changes)
    }

    fn row(&self, found: &FoundRunner) -> runners::Model {
        let status = match found.incompatible {
            Some(_) => RunnerStatus::Incompatible,
            None => RunnerStatus::Accepted,
        };
        runners::Model {
            workspace_id: self.workspace.to_string(),
            runner_id: found.id.to_string(),
            endpoint_id: self.endpoint_id.to_string(),
            status: status.as_str().to_owned(),
            reason: found.incompatible.clone(),
            manifest: found.manifest.clone(),
            manifest_sha256: sha256_hex(found.manifest.as_bytes()),
            seen_at: self.at,
        }
    }

    async fn upsert(
        &self,
        tx: &DatabaseTransaction,
        row: runners::Model,
    ) -> Result<(), StoreError> {
        let own = [Some(self.endpoint_id), self.replaces];
        let may_give_way = own.into_iter().flatten().map(|id| id.to_string());
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
                // Two endpoints may list a new id concurrently: the first one gets it.
                .action_and_where(runners::Column::EndpointId.is_in(may_give_way))
                .to_owned();
        runners::Entity::insert(runners::ActiveModel::from(row))
            .on_conflict(taken_over)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }

    /// Removes unlisted runners. Runners with bound agents stay as absent, so the API shows the reason.
    async fn remove_unlisted(
        &self,
        tx: &DatabaseTransaction,
        gone: Vec<String>,
    ) -> Result<(), StoreError> {
        if gone.is_empty() {
            return Ok(());
        }
        let bound = self.bound(tx, gone.clone()).await?;
        let (absent, removed): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|runner| bound.contains(runner));
        // Another endpoint may have taken them concurrently.
        let own = |ids: Vec<String>| {
            runners::Column::WorkspaceId
                .eq(self.workspace.as_str())
                .and(runners::Column::EndpointId.eq(self.endpoint_id.to_string()))
                .and(runners::Column::RunnerId.is_in(ids))
        };
        runners::Entity::delete_many()
            .filter(own(removed))
            .exec(tx)
            .await?;
        let reason = "its endpoint does not list it any more, or only with faults; list it again, \
            or bind the agent to another runner";
        runners::Entity::update_many()
            .col_expr(
                runners::Column::Status,
                Expr::value(RunnerStatus::Absent.as_str()),
            )
            .col_expr(runners::Column::Reason, Expr::value(reason))
            .filter(own(absent))
            .exec(tx)
            .await?;
        Ok(())
    }

    async fn update_endpoint(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        runner_endpoints::Entity::update_many()
            .col_expr(runner_endpoints::Column::Health, Expr::value(HEALTHY))
            .col_expr(
                runner_endpoints::Column::HealthReason,
                Expr::value(None::<String>),
            )
            .col_expr(
                runner_endpoints::Column::Findings,
                Expr::value(self.findings.to_string()),
            )
            .col_expr(runner_endpoints::Column::DiscoveredAt, Expr::value(self.at))
            .col_expr(
                runner_endpoints::Column::NextCheckAt,
                Expr::value(self.next_check_at),
            )
            .filter(runner_endpoints::Column::Id.eq(self.endpoint_id.to_string()))
            .exec(tx)
            .await?;
        Ok(())
    }

    async fn write_health(
        &self,
        tx: &DatabaseTransaction,
        changes: &Changes,
    ) -> Result<(), StoreError> {
        let incompatible = |found: &&FoundRunner| found.incompatible.is_some();
        let incompatible = self.found.iter().filter(incompatible).count();
        let row = endpoint_health::Model {
            endpoint_id: self.endpoint_id.to_string(),
            n: 0,
            at: self.at,
            health: HEALTHY.to_owned(),
            reason: None,
            latency_ms: self.latency_ms,
            accepted: signed((self.found.len() - incompatible) as u64),
            incompatible: signed(incompatible as u64),
            rejected: signed(self.rejected),
            added: signed(changes.added),
            changed: signed(changes.changed),
            removed: signed(changes.removed),
        };
        write_health(tx, row).await
    }
}

impl Mutation for SaveFailure {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let Some(before) = lock(tx, self.endpoint_id, self.version, self.asked_at).await? else {
            return Ok(());
        };
        runner_endpoints::Entity::update_many()
            .col_expr(
                runner_endpoints::Column::Health,
                Expr::value(self.health.as_str()),
            )
            .col_expr(
                runner_endpoints::Column::HealthReason,
                Expr::value(self.reason.as_str()),
            )
            .col_expr(
                runner_endpoints::Column::NextCheckAt,
                Expr::value(self.next_check_at),
            )
            .filter(runner_endpoints::Column::Id.eq(before.id.as_str()))
            .exec(tx)
            .await?;
        // The health history records changes only.
        if before.health == self.health && before.health_reason.as_ref() == Some(&self.reason) {
            return Ok(());
        }
        // An endpoint that was unhealthy before has its message.
        if [HEALTHY, UNKNOWN].contains(&before.health.as_str()) {
            let workspace = WorkspaceId(before.workspace_id.clone());
            note_endpoint(tx, &workspace, &before.id, self.at).await?;
        }
        let count_of = |status: RunnerStatus| {
            runners::Entity::find()
                .filter(runners::Column::EndpointId.eq(before.id.as_str()))
                .filter(runners::Column::Status.eq(status.as_str()))
                .count(tx)
        };
        let row = endpoint_health::Model {
            endpoint_id: before.id.clone(),
            n: 0,
            at: self.at,
            health: self.health.clone(),
            reason: Some(self.reason.clone()),
            latency_ms: self.latency_ms,
            accepted: signed(count_of(RunnerStatus::Accepted).await?),
            incompatible: signed(count_of(RunnerStatus::Incompatible).await?),
            rejected: 0,
            added: 0,
            changed: 0,
            removed: 0,
        };
        write_health(tx, row).await
    }
}

/// Locks the endpoint's row for the reply to a check of `asked_at` and returns its previous state. `None`: it is
/// deleted, disabled, of another version, or a later check has been stored.
async fn lock(
    tx: &DatabaseTransaction,
    id: EndpointId,
    version: i64,
    asked_at: i64,
) -> Result<Option<runner_endpoints::Model>, StoreError> {
    let is_earlier = runner_endpoints::Column::AskedAt.lte(asked_at);
    // A clock that was set back would otherwise drop all results until it has caught up.
    let is_of_a_clock_set_back = runner_endpoints::Column::AskedAt.gt(asked_at + MAX_CHECK_OVERLAP);
    let locked = runner_endpoints::Entity::update_many()
        .col_expr(runner_endpoints::Column::AskedAt, Expr::value(asked_at))
        .filter(runner_endpoints::Column::Id.eq(id.to_string()))
        .filter(runner_endpoints::Column::Enabled.eq(true))
        .filter(runner_endpoints::Column::Version.eq(version))
        .filter(is_earlier.or(is_of_a_clock_set_back))
        .exec(tx)
        .await?;
    if locked.rows_affected == 0 {
        return Ok(None);
    }
    let row = runner_endpoints::Entity::find_by_id(id.to_string());
    Ok(row.one(tx).await?)
}
