//! Host API of the records: state of the conversation, storage of the agent, and status of runs.

use std::time::Duration;

use protocol::host_api::{StateKeys, StateValue, StorageKeys};
use protocol::id::RunId;
use protocol::resources::{StateScope, StorageArea};
use protocol::run::RunStatus;
use runner_kit::host::{Blob, Host, HostError, StorageKeyQuery};
use serde_json::Value;

/// Result of a host call.
pub type HostResult<T> = Result<T, HostError>;

/// Storage area of the bodies, shared by all conversations of the agent.
const AREA: StorageArea = StorageArea::Binding;
/// Maximum calls of [`with_retries`], including the first.
const TRIES: u32 = 4;
/// Backoff before the first retry; it doubles.
const PAUSE: Duration = Duration::from_millis(150);

/// Host API calls of the records. Errors are those of [`Host`].
pub trait RecordsHost: Clone + Send + Sync + 'static {
    /// Value of the conversation's state with its version.
    fn state_get(&self, key: &str) -> impl Future<Output = HostResult<Option<StateValue>>> + Send;

    /// Writes a value of the conversation's state and returns its new version. With `version`, only if it is the stored
    /// one; without, unconditionally.
    fn state_put(
        &self,
        key: &str,
        value: Value,
        version: Option<i64>,
    ) -> impl Future<Output = HostResult<i64>> + Send;

    /// Removes a value of the conversation's state; false if it was absent.
    fn state_delete(&self, key: &str) -> impl Future<Output = HostResult<bool>> + Send;

    /// Keys of the conversation's state with this prefix, at most `limit`.
    fn state_list(
        &self,
        prefix: &str,
        limit: u32,
    ) -> impl Future<Output = HostResult<StateKeys>> + Send;

    /// Body in the agent's storage; `None` if it is absent.
    fn blob_get(&self, key: &str) -> impl Future<Output = HostResult<Option<Vec<u8>>>> + Send;

    /// Writes a body of at most 10 MiB.
    fn blob_put(&self, key: &str, bytes: Vec<u8>) -> impl Future<Output = HostResult<()>> + Send;

    /// Removes a body; false if it was absent.
    fn blob_delete(&self, key: &str) -> impl Future<Output = HostResult<bool>> + Send;

    /// Keys of bodies with this prefix, at most 100, after a cursor.
    fn blob_list(
        &self,
        prefix: &str,
        after: Option<String>,
    ) -> impl Future<Output = HostResult<StorageKeys>> + Send;

    /// Status of a run of this conversation; `None` if it was removed.
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
        // A malformed id names no run of the gateway, so no live one.
        let Ok(id) = id.parse::<RunId>() else {
            return Ok(None);
        };
        let run = self.runs().get(id).await?;
        Ok(run.map(|run| run.status))
    }
}

/// Retries a call with exponential backoff while it fails with a retryable error, at most [`TRIES`] calls.
pub(super) async fn with_retries<T, F: Future<Output = HostResult<T>>>(
    mut call: impl FnMut() -> F,
) -> HostResult<T> {
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match call().await {
            Err(error) if error.retryable => {
                tracing::warn!(
                    code = error.code,
                    "record call to the gateway failed, retrying"
                );
            }
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    call().await
}
