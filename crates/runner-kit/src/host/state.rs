//! Versioned state entries.

use protocol::host_api::{StateKeys, StatePut, StateValue, StateVersion};
use protocol::resources::StateScope;
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;

use crate::host::{HostConnection, HostError};

/// State of the run.
#[derive(Clone, Copy, Debug)]
pub struct StateApi<'a>(pub(super) &'a HostConnection);

impl StateApi<'_> {
    /// A state entry, or `None` when there is none.
    pub async fn get(self, scope: StateScope, key: &str) -> Result<Option<StateValue>, HostError> {
        match self.0.get(&["state", scope.as_str(), key]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Writes a state entry without a condition; returns the new version.
    pub async fn put(
        self,
        scope: StateScope,
        key: &str,
        value: impl Into<Value>,
    ) -> Result<i64, HostError> {
        self.write(scope, key, &StatePut::of(value), None).await
    }

    /// Writes a state entry at `version`; fails with `conflict` at another one.
    pub async fn put_if_version(
        self,
        scope: StateScope,
        key: &str,
        value: impl Into<Value>,
        version: i64,
    ) -> Result<i64, HostError> {
        self.write(scope, key, &StatePut::of(value), Some(version))
            .await
    }

    /// Writes a state entry with its bodies in one transaction, and takes, renews or releases its lease; returns the
    /// new version. Fails with `conflict` at another `version`, while another live run has the lease, and for a lease
    /// of an existing entry that this run does not have and takes without `version`.
    pub async fn write(
        self,
        scope: StateScope,
        key: &str,
        entry: &StatePut,
        version: Option<i64>,
    ) -> Result<i64, HostError> {
        let path = ["state", scope.as_str(), key];
        let mut request = self.0.request(Method::PUT, &path).await?.json(entry);
        if let Some(version) = version {
            request = request.header("if-match", version.to_string());
        }
        let answer: StateVersion = self.0.answer(request).await?;
        Ok(answer.version)
    }

    /// A body of a state entry, or `None` when there is none.
    pub async fn body(
        self,
        scope: StateScope,
        key: &str,
        body_id: &str,
    ) -> Result<Option<Value>, HostError> {
        let path = ["state-bodies", scope.as_str(), body_id, key];
        match self.0.get(&path).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Removes a state entry; false when there was none.
    pub async fn delete(self, scope: StateScope, key: &str) -> Result<bool, HostError> {
        let request = self
            .0
            .request(Method::DELETE, &["state", scope.as_str(), key])
            .await?;
        match self.0.send(request).await {
            Ok(_) => Ok(true),
            // A retry after a lost response finds the entry deleted.
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keys of a scope with `prefix`, in byte order, at most `limit`.
    pub async fn list(
        self,
        scope: StateScope,
        prefix: &str,
        limit: u32,
    ) -> Result<StateKeys, HostError> {
        #[derive(Serialize)]
        struct Query<'a> {
            prefix: &'a str,
            limit: u32,
        }
        let request = self
            .0
            .request(Method::GET, &["state", scope.as_str()])
            .await?;
        self.0.answer(request.query(&Query { prefix, limit })).await
    }
}
