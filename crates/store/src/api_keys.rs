//! API keys, stored as hashes.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use domain::canonical::canonical_json;
use protocol::api_key::KeyRole;
use protocol::id::{AgentId, ApiKeyId, WorkspaceId};
use protocol::limiter::OwnLimits;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, Condition, DatabaseTransaction, EntityTrait, PaginatorTrait,
    QueryFilter, QueryOrder, QuerySelect,
};

use crate::capacity::live_runs_by;
use crate::entity::{api_keys, workspaces};
use crate::error::{StoreError, parsed, unsigned};
use crate::mutation::Mutation;
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::{AccessRepository, RetentionRepository};
use crate::sql::{Sql, SqlRow, columns, padded};

/// An API key, without its secret. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyRecord {
    pub id: ApiKeyId,
    pub workspace: WorkspaceId,
    pub name: String,
    pub role: KeyRole,
    /// The public part, used for lookups.
    pub prefix: String,
    /// The hex SHA-256 of the full key.
    pub hash: String,
    pub created_at: i64,
    /// Time of revocation; a revoked key grants no access.
    pub revoked_at: Option<i64>,
    /// End of validity; `None`: the key does not expire.
    pub expires_at: Option<i64>,
    /// Last use, to about [`KEY_USE_RESOLUTION_MS`].
    pub last_used_at: Option<i64>,
    /// The only agents that the key reaches; `None`: all agents of the workspace.
    pub agents: Option<Vec<AgentId>>,
    /// Limits of the runs that it starts; `None`: no limits of its own.
    pub limits: Option<OwnLimits>,
    /// Made by the sign-in of a person.
    pub is_session: bool,
}

impl ApiKeyRecord {
    /// True when the key has expired at this time.
    pub fn is_expired(&self, at: i64) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= at)
    }

    /// True when the key grants access at this time: it is neither revoked nor expired.
    pub fn is_valid(&self, at: i64) -> bool {
        self.revoked_at.is_none() && !self.is_expired(at)
    }
}

/// Stores a new key. [`StoreError::Taken`]: its public part is taken.
impl Mutation for ApiKeyRecord {
    type Output = ();
    const SAVEPOINT: bool = true;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let row = api_keys::ActiveModel {
            id: Set(self.id.to_string()),
            workspace_id: Set(self.workspace.to_string()),
            name: Set(self.name.clone()),
            role: Set(self.role.as_str().to_owned()),
            prefix: Set(self.prefix.clone()),
            hash: Set(self.hash.clone()),
            created_at: Set(self.created_at),
            revoked_at: Set(self.revoked_at),
            expires_at: Set(self.expires_at),
            last_used_at: Set(self.last_used_at),
            agents: Set(self.agents.as_ref().map(canonical_json)),
            limits: Set(self.limits.as_ref().map(canonical_json)),
            is_session: Set(self.is_session),
        };
        api_keys::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }
}

/// Protection of owner keys and of the last admin key of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastAdmin {
    /// Refuse them: the admin API could not create new ones.
    Stays,
    /// Revoke them: the command line can create new ones.
    Goes,
}

/// Revokes an API key of a workspace. See [`LastAdmin`] for protected keys.
#[derive(Clone, Debug)]
pub struct RevokeApiKey {
    pub workspace: WorkspaceId,
    pub id: ApiKeyId,
    pub last_admin: LastAdmin,
    pub at: i64,
}

/// Result of a revocation, with the current record of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    Now {
        key: ApiKeyRecord,
        was_last_admin: bool,
    },
    /// Revoked earlier; its time stays.
    Before(ApiKeyRecord),
    LastAdmin,
    /// An owner key, which only the command line revokes.
    Owner,
    Unknown,
}

