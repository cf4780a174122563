//! Administrative changes: a row for each changed object, in the transaction of the change.
//!
//! [`Administered`] work names its objects ([`works`]). [`Recorded`] reads their rows before and after the work
//! ([`documents`]), and stores the difference as a JSON patch.

mod documents;
mod export;
mod recorded;
mod works;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use protocol::change::{ChangeAction, ChangeOrder, ObjectKind};
use protocol::id::{ChangeId, WorkspaceId};
use protocol::principal::Principal;
use sea_orm::{DatabaseTransaction, Value};
use secrets::seal::MasterKey;
use uuid::Uuid;

use crate::database_clock::{millis, read_now};
use crate::error::{StoreError, parsed, parsed_json};
use crate::mutation::Mutation;
use crate::page::{Columns, ListPage, PageBound, TextPage};
use crate::repositories::AuditRepository;
use crate::runs::principal_if_any;
use crate::sql::{Sql, SqlRow, unlocked_rows};

pub use export::ExportedChange;
pub(crate) use recorded::Recorded;

/// Workspace of changes that concern the installation.
const INSTALLATION: &str = "";
/// Maximum rows per deletion.
const OLD_CHANGES: u64 = 1000;

/// Author and time of a change.
#[derive(Clone, Debug)]
pub struct ChangeStamp {
    /// Id of the first row. Rows of further objects count on from it.
    pub id: Uuid,
    /// Epoch milliseconds.
    pub at: i64,
    pub by: Principal,
    /// `X-Request-Id` of the request.
    pub request_id: Option<String>,
    /// Makes the marks of secrets. `None`: secrets become `***`.
    pub master_key: Option<Arc<MasterKey>>,
}

impl ChangeStamp {
    /// A change without a request and without marks of secrets.
    pub fn of(by: impl Into<Principal>, at: i64) -> Self {
        Self {
            id: Uuid::now_v7(),
            at,
            by: by.into(),
            request_id: None,
            master_key: None,
        }
    }
}

/// The mark of a secret in a change: equal for equal secrets of this installation, and unpredictable for others.
pub fn secret_mark(key: &MasterKey, secret: &str) -> String {
    format!("hash:{}", key.fingerprint(&format!("change\n{secret}")))
}

/// Work on administered objects.
pub trait Administered: Mutation {
    /// The objects that the work may change.
    fn changed_objects(&self) -> Vec<ChangedObjects>;
}

/// Objects of one kind that work may change.
#[derive(Clone, Debug)]
pub struct ChangedObjects {
    kind: ObjectKind,
    /// [`INSTALLATION`]: the object belongs to no workspace.
    workspace: String,
    which: WhichObjects,
}

#[derive(Clone, Debug)]
enum WhichObjects {
    /// Values of the key columns of the kind.
    Key(Vec<String>),
    Name(String),
    /// Objects of the config file with other names.
    ConfiguredExcept(Vec<String>),
}

/// A stored change.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeRecord {
    pub id: ChangeId,
    pub kind: ObjectKind,
    pub object_id: String,
    pub object_name: String,
    pub action: ChangeAction,
    pub by: Principal,
    pub request_id: Option<String>,
    pub patch: Vec<serde_json::Value>,
    pub version: Option<i64>,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Conditions of a list of changes.
#[derive(Clone, Debug, Default)]
pub struct ChangeFilter {
    pub kind: Option<ObjectKind>,
    pub object_id: Option<String>,
    /// Stored form of the principal.
    pub by: Option<String>,
    /// Epoch milliseconds.
    pub since: Option<i64>,
    pub order: ChangeOrder,
}

const COLUMNS: Columns = Columns {
    variable: &[
        "id",
        "kind",
        "object_id",
        "object_name",
        "action",
        "changed_by",
        "request_id",
        "patch",
    ],
    fixed: &["version", "at"],
};

