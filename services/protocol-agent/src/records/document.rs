//! Document of the conversation that several runs change: compare-and-swap on its version, with retries.

use protocol::host_api::StatePut;
use runner_kit::HostError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::records::error::RecordsError;
use crate::records::host::{RecordsHost, with_retries};

/// Format version of stored records, in the summary of each document.
pub(super) const VERSION: u16 = 1;
/// Maximum consecutive conflicts of one change.
const ROUNDS: usize = 8;

/// Format version in the summary of a document; 0 if it is none of ours.
pub(super) fn version_of(summary: Option<&Value>) -> u16 {
    let version = summary.and_then(|summary| summary.get("version"));
    let version = version.and_then(Value::as_u64).unwrap_or_default();
    u16::try_from(version).unwrap_or(u16::MAX)
}

/// Document without lease and bodies.
pub(super) fn plain(value: &impl Serialize) -> StatePut {
    StatePut {
        summary: Some(json!({"version": VERSION})),
        ..StatePut::of(json!(value))
    }
}

/// Last read or written version of a document.
#[derive(Debug)]
pub(super) struct SharedDocument<T> {
    key: &'static str,
    pub(super) value: T,
    version: Option<i64>,
}

impl<T: Serialize + DeserializeOwned + Clone + Default> SharedDocument<T> {
    /// Document with the default value, without a stored version.
    pub(super) fn absent(key: &'static str) -> Self {
        Self {
            key,
            value: T::default(),
            version: None,
        }
    }

    /// Reads the document, or the default value if it is absent. A damaged one counts as absent.
    pub(super) async fn read(
        host: &impl RecordsHost,
        key: &'static str,
    ) -> Result<Self, RecordsError> {
        let mut document = Self::absent(key);
        let Some(stored) = with_retries(|| host.document(key)).await? else {
            return Ok(document);
        };
        document.version = Some(stored.version);
        if version_of(stored.summary.as_ref()) > VERSION {
            return Err(RecordsError::Refused(
                "a later version of the runner keeps this conversation: upgrade the runner",
            ));
        }
        match serde_json::from_value(stored.value) {
            Ok(value) => document.value = value,
            Err(error) => {
                tracing::warn!(error = %error, "a stored record is damaged and counts as absent");
            }
        }
        Ok(document)
    }

    /// Applies a change to the current value. After a conflict, `change` runs again on the new value. It returns false
    /// if there is nothing to change.
    pub(super) async fn change(
        &mut self,
        host: &impl RecordsHost,
        mut change: impl FnMut(&mut T) -> Result<bool, RecordsError>,
    ) -> Result<(), RecordsError> {
        if self.version.is_none() {
            // The write of a new document is unconditional, so read again: another run may have written it by now.
            *self = Self::read(host, self.key).await?;
        }
        let mut rounds = ROUNDS;
        loop {
            let mut next = self.value.clone();
            if !change(&mut next)? {
                return Ok(());
            }
            let document = plain(&next);
            let version = self.version;
            match with_retries(|| host.put_document(self.key, &document, version)).await {
                Ok(version) => {
                    self.value = next;
                    self.version = Some(version);
                    return Ok(());
                }
                Err(error) if is_version_conflict(&error) && rounds > 0 => {
                    rounds -= 1;
                    *self = Self::read(host, self.key).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// True if a conditional write failed because its version is outdated.
pub(super) fn is_version_conflict(error: &HostError) -> bool {
    // `not_found`: another run has removed the document.
    error.is_conflict() || error.is_not_found()
}
