//! Interactions: questions of runs to users. The ledger event and its question are written together. An answer
//! is an event with a reserved key, so each question has one answer.

mod awaited;

use domain::event::ANSWER_ID_PREFIX;
use protocol::id::{AgentId, RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use crate::conversation::ConversationsOf;
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::model::append::Append;
use crate::model::ingest::{Ingest, Unanswerable};
use crate::mutation::Mutation;
use crate::page::{Columns, PageBound, TextPage};
use crate::repositories::InteractionRepository;
use crate::runs::MAX_SCANNED;
use crate::sql::{Sql, SqlRow, inserted, padded};

pub use awaited::{AnswerDelivery, AwaitedRecord, CloseAwaited, DeliverAnswer};

/// A stored question. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InteractionRecord {
    pub id: String,
    pub run_id: RunId,
    pub sequence: u64,
    /// As JSON.
    pub request: String,
    pub asked_at: i64,
    pub expires_at: i64,
    /// The asking agent.
    pub agent_id: AgentId,
    /// The asking run was cancelled or has a cancel request; it takes no answer.
    pub cancelled: bool,
    /// The event of the asking run.
    pub event_id: String,
    /// The live run awaits the answer itself.
    pub is_awaited: bool,
    /// The run was notified of the expiry: no more answers, regardless of clocks.
    pub is_closed: bool,
    pub answered: Option<AnsweredInteraction>,
}

/// An accepted answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredInteraction {
    pub at: i64,
    pub taken: TakenAs,
}

/// Form of an accepted answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenAs {
    /// An event with a run of its own. `answer`: the response to its sender, as JSON.
    Event { event_id: String, answer: String },
    /// Delivered to the live run that awaited it.
    AnswerDelivery,
}

/// Filter of a list of questions, newest first.
#[derive(Clone, Debug, Default)]
pub struct InteractionFilter {
    pub run_id: Option<RunId>,
    /// Only questions of these agents.
    pub agents: Option<Vec<AgentId>>,
    pub conversations: Option<ConversationsOf>,
    /// Only questions open at this time, in epoch milliseconds.
    pub open_at: Option<i64>,
    /// Only questions before this id.
    pub before: Option<Uuid>,
}

/// A page of questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InteractionsFound {
    pub records: Vec<InteractionRecord>,
    /// The next page begins before this id: the last record, or the end of the scan for rare matches. `None`: the list
    /// is complete.
    pub next: Option<String>,
}

/// Id and dedupe key of the event that answers a question.
pub fn answer_event_id(interaction: &str) -> String {
    format!("{ANSWER_ID_PREFIX}{interaction}")
}

const COLUMNS: Columns = Columns {
    variable: &[
        "i.id",
        "i.run_id",
        "i.request",
        "r.agent_id",
        "r.event_id",
        "e.event_id AS answer_event_id",
        "e.answer",
    ],
    fixed: &[
        "i.sequence",
        "i.asked_at",
        "i.expires_at",
        "i.is_awaited",
        "i.given_at",
        "i.closed_at",
        "(r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL) AS is_cancelled",
        "e.received_at",
    ],
};

const FROM: &str = "interactions i JOIN runs r ON r.id = i.run_id \
    LEFT JOIN events e ON e.workspace_id = i.workspace_id AND e.event_id = 'interaction:' || i.id \
    AND e.dedupe_key = 'interaction:' || i.id";

