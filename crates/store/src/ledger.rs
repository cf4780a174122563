//! The ledger: segments of a run, and what is written with them in one transaction.

use std::collections::HashMap;

use domain::normalize::{Rejection, StateUpdate};
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, ExprTrait,
    QueryFilter, QueryOrder, QuerySelect,
};
use uuid::Uuid;

use crate::audit::AuditEntry;
use crate::connect::Store;
use crate::entity::{conversations, run_rejections, run_segments, runs, transcript_items};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::succession::Succession;
use crate::writer::Work;

/// One commit of one run. Zero rows moved means that its owner has lost it: nothing is written.
#[derive(Clone, Debug)]
pub struct Append {
    pub run_id: RunId,
    pub workspace: WorkspaceId,
    pub epoch: i64,
    /// The last sequence before and after; equal when only rejections or an ending are written.
    pub from: u64,
    pub to: u64,
    /// The events as JSON lines, each ended by LF.
    pub lines: String,
    pub states: Vec<StateUpdate>,
    pub rejections: Vec<Rejection>,
    /// The number of the first rejection here, from 1.
    pub first_rejection: u64,
    pub audits: Vec<AuditEntry>,
    pub terminal: Option<Terminal>,
    /// Epoch milliseconds.
    pub at: i64,
}

/// The end of a run, in the transaction that writes its last event.
#[derive(Clone, Debug)]
pub struct Terminal {
    pub status: RunStatus,
    pub reason: String,
    pub output: Option<String>,
    pub error: Option<String>,
    pub usage: Option<String>,
    pub metadata: String,
    /// The assistant's transcript item, for a run with a conversation.
    pub transcript: Option<TranscriptWrite>,
    /// Who comes next, for a run with a conversation.
    pub succession: Option<Succession>,
}

/// A transcript item; its place in the conversation is found inside the transaction.
#[derive(Clone, Debug)]
pub struct TranscriptWrite {
    pub id: Uuid,
    pub conversation_key: String,
    pub event_id: String,
    pub role: &'static str,
    pub content: Option<String>,
    pub content_json: String,
    /// A JSON list.
    pub attachment_refs: String,
}

/// Whether an append was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// `next`: the waiting runs that this end has let go, to be dispatched.
    Written { next: Vec<RunId> },
    /// The run is somebody else's now, or has ended.
    Lost,
}

impl Work for Append {
    type Output = Appended;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Appended, StoreError> {
        let succession = self
            .terminal
            .as_ref()
            .and_then(|terminal| terminal.succession.as_ref());
        if let Some(succession) = succession {
            // As an ingest does: the conversation first, its runs after. Two batches may still meet
            // crosswise; the database then chooses one, and its items are tried again.
            crate::conversation::lock(tx, &succession.conversation_key).await?;
        }
        if !self.advance(tx).await? {
            return Ok(Appended::Lost);
        }
        if self.to > self.from {
            let segment = run_segments::ActiveModel {
                run_id: Set(self.run_id.to_string()),
                first_sequence: Set(signed(self.from + 1)),
                last_sequence: Set(signed(self.to)),
                payload: Set(self.lines.clone()),
                created_at: Set(self.at),
            };
            run_segments::Entity::insert(segment)
                .exec_without_returning(tx)
                .await?;
        }
        for update in &self.states {
            crate::state::upsert(tx, &self.workspace, self.run_id, update, self.at).await?;
        }
        self.insert_rejections(tx).await?;
        crate::audit::insert(tx, &self.audits).await?;
        if let Some(item) = self
            .terminal
            .as_ref()
            .and_then(|terminal| terminal.transcript.as_ref())
        {
            write_transcript(tx, self.run_id, item, self.at).await?;
        }
        let next = match succession {
            Some(succession) => succession.carry_out(tx, self).await?,
            None => Vec::new(),
        };
        Ok(Appended::Written { next })
    }
}

impl Append {
    /// The compare-and-set that everything else hangs on: epoch, sequence and status in one.
    async fn advance(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let mut update = runs::Entity::update_many()
            .col_expr(runs::Column::LastSequence, Expr::value(signed(self.to)));
        if let Some(terminal) = &self.terminal {
            update = update
                .col_expr(runs::Column::Status, Expr::value(terminal.status.as_str()))
                .col_expr(
                    runs::Column::StatusReason,
                    Expr::value(terminal.reason.as_str()),
                )
                .col_expr(runs::Column::Output, Expr::value(terminal.output.clone()))
                .col_expr(runs::Column::Error, Expr::value(terminal.error.clone()))
                .col_expr(runs::Column::Usage, Expr::value(terminal.usage.clone()))
                .col_expr(
                    runs::Column::Metadata,
                    Expr::value(terminal.metadata.as_str()),
                )
                .col_expr(
                    runs::Column::LeaseExpiresAt,
                    Expr::value(Option::<i64>::None),
                )
                .col_expr(runs::Column::FinishedAt, Expr::value(self.at));
        }
        let moved = update
            .filter(runs::Column::Id.eq(self.run_id.to_string()))
            .filter(runs::Column::LeaseEpoch.eq(self.epoch))
            .filter(runs::Column::LastSequence.eq(signed(self.from)))
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .exec(tx)
            .await?;
        Ok(moved.rows_affected == 1)
    }

    async fn insert_rejections(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        if self.rejections.is_empty() {
            return Ok(());
        }
        let numbered: Vec<_> = self.rejections.iter().zip(self.first_rejection..).collect();
        for some in numbered.chunks(ROWS) {
            let rows = some
                .iter()
                .map(|(rejection, n)| run_rejections::ActiveModel {
                    run_id: Set(self.run_id.to_string()),
                    n: Set(signed(*n)),
                    reason: Set(rejection.reason.as_str().to_owned()),
                    runner_sequence: Set(rejection
                        .runner_sequence
                        .map(|number| number.to_string())),
                    bytes: Set(signed(rejection.bytes as u64)),
                    excerpt: Set(rejection.excerpt.clone()),
                    at: Set(self.at),
                });
            run_rejections::Entity::insert_many(rows)
                .exec_without_returning(tx)
                .await?;
        }
        Ok(())
    }
}