impl Mutation for RevokeApiKey {
    type Output = Revoked;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Revoked, StoreError> {
        // Locks the workspace's row, so two admins cannot revoke each other's keys concurrently and lock the workspace
        // out. The update works on both databases.
        workspaces::Entity::update_many()
            .col_expr(
                workspaces::Column::Name,
                Expr::col(workspaces::Column::Name),
            )
            .filter(workspaces::Column::Id.eq(self.workspace.as_str()))
            .exec(tx)
            .await?;
        let found = api_keys::Entity::find_by_id(self.id.to_string())
            .filter(api_keys::Column::WorkspaceId.eq(self.workspace.as_str()))
            .one(tx)
            .await?;
        let Some(row) = found else {
            return Ok(Revoked::Unknown);
        };
        let mut key = record(row)?;
        if key.revoked_at.is_some() {
            return Ok(Revoked::Before(key));
        }
        if key.role == KeyRole::Owner && self.last_admin == LastAdmin::Stays {
            return Ok(Revoked::Owner);
        }
        // An expired key opens nothing, so its revocation takes no access.
        let opens_admin = key.role == KeyRole::Admin && !key.is_expired(self.at);
        let was_last_admin = opens_admin && self.is_last_admin(tx).await?;
        if was_last_admin && self.last_admin == LastAdmin::Stays {
            return Ok(Revoked::LastAdmin);
        }
        api_keys::Entity::update_many()
            .col_expr(api_keys::Column::RevokedAt, Expr::value(self.at))
            .filter(api_keys::Column::Id.eq(self.id.to_string()))
            .exec(tx)
            .await?;
        key.revoked_at = Some(self.at);
        Ok(Revoked::Now {
            key,
            was_last_admin,
        })
    }
}

impl RevokeApiKey {
    async fn is_last_admin(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let others = api_keys::Entity::find()
            .filter(api_keys::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(api_keys::Column::Role.eq(KeyRole::Admin.as_str()))
            .filter(api_keys::Column::RevokedAt.is_null())
            .filter(
                Condition::any()
                    .add(api_keys::Column::ExpiresAt.is_null())
                    .add(api_keys::Column::ExpiresAt.gt(self.at)),
            )
            .filter(api_keys::Column::Id.ne(self.id.to_string()))
            .count(tx)
            .await?;
        Ok(others == 0)
    }
}

/// Resolution of the last use of a key, in milliseconds: a key's row is written at most once in this time.
pub const KEY_USE_RESOLUTION_MS: i64 = 60_000;

/// Records uses of keys, in the order of their ids. A use that is not [`KEY_USE_RESOLUTION_MS`] newer than the
/// recorded one changes nothing, so replicas together write a key at most once in this time.
#[derive(Clone, Debug)]
pub struct RecordKeyUses {
    /// Each key with the time of its use, in epoch milliseconds.
    pub keys: BTreeMap<ApiKeyId, i64>,
}

impl Mutation for RecordKeyUses {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    /// A transaction of its own: it locks rows of keys and nothing else.
    fn lock(&self) -> Option<String> {
        Some("api_key_uses".to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND \
                   (last_used_at IS NULL OR last_used_at <= $3)";
        // In the order of the ids, so replicas lock the rows in one order.
        for (id, at) in &self.keys {
            let before = at.saturating_sub(KEY_USE_RESOLUTION_MS);
            let values = vec![id.to_string().into(), (*at).into(), before.into()];
            tx.execute_sql(sql.to_owned(), values).await?;
        }
        Ok(())
    }
}

/// Maximum sessions per transaction.
const SWEPT_SESSIONS: u64 = 500;

struct SweepSessions {
    expired_before: i64,
}

impl Mutation for SweepSessions {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let sql = format!(
            "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys WHERE is_session AND \
             expires_at < $1 ORDER BY expires_at LIMIT {SWEPT_SESSIONS}) RETURNING id"
        );
        let deleted = tx.query_sql(sql, vec![self.expired_before.into()]);
        Ok(deleted.await?.len() as u64)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of sessions that expired before this time, in epoch milliseconds; returns their number.
    pub async fn sweep_sessions(self, expired_before: i64) -> Result<u64, StoreError> {
        self.db.write(SweepSessions { expired_before }).await
    }
}

static WITH_PREFIX: LazyLock<String> = LazyLock::new(|| {
    let key = columns::<api_keys::Entity>("k");
    format!("SELECT {key} FROM api_keys k WHERE k.prefix = $1 AND k.revoked_at IS NULL")
});

impl AccessRepository<'_> {
    /// The API key with this public part, unless it is revoked. It may have expired. The only query without a
    /// workspace: it determines the caller's workspace.
    pub async fn find_api_key(self, prefix: &str) -> Result<Option<ApiKeyRecord>, StoreError> {
        let query = self
            .db
            .point_reads
            .query_sql(WITH_PREFIX.clone(), vec![prefix.into()]);
        query.await?.first().map(read).transpose()
    }

    /// An API key of a workspace, live or revoked.
    pub async fn find_api_key_by_id(
        self,
        workspace: &WorkspaceId,
        id: ApiKeyId,
    ) -> Result<Option<ApiKeyRecord>, StoreError> {
        let row = api_keys::Entity::find_by_id(id.to_string())
            .filter(api_keys::Column::WorkspaceId.eq(workspace.as_str()))
            .one(&self.db.readers)
            .await?;
        row.map(record).transpose()
    }

