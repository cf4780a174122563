//! Webhooks: their rows, and the filters of the enabled ones.
//!
//! A message is a row that the transaction of its cause inserts ([`outbox`]), if a filter selects it. It gets its
//! position and its deliveries afterwards ([`publishing`]); replicas claim deliveries by a lease ([`deliveries`]).

mod deliveries;
mod feed;
mod outbox;
mod publishing;
mod sweep;

use domain::webhook::MAX_WEBHOOKS;
use protocol::id::{AgentId, WebhookId, WorkspaceId};
use protocol::principal::Principal;
use protocol::webhook::{WebhookEventType, WebhookPayload};
use sea_orm::{DatabaseTransaction, Value};

use crate::agents::{ORIGIN_API, ORIGIN_CONFIG};
use crate::error::{StoreError, parsed, parsed_json, signed, unsigned};
use crate::mutation::Mutation;
use crate::repositories::Notifications;
use crate::runs::principal_if_any;
use crate::sql::{Sql, SqlRow, inserted, row_lock};

pub use deliveries::{
    ClaimDeliveries, ClaimedDelivery, DeliveryRecord, DeliveryResult, RecordDelivery, Redeliver,
    RedeliveredBatch,
};
pub use feed::{FeedBounds, MessageRecord, MessagesFound};
pub(crate) use outbox::{
    AWAITED, OutboxRow, note_endpoint, note_ends, note_questions, note_rows, question,
    question_kinds, requested_action,
};
pub use publishing::PublishMessages;
pub use sweep::SweepWebhooks;

/// A webhook. Secrets are sealed under the master key; times are epoch milliseconds.
#[derive(Clone, PartialEq)]
pub struct WebhookRecord {
    pub id: WebhookId,
    pub workspace: WorkspaceId,
    pub name: String,
    pub origin: String,
    pub enabled: bool,
    pub disabled_reason: Option<String>,
    pub url: Option<String>,
    pub events: Vec<WebhookEventType>,
    pub agents: Option<Vec<AgentId>>,
    pub payload: WebhookPayload,
    pub secret: String,
    /// The secret before the last rotation, with the end of its use.
    pub previous_secret: Option<(String, i64)>,
    /// Failed tries since the last delivery.
    pub failures: u64,
    /// No try begins before.
    pub open_until: i64,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub updated_by: Principal,
}

impl WebhookRecord {
    /// True if both have the same settings.
    fn is_like(&self, other: &Self) -> bool {
        let settings = |of: &Self| {
            (
                of.origin.clone(),
                of.enabled,
                of.url.clone(),
                of.events.clone(),
                of.agents.clone(),
                of.payload,
                of.secret.clone(),
            )
        };
        settings(self) == settings(other)
    }
}

/// Creates, changes or removes a webhook.
#[derive(Clone)]
pub enum SaveWebhook {
    /// Over the API; the name must be free.
    Create(Box<WebhookRecord>),
    /// Over the API: replaces all settings but the secrets. `if_match`: the expected current version.
    Update {
        record: Box<WebhookRecord>,
        if_match: Option<i64>,
    },
    /// Over the API. The sealed `secret` replaces the current one, which signs until `until`.
    Rotate {
        id: WebhookId,
        workspace: WorkspaceId,
        secret: String,
        until: i64,
        by: Principal,
        at: i64,
    },
    /// Over the API.
    Delete {
        id: WebhookId,
        workspace: WorkspaceId,
        if_match: Option<i64>,
        at: i64,
    },
    /// From the config file: found by name, changed only if different.
    Configure(Box<WebhookRecord>),
    /// Disables webhooks missing from the config file. From then on they belong to the API.
    DisableUnnamed {
        workspace: WorkspaceId,
        names: Vec<String>,
        at: i64,
    },
}

/// Result of [`SaveWebhook`].
#[derive(Clone, PartialEq)]
pub enum SavedWebhook {
    Saved(Box<WebhookRecord>),
    Done,
    Unknown,
    /// The config file owns it.
    ReadOnly,
    /// The current version differs.
    Mismatch(i64),
    /// The workspace has [`MAX_WEBHOOKS`].
    Full,
}

