//! Sources, each with the API key whose rights its events have. Both rows have one id.

use domain::source::MAX_SOURCES;
use protocol::api_key::KeyRole;
use protocol::id::{AgentId, ApiKeyId, SourceId, WorkspaceId};
use protocol::principal::Principal;
use protocol::source::SourceSettings;
use sea_orm::{DatabaseTransaction, Value};

use crate::agents::{ORIGIN_API, ORIGIN_CONFIG};
use crate::api_keys::ApiKeyRecord;
use crate::error::{StoreError, parsed, parsed_json, signed};
use crate::mutation::Mutation;
use crate::repositories::AccessRepository;
use crate::runs::principal_if_any;
use crate::sql::{Sql, SqlRow, row_lock};

/// A source. Secrets are sealed under the master key; times are epoch milliseconds.
#[derive(Clone, PartialEq)]
pub struct SourceRecord {
    pub id: SourceId,
    pub workspace: WorkspaceId,
    pub name: String,
    pub origin: String,
    pub enabled: bool,
    pub settings: SourceSettings,
    pub secret: String,
    /// The secret before the last rotation, with the end of its use.
    pub previous_secret: Option<(String, i64)>,
    /// The agents that its API key reaches; `None`: all agents.
    pub agents: Option<Vec<AgentId>>,
    /// True if its API key was revoked.
    pub is_revoked: bool,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub updated_by: Principal,
}

impl SourceRecord {
    /// Id of its API key.
    pub fn key(&self) -> ApiKeyId {
        ApiKeyId(self.id.0)
    }

    fn is_like(&self, other: &Self) -> bool {
        let settings = |of: &Self| {
            (
                of.origin.clone(),
                of.enabled,
                of.settings.clone(),
                of.agents.clone(),
                of.secret.clone(),
            )
        };
        settings(self) == settings(other)
    }

    /// The API key. No text is its credential: the prefix is none of a key, and no hash is empty.
    fn api_key(&self) -> ApiKeyRecord {
        ApiKeyRecord {
            id: self.key(),
            workspace: self.workspace.clone(),
            name: format!("source {}", self.name),
            role: KeyRole::Client,
            prefix: format!("source:{}", self.id),
            hash: String::new(),
            created_at: self.created_at,
            revoked_at: None,
            expires_at: None,
            last_used_at: None,
            agents: self.agents.clone(),
            limits: None,
            is_session: false,
        }
    }
}

/// Creates, changes or removes a source.
#[derive(Clone)]
pub enum SaveSource {
    /// Over the API; the name must be free.
    Create(Box<SourceRecord>),
    /// Over the API. The sealed `secret` replaces the current one, which is accepted until `until`.
    Rotate {
        id: SourceId,
        workspace: WorkspaceId,
        secret: String,
        until: i64,
        by: Principal,
        at: i64,
    },
    /// Over the API. Revokes its API key.
    Delete {
        id: SourceId,
        workspace: WorkspaceId,
        at: i64,
    },
    /// From the config file: found by name, changed only if different.
    Configure(Box<SourceRecord>),
    /// Disables sources missing from the config file. From then on they belong to the API.
    DisableUnnamed {
        workspace: WorkspaceId,
        names: Vec<String>,
        at: i64,
    },
}

/// Result of [`SaveSource`].
#[derive(Clone, PartialEq)]
pub enum SavedSource {
    Saved(Box<SourceRecord>),
    Done,
    Unknown,
    /// The config file owns it.
    ReadOnly,
    /// The workspace has [`MAX_SOURCES`].
    Full,
}

impl Mutation for SaveSource {
    type Output = SavedSource;
    const SAVEPOINT: bool = true;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<SavedSource, StoreError> {
        match self {
            Self::Create(record) => create(tx, record).await,
            Self::Rotate {
                id,
                workspace,
                secret,
                until,
                by,
                at,
            } => {
                let before = match owned(tx, workspace, *id).await? {
                    Ok(before) => before,
                    Err(refused) => return Ok(refused),
                };
                let record = SourceRecord {
                    previous_secret: Some((before.secret.clone(), *until)),
                    secret: secret.clone(),
                    version: before.version + 1,
                    updated_at: *at,
                    updated_by: by.clone(),
                    ..before
                };
                write(tx, &record).await?;
                Ok(SavedSource::Saved(Box::new(record)))
            }
            Self::Delete { id, workspace, at } => {
                if let Err(refused) = owned(tx, workspace, *id).await? {
                    return Ok(refused);
                }
                // Not deleted: runs show the name of the key that posted their event.
                let key =
                    "UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
                let values = vec![id.to_string().into(), (*at).into()];
                tx.execute_sql(key.to_owned(), values).await?;
                let sql = "DELETE FROM sources WHERE id = $1".to_owned();
                tx.execute_sql(sql, vec![id.to_string().into()]).await?;
                Ok(SavedSource::Done)
            }
            Self::Configure(record) => configure(tx, record).await,
            Self::DisableUnnamed {
                workspace,
                names,
                at,
            } => disable_unnamed(tx, workspace, names, *at).await,
        }
    }

