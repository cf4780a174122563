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
        let request = self
            .0
            .request(Method::PUT, &["state", scope.as_str(), key])
            .await?;
        let answer: StateVersion = self
            .0
            .answer(request.json(&StatePut {
                value: value.into(),
            }))
            .await?;
        Ok(answer.version)
    }

    /// Writes a state entry at `version`; fails with `conflict` at another one.
    pub async fn put_if_version(
        self,
        scope: StateScope,
        key: &str,
        value: impl Into<Value>,
        version: i64,
    ) -> Result<i64, HostError> {
        let request = self
            .0
            .request(Method::PUT, &["state", scope.as_str(), key])
            .await?;
        let request = request.header("if-match", version.to_string());
        let answer: StateVersion = self
            .0
            .answer(request.json(&StatePut {
                value: value.into(),
            }))
            .await?;
        Ok(answer.version)
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
