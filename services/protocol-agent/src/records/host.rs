//! Host API of the records: documents of the conversation, and status of runs.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use protocol::host_api::{StateDocument, StatePut, StateValue};
use protocol::id::RunId;
use protocol::resources::StateScope;
use protocol::run::RunStatus;
use runner_kit::host::{Host, HostError};
use serde_json::Value;

/// Result of a host call.
pub type HostResult<T> = Result<T, HostError>;

const SCOPE: StateScope = StateScope::Conversation;
/// Maximum calls of [`with_retries`], including the first.
const TRIES: u32 = 4;
/// Backoff before the first retry; it doubles.
const PAUSE: Duration = Duration::from_millis(150);
/// Concurrent reads of bodies.
const AT_ONCE: usize = 4;

/// Host API calls of the records. Errors are those of [`Host`].
pub trait RecordsHost: Clone + Send + Sync + 'static {
    /// Documents of the conversation whose key begins with `apd.`, without values; at most 100.
    fn documents(&self) -> impl Future<Output = HostResult<Vec<StateDocument>>> + Send;

    /// A document of the conversation.
    fn document(&self, key: &str) -> impl Future<Output = HostResult<Option<StateValue>>> + Send;

    /// Body of a document; `None` if it is absent.
    fn body(&self, key: &str, id: &str) -> impl Future<Output = HostResult<Option<Value>>> + Send;

    /// Writes a document with its bodies in one transaction and returns its new version. With `version`, only over
    /// that one; without, a lease is only taken if the document is new or this run has it.
    fn put_document(
        &self,
        key: &str,
        document: &StatePut,
        version: Option<i64>,
    ) -> impl Future<Output = HostResult<i64>> + Send;

    /// Removes a document with its bodies; false if it was absent.
    fn delete_document(&self, key: &str) -> impl Future<Output = HostResult<bool>> + Send;

    /// Status of a run of this conversation; `None` if it was removed.
    fn run_status(&self, id: &str) -> impl Future<Output = HostResult<Option<RunStatus>>> + Send;
}

impl RecordsHost for Host {
    async fn documents(&self) -> HostResult<Vec<StateDocument>> {
        Ok(self.state().list(SCOPE, "apd.", 100).await?.documents)
    }

    async fn document(&self, key: &str) -> HostResult<Option<StateValue>> {
        self.state().get(SCOPE, key).await
    }

    async fn body(&self, key: &str, id: &str) -> HostResult<Option<Value>> {
        self.state().body(SCOPE, key, id).await
    }

    async fn put_document(
        &self,
        key: &str,
        document: &StatePut,
        version: Option<i64>,
    ) -> HostResult<i64> {
        self.state().write(SCOPE, key, document, version).await
    }

    async fn delete_document(&self, key: &str) -> HostResult<bool> {
        self.state().delete(SCOPE, key).await
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

/// Reads bodies of a document by name. Absent ones are omitted.
pub(super) async fn read_bodies(
    host: &impl RecordsHost,
    key: &str,
    names: impl IntoIterator<Item = String>,
) -> HostResult<BTreeMap<String, Value>> {
    let read = |name: String| async move {
        let id = body_id(&name);
        let content = with_retries(|| host.body(key, &id)).await?;
        HostResult::Ok(content.map(|content| (name, content)))
    };
    // Boxed and collected: the compiler cannot prove that a lazy iterator of borrowing futures is `Send`.
    let reads: Vec<_> = names.into_iter().map(|name| read(name).boxed()).collect();
    let found = stream::iter(reads).buffer_unordered(AT_ONCE);
    found
        .try_filter_map(|found| async { Ok(found) })
        .try_collect()
        .await
}

/// Id of a body. Ids of instances contain brackets, which ids of bodies may not.
pub(super) fn body_id(name: &str) -> String {
    name.replace('[', ":").replace(']', "")
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