    // The creator needs the generated secret, even after a lost commit reply.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &SavedSource,
    ) -> Result<bool, StoreError> {
        let (Self::Create(_) | Self::Rotate { .. }, SavedSource::Saved(record)) = (self, output)
        else {
            return Ok(false);
        };
        let sql = "SELECT id FROM sources WHERE id = $1 AND secret = $2".to_owned();
        let values = vec![record.id.to_string().into(), record.secret.as_str().into()];
        Ok(!tx.query_sql(sql, values).await?.is_empty())
    }
}

async fn create(
    tx: &DatabaseTransaction,
    record: &SourceRecord,
) -> Result<SavedSource, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM sources WHERE workspace_id = $1";
    let own = vec![record.workspace.as_str().into()];
    let count = tx.query_sql(sql.to_owned(), own).await?;
    let count = count.first().map_or(Ok(0), |row| row.number("n"))?;
    if count >= signed(MAX_SOURCES) {
        return Ok(SavedSource::Full);
    }
    insert(tx, record).await?;
    Ok(SavedSource::Saved(Box::new(record.clone())))
}

async fn configure(
    tx: &DatabaseTransaction,
    record: &SourceRecord,
) -> Result<SavedSource, StoreError> {
    let rows = select("s.workspace_id = $1 AND s.name = $2");
    let values = vec![
        record.workspace.as_str().into(),
        record.name.as_str().into(),
    ];
    let found = tx.query_sql(rows, values).await?;
    let Some(before) = found.first().map(read_source).transpose()? else {
        insert(tx, record).await?;
        return Ok(SavedSource::Saved(Box::new(record.clone())));
    };
    // The version changes only with the settings: every start configures again.
    if before.is_like(record) {
        return Ok(SavedSource::Saved(Box::new(before)));
    }
    let record = SourceRecord {
        id: before.id,
        // The file cannot open what an admin has closed.
        is_revoked: before.is_revoked,
        version: before.version + 1,
        created_at: before.created_at,
        ..record.clone()
    };
    write(tx, &record).await?;
    Ok(SavedSource::Saved(Box::new(record)))
}

async fn disable_unnamed(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    names: &[String],
    at: i64,
) -> Result<SavedSource, StoreError> {
    let rows = select("s.workspace_id = $1 AND s.origin = $2");
    let values = vec![workspace.as_str().into(), ORIGIN_CONFIG.into()];
    for row in tx.query_sql(rows, values).await? {
        let before = read_source(&row)?;
        if !names.contains(&before.name) {
            let record = SourceRecord {
                // The API can delete it from now on.
                origin: ORIGIN_API.to_owned(),
                enabled: false,
                version: before.version + 1,
                updated_at: at,
                ..before
            };
            write(tx, &record).await?;
        }
    }
    Ok(SavedSource::Done)
}

/// The source, if the API may change it. Its row is locked.
async fn owned(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    id: SourceId,
) -> Result<Result<SourceRecord, SavedSource>, StoreError> {
    // Not every database locks one side of a join, so the row is locked first.
    let lock = format!("SELECT id FROM sources WHERE id = $1 {}", row_lock(tx));
    tx.query_sql(lock, vec![id.to_string().into()]).await?;
    let values = vec![id.to_string().into(), workspace.as_str().into()];
    let found = tx.query_sql(select(OF_WORKSPACE), values).await?;
    let Some(record) = found.first().map(read_source).transpose()? else {
        return Ok(Err(SavedSource::Unknown));
    };
    Ok(if record.origin == ORIGIN_CONFIG {
        Err(SavedSource::ReadOnly)
    } else {
        Ok(record)
    })
}

async fn insert(tx: &DatabaseTransaction, record: &SourceRecord) -> Result<(), StoreError> {
    let sql = "INSERT INTO sources (id, workspace_id, name, created_at, origin, enabled, settings, secret, version, \
               updated_at, updated_by) VALUES ($1, $2, $3, $4, '', FALSE, '', '', 0, 0, '')";
    let values = vec![
        record.id.to_string().into(),
        record.workspace.as_str().into(),
        record.name.as_str().into(),
        record.created_at.into(),
    ];
    // First, so that a taken name leaves no key.
    tx.execute_sql(sql.to_owned(), values).await?;
    record.api_key().apply(tx).await?;
    write(tx, record).await
}

