//! Entry of the conversation's state that several runs change: compare-and-swap on its version, with retries.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::error::RecordsError;
use crate::records::host::{RecordsHost, with_retries};

/// Format version of stored records.
pub(super) const VERSION: u16 = 1;
/// Maximum consecutive conflicts of one change.
const ROUNDS: usize = 8;

/// Envelope that names the conversation of a record. In another conversation, the record counts as absent.
#[derive(Serialize, Deserialize)]
pub(super) struct RecordEnvelope<T> {
    pub(super) version: u16,
    pub(super) conversation: String,
    pub(super) content: T,
}

/// Record under a key.
pub(super) enum StoredRecord<T> {
    Absent,
    Here(T),
    /// Written by a later version of the runner.
    Later(u16),
}

/// Reads a record. Damaged records, and those of another conversation, count as absent.
pub(super) fn read<T: DeserializeOwned>(value: Value, conversation: &str) -> StoredRecord<T> {
    let version = value.get("version").and_then(Value::as_u64);
    let owner = value.get("conversation").and_then(Value::as_str);
    if owner != Some(conversation) {
        return StoredRecord::Absent;
    }
    match version.map(u16::try_from) {
        Some(Ok(VERSION)) => match serde_json::from_value::<RecordEnvelope<T>>(value) {
            Ok(named) => StoredRecord::Here(named.content),
            Err(error) => {
                tracing::warn!(error = %error, "a stored record is damaged and counts as absent");
                StoredRecord::Absent
            }
        },
        Some(Ok(later)) => StoredRecord::Later(later),
        _ => StoredRecord::Absent,
    }
}

/// Wraps a record in its envelope.
pub(super) fn named(conversation: &str, content: &impl Serialize) -> Value {
    let named = RecordEnvelope {
        version: VERSION,
        conversation: conversation.to_owned(),
        content,
    };
    serde_json::to_value(named).unwrap_or_default()
}

/// Last read or written version of an entry.
#[derive(Debug)]
pub(super) struct StateDocument<T> {
    key: &'static str,
    conversation: String,
    pub(super) value: T,
    version: Option<i64>,
}

impl<T: Serialize + DeserializeOwned + Clone + Default> StateDocument<T> {
    /// Entry with the default value, without a stored version.
    pub(super) fn absent(key: &'static str) -> Self {
        Self {
            key,
            conversation: String::new(),
            value: T::default(),
            version: None,
        }
    }

    /// Reads the entry, or the default value if it is absent.
    pub(super) async fn read(
        host: &impl RecordsHost,
        key: &'static str,
        conversation: &str,
    ) -> Result<Self, RecordsError> {
        let mut document = Self::absent(key);
        conversation.clone_into(&mut document.conversation);
        document.reload(host).await?;
        Ok(document)
    }

    async fn reload(&mut self, host: &impl RecordsHost) -> Result<(), RecordsError> {
        let entry = with_retries(|| host.state_get(self.key)).await?;
        self.version = entry.as_ref().map(|entry| entry.version);
        self.value = match entry.map(|entry| read(entry.value, &self.conversation)) {
            Some(StoredRecord::Here(value)) => value,
            Some(StoredRecord::Later(_)) => {
                return Err(RecordsError::Refused(
                    "a later version of the runner keeps this conversation: upgrade the runner",
                ));
            }
            Some(StoredRecord::Absent) | None => T::default(),
        };
        Ok(())
    }

    /// Applies a change to the current value. After a conflict, `change` runs again on the new value. It returns false
    /// if there is nothing to change.
    pub(super) async fn change(
        &mut self,
        host: &impl RecordsHost,
        mut change: impl FnMut(&mut T) -> Result<bool, RecordsError>,
    ) -> Result<(), RecordsError> {
        if self.version.is_none() {
            // The write of a new entry is unconditional, so read again: another run may have written it by now.
            self.reload(host).await?;
        }
        let mut rounds = ROUNDS;
        loop {
            let mut next = self.value.clone();
            if !change(&mut next)? {
                return Ok(());
            }
            let value = named(&self.conversation, &next);
            let version = self.version;
            match with_retries(|| host.state_put(self.key, value.clone(), version)).await {
                Ok(version) => {
                    self.value = next;
                    self.version = Some(version);
                    return Ok(());
                }
                Err(error) if is_version_conflict(&error) && rounds > 0 => {
                    rounds -= 1;
                    self.reload(host).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// True if a conditional write failed because its version is outdated.
pub(super) fn is_version_conflict(error: &runner_kit::HostError) -> bool {
    // `not_found`: another run has removed the entry.
    error.is_conflict() || error.is_not_found()
}
