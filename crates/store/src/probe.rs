//! Probes of the database, for readiness.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend};
use tokio::sync::Mutex;

use crate::engine::StoreEngine;
use crate::error::StoreError;
use crate::mutation::Mutation;

const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Time and result of the last probe. The lock is held during a probe, so concurrent callers share its result.
type ProbeResult<T> = Arc<Mutex<Option<(Instant, T)>>>;

/// Last results of the probes.
#[derive(Clone, Default)]
pub(crate) struct DatabaseProbes {
    answered: ProbeResult<Reached>,
    write_probe: ProbeResult<DatabaseCondition>,
}

impl DatabaseProbes {
    /// See `Store::condition`.
    pub(crate) async fn condition(&self, db: &StoreEngine) -> DatabaseCondition {
        // Boxed, like the other probe: the future is large, and every waiting handler embeds it.
        if !db.writer.is_open() {
            return DatabaseCondition::Unreachable;
        }
        match probed(&self.answered, Box::pin(reach(db))).await {
            Reached::No => return DatabaseCondition::Unreachable,
            Reached::Yes if !db.writer.is_failing() => return DatabaseCondition::Healthy,
            // The session may be older than the present state of the server.
            Reached::Yes | Reached::ReadOnly => {}
        }
        let proving = async {
            if probe_write(db).await {
                DatabaseCondition::Healthy
            } else if reach(db).await == Reached::No {
                // The database went away since the last probe.
                DatabaseCondition::Unreachable
            } else {
                DatabaseCondition::WritesFail
            }
        };
        probed(&self.write_probe, Box::pin(proving)).await
    }
}

/// Result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Yes,
    ReadOnly,
    No,
}

async fn reach(db: &StoreEngine) -> Reached {
    if db.readers.ping().await.is_err() {
        return Reached::No;
    }
    match db.readers.is_read_only().await {
        Ok(false) => Reached::Yes,
        Ok(true) => Reached::ReadOnly,
        Err(_) => Reached::No,
    }
}

/// Commits a small write; true on success.
async fn probe_write(db: &StoreEngine) -> bool {
    let proven = db.write(WriteProbe).await.is_ok();
    if proven {
        db.writer.note_recovered();
    }
    proven
}

/// Current state of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseCondition {
    Healthy,
    /// Reads work and writes fail, for example on a full or broken disk, or on a demoted primary.
    WritesFail,
    /// The database does not answer, or the store is closed.
    Unreachable,
}

/// Returns the last result if it is younger than one second, or probes now.
async fn probed<T: Copy>(last: &ProbeResult<T>, trying: impl Future<Output = T>) -> T {
    let mut last = last.lock().await;
    if let Some((at, result)) = *last
        && at.elapsed() < PROBE_INTERVAL
    {
        return result;
    }
    let found = trying.await;
    *last = Some((Instant::now(), found));
    found
}

/// A commit that reaches the disk and changes nothing.
pub(crate) struct WriteProbe;

impl Mutation for WriteProbe {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        if tx.get_database_backend() == DbBackend::Sqlite {
            // A header field that SQLite leaves to applications; nothing else sets it.
            tx.execute_unprepared("PRAGMA user_version = 1").await?;
        } else {
            // The lock fails where a write fails: a read-only session still assigns transaction ids.
            let sql =
                "SELECT 1 FROM workspaces WHERE false FOR UPDATE; SELECT pg_current_xact_id()";
            tx.execute_unprepared(sql).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn shares_one_probe_per_second() {
        let (last, probes) = (ProbeResult::<bool>::default(), AtomicUsize::new(0));
        let ask = || {
            probed(&last, async {
                probes.fetch_add(1, Ordering::Relaxed);
                // The other callers arrive meanwhile.
                tokio::task::yield_now().await;
                true
            })
        };
        let answers = tokio::join!(ask(), ask(), ask());
        assert_eq!(answers, (true, true, true));
        assert_eq!(probes.load(Ordering::Relaxed), 1);
        let before = Instant::now().checked_sub(2 * PROBE_INTERVAL).unwrap();
        *last.lock().await = Some((before, true));
        assert!(!probed(&last, async { false }).await, "it is old");
        assert!(!ask().await, "what failed is kept, too");
    }
}
