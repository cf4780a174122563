//! Rows of administered objects as JSON documents, with marks instead of secrets.

use domain::redaction::each_secret;
use protocol::change::ObjectKind;
use sea_orm::DatabaseTransaction;
use serde_json::{Map, Value, json};

use super::{ChangeStamp, ChangedObjects, WhichObjects, secret_mark};
use crate::agents::ORIGIN_CONFIG;
use crate::error::{StoreError, parsed_json};
use crate::sql::{Sql, SqlRow, row_lock};

/// An object at one moment.
pub(super) struct ObjectDocument {
    /// Values of the key columns.
    pub(super) key: Vec<String>,
    pub(super) name: String,
    pub(super) version: Option<i64>,
    pub(super) document: Value,
}

/// Rows of a kind.
struct ObjectTable {
    table: &'static str,
    key: &'static [&'static str],
    name: &'static str,
    /// Column of the workspace. `None`: the key finds the row alone.
    workspace: Option<&'static str>,
    version: Option<&'static str>,
    /// Condition for rows that are an object.
    live: &'static str,
    fields: &'static [DocumentField],
}

/// A column, or an expression with an alias.
#[derive(Clone, Copy)]
enum DocumentField {
    Text(&'static str),
    Number(&'static str),
    /// Epoch milliseconds, shown in seconds.
    Time(&'static str),
    Flag(&'static str),
    Json(&'static str),
    /// A JSON object, whose members are members of the document.
    Members(&'static str),
    /// The same; its `config` may have secrets.
    Agent(&'static str),
    /// A sealed text. Its purpose is `table.column`.
    Sealed(&'static str),
    /// A sealed JSON object, whose values are secrets.
    SealedMembers(&'static str),
}

const LIVE: &str = "TRUE";

const API_KEY: [DocumentField; 7] = [
    DocumentField::Text("name"),
    DocumentField::Text("role"),
    DocumentField::Text("prefix"),
    DocumentField::Json("agents"),
    DocumentField::Json("limits"),
    DocumentField::Time("expires_at"),
    DocumentField::Time("revoked_at"),
];

/// The table of a kind, and the columns of its document.
const fn columns_of(kind: ObjectKind) -> (&'static str, &'static [DocumentField]) {
    use DocumentField::{Agent, Flag, Json, Members, Number, Sealed, SealedMembers, Text, Time};
    match kind {
        // `enabled` after the specification: the config file disables agents without a change of it.
        ObjectKind::Agent => ("agents", &[Agent("spec"), Flag("enabled"), Text("origin")]),
        ObjectKind::RunnerEndpoint => (
            "runner_endpoints",
            &[
                Text("name"),
                Text("origin"),
                Flag("enabled"),
                Text("base_url"),
                Text("mode"),
                Text("delta_mode"),
                Sealed("secret"),
                SealedMembers("headers"),
                Json("manifests"),
                Number("max_runs"),
            ],
        ),
        ObjectKind::ApiKey => ("api_keys", &API_KEY),
        ObjectKind::Budget => ("budget_overrides", &[Members("spec")]),
        ObjectKind::Webhook => (
            "webhooks",
            &[
                Text("name"),
                Text("origin"),
                Flag("enabled"),
                Text("url"),
                Json("events"),
                Json("agents"),
                Text("payload"),
                Sealed("secret"),
            ],
        ),
        ObjectKind::Source => (
            "sources",
            &[
                Text("name"),
                Text("origin"),
                Flag("enabled"),
                Members("settings"),
                Sealed("secret"),
                // The agents of a source are those of its API key.
                Json("(SELECT k.agents FROM api_keys k WHERE k.id = sources.id) AS agents"),
            ],
        ),
        ObjectKind::Schedule => (
            "schedules",
            &[
                Members("spec"),
                Flag("enabled"),
                Text("origin"),
                Time("paused_at"),
            ],
        ),
        ObjectKind::Document => (
            "knowledge_documents",
            &[
                Text("name"),
                Text("mime_type"),
                Json("metadata"),
                Text("sha256"),
                Number("bytes"),
                Text("vector_model"),
                Number("chunk_chars"),
                Number("chunk_overlap"),
            ],
        ),
        ObjectKind::Pause => (
            "pauses",
            &[Text("mode"), Text("reason"), Number("runs_per_second")],
        ),
        ObjectKind::Skill => (
            "agent_skills",
            &[Text("description"), Text("sha256"), Text("run_id")],
        ),
        ObjectKind::Workspace => ("workspaces", &[Text("name")]),
        ObjectKind::Approval => (
            "approvals",
            &[
                Text("scope"),
                Text("agent_id"),
                Text("conversation_key"),
                Text("run_id"),
                Text("tool"),
                Json("arguments"),
                Number("max_uses"),
                Time("expires_at"),
                Time("revoked_at"),
            ],
        ),
    }
}

const fn table_of(kind: ObjectKind) -> ObjectTable {
    let (table, fields) = columns_of(kind);
    ObjectTable {
        table,
        fields,
        key: match kind {
            ObjectKind::Budget => &["name"],
            ObjectKind::Document => &["kb_id", "document_id"],
            ObjectKind::Pause => &["scope"],
            ObjectKind::Skill => &["agent_id", "skill_name"],
            _ => &["id"],
        },
        name: match kind {
            ObjectKind::Pause => "scope",
            ObjectKind::Skill => "skill_name",
            ObjectKind::Approval => "tool",
            _ => "name",
        },
        workspace: match kind {
            ObjectKind::Pause | ObjectKind::Workspace => None,
            _ => Some("workspace_id"),
        },
        version: match kind {
            // Only agents are restored, for which a client needs the version.
            ObjectKind::Agent => Some("version"),
            _ => None,
        },
        live: match kind {
            // Before its first indexing ends, a document has no content.
            ObjectKind::Document => "content > 0",
            // The sweep deletes the row later.
            ObjectKind::Webhook => "deleted_at IS NULL",
            _ => LIVE,
        },
    }
}

/// Reads the objects by their condition.
pub(super) async fn read_objects(
    tx: &DatabaseTransaction,
    stamp: &ChangeStamp,
    objects: &ChangedObjects,
) -> Result<Vec<ObjectDocument>, StoreError> {
    let table = table_of(objects.kind);
    let (mut conditions, mut values) = (vec![table.live.to_owned()], Vec::new());
    let mut equal = |column: &str, value: &str| {
        values.push(value.into());
        conditions.push(format!("{column} = ${}", values.len()));
    };
    if let Some(workspace) = table.workspace {
        equal(workspace, &objects.workspace);
    }
    match &objects.which {
        WhichObjects::Key(key) => {
            for (column, value) in table.key.iter().zip(key) {
                equal(column, value);
            }
        }
        WhichObjects::Name(name) => equal(table.name, name),
        WhichObjects::ConfiguredExcept(_) => equal("origin", ORIGIN_CONFIG),
    }
    let columns = [table.name].into_iter().chain(table.key.iter().copied());
    let fields = table.fields.iter().map(|field| field.selected());
    let mut selected: Vec<_> = columns.chain(table.version).chain(fields).collect();
    selected.sort_unstable();
    // Several fields may be one column, which has one value.
    selected.dedup();
    // Skills are ordered by the advisory key of their agent, and their run is locked first.
    let lock = match objects.kind {
        ObjectKind::Skill => "",
        _ => row_lock(tx),
    };
    let sql = format!(
        "SELECT {} FROM {} WHERE {} ORDER BY {} {lock}",
        selected.join(", "),
        table.table,
        conditions.join(" AND "),
        table.key.join(", "),
    );
    let mut found = Vec::new();
    for row in tx.query_sql(sql, values).await? {
        let object = table.object(&row, stamp)?;
        let is_configured = |names: &[String]| names.contains(&object.name);
        match &objects.which {
            WhichObjects::ConfiguredExcept(names) if is_configured(names) => {}
            _ => found.push(object),
        }
    }
    Ok(found)
}

impl ObjectTable {
    fn object(&self, row: &SqlRow, stamp: &ChangeStamp) -> Result<ObjectDocument, StoreError> {
        let key: Result<Vec<_>, _> = self.key.iter().map(|column| row.text(column)).collect();
        let mut document = Map::new();
        for field in self.fields {
            field.read(self.table, row, stamp, &mut document)?;
        }
        // An absent value is an absent member, as in the API.
        document.retain(|_, value| !value.is_null());
        Ok(ObjectDocument {
            key: key?,
            name: row.text(self.name)?,
            version: self.version.map(|column| row.number(column)).transpose()?,
            document: Value::Object(document),
        })
    }
}

impl DocumentField {
    fn selected(self) -> &'static str {
        match self {
            Self::Text(column)
            | Self::Number(column)
            | Self::Time(column)
            | Self::Flag(column)
            | Self::Json(column)
            | Self::Members(column)
            | Self::Agent(column)
            | Self::Sealed(column)
            | Self::SealedMembers(column) => column,
        }
    }

    fn column(self) -> &'static str {
        let selected = self.selected();
        selected
            .rsplit_once(" AS ")
            .map_or(selected, |(_, name)| name)
    }

    fn read(
        self,
        table: &'static str,
        row: &SqlRow,
        stamp: &ChangeStamp,
        document: &mut Map<String, Value>,
    ) -> Result<(), StoreError> {
        let column = self.column();
        let value = match self {
            Self::Number(_) => json!(row.number_if_any(column)?),
            Self::Time(_) => {
                let at = row.number_if_any(column)?;
                json!(at.map(|at| at.div_euclid(1000)))
            }
            Self::Flag(_) => json!(row.flag(column)?),
            _ => {
                let Some(text) = row.text_if_any(column)? else {
                    return Ok(());
                };
                match self {
                    Self::Json(_) => parsed_json(column, table, &text)?,
                    Self::Members(_) | Self::Agent(_) => {
                        let mut members: Map<_, _> = parsed_json(column, table, &text)?;
                        if let (Self::Agent(_), Some(Value::Object(config))) =
                            (self, members.get_mut("config"))
                        {
                            each_secret(config, &mut |_, text| *text = stamp.mark(text));
                        }
                        document.extend(members);
                        return Ok(());
                    }
                    Self::Sealed(_) => json!(stamp.mark_sealed(table, column, &text)),
                    Self::SealedMembers(_) => stamp.marked_members(table, column, &text),
                    _ => json!(text),
                }
            }
        };
        document.insert(column.to_owned(), value);
        Ok(())
    }
}

impl ChangeStamp {
    fn mark(&self, secret: &str) -> String {
        match &self.master_key {
            Some(key) => secret_mark(key, secret),
            None => "***".to_owned(),
        }
    }

    fn opened(&self, table: &str, column: &str, sealed: &str) -> Option<String> {
        let key = self.master_key.as_ref()?;
        let plain = key.open(&format!("{table}.{column}"), sealed).ok()?;
        String::from_utf8(plain).ok()
    }

    /// The mark of a sealed secret. One that does not open has a mark of its sealed text.
    fn mark_sealed(&self, table: &str, column: &str, sealed: &str) -> String {
        let plain = self.opened(table, column, sealed);
        self.mark(plain.as_deref().unwrap_or(sealed))
    }

    fn marked_members(&self, table: &str, column: &str, sealed: &str) -> Value {
        let plain = self.opened(table, column, sealed);
        let members = plain.and_then(|plain| serde_json::from_str(&plain).ok());
        let Some(Value::Object(members)) = members else {
            return json!(self.mark(sealed));
        };
        let marked = members.into_iter().map(|(name, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            (name, json!(self.mark(&text)))
        });
        Value::Object(marked.collect())
    }
}