/// Rows of one statement: databases bound the number of its values.
const ROWS: usize = 500;

/// Allocates the next place under the conversation row's lock and writes the item there.
pub(crate) async fn write_transcript(
    conn: &impl ConnectionTrait,
    run_id: RunId,
    item: &TranscriptWrite,
    at: i64,
) -> Result<(), StoreError> {
    let key = item.conversation_key.as_str();
    conversations::Entity::update_many()
        .col_expr(
            conversations::Column::LastTranscriptSeq,
            Expr::col(conversations::Column::LastTranscriptSeq).add(1),
        )
        .filter(conversations::Column::Key.eq(key))
        .exec(conn)
        .await?;
    let seq: Option<i64> = conversations::Entity::find_by_id(key)
        .select_only()
        .column(conversations::Column::LastTranscriptSeq)
        .into_tuple()
        .one(conn)
        .await?;
    let seq = seq.ok_or_else(|| StoreError::Corrupt {
        column: "runs.conversation_key",
        row: run_id.to_string(),
    })?;
    let row = transcript_items::ActiveModel {
        conversation_key: Set(key.to_owned()),
        seq: Set(seq),
        id: Set(item.id.to_string()),
        run_id: Set(run_id.to_string()),
        event_id: Set(item.event_id.clone()),
        role: Set(item.role.to_owned()),
        item_type: Set("message".to_owned()),
        content: Set(item.content.clone()),
        content_json: Set(Some(item.content_json.clone())),
        attachment_refs: Set(item.attachment_refs.clone()),
        created_at: Set(at),
    };
    transcript_items::Entity::insert(row)
        .exec_without_returning(conn)
        .await?;
    Ok(())
}

/// A stored event: its number and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub sequence: u64,
    pub text: String,
}

/// A stored rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionRecord {
    pub n: u64,
    pub reason: String,
    pub runner_sequence: Option<u64>,
    pub bytes: u64,
    pub excerpt: String,
}

/// Segments read by one query.
const SEGMENTS: u64 = 8;

impl Store {
    /// Events of a run after `after`, in order: `limit` of them, or all that there are.
    pub async fn read_lines(
        &self,
        run: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Line>, StoreError> {
        let mut lines: Vec<Line> = Vec::new();
        let mut from = self.segment_of(run, after + 1).await?;
        while lines.len() < limit {
            let segments = run_segments::Entity::find()
                .filter(run_segments::Column::RunId.eq(run.to_string()))
                .filter(run_segments::Column::FirstSequence.gte(from))
                .order_by_asc(run_segments::Column::FirstSequence)
                .limit(SEGMENTS)
                .all(&self.readers)
                .await?;
            let Some(last) = segments.last() else { break };
            from = last.last_sequence + 1;
            for segment in &segments {
                let row = &segment.run_id;
                let first = unsigned("run_segments.first_sequence", row, segment.first_sequence)?;
                let numbered = segment.payload.lines().zip(first..);
                let room = limit - lines.len();
                let wanted = numbered
                    .filter(|(_, sequence)| *sequence > after)
                    .take(room);
                lines.extend(wanted.map(|(text, sequence)| Line {
                    sequence,
                    text: text.to_owned(),
                }));
            }
        }
        Ok(lines)
    }

    /// Where the segment begins that holds this sequence, or would.
    async fn segment_of(&self, run: RunId, sequence: u64) -> Result<i64, StoreError> {
        let first: Option<i64> = run_segments::Entity::find()
            .select_only()
            .column(run_segments::Column::FirstSequence)
            .filter(run_segments::Column::RunId.eq(run.to_string()))
            .filter(run_segments::Column::FirstSequence.lte(signed(sequence)))
            .order_by_desc(run_segments::Column::FirstSequence)
            .into_tuple()
            .one(&self.readers)
            .await?;
        Ok(first.unwrap_or(0))
    }

    /// What the runner of a run sent that was not taken.
    pub async fn list_rejections(
        &self,
        run: RunId,
        after: u64,
        limit: u64,
    ) -> Result<Vec<RejectionRecord>, StoreError> {
        let rows = run_rejections::Entity::find()
            .filter(run_rejections::Column::RunId.eq(run.to_string()))
            .filter(run_rejections::Column::N.gt(signed(after)))
            .order_by_asc(run_rejections::Column::N)
            .limit(limit)
            .all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|row| {
                let number = row.runner_sequence.as_deref();
                Ok(RejectionRecord {
                    n: unsigned("run_rejections.n", &row.run_id, row.n)?,
                    runner_sequence: number
                        .map(|number| parsed("run_rejections.runner_sequence", &row.run_id, number))
                        .transpose()?,
                    bytes: unsigned("run_rejections.bytes", &row.run_id, row.bytes)?,
                    reason: row.reason,
                    excerpt: row.excerpt,
                })
            })
            .collect()
    }

    /// Conversations behind keys, for the views of runs: (bot, conversation, thread), `''` for none.
    pub async fn find_conversations(
        &self,
        keys: Vec<String>,
    ) -> Result<HashMap<String, (String, String, String)>, StoreError> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = conversations::Entity::find()
            .filter(conversations::Column::Key.is_in(keys))
            .all(&self.readers)
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.key, (row.bot_id, row.conversation_id, row.thread_id)))
            .collect())
    }
}
