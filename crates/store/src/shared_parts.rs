//! Deduplicated parts of texts: parts common to many runs are stored once, by hash.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use protocol::id::RunId;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter, Value,
};

use crate::database_clock::{millis, read_now};
use crate::engine::StoreEngine;
use crate::entity::shared_parts;
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::page::ReadBudget;
use crate::part_text::{MARK, MIN_DELETED_BYTES, SharedPart, SharedParts, StoredText};
use crate::repositories::RetentionRepository;
use crate::sql::{Sql, executed, padded, returned};
use crate::tx_cache::TxCache;
use secrets::digest::sha256_hex;

/// An unused part is deleted after this time.
const UNUSED_RETENTION: Duration = Duration::from_hours(24);
/// Maximum parts of one delete transaction; a part may have a few MiB.
const BATCH: u64 = 20;

/// Parts referenced by the rows of one transaction.
#[derive(Default)]
pub(crate) struct NamedParts<'a> {
    /// Parts, with true for those kept as long as their runs, without expiry.
    parts: BTreeMap<&'a str, (&'a SharedPart, bool)>,
    /// Parts of contexts, deleted with the ledger of their runs.
    uses: Vec<(&'a str, RunId)>,
}

impl<'a> NamedParts<'a> {
    /// Adds the parts of a text kept with its run.
    pub(crate) fn add_permanent(&mut self, apart: &'a StoredText) {
        for part in &apart.named {
            self.parts.insert(&part.sha256, (part, true));
        }
    }

    /// Adds the parts of a text pruned with the run's ledger. Small parts stay.
    pub(crate) fn add_pruned(&mut self, apart: &'a StoredText, run: RunId) {
        for part in &apart.named {
            let is_deleted = part.text.len() >= MIN_DELETED_BYTES;
            let unknown = self.parts.entry(&part.sha256);
            unknown.or_insert((part, !is_deleted));
            if is_deleted {
                self.uses.push((&part.sha256, run));
            }
        }
    }

    /// Inserts missing parts, and the uses of prunable ones.
    pub(crate) async fn write(
        self,
        tx: &impl Sql,
        stored: &StoredParts,
        at: i64,
    ) -> Result<(), StoreError> {
        let parts = self.parts.iter();
        let absent = parts.filter(|(sha256, (_, is_permanent))| {
            let found = stored.0.get(**sha256);
            found.is_none_or(|was_permanent| *is_permanent && !was_permanent)
        });
        let rows = absent.map(|(sha256, (part, is_permanent))| -> [Value; 4] {
            [
                (*sha256).into(),
                part.text.as_str().into(),
                (*is_permanent).into(),
                at.into(),
            ]
        });
        // In hash order, like every replica.
        let insert = "INSERT INTO shared_parts (sha256, text, is_kept, created_at) VALUES rows \
            ON CONFLICT (sha256) DO UPDATE SET is_kept = shared_parts.is_kept OR excluded.is_kept";
        executed(tx, rows.collect(), insert).await?;
        let uses = self.uses.iter();
        let uses = uses.map(|(sha256, run)| [run.to_string().into(), (*sha256).into()]);
        let insert = "INSERT INTO part_uses (run_id, sha256) VALUES rows \
            ON CONFLICT (run_id, sha256) DO NOTHING";
        executed(tx, uses.collect(), insert).await
    }
}

/// Stored parts by hash, with true for those kept as long as their runs.
pub(crate) struct StoredParts(HashMap<String, bool>);

impl StoredParts {
    /// Finds the stored ones among these parts. Until the commit, no sweep of another replica deletes them.
    pub(crate) async fn find<'a>(
        tx: &impl Sql,
        parts: impl Iterator<Item = &'a SharedParts> + Send,
        tx_cache: &mut TxCache,
    ) -> Result<Self, StoreError> {
        let hashes: BTreeSet<_> = parts.flat_map(SharedParts::hashes).collect();
        let (kept, unknown): (Vec<_>, Vec<_>) = hashes
            .into_iter()
            .partition(|sha256| tx_cache.kept_parts.contains(*sha256));
        let lock = match tx.backend() {
            DbBackend::Postgres => " FOR KEY SHARE OF p",
            _ => "",
        };
        let find = format!(
            "SELECT p.sha256, p.is_kept FROM rows, shared_parts p WHERE p.sha256 = ?1{lock}"
        );
        let unknown = unknown.into_iter().map(|sha256| [sha256.into()]);
        let found = returned(tx, unknown.collect(), &find).await?;
        let mut stored: HashMap<_, _> =
            kept.into_iter().map(|one| (one.to_owned(), true)).collect();
        for row in found {
            let (sha256, is_kept) = (row.text("sha256")?, row.flag("is_kept")?);
            if is_kept {
                tx_cache.note_kept_part(&sha256);
            }
            stored.insert(sha256, is_kept);
        }
        Ok(Self(stored))
    }
}