fn read_change(row: &SqlRow) -> Result<ChangeRecord, StoreError> {
    let id = row.text("id")?;
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: id.clone(),
    };
    let by = principal_if_any("changes.changed_by", &id, Some(&row.text("changed_by")?))?;
    let kind = ObjectKind::parse(&row.text("kind")?);
    let action = ChangeAction::parse(&row.text("action")?);
    Ok(ChangeRecord {
        id: parsed("changes.id", &id, &id)?,
        kind: kind.ok_or_else(|| corrupt("changes.kind"))?,
        object_id: row.text("object_id")?,
        object_name: row.text("object_name")?,
        action: action.ok_or_else(|| corrupt("changes.action"))?,
        by: by.ok_or_else(|| corrupt("changes.changed_by"))?,
        request_id: row.text_if_any("request_id")?,
        patch: parsed_json("changes.patch", &id, &row.text("patch")?)?,
        version: row.number_if_any("version")?,
        at: row.number("at")?,
    })
}

/// Deletes old changes.
struct SweepChanges {
    age: Duration,
}

impl Mutation for SweepChanges {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let before = read_now(tx).await? - millis(self.age);
        // Ids begin with their time, so the primary key finds old rows.
        let first_younger = Uuid::from_u128(u128::from(before.max(0).unsigned_abs()) << 80);
        // Replicas sweep concurrently: each skips the rows of the others.
        let ours = unlocked_rows(tx);
        let delete = format!(
            "DELETE FROM changes WHERE id IN (SELECT id FROM changes WHERE id < $1 ORDER BY id \
             LIMIT {OLD_CHANGES} {ours}) RETURNING id"
        );
        let values = vec![first_younger.to_string().into()];
        Ok(tx.query_sql(delete, values).await?.len() as u64)
    }
}

impl AuditRepository<'_> {
    /// Deletes a batch of changes older than `age`; returns their number.
    pub async fn sweep_changes(self, age: Duration) -> Result<u64, StoreError> {
        self.db.write(SweepChanges { age }).await
    }

    /// Changes of a workspace and of the installation after the change `after`, in the order of the filter.
    pub async fn list_changes(
        self,
        workspace: &WorkspaceId,
        filter: &ChangeFilter,
        after: Option<ChangeId>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<ChangeRecord>, StoreError> {
        let page = TextPage {
            columns: COLUMNS,
            from: "changes",
            owner: "workspace_id IN ($1, '')",
            owner_values: vec![workspace.as_str().into()],
            key: ("id", "id"),
        };
        let mut values = page.owner_values.clone();
        let mut rest = String::new();
        let mut condition = |text: &str, value: Value| {
            values.push(value);
            let _ = write!(rest, "{text} ${} AND ", values.len());
        };
        if let Some(kind) = filter.kind {
            condition("kind =", kind.as_str().into());
        }
        if let Some(id) = &filter.object_id {
            condition("object_id =", id.as_str().into());
        }
        if let Some(by) = &filter.by {
            condition("changed_by =", by.as_str().into());
        }
        if let Some(since) = filter.since {
            condition("at >=", since.into());
        }
        let (than, order) = match filter.order {
            ChangeOrder::Newest => ("id <", "DESC"),
            ChangeOrder::Oldest => ("id >", "ASC"),
        };
        if let Some(after) = after {
            condition(than, after.to_string().into());
        }
        let _ = write!(rest, "TRUE ORDER BY id {order}");
        let found = page.read(&self.db.readers, &rest, values, bound.into());
        found.await?.try_map(|row| read_change(&row))
    }

    /// The object after a change of the workspace, with marks instead of secrets. `None`: no such change of this object,
    /// or it deleted the object.
    pub async fn find_changed_document(
        self,
        workspace: &WorkspaceId,
        kind: ObjectKind,
        object_id: &str,
        id: ChangeId,
    ) -> Result<Option<serde_json::Value>, StoreError> {
        let sql = "SELECT document FROM changes \
                   WHERE workspace_id = $1 AND kind = $2 AND object_id = $3 AND id = $4";
        let values = vec![
            workspace.as_str().into(),
            kind.as_str().into(),
            object_id.into(),
            id.to_string().into(),
        ];
        let found = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let Some(row) = found.first() else {
            return Ok(None);
        };
        let document = row.text_if_any("document")?;
        document
            .map(|document| parsed_json("changes.document", &id.to_string(), &document))
            .transpose()
    }
}
