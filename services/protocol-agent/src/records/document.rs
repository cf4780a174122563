//! One entry of the conversation's state that several runs change: read with its version, written where it still stands.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::error::RecordsError;
use crate::records::host::{RecordsHost, tried};

/// Version of stored records.
pub(super) const VERSION: u16 = 1;
/// Changes of one entry that others may win in a row.
const ROUNDS: usize = 8;

/// A record that names its conversation: read elsewhere, it is absent.
#[derive(Serialize, Deserialize)]
pub(super) struct RecordEnvelope<T> {
    pub(super) version: u16,
    pub(super) conversation: String,
    pub(super) content: T,
}

/// The document of a key.
pub(super) enum StoredRecord<T> {
    Absent,
    Here(T),
    /// A later version wrote it.
    Later(u16),
}

/// Reads a record. What is damaged or belongs to another conversation is absent.
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

/// Puts a record into its envelope.
pub(super) fn named(conversation: &str, content: &impl Serialize) -> Value {
    let named = RecordEnvelope {
        version: VERSION,
        conversation: conversation.to_owned(),
        content,
    };
    serde_json::to_value(named).unwrap_or_default()
}

/// An entry, as it was read or written last.
#[derive(Debug)]
pub(super) struct StateDocument<T> {
    key: &'static str,
    conversation: String,
    pub(super) value: T,
    version: Option<i64>,
}

impl<T: Serialize + DeserializeOwned + Clone + Default> StateDocument<T> {
    /// An entry that stands nowhere.
    pub(super) fn absent(key: &'static str) -> Self {
        Self {
            key,
            conversation: String::new(),
            value: T::default(),
            version: None,
        }
    }

    /// Reads the entry; an absent one has the default value.
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
        let entry = tried(|| host.state_get(self.key)).await?;
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

    /// Applies a change that may be applied again, to what stands now; false: there is nothing to change. A change
    /// that another run won is made again on what that run wrote.
    pub(super) async fn change(
        &mut self,
        host: &impl RecordsHost,
        mut change: impl FnMut(&mut T) -> Result<bool, RecordsError>,
    ) -> Result<(), RecordsError> {
        if self.version.is_none() {
            // A write of a new document has no condition: read again, another run may have written it meanwhile.
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
            match tried(|| host.state_put(self.key, value.clone(), version)).await {
                Ok(version) => {
                    self.value = next;
                    self.version = Some(version);
                    return Ok(());
                }
                Err(error) if is_outrun(&error) && rounds > 0 => {
                    rounds -= 1;
                    self.reload(host).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether the version that a write named stands no more.
pub(super) fn is_outrun(error: &runner_kit::HostError) -> bool {
    error.is_conflict() || error.is_not_found()
}