/// Deletes unused parts.
struct SweepParts;

impl Mutation for SweepParts {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let old = read_now(tx).await? - millis(UNUSED_RETENTION);
        let lock = match tx.get_database_backend() {
            DbBackend::Postgres => "FOR UPDATE SKIP LOCKED",
            _ => "",
        };
        let unused = "NOT is_kept AND NOT EXISTS \
            (SELECT 1 FROM part_uses u WHERE u.sha256 = shared_parts.sha256)";
        let find = format!(
            "SELECT sha256 FROM shared_parts WHERE created_at < $1 AND {unused} \
             ORDER BY created_at LIMIT {BATCH} {lock}"
        );
        let found = tx.query_sql(find, vec![old.into()]).await?;
        let hashes = found.iter().map(|row| Ok([row.text("sha256")?.into()]));
        let hashes = hashes.collect::<Result<Vec<_>, StoreError>>()?;
        // Checked again under the lock: a run may have used the part meanwhile.
        let delete = format!("DELETE FROM shared_parts WHERE sha256 = $1 AND {unused}");
        let delete = format!("{delete} RETURNING sha256");
        let mut deleted = 0;
        for [hash] in hashes {
            deleted += tx.query_sql(delete.clone(), vec![hash]).await?.len() as u64;
        }
        Ok(deleted)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of unused parts; returns their number.
    pub async fn sweep_shared_parts(self) -> Result<u64, StoreError> {
        self.db.write(SweepParts).await
    }
}

/// Restores a stored text with its parts, reserved in the budget first. `row` names it in errors.
pub(crate) async fn restore_text(
    db: &StoreEngine,
    row: &str,
    stored: String,
    budget: ReadBudget<'_>,
) -> Result<String, StoreError> {
    if !stored.contains(MARK) {
        return Ok(stored);
    }
    // Hashes are at odd positions.
    let named = || stored.split(MARK).skip(1).step_by(2);
    let mut parts = HashMap::new();
    for sha256 in named() {
        if let Some(text) = db.parts.get(sha256) {
            parts.insert(sha256.to_owned(), text);
        }
    }
    let absent: Vec<_> = named()
        .filter(|sha256| !parts.contains_key(*sha256))
        .collect();
    let cached = parts.values().map(|part| part.len());
    budget.take(cached.sum::<usize>() + bytes_of_parts(db, &absent).await?)?;
    if !absent.is_empty() {
        let read = shared_parts::Entity::find()
            .filter(shared_parts::Column::Sha256.is_in(padded(absent)))
            .all(&db.readers)
            .await?;
        for part in read {
            let text: Arc<str> = part.text.into();
            if sha256_hex(text.as_bytes()) == part.sha256 {
                db.parts.put(part.sha256.clone(), Arc::clone(&text));
                parts.insert(part.sha256, text);
            }
        }
    }
    let mut restored = String::with_capacity(stored.len());
    for (index, piece) in stored.split(MARK).enumerate() {
        if index % 2 == 0 {
            restored.push_str(piece);
            continue;
        }
        let part = parts.get(piece).ok_or_else(|| StoreError::Corrupt {
            column: "shared_parts.text",
            row: row.to_owned(),
        })?;
        restored.push_str(part);
    }
    Ok(restored)
}

async fn bytes_of_parts(db: &StoreEngine, hashes: &[&str]) -> Result<usize, StoreError> {
    if hashes.is_empty() {
        return Ok(0);
    }
    let sql = "SELECT CAST(OCTET_LENGTH(p.text) AS BIGINT) AS bytes FROM rows, shared_parts p WHERE p.sha256 = ?1";
    let rows = hashes.iter().map(|sha256| [(*sha256).into()]);
    let found = returned(&db.readers, rows.collect(), sql).await?;
    let bytes = found.iter().map(|row| row.number("bytes"));
    let bytes: i64 = bytes.sum::<Result<_, _>>()?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}