    /// Names of API keys of a workspace, live or revoked, by id.
    pub async fn find_api_key_names(
        self,
        workspace: &WorkspaceId,
        ids: Vec<String>,
    ) -> Result<HashMap<String, String>, StoreError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let names: Vec<(String, String)> = api_keys::Entity::find()
            .select_only()
            .column(api_keys::Column::Id)
            .column(api_keys::Column::Name)
            .filter(api_keys::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(api_keys::Column::Id.is_in(padded(ids)))
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        Ok(names.into_iter().collect())
    }

    /// Live runs that a key has started, queued ones included.
    pub async fn count_live_runs_of_key(
        self,
        workspace: &WorkspaceId,
        key: ApiKeyId,
    ) -> Result<u64, StoreError> {
        let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS live FROM runs \
                   WHERE workspace_id = $1 AND finished_at IS NULL AND posted_by = $2";
        let values = vec![workspace.as_str().into(), key.to_string().into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let live = rows.first().map(|row| row.number("live")).transpose()?;
        unsigned("runs.posted_by", workspace.as_str(), live.unwrap_or(0))
    }

    /// Live runs of a workspace by the keys that have started them, as ids.
    pub async fn count_live_runs_by_key(
        self,
        workspace: &WorkspaceId,
    ) -> Result<HashMap<String, u64>, StoreError> {
        live_runs_by(&self.db.readers, workspace, "posted_by").await
    }

    /// An API key of a workspace, live or revoked, by its public part.
    pub async fn find_api_key_by_prefix(
        self,
        workspace: &WorkspaceId,
        prefix: &str,
    ) -> Result<Option<ApiKeyRecord>, StoreError> {
        let row = api_keys::Entity::find()
            .filter(api_keys::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(api_keys::Column::Prefix.eq(prefix))
            .one(&self.db.readers)
            .await?;
        row.map(record).transpose()
    }

    /// API keys of a workspace after the id `after`, live and revoked, oldest first.
    pub async fn list_api_keys(
        self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<ApiKeyRecord>, StoreError> {
        let own = api_keys::Column::WorkspaceId.eq(workspace.as_str());
        let mut keys = api_keys::Entity::find()
            .filter(own.clone())
            .order_by_asc(api_keys::Column::Id);
        if let Some(after) = after {
            keys = keys.filter(api_keys::Column::Id.gt(after));
        }
        let page = PageOf {
            rows: keys,
            key: api_keys::Column::Id,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<String>(&self.db.readers, bound.into()).await?;
        found.try_map(record)
    }
}

fn read(row: &SqlRow) -> Result<ApiKeyRecord, StoreError> {
    record(api_keys::Model {
        id: row.text("id")?,
        workspace_id: row.text("workspace_id")?,
        name: row.text("name")?,
        role: row.text("role")?,
        prefix: row.text("prefix")?,
        hash: row.text("hash")?,
        created_at: row.number("created_at")?,
        revoked_at: row.number_if_any("revoked_at")?,
        expires_at: row.number_if_any("expires_at")?,
        last_used_at: row.number_if_any("last_used_at")?,
        agents: row.text_if_any("agents")?,
        limits: row.text_if_any("limits")?,
        is_session: row.flag("is_session")?,
    })
}

fn record(row: api_keys::Model) -> Result<ApiKeyRecord, StoreError> {
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: row.id.clone(),
    };
    let role = KeyRole::parse(&row.role).ok_or_else(|| corrupt("api_keys.role"))?;
    let agents = row.agents.as_deref().map(serde_json::from_str).transpose();
    let agents = agents.map_err(|_| corrupt("api_keys.agents"))?;
    let limits = row.limits.as_deref().map(serde_json::from_str).transpose();
    let limits = limits.map_err(|_| corrupt("api_keys.limits"))?;
    Ok(ApiKeyRecord {
        id: parsed("api_keys.id", &row.id, &row.id)?,
        workspace: WorkspaceId(row.workspace_id),
        name: row.name,
        role,
        prefix: row.prefix,
        hash: row.hash,
        created_at: row.created_at,
        revoked_at: row.revoked_at,
        expires_at: row.expires_at,
        last_used_at: row.last_used_at,
        agents,
        limits,
        is_session: row.is_session,
    })
}