/// Writes the settings of a stored source, and the agents of its key.
async fn write(tx: &DatabaseTransaction, record: &SourceRecord) -> Result<(), StoreError> {
    let sql = "UPDATE sources SET origin = $2, enabled = $3, settings = $4, secret = $5, previous_secret = $6, \
               previous_until = $7, version = $8, updated_at = $9, updated_by = $10 WHERE id = $1";
    let (previous, until) = record.previous_secret.clone().unzip();
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    let values: Vec<Value> = vec![
        record.id.to_string().into(),
        record.origin.as_str().into(),
        record.enabled.into(),
        json(serde_json::to_string(&record.settings)).into(),
        record.secret.as_str().into(),
        previous.into(),
        until.into(),
        record.version.into(),
        record.updated_at.into(),
        record.updated_by.stored().into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await?;
    let agents = record.agents.as_ref();
    let agents = agents.map(|agents| json(serde_json::to_string(agents)));
    let sql = "UPDATE api_keys SET agents = $2 WHERE id = $1".to_owned();
    let values = vec![record.id.to_string().into(), agents.into()];
    tx.execute_sql(sql, values).await
}

const OF_WORKSPACE: &str = "s.id = $1 AND s.workspace_id = $2";

fn select(condition: &str) -> String {
    format!(
        "SELECT s.id, s.workspace_id, s.name, s.origin, s.enabled, s.settings, s.secret, s.previous_secret, \
         s.previous_until, s.version, s.created_at, s.updated_at, s.updated_by, k.agents, k.revoked_at \
         FROM sources s JOIN api_keys k ON k.id = s.id WHERE {condition} ORDER BY s.name"
    )
}

fn read_source(row: &SqlRow) -> Result<SourceRecord, StoreError> {
    let id = row.text("id")?;
    let agents = row.text_if_any("agents")?;
    let previous = row.text_if_any("previous_secret")?;
    let updated_by = row.text("updated_by")?;
    let updated_by = principal_if_any("sources.updated_by", &id, Some(&updated_by))?;
    Ok(SourceRecord {
        id: parsed("sources.id", &id, &id)?,
        workspace: WorkspaceId(row.text("workspace_id")?),
        name: row.text("name")?,
        origin: row.text("origin")?,
        enabled: row.flag("enabled")?,
        settings: parsed_json("sources.settings", &id, &row.text("settings")?)?,
        secret: row.text("secret")?,
        previous_secret: previous.zip(row.number_if_any("previous_until")?),
        agents: agents
            .map(|agents| parsed_json("api_keys.agents", &id, &agents))
            .transpose()?,
        is_revoked: row.number_if_any("revoked_at")?.is_some(),
        version: row.number("version")?,
        created_at: row.number("created_at")?,
        updated_at: row.number("updated_at")?,
        updated_by: updated_by.ok_or_else(|| StoreError::Corrupt {
            column: "sources.updated_by",
            row: id.clone(),
        })?,
    })
}

impl AccessRepository<'_> {
    /// The sources of a workspace by name, at most [`MAX_SOURCES`] and those of the config file.
    pub async fn all_sources(
        self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<SourceRecord>, StoreError> {
        let values = vec![workspace.as_str().into()];
        let found = self
            .db
            .readers
            .query_sql(select("s.workspace_id = $1"), values);
        found.await?.iter().map(read_source).collect()
    }

    /// A source of the workspace.
    pub async fn find_source(
        self,
        workspace: &WorkspaceId,
        id: SourceId,
    ) -> Result<Option<SourceRecord>, StoreError> {
        let values = vec![id.to_string().into(), workspace.as_str().into()];
        let found = self.db.readers.query_sql(select(OF_WORKSPACE), values);
        found.await?.first().map(read_source).transpose()
    }

    /// The source of a path: by its id, or by its name in `workspace`. The query by id has no workspace, because the
    /// source determines it.
    pub async fn find_source_of_path(
        self,
        workspace: &WorkspaceId,
        named: &str,
    ) -> Result<Option<SourceRecord>, StoreError> {
        // Names of sources are no ids, so the two never collide.
        let (condition, values) = match named.parse::<SourceId>() {
            Ok(id) => ("s.id = $1", vec![id.to_string().into()]),
            Err(_) => (
                "s.name = $1 AND s.workspace_id = $2",
                vec![named.into(), workspace.as_str().into()],
            ),
        };
        let found = self.db.point_reads.query_sql(select(condition), values);
        found.await?.first().map(read_source).transpose()
    }
}
