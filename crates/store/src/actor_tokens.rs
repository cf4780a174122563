//! Sealed tokens of actors, one for each live run with a token.

use protocol::id::RunId;
use sea_orm::DatabaseTransaction;

use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::{EventRepository, RetentionRepository};
use crate::sql::Sql;

/// Tokens of ended runs.
const ENDED: &str = "SELECT t.run_id FROM actor_tokens t WHERE NOT EXISTS \
    (SELECT 1 FROM runs r WHERE r.id = t.run_id AND r.finished_at IS NULL)";
/// Maximum rows per transaction of the sweep.
const SWEPT: u64 = 1000;

/// Deletes the token of a run that gets an event of another actor: its message must not act as the first one.
pub(crate) async fn forget_other_actor(
    tx: &impl Sql,
    run: RunId,
    actor: &str,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM actor_tokens WHERE run_id = $1 AND actor <> $2";
    let values = vec![run.to_string().into(), actor.into()];
    tx.execute_sql(sql.to_owned(), values).await?;
    Ok(())
}

struct SweepActorTokens;

impl Mutation for SweepActorTokens {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        // In one order, so that replicas do not deadlock.
        let sql = format!(
            "DELETE FROM actor_tokens WHERE run_id IN ({ENDED} ORDER BY t.run_id LIMIT {SWEPT}) RETURNING run_id"
        );
        Ok(tx.query_sql(sql, Vec::new()).await?.len() as u64)
    }
}

impl EventRepository<'_> {
    /// The sealed token of the actor of a run's event.
    pub async fn find_actor_token(self, run: RunId) -> Result<Option<String>, StoreError> {
        let sql = "SELECT token FROM actor_tokens WHERE run_id = $1";
        let values = vec![run.to_string().into()];
        let found = self.db.readers.query_sql(sql.to_owned(), values).await?;
        found.first().map(|row| row.text("token")).transpose()
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of tokens of ended runs; returns their number.
    pub async fn sweep_actor_tokens(self) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let sql = format!("{ENDED} LIMIT 1");
        let ended = self.db.readers.query_sql(sql, Vec::new()).await?;
        if ended.is_empty() {
            return Ok(0);
        }
        self.db.write(SweepActorTokens).await
    }
}
