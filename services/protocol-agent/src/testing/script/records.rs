//! The records of a scripted host are those of its gateway in memory.

use protocol::host_api::{StateKeys, StateValue, StorageKeys};
use protocol::run::RunStatus;
use serde_json::Value;

use super::GraphTestHost;
use crate::records::{HostResult, RecordsHost};

impl RecordsHost for GraphTestHost {
    async fn state_get(&self, key: &str) -> HostResult<Option<StateValue>> {
        self.memory.state_get(key).await
    }

    async fn state_put(&self, key: &str, value: Value, version: Option<i64>) -> HostResult<i64> {
        self.memory.state_put(key, value, version).await
    }

    async fn state_delete(&self, key: &str) -> HostResult<bool> {
        self.memory.state_delete(key).await
    }

    async fn state_list(&self, prefix: &str, limit: u32) -> HostResult<StateKeys> {
        self.memory.state_list(prefix, limit).await
    }

    async fn blob_get(&self, key: &str) -> HostResult<Option<Vec<u8>>> {
        self.memory.blob_get(key).await
    }

    async fn blob_put(&self, key: &str, bytes: Vec<u8>) -> HostResult<()> {
        self.memory.blob_put(key, bytes).await
    }

    async fn blob_delete(&self, key: &str) -> HostResult<bool> {
        self.memory.blob_delete(key).await
    }

    async fn blob_list(&self, prefix: &str, after: Option<String>) -> HostResult<StorageKeys> {
        self.memory.blob_list(prefix, after).await
    }

    async fn run_status(&self, id: &str) -> HostResult<Option<RunStatus>> {
        self.memory.run_status(id).await
    }
}