impl Mutation for SaveWebhook {
    type Output = SavedWebhook;
    const SAVEPOINT: bool = true;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<SavedWebhook, StoreError> {
        match self {
            Self::Create(record) => create(tx, record).await,
            Self::Update { record, if_match } => update(tx, record, *if_match).await,
            Self::Rotate {
                id,
                workspace,
                secret,
                until,
                by,
                at,
            } => {
                let before = match owned(tx, workspace, *id, None).await? {
                    Ok(before) => before,
                    Err(refused) => return Ok(refused),
                };
                let record = WebhookRecord {
                    previous_secret: Some((before.secret.clone(), *until)),
                    secret: secret.clone(),
                    version: before.version + 1,
                    updated_at: *at,
                    updated_by: by.clone(),
                    ..before
                };
                write(tx, &record).await?;
                Ok(SavedWebhook::Saved(Box::new(record)))
            }
            Self::Delete {
                id,
                workspace,
                if_match,
                at,
            } => {
                if let Err(refused) = owned(tx, workspace, *id, *if_match).await? {
                    return Ok(refused);
                }
                // Its deliveries may be many: the sweep deletes them with the row.
                let sql = "UPDATE webhooks SET deleted_at = $1, enabled = FALSE, name = 'deleted ' || id, \
                           secret = '', previous_secret = NULL, url = NULL WHERE id = $2";
                let values = vec![(*at).into(), id.to_string().into()];
                tx.execute_sql(sql.to_owned(), values).await?;
                delete_filters(tx, *id).await?;
                Ok(SavedWebhook::Done)
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
        output: &SavedWebhook,
    ) -> Result<bool, StoreError> {
        let (Self::Create(_) | Self::Rotate { .. }, SavedWebhook::Saved(record)) = (self, output)
        else {
            return Ok(false);
        };
        let sql = "SELECT id FROM webhooks WHERE id = $1 AND secret = $2".to_owned();
        let values = vec![record.id.to_string().into(), record.secret.as_str().into()];
        Ok(!tx.query_sql(sql, values).await?.is_empty())
    }
}

async fn create(
    tx: &DatabaseTransaction,
    record: &WebhookRecord,
) -> Result<SavedWebhook, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM webhooks WHERE workspace_id = $1 AND deleted_at IS NULL";
    let own = vec![record.workspace.as_str().into()];
    let count = tx.query_sql(sql.to_owned(), own).await?;
    let count = count.first().map_or(Ok(0), |row| row.number("n"))?;
    if count >= signed(MAX_WEBHOOKS) {
        return Ok(SavedWebhook::Full);
    }
    insert(tx, record).await?;
    Ok(SavedWebhook::Saved(Box::new(record.clone())))
}

async fn update(
    tx: &DatabaseTransaction,
    record: &WebhookRecord,
    if_match: Option<i64>,
) -> Result<SavedWebhook, StoreError> {
    let before = match owned(tx, &record.workspace, record.id, if_match).await? {
        Ok(before) => before,
        Err(refused) => return Ok(refused),
    };
    let record = WebhookRecord {
        secret: before.secret,
        previous_secret: before.previous_secret,
        version: before.version + 1,
        created_at: before.created_at,
        ..record.clone()
    };
    write(tx, &record).await?;
    Ok(SavedWebhook::Saved(Box::new(record)))
}

async fn configure(
    tx: &DatabaseTransaction,
    record: &WebhookRecord,
) -> Result<SavedWebhook, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM webhooks WHERE workspace_id = $1 AND name = $2 {}",
        row_lock(tx)
    );
    let values = vec![
        record.workspace.as_str().into(),
        record.name.as_str().into(),
    ];
    let found = tx.query_sql(sql, values).await?;
    let Some(before) = found.first().map(read_webhook).transpose()? else {
        insert(tx, record).await?;
        return Ok(SavedWebhook::Saved(Box::new(record.clone())));
    };
    // The version changes only with the settings: every start configures again.
    if before.is_like(record) {
        return Ok(SavedWebhook::Saved(Box::new(before)));
    }
    let record = WebhookRecord {
        id: before.id,
        version: before.version + 1,
        created_at: before.created_at,
        ..record.clone()
    };
    write(tx, &record).await?;
    Ok(SavedWebhook::Saved(Box::new(record)))
}

