//! Artifacts: rows of files whose bytes stand elsewhere. A row is begun before its first byte is written,
//! is found once it is finished, and is forgotten after its bytes are gone.

mod binding;
mod scope;
mod sweep;
mod upload;

use protocol::id::{RunId, WorkspaceId};
use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder,
    QuerySelect,
};
use uuid::Uuid;

use crate::connect::Store;
use crate::database_clock::database_now;
use crate::entity::artifacts;
use crate::error::{StoreError, signed, unsigned};
use crate::sql::padded;

pub use binding::{BindArtifact, Bound, UnbindArtifact};
pub use scope::Sharers;
pub use sweep::ExpiredArtifact;
pub(crate) use sweep::expire_of_runs;
pub use upload::{
    ArtifactFacts, ArtifactShares, BeginArtifact, Begun, DropArtifact, FinishArtifact, Finished,
    ShareOf,
};

/// Its bytes are on their way.
const PENDING: &str = "pending";
/// It can be read.
const READY: &str = "ready";
/// Its bytes are being deleted.
const DELETING: &str = "deleting";

/// Artifacts that a message of a transcript names at most.
const MOST_ANNOUNCED: u64 = 100;

/// Where an artifact came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactOrigin {
    /// A run uploaded it.
    Runner,
    /// It came with an event.
    Event,
    /// A tool gave it to a run, and it was too large to be handed over.
    Tool,
    /// A client uploaded it, for an event that names it.
    Client,
}

impl ArtifactOrigin {
    /// The name in the table and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runner => "runner",
            Self::Event => "event",
            Self::Tool => "tool",
            Self::Client => "client",
        }
    }
}

/// A finished artifact. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactRecord {
    pub id: String,
    pub origin: String,
    pub run_id: Option<String>,
    pub runner_id: Option<String>,
    pub conversation_key: Option<String>,
    pub event_id: Option<String>,
    /// The ledger event of its run that announced it.
    pub sequence: Option<u64>,
    pub name: String,
    pub mime_type: String,
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
    /// Where its bytes stand.
    pub place: String,
    pub created_at: i64,
    pub expires_at: i64,
}

fn record(row: artifacts::Model) -> Result<ArtifactRecord, StoreError> {
    Ok(ArtifactRecord {
        sequence: row
            .sequence
            .map(|sequence| unsigned("artifacts.sequence", &row.id, sequence))
            .transpose()?,
        size: unsigned("artifacts.size", &row.id, row.size)?,
        id: row.id,
        origin: row.origin,
        run_id: row.run_id,
        runner_id: row.runner_id,
        conversation_key: row.conversation_key,
        event_id: row.event_id,
        name: row.name,
        mime_type: row.mime_type,
        sha256: row.sha256,
        place: row.place,
        created_at: row.created_at,
        expires_at: row.expires_at,
    })
}

/// Binds artifacts of a run to the events that announce them, the first of each.
pub(crate) async fn bind(
    tx: &DatabaseTransaction,
    run: RunId,
    announced: &[(Uuid, u64)],
) -> Result<(), StoreError> {
    for (id, sequence) in announced {
        artifacts::Entity::update_many()
            .col_expr(artifacts::Column::Sequence, Expr::value(signed(*sequence)))
            .filter(artifacts::Column::Id.eq(id.to_string()))
            .filter(artifacts::Column::RunId.eq(run.to_string()))
            .filter(artifacts::Column::Sequence.is_null())
            .exec(tx)
            .await?;
    }
    Ok(())
}

impl Store {
    /// An artifact of a workspace that can be read and has not expired by the database's clock.
    pub async fn find_artifact(
        &self,
        workspace: &WorkspaceId,
        id: Uuid,
    ) -> Result<Option<ArtifactRecord>, StoreError> {
        let now = database_now(self.readers.get_database_backend());
        let row = artifacts::Entity::find_by_id(id.to_string())
            .filter(artifacts::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(artifacts::Column::Status.eq(READY))
            .filter(Expr::col(artifacts::Column::ExpiresAt).gt(now))
            .one(&self.readers)
            .await?;
        row.map(record).transpose()
    }

    /// The artifacts of a run that it has announced, or announces by what is about to be written (`announcing`):
    /// the first hundred that can be read and have not expired by the database's clock.
    pub async fn announced_artifacts(
        &self,
        run: RunId,
        announcing: &[Uuid],
    ) -> Result<Vec<ArtifactRecord>, StoreError> {
        let now = database_now(self.readers.get_database_backend());
        let announcing = padded(announcing.iter().map(ToString::to_string));
        let is_announced = artifacts::Column::Sequence
            .is_not_null()
            .or(artifacts::Column::Id.is_in(announcing));
        let rows = artifacts::Entity::find()
            .filter(artifacts::Column::RunId.eq(run.to_string()))
            .filter(artifacts::Column::Status.eq(READY))
            .filter(Expr::col(artifacts::Column::ExpiresAt).gt(now))
            .filter(is_announced)
            .order_by_asc(artifacts::Column::Id)
            .limit(MOST_ANNOUNCED)
            .all(&self.readers)
            .await?;
        rows.into_iter().map(record).collect()
    }

    /// Whether a run has uploaded this artifact itself, and can still read it.
    pub async fn is_artifact_of(
        &self,
        workspace: &WorkspaceId,
        run: RunId,
        id: Uuid,
    ) -> Result<bool, StoreError> {
        let found = self.find_artifact(workspace, id).await?;
        Ok(found.is_some_and(|found| found.run_id.as_deref() == Some(&run.to_string())))
    }
}
