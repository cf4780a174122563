//! Runs by an idempotency key or by the begin of an id: lookups by unique keys, before the list.

use protocol::event::EventAccepted;
use protocol::id::{RunId, WorkspaceId};

use super::filter::{KEY_PREFIX, ResolvedFilter, RunFilter};
use crate::engine::StoreEngine;
use crate::error::{StoreError, parsed, signed};
use crate::repositories::EventRepository;
use crate::sql::{Sql, text};

/// Maximum retries of one event that a list shows.
const MAX_RETRIES: usize = 64;
/// Shortest begin of a run id that is looked up: runs of about a minute, as ids begin with their time.
const ID_BEGIN: usize = 8;
/// Maximum run ids, of all workspaces, that a lookup reads.
const MAX_READ: u64 = 1000;

/// A search for runs of one workspace.
#[derive(Clone, Copy)]
pub(super) struct RunSearch<'s> {
    pub(super) db: &'s StoreEngine,
    pub(super) workspace: &'s WorkspaceId,
}

impl RunSearch<'_> {
    /// Looks up the runs that a key or a text names.
    pub(super) async fn resolve(self, filter: &RunFilter) -> Result<ResolvedFilter, StoreError> {
        let mut filter = filter.clone();
        let mut ids = match filter.idempotency_key.take() {
            Some(key) => Some(self.runs_of_key(&key).await?),
            None => None,
        };
        let range = filter.text.as_deref().and_then(id_range);
        if let (None, Some(range)) = (&ids, range) {
            ids = self.runs_between(range).await?;
            if ids.is_some() {
                filter.text = None;
            }
        }
        Ok(ResolvedFilter { filter, ids })
    }

    /// The run of the event with this idempotency key, and its retries.
    async fn runs_of_key(self, key: &str) -> Result<Vec<RunId>, StoreError> {
        let sql = "SELECT event_id FROM events WHERE workspace_id = $1 AND dedupe_key = $2";
        let values = vec![
            self.workspace.as_str().into(),
            format!("{KEY_PREFIX}{key}").into(),
        ];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let Some(row) = rows.first() else {
            return Ok(Vec::new());
        };
        let event_id = row.text("event_id")?;
        let events = EventRepository { db: self.db };
        let Some(event) = events.find_event(self.workspace, &event_id).await? else {
            return Ok(Vec::new());
        };
        let answer: EventAccepted =
            serde_json::from_str(&event.answer).map_err(|_| StoreError::Corrupt {
                column: "events.answer",
                row: event_id,
            })?;
        let mut found = Vec::from_iter(event.taken_up_by.or(answer.run_id));
        while let Some(last) = found.last()
            && found.len() <= MAX_RETRIES
        {
            let Some(retry) = retry_of(&self.db.readers, *last).await? else {
                break;
            };
            found.push(retry);
        }
        Ok(found)
    }

    /// Runs with an id in this range. `None`: there is none, or there are too many for a lookup.
    async fn runs_between(
        self,
        [first, last]: [String; 2],
    ) -> Result<Option<Vec<RunId>>, StoreError> {
        // Without the workspace: other workspaces have ids in the range, and the limit bounds the read.
        let sql =
            "SELECT id, workspace_id FROM runs WHERE id >= $1 AND id <= $2 ORDER BY id LIMIT $3";
        let values = vec![first.into(), last.into(), signed(MAX_READ + 1).into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        if rows.len() as u64 > MAX_READ {
            return Ok(None);
        }
        let mut found = Vec::new();
        for row in rows {
            if row.text("workspace_id")? == self.workspace.as_str() {
                let id = row.text("id")?;
                found.push(parsed("runs.id", &id, &id)?);
            }
        }
        Ok((!found.is_empty()).then_some(found))
    }
}

/// The run that repeats `run`.
pub(crate) async fn retry_of(conn: &impl Sql, run: RunId) -> Result<Option<RunId>, StoreError> {
    let sql = "SELECT id FROM runs WHERE retry_of = $1";
    let rows = conn.query_sql(sql.to_owned(), vec![text(run)]).await?;
    let id = rows.first().map(|row| row.text("id")).transpose()?;
    id.map(|id| parsed("runs.id", &id, &id)).transpose()
}

impl EventRepository<'_> {
    /// The run that repeats the event of `run`. At most one exists.
    pub async fn find_retry(self, run: RunId) -> Result<Option<RunId>, StoreError> {
        retry_of(&self.db.readers, run).await
    }
}

/// First and last id that begin with `text`; `None` if it is no begin of an id, or is too short.
fn id_range(text: &str) -> Option<[String; 2]> {
    const FIRST: &str = "00000000-0000-0000-0000-000000000000";
    const LAST: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";
    let text = text.to_ascii_lowercase();
    let fits = |(letter, pattern): (u8, u8)| match pattern {
        b'-' => letter == b'-',
        _ => letter.is_ascii_hexdigit(),
    };
    let is_begin =
        (ID_BEGIN..=FIRST.len()).contains(&text.len()) && text.bytes().zip(FIRST.bytes()).all(fits);
    is_begin.then(|| [FIRST, LAST].map(|all| format!("{text}{}", &all[text.len()..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_ids_with_the_given_begin() {
        let range = |text| id_range(text).map(|[first, last]| format!("{first} {last}"));
        let all = "0193abcd-0000-0000-0000-000000000000 0193abcd-ffff-ffff-ffff-ffffffffffff";
        for begin in ["0193abcd", "0193ABCD", "0193abcd-"] {
            assert_eq!(range(begin).as_deref(), Some(all), "{begin}");
        }
        let one = "0193abcd-1234-7000-8000-123456789abc";
        assert_eq!(range(one), Some(format!("{one} {one}")));
        for other in [
            "",
            "0193abc",
            "order-17",
            "0193abcd1",
            "0193abcd-1234-7000-8000-123456789abcd",
            "0193ab\u{e9}d",
        ] {
            assert_eq!(range(other), None, "{other}");
        }
    }
}
