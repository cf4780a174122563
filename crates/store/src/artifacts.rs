//! Artifacts: rows of files with their bytes in a blob store. A row is created before the first byte, visible
//! once finished, and deleted after its bytes.

mod binding;
mod scope;
mod sweep;
mod upload;

use protocol::id::{RunId, WorkspaceId};
use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};
use uuid::Uuid;

use crate::database_clock::database_now;
use crate::entity::artifacts;
use crate::error::{StoreError, signed, unsigned};
use crate::model::append::Append;
use crate::repositories::ArtifactRepository;
use crate::sql::{Sql, executed, padded, text};

pub use binding::{BindArtifact, Bound, UnbindArtifact};
pub use scope::Sharers;
pub use sweep::ExpiredArtifact;
pub(crate) use sweep::expire_of_runs;
pub use upload::{
    ArtifactFacts, ArtifactFinished, ArtifactShares, BeginArtifact, Begun, DropArtifact,
    FinishArtifact, ShareOf,
};

/// Upload in progress.
const PENDING: &str = "pending";
/// Readable.
const READY: &str = "ready";
/// Its bytes are being deleted.
const DELETING: &str = "deleting";

/// Maximum artifacts named by a transcript message.
const MAX_ANNOUNCED: u64 = 100;

/// Origin of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactOrigin {
    /// Uploaded by a run.
    Runner,
    /// Attached to an event.
    Event,
    /// Tool result too large to return in the response.
    Tool,
    /// Uploaded by a client for a later event.
    Client,
}

impl ArtifactOrigin {
    /// Name in the table and on the wire.
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
    /// Sequence of the ledger event that announced it.
    pub sequence: Option<u64>,
    pub name: String,
    pub mime_type: String,
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
    /// Location of its bytes.
    pub location: String,
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
        location: row.place,
        created_at: row.created_at,
        expires_at: row.expires_at,
    })
}

/// Binds artifacts of runs to the first event that announces each.
pub(crate) async fn bind(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let announced = appends.iter().flat_map(|append| {
        let announced = append.artifacts.iter();
        announced.map(|(id, sequence)| {
            [
                id.to_string().into(),
                text(append.run_id),
                signed(*sequence).into(),
            ]
        })
    });
    // Only the first event binds an artifact: a later event that names it again changes nothing.
    let update = "UPDATE artifacts SET sequence = ?3 FROM rows \
                  WHERE artifacts.id = ?1 AND artifacts.run_id = ?2 AND artifacts.sequence IS NULL";
    executed(tx, announced.collect(), update).await
}

impl ArtifactRepository<'_> {
    /// A readable artifact of a workspace, not expired by the database clock.
    pub async fn find_artifact(
        self,
        workspace: &WorkspaceId,
        id: Uuid,
    ) -> Result<Option<ArtifactRecord>, StoreError> {
        let now = database_now(self.db.readers.get_database_backend());
        let row = artifacts::Entity::find_by_id(id.to_string())
            .filter(artifacts::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(artifacts::Column::Status.eq(READY))
            .filter(Expr::col(artifacts::Column::ExpiresAt).gt(now))
            .one(&self.db.readers)
            .await?;
        row.map(record).transpose()
    }

    /// Artifacts that a run has announced, or announces in the pending write (`announcing`): the first hundred
    /// readable ones, not expired by the database clock.
    pub async fn announced_artifacts(
        self,
        run: RunId,
        announcing: &[Uuid],
    ) -> Result<Vec<ArtifactRecord>, StoreError> {
        let now = database_now(self.db.readers.get_database_backend());
        // Runners choose the length of the list, and connections cache one statement per length.
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
            .limit(MAX_ANNOUNCED)
            .all(&self.db.readers)
            .await?;
        rows.into_iter().map(record).collect()
    }

    /// True when this run uploaded the artifact and it is readable.
    pub async fn is_artifact_of(
        self,
        workspace: &WorkspaceId,
        run: RunId,
        id: Uuid,
    ) -> Result<bool, StoreError> {
        let found = self.find_artifact(workspace, id).await?;
        Ok(found.is_some_and(|found| found.run_id.as_deref() == Some(&run.to_string())))
    }
}
