//! Ledger reads: bounded lists of events and rejections.

use std::borrow::Cow;

use protocol::id::RunId;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};

use crate::entity::{run_rejections, run_segments};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::page::{ListPage, PageBound, PageOf, ReadBudget};
use crate::part_text::MARK;
use crate::repositories::RunRepository;
use crate::sql::Sql;

/// A stored event: its sequence and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    pub sequence: u64,
    pub text: String,
}

/// A stored rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionRecord {
    pub n: u64,
    pub reason: String,
    /// The reason; missing in rows of older gateways.
    pub message: Option<String>,
    pub runner_sequence: Option<u64>,
    pub bytes: u64,
    pub excerpt: String,
}

/// Segments read by one query.
const SEGMENTS: u64 = 8;

/// Collects lines within bounds.
struct LineBuffer {
    lines: Vec<LedgerRow>,
    limit: usize,
    remaining_bytes: usize,
    is_full: bool,
}

impl LineBuffer {
    fn new(limit: usize, bytes: usize) -> Self {
        Self {
            lines: Vec::new(),
            limit,
            remaining_bytes: bytes,
            is_full: limit == 0,
        }
    }

    fn is_full(&self) -> bool {
        self.is_full
    }

    fn extend<'a>(&mut self, lines: impl Iterator<Item = (u64, Cow<'a, str>)>) {
        for (sequence, text) in lines {
            // The first line always fits, or a reader of a large event would never advance.
            let fits = self.lines.is_empty() || text.len() <= self.remaining_bytes;
            self.is_full |= !fits;
            if self.is_full {
                return;
            }
            self.remaining_bytes = self.remaining_bytes.saturating_sub(text.len());
            let text = text.into_owned();
            self.lines.push(LedgerRow { sequence, text });
            self.is_full = self.lines.len() == self.limit;
        }
    }
}

fn numbered(
    segment: &run_segments::Model,
) -> Result<impl Iterator<Item = (u64, Cow<'_, str>)>, StoreError> {
    let column = "run_segments.first_sequence";
    let first = unsigned(column, &segment.run_id, segment.first_sequence)?;
    let head = head_of(&segment.run_id);
    let lines = segment.payload.lines();
    Ok((first..).zip(lines.map(move |line| restored(&head, line))))
}

/// First member of each event as JSON. Its row names the run, so stored lines have a mark instead.
fn head_of(run: &str) -> String {
    format!("{{\"run_id\":\"{run}\",")
}

/// Bytes of a head without the mark that replaces it.
const HEAD_BYTES: usize = 48;

/// Events of a run as they are stored.
pub(super) fn stored_lines(run: RunId, lines: &str) -> String {
    let head = head_of(&run.to_string());
    let mut stored = String::with_capacity(lines.len());
    for line in lines.split_inclusive('\n') {
        match line.strip_prefix(&head) {
            Some(rest) => {
                stored.push(MARK);
                stored.push_str(rest);
            }
            None => stored.push_str(line),
        }
    }
    stored
}

fn restored<'a>(head: &str, line: &'a str) -> Cow<'a, str> {
    match line.strip_prefix(MARK) {
        Some(rest) => [head, rest].concat().into(),
        // Of an older gateway.
        None => line.into(),
    }
}

