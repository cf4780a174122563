//! The records of a scripted host are those of its gateway in memory.

use protocol::host_api::{StateKeys, StateValue, StorageKeys};
use protocol::run::RunStatus;
use serde_json::Value;

use super::TestHost;
use crate::keep::{Answer, KeepHost};

impl KeepHost for TestHost {
    async fn state_get(&self, key: &str) -> Answer<Option<StateValue>> {
        self.memory.state_get(key).await
    }

    async fn state_put(&self, key: &str, value: Value, version: Option<i64>) -> Answer<i64> {
        self.memory.state_put(key, value, version).await
    }

    async fn state_delete(&self, key: &str) -> Answer<bool> {
        self.memory.state_delete(key).await
    }

    async fn state_list(&self, prefix: &str, limit: u32) -> Answer<StateKeys> {
        self.memory.state_list(prefix, limit).await
    }

    async fn blob_get(&self, key: &str) -> Answer<Option<Vec<u8>>> {
        self.memory.blob_get(key).await
    }

    async fn blob_put(&self, key: &str, bytes: Vec<u8>) -> Answer<()> {
        self.memory.blob_put(key, bytes).await
    }

    async fn blob_delete(&self, key: &str) -> Answer<bool> {
        self.memory.blob_delete(key).await
    }

    async fn blob_list(&self, prefix: &str, after: Option<String>) -> Answer<StorageKeys> {
        self.memory.blob_list(prefix, after).await
    }

    async fn run_status(&self, id: &str) -> Answer<Option<RunStatus>> {
        self.memory.run_status(id).await
    }
}