async fn disable_unnamed(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    names: &[String],
    at: i64,
) -> Result<SavedWebhook, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM webhooks WHERE workspace_id = $1 AND origin = $2 ORDER BY id {}",
        row_lock(tx)
    );
    let values = vec![workspace.as_str().into(), ORIGIN_CONFIG.into()];
    for row in tx.query_sql(sql, values).await? {
        let before = read_webhook(&row)?;
        if !names.contains(&before.name) {
            let record = WebhookRecord {
                origin: ORIGIN_API.to_owned(),
                enabled: false,
                disabled_reason: Some("configuration".to_owned()),
                version: before.version + 1,
                updated_at: at,
                ..before
            };
            write(tx, &record).await?;
        }
    }
    Ok(SavedWebhook::Done)
}

/// The locked webhook, if the API may change it.
async fn owned(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    id: WebhookId,
    if_match: Option<i64>,
) -> Result<Result<WebhookRecord, SavedWebhook>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM webhooks WHERE id = $1 AND workspace_id = $2 AND deleted_at IS NULL {}",
        row_lock(tx)
    );
    let values = vec![id.to_string().into(), workspace.as_str().into()];
    let found = tx.query_sql(sql, values).await?;
    let Some(record) = found.first().map(read_webhook).transpose()? else {
        return Ok(Err(SavedWebhook::Unknown));
    };
    Ok(if record.origin == ORIGIN_CONFIG {
        Err(SavedWebhook::ReadOnly)
    } else if if_match.is_some_and(|version| version != record.version) {
        Err(SavedWebhook::Mismatch(record.version))
    } else {
        Ok(record)
    })
}