impl InteractionRepository<'_> {
    pub async fn find_interaction(
        self,
        workspace: &WorkspaceId,
        id: &str,
    ) -> Result<Option<InteractionRecord>, StoreError> {
        let columns = COLUMNS.selected();
        let sql = format!("SELECT {columns} FROM {FROM} WHERE i.workspace_id = $1 AND i.id = $2");
        let values = vec![workspace.as_str().into(), id.into()];
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.first().map(record).transpose()
    }

    /// The question of a link, with its workspace.
    pub async fn find_interaction_of_link(
        self,
        token_sha256: &str,
    ) -> Result<Option<(WorkspaceId, InteractionRecord)>, StoreError> {
        let sql = "SELECT workspace_id, id FROM interactions WHERE token_sha256 = $1";
        let values = vec![token_sha256.into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let workspace = WorkspaceId(row.text("workspace_id")?);
        let found = self.find_interaction(&workspace, &row.text("id")?).await?;
        Ok(found.map(|found| (workspace, found)))
    }

    /// Questions of the workspace, newest first. With a filter by agent, conversation or open state it scans
    /// at most [`MAX_SCANNED`] questions.
    pub async fn list_interactions(
        self,
        workspace: &WorkspaceId,
        filter: &InteractionFilter,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<InteractionsFound, StoreError> {
        let bound = bound.into();
        let scan_end = self.interactions_scan_end(workspace, filter).await?;
        let mut values: Vec<Value> = vec![workspace.as_str().into()];
        let mut bind = |value: Value| {
            values.push(value);
            format!("${}", values.len())
        };
        let mut only = Vec::new();
        if let Some(run) = filter.run_id {
            only.push(format!("i.run_id = {}", bind(run.to_string().into())));
        }
        if let Some(agents) = &filter.agents {
            // Clients choose the length of the list, and connections cache one statement per length.
            let agents = padded(agents.iter().map(ToString::to_string));
            let placeholders: Vec<_> = agents.into_iter().map(|id| bind(id.into())).collect();
            only.push(format!("r.agent_id IN ({})", placeholders.join(", ")));
        }
        if let Some(of) = &filter.conversations {
            let parts = [
                ("conversation_id", Some(&of.conversation_id)),
                ("bot_id", of.bot_id.as_ref()),
                ("thread_id", of.thread_id.as_ref()),
            ];
            let mut keys = "SELECT key FROM conversations WHERE workspace_id = $1".to_owned();
            for (column, value) in parts {
                if let Some(value) = value {
                    let value = bind(value.as_str().into());
                    keys = format!("{keys} AND {column} = {value}");
                }
            }
            only.push(format!("r.conversation_key IN ({keys})"));
        }
        if let Some(now) = filter.open_at {
            let now = bind(now.into());
            only.push(format!(
                "e.event_id IS NULL AND i.given_at IS NULL AND i.closed_at IS NULL \
                 AND r.status <> 'cancelled' AND r.cancel_requested_at IS NULL AND i.expires_at > {now}"
            ));
        }
        if let Some(before) = filter.before {
            only.push(format!("i.id < {}", bind(before.to_string().into())));
        }
        if let Some(end) = &scan_end {
            only.push(format!("i.id >= {}", bind(end.as_str().into())));
        }
        only.push("i.id IS NOT NULL ORDER BY i.id DESC".to_owned());
        let page = TextPage {
            columns: COLUMNS,
            from: FROM,
            owner: "i.workspace_id = $1",
            owner_values: vec![workspace.as_str().into()],
            key: ("i.id", "id"),
        };
        let only = only.join(" AND ");
        let rows = page.read(&self.db.readers, &only, values, bound).await?;
        let found = rows.try_map(|row| record(&row))?;
        let last = found.items.last().map(|last| last.id.clone());
        Ok(InteractionsFound {
            next: if found.has_more { last } else { scan_end },
            records: found.items,
        })
    }

    /// Last question of the scan, when more than [`MAX_SCANNED`] exist and no index serves the filter.
    async fn interactions_scan_end(
        self,
        workspace: &WorkspaceId,
        filter: &InteractionFilter,
    ) -> Result<Option<String>, StoreError> {
        let is_plain =
            filter.conversations.is_none() && filter.agents.is_none() && filter.open_at.is_none();
        // An index serves these filters, so the limit of the page bounds the read.
        if filter.run_id.is_some() || is_plain {
            return Ok(None);
        }
        let mut values: Vec<Value> =
            vec![workspace.as_str().into(), signed(MAX_SCANNED - 1).into()];
        let mut older = "";
        if let Some(before) = filter.before {
            values.push(before.to_string().into());
            older = "AND id < $3";
        }
        let sql = format!(
            "SELECT id FROM interactions WHERE workspace_id = $1 {older} ORDER BY id DESC LIMIT 1 OFFSET $2"
        );
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.first().map(|row| row.text("id")).transpose()
    }
}

fn record(row: &SqlRow) -> Result<InteractionRecord, StoreError> {
    let id = row.text("id")?;
    let event = (
        row.text_if_any("answer_event_id")?,
        row.text_if_any("answer")?,
    );
    let given = row.number_if_any("given_at")?;
    let given = given.map(|at| (at, TakenAs::AnswerDelivery));
    let taken = match (event, row.number_if_any("received_at")?) {
        ((Some(event_id), Some(answer)), Some(at)) => {
            Some((at, TakenAs::Event { event_id, answer }))
        }
        // An answer event takes precedence over an answer that was delivered to the run.
        _ => given,
    };
    Ok(InteractionRecord {
        run_id: parsed("interactions.run_id", &id, &row.text("run_id")?)?,
        sequence: unsigned("interactions.sequence", &id, row.number("sequence")?)?,
        request: row.text("request")?,
        asked_at: row.number("asked_at")?,
        expires_at: row.number("expires_at")?,
        agent_id: parsed("runs.agent_id", &id, &row.text("agent_id")?)?,
        cancelled: row.flag("is_cancelled")?,
        event_id: row.text("event_id")?,
        is_awaited: row.flag("is_awaited")?,
        is_closed: row.number_if_any("closed_at")?.is_some(),
        answered: taken.map(|(at, taken)| AnsweredInteraction { at, taken }),
        id,
    })
}

/// Inserts the questions of a commit.
pub(crate) async fn insert_interactions(
    tx: &DatabaseTransaction,
    append: &Append,
) -> Result<(), StoreError> {
    let rows = append.interactions.iter().map(|new| {
        [
            new.id.to_string().into(),
            append.workspace.as_str().into(),
            append.run_id.to_string().into(),
            signed(new.sequence).into(),
            new.question.interaction_id.as_str().into(),
            new.question.request.as_str().into(),
            new.question.expires_at.saturating_mul(1000).into(),
            append.at.into(),
            new.question.is_awaited.into(),
        ]
    });
    let into = "interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, asked_at, \
        is_awaited)";
    inserted(tx, into, rows.collect()).await
}

impl Ingest {
    /// Checks the answered question again, in the transaction that stores the answer.
    pub(crate) async fn unanswerable(
        &self,
        tx: &DatabaseTransaction,
    ) -> Result<Option<Unanswerable>, StoreError> {
        let Some(answers) = &self.answers else {
            return Ok(None);
        };
        let sql = "SELECT i.token_sha256, (r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL) \
            AS is_cancelled, (i.is_awaited AND (r.finished_at IS NULL OR i.given_at IS NOT NULL)) AS belongs_to_run \
            FROM interactions i JOIN runs r ON r.id = i.run_id \
            WHERE i.workspace_id = $1 AND i.id = $2";
        let values = vec![
            self.workspace.as_str().into(),
            answers.interaction.as_str().into(),
        ];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        // Deleted with its run, so treated as cancelled.
        let Some(row) = rows.first() else {
            return Ok(Some(Unanswerable::Cancelled));
        };
        let linked = row.text_if_any("token_sha256")?;
        // A link that was replaced must not answer.
        if answers.token_sha256.is_some() && answers.token_sha256 != linked {
            return Ok(Some(Unanswerable::LinkReplaced));
        }
        if row.flag("is_cancelled")? {
            return Ok(Some(Unanswerable::Cancelled));
        }
        let belongs_to_run = row.flag("belongs_to_run")?;
        Ok(belongs_to_run.then_some(Unanswerable::Awaited))
    }
}

/// Replaces the link of a question. The previous link becomes invalid.
#[derive(Clone, Debug)]
pub struct LinkInteraction {
    pub workspace: WorkspaceId,
    pub id: String,
    pub token_sha256: String,
}

impl Mutation for LinkInteraction {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "UPDATE interactions SET token_sha256 = $1 WHERE workspace_id = $2 AND id = $3";
        let values = vec![
            self.token_sha256.as_str().into(),
            self.workspace.as_str().into(),
            self.id.as_str().into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await
    }
}

/// Deletes the questions of runs with a deleted ledger.
pub(crate) async fn delete_of_runs(
    tx: &DatabaseTransaction,
    runs: &[String],
) -> Result<(), StoreError> {
    for run in runs {
        let sql = "DELETE FROM interactions WHERE run_id = $1";
        tx.execute_sql(sql.to_owned(), vec![run.as_str().into()])
            .await?;
    }
    Ok(())
}