impl RunRepository<'_> {
    /// Events of a run after `after`, in order: at most `limit` events and `bytes` bytes, but at least one.
    pub async fn read_lines(
        self,
        run: RunId,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<LedgerRow>, StoreError> {
        let mut taken = LineBuffer::new(limit, bytes);
        let mut from = self.segment_of(run, after + 1).await?;
        while !taken.is_full() {
            let segments = run_segments::Entity::find()
                .filter(run_segments::Column::RunId.eq(run.to_string()))
                .filter(run_segments::Column::FirstSequence.gte(from))
                .order_by_asc(run_segments::Column::FirstSequence)
                .limit(SEGMENTS)
                .all(&self.db.readers)
                .await?;
            let Some(last) = segments.last() else { break };
            from = last.last_sequence + 1;
            for segment in &segments {
                let lines = numbered(segment)?;
                taken.extend(lines.filter(|(sequence, _)| *sequence > after));
            }
        }
        Ok(taken.lines)
    }

    /// Events of a run before `before` and after `after`, newest first, within the same bounds.
    pub async fn read_lines_back(
        self,
        run: RunId,
        before: u64,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<LedgerRow>, StoreError> {
        let mut taken = LineBuffer::new(limit, bytes);
        let mut end = before;
        while !taken.is_full() && end > after + 1 {
            let segment = run_segments::Entity::find()
                .filter(run_segments::Column::RunId.eq(run.to_string()))
                .filter(run_segments::Column::FirstSequence.lt(signed(end)))
                .order_by_desc(run_segments::Column::FirstSequence)
                .one(&self.db.readers)
                .await?;
            let Some(segment) = segment else { break };
            let mut lines: Vec<_> = numbered(&segment)?.collect();
            lines.reverse();
            taken.extend(lines.into_iter().filter(|(n, _)| *n < before && *n > after));
            let first = segment.first_sequence;
            end = unsigned("run_segments.first_sequence", &segment.run_id, first)?;
        }
        Ok(taken.lines)
    }

    /// Start of the segment that contains this sequence.
    async fn segment_of(self, run: RunId, sequence: u64) -> Result<i64, StoreError> {
        let first: Option<i64> = run_segments::Entity::find()
            .select_only()
            .column(run_segments::Column::FirstSequence)
            .filter(run_segments::Column::RunId.eq(run.to_string()))
            .filter(run_segments::Column::FirstSequence.lte(signed(sequence)))
            .order_by_desc(run_segments::Column::FirstSequence)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        Ok(first.unwrap_or(0))
    }

    /// Rejected results of a run.
    pub async fn list_rejections(
        self,
        run: RunId,
        after: u64,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<RejectionRecord>, StoreError> {
        let own = run_rejections::Column::RunId.eq(run.to_string());
        let page = PageOf {
            rows: run_rejections::Entity::find()
                .filter(own.clone())
                .filter(run_rejections::Column::N.gt(signed(after)))
                .order_by_asc(run_rejections::Column::N),
            key: run_rejections::Column::N,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<i64>(&self.db.readers, bound.into()).await?;
        found.try_map(|row| {
            let number = row.runner_sequence.as_deref();
            Ok(RejectionRecord {
                n: unsigned("run_rejections.n", &row.run_id, row.n)?,
                runner_sequence: number
                    .map(|number| parsed("run_rejections.runner_sequence", &row.run_id, number))
                    .transpose()?,
                bytes: unsigned("run_rejections.bytes", &row.run_id, row.bytes)?,
                reason: row.reason,
                message: row.message,
                excerpt: row.excerpt,
            })
        })
    }

    /// Reserves the bytes of the events between two sequences, up to `bytes`: the maximum that a page of them
    /// reads.
    pub async fn take_lines(
        self,
        run: RunId,
        after: u64,
        before: u64,
        bytes: usize,
        budget: ReadBudget<'_>,
    ) -> Result<(), StoreError> {
        let sql = format!(
            "SELECT CAST(coalesce(sum(octet_length(payload) \
             + {HEAD_BYTES} * (last_sequence - first_sequence + 1)), 0) AS BIGINT) AS bytes FROM run_segments \
             WHERE run_id = $1 AND last_sequence > $2 AND first_sequence < $3"
        );
        let values = vec![
            run.to_string().into(),
            signed(after).into(),
            signed(before).into(),
        ];
        let found = self.db.readers.query_sql(sql, values).await?;
        let all = found.first().map_or(Ok(0), |row| row.number("bytes"))?;
        budget.take(usize::try_from(all).unwrap_or(0).min(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restores_lines_without_their_run() {
        let id: uuid::Uuid = uuid::Uuid::from_u128(7);
        let line = format!("{{\"run_id\":\"{id}\",\"sequence\":1}}");
        let stored = stored_lines(RunId(id), &format!("{line}\nolder\n"));
        assert_eq!(stored.len(), line.len() - HEAD_BYTES + "\nolder\n".len());
        let head = head_of(&id.to_string());
        let lines: Vec<_> = stored.lines().map(|line| restored(&head, line)).collect();
        assert_eq!(lines, [line.as_str(), "older"]);
    }
}
