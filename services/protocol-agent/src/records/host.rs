//! The gateway as the records need it: state of the conversation, storage of the agent, and the fate of runs.

use std::time::Duration;

use protocol::host_api::{StateKeys, StateValue, StorageKeys};
use protocol::id::RunId;
use protocol::resources::{StateScope, StorageArea};
use protocol::run::RunStatus;
use runner_kit::host::{Blob, Host, HostError, StorageKeyQuery};
use serde_json::Value;

/// The result of a host call.
pub type HostResult<T> = Result<T, HostError>;

/// Area of the bodies: shared by all conversations of the agent.
const AREA: StorageArea = StorageArea::Binding;
/// Calls of one try in all.
const TRIES: u32 = 4;
/// Pause before the second try; it doubles.
const PAUSE: Duration = Duration::from_millis(150);

/// The calls of the host API that the records make. Each fails as [`Host`]'s of the same name do.
pub trait RecordsHost: Clone + Send + Sync + 'static {
    /// A value of the conversation's state, with its version.
    fn state_get(&self, key: &str) -> impl Future<Output = HostResult<Option<StateValue>>> + Send;

    /// Writes a value of the conversation's state where this version stands; whatever stands when there is none. Gives
    /// the new version.
    fn state_put(
        &self,
        key: &str,
        value: Value,
        version: Option<i64>,
    ) -> impl Future<Output = HostResult<i64>> + Send;

    /// Removes a value of the conversation's state; false when there was none.
    fn state_delete(&self, key: &str) -> impl Future<Output = HostResult<bool>> + Send;

    /// Keys of the conversation's state that begin so, at most `limit`.
    fn state_list(
        &self,
        prefix: &str,
        limit: u32,
    ) -> impl Future<Output = HostResult<StateKeys>> + Send;

    /// A body in the agent's storage.
    fn blob_get(&self, key: &str) -> impl Future<Output = HostResult<Option<Vec<u8>>>> + Send;

    /// Writes a body of at most 10 MiB.
    fn blob_put(&self, key: &str, bytes: Vec<u8>) -> impl Future<Output = HostResult<()>> + Send;

    /// Removes a body; false when there was none.
    fn blob_delete(&self, key: &str) -> impl Future<Output = HostResult<bool>> + Send;

    /// Keys of bodies that begin so: at most 100, behind a cursor.
    fn blob_list(
        &self,
        prefix: &str,
        after: Option<String>,
    ) -> impl Future<Output = HostResult<StorageKeys>> + Send;

    /// Where a run of this conversation stands; `None` when there is none any more.
    fn run_status(&self, id: &str) -> impl Future<Output = HostResult<Option<RunStatus>>> + Send;
}

impl RecordsHost for Host {
    async fn state_get(&self, key: &str) -> HostResult<Option<StateValue>> {
        self.state().get(StateScope::Conversation, key).await
    }

    async fn state_put(&self, key: &str, value: Value, version: Option<i64>) -> HostResult<i64> {
        let scope = StateScope::Conversation;
        match version {
            Some(version) => {
                self.state()
                    .put_if_version(scope, key, value, version)
                    .await
            }
            None => self.state().put(scope, key, value).await,
        }
    }

    async fn state_delete(&self, key: &str) -> HostResult<bool> {
        self.state().delete(StateScope::Conversation, key).await
    }

    async fn state_list(&self, prefix: &str, limit: u32) -> HostResult<StateKeys> {
        self.state()
            .list(StateScope::Conversation, prefix, limit)
            .await
    }

    async fn blob_get(&self, key: &str) -> HostResult<Option<Vec<u8>>> {
        let blob = self.storage().get(AREA, key).await?;
        Ok(blob.map(|blob| blob.bytes))
    }

    async fn blob_put(&self, key: &str, bytes: Vec<u8>) -> HostResult<()> {
        let content_type = "application/octet-stream".to_owned();
        let blob = Blob {
            content_type,
            bytes,
        };
        self.storage().put(AREA, key, blob).await
    }

    async fn blob_delete(&self, key: &str) -> HostResult<bool> {
        self.storage().delete(AREA, key).await
    }

    async fn blob_list(&self, prefix: &str, after: Option<String>) -> HostResult<StorageKeys> {
        let query = StorageKeyQuery {
            prefix: prefix.to_owned(),
            after_cursor: after,
            limit: Some(100),
        };
        self.storage().list(AREA, &query).await
    }

    async fn run_status(&self, id: &str) -> HostResult<Option<RunStatus>> {
        let Ok(id) = id.parse::<RunId>() else {
            return Ok(None);
        };
        let run = self.runs().get(id).await?;
        Ok(run.map(|run| run.status))
    }
}

/// Makes a call again while it fails in a way that may pass, four times in all.
pub(super) async fn tried<T, F: Future<Output = HostResult<T>>>(
    mut call: impl FnMut() -> F,
) -> HostResult<T> {
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match call().await {
            Err(error) if error.retryable => {
                tracing::warn!(
                    code = error.code,
                    "the gateway did not take a record, trying again"
                );
            }
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    call().await
}