async fn insert(tx: &DatabaseTransaction, record: &WebhookRecord) -> Result<(), StoreError> {
    let sql = "INSERT INTO webhooks (id, workspace_id, name, created_at, origin, enabled, events, payload, secret, \
               failures, open_until, version, updated_at, updated_by) \
               VALUES ($1, $2, $3, $4, '', FALSE, '', '', '', 0, 0, 0, 0, '')";
    let values = vec![
        record.id.to_string().into(),
        record.workspace.as_str().into(),
        record.name.as_str().into(),
        record.created_at.into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await?;
    write(tx, record).await
}

/// Writes the settings of a stored webhook, and its filters.
async fn write(tx: &DatabaseTransaction, record: &WebhookRecord) -> Result<(), StoreError> {
    let sql = "UPDATE webhooks SET name = $2, origin = $3, enabled = $4, disabled_reason = $5, url = $6, events = $7, \
               agents = $8, payload = $9, secret = $10, previous_secret = $11, previous_until = $12, failures = $13, \
               open_until = $14, version = $15, updated_at = $16, updated_by = $17 WHERE id = $1";
    let (previous, until) = record.previous_secret.clone().unzip();
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    let agents = record.agents.as_ref();
    let values: Vec<Value> = vec![
        record.id.to_string().into(),
        record.name.as_str().into(),
        record.origin.as_str().into(),
        record.enabled.into(),
        record.disabled_reason.clone().into(),
        record.url.clone().into(),
        json(serde_json::to_string(&record.events)).into(),
        agents
            .map(|agents| json(serde_json::to_string(agents)))
            .into(),
        record.payload.as_str().into(),
        record.secret.as_str().into(),
        previous.into(),
        until.into(),
        signed(record.failures).into(),
        record.open_until.into(),
        record.version.into(),
        record.updated_at.into(),
        record.updated_by.stored().into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await?;
    delete_filters(tx, record.id).await?;
    // Without filters no message is written, so a disabled webhook costs nothing.
    if !record.enabled {
        return Ok(());
    }
    let all = vec![String::new()];
    let agents = record.agents.as_ref().map_or(all, |agents| {
        agents.iter().map(ToString::to_string).collect()
    });
    let rows = record.events.iter().flat_map(|event| {
        agents.iter().map(move |agent| {
            [
                record.workspace.as_str().into(),
                event.as_str().into(),
                agent.as_str().into(),
                record.id.to_string().into(),
            ]
        })
    });
    let into = "webhook_filters (workspace_id, event_type, agent_id, webhook_id)";
    inserted(tx, into, rows.collect()).await
}

async fn delete_filters(tx: &DatabaseTransaction, id: WebhookId) -> Result<(), StoreError> {
    let sql = "DELETE FROM webhook_filters WHERE webhook_id = $1".to_owned();
    tx.execute_sql(sql, vec![id.to_string().into()]).await
}

const COLUMNS: &str = "id, workspace_id, name, origin, enabled, disabled_reason, url, events, agents, payload, secret, \
     previous_secret, previous_until, failures, open_until, version, created_at, updated_at, updated_by";

fn read_webhook(row: &SqlRow) -> Result<WebhookRecord, StoreError> {
    let id = row.text("id")?;
    let agents = row.text_if_any("agents")?;
    let previous = row.text_if_any("previous_secret")?;
    let updated_by = row.text("updated_by")?;
    let updated_by = principal_if_any("webhooks.updated_by", &id, Some(&updated_by))?;
    let payload = format!("\"{}\"", row.text("payload")?);
    Ok(WebhookRecord {
        id: parsed("webhooks.id", &id, &id)?,
        workspace: WorkspaceId(row.text("workspace_id")?),
        name: row.text("name")?,
        origin: row.text("origin")?,
        enabled: row.flag("enabled")?,
        disabled_reason: row.text_if_any("disabled_reason")?,
        url: row.text_if_any("url")?,
        events: parsed_json("webhooks.events", &id, &row.text("events")?)?,
        agents: agents
            .map(|agents| parsed_json("webhooks.agents", &id, &agents))
            .transpose()?,
        payload: parsed_json("webhooks.payload", &id, &payload)?,
        secret: row.text("secret")?,
        previous_secret: previous.zip(row.number_if_any("previous_until")?),
        failures: unsigned("webhooks.failures", &id, row.number("failures")?)?,
        open_until: row.number("open_until")?,
        version: row.number("version")?,
        created_at: row.number("created_at")?,
        updated_at: row.number("updated_at")?,
        updated_by: updated_by.ok_or_else(|| StoreError::Corrupt {
            column: "webhooks.updated_by",
            row: id.clone(),
        })?,
    })
}

impl Notifications<'_> {
    /// The webhooks of a workspace by name, at most [`MAX_WEBHOOKS`] and those of the config file.
    pub async fn all_webhooks(
        self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<WebhookRecord>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM webhooks WHERE workspace_id = $1 AND deleted_at IS NULL ORDER BY name"
        );
        let values = vec![workspace.as_str().into()];
        let found = self.db.readers.query_sql(sql, values).await?;
        found.iter().map(read_webhook).collect()
    }

    /// A webhook of the workspace.
    pub async fn find_webhook(
        self,
        workspace: &WorkspaceId,
        id: WebhookId,
    ) -> Result<Option<WebhookRecord>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM webhooks WHERE id = $1 AND workspace_id = $2 AND deleted_at IS NULL"
        );
        let values = vec![id.to_string().into(), workspace.as_str().into()];
        let found = self.db.readers.query_sql(sql, values).await?;
        found.first().map(read_webhook).transpose()
    }

    /// True if a webhook exists.
    pub async fn has_webhooks(self) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM webhooks LIMIT 1".to_owned();
        Ok(!self.db.readers.query_sql(sql, Vec::new()).await?.is_empty())
    }
}
