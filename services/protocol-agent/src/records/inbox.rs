//! Inbox of answers that arrived while another run drove their graph. The next run takes them.

use action_graph::graph::Millis;
use protocol::JsonObject;
use protocol::host_api::StateDocument;
use secrets::digest::sha256_hex;
use serde::{Deserialize, Serialize};

use crate::records::GraphRecords;
use crate::records::document::plain;
use crate::records::error::RecordsError;
use crate::records::host::{RecordsHost, with_retries};

/// Key prefix of answers.
const INBOX: &str = "apd.in.";
/// Retention of answers without a waiting graph: 7 days, in milliseconds.
const RETENTION: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Maximum bytes of an answer.
const BYTES: usize = 64 << 10;

/// Answer of a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// `interaction_id` of the question.
    pub interaction: String,
    /// Id of the selected button.
    pub action: Option<String>,
    /// Values of the form, by field id.
    pub values: JsonObject,
    /// Arrival time, in milliseconds since the epoch.
    pub at: Millis,
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Stores an answer for the next run, because a live run drives the graph.
    pub async fn leave_answer(&self, submission: &Submission) -> Result<(), RecordsError> {
        self.me.needs_state()?;
        let document = plain(submission);
        if document.value.to_string().len() > BYTES {
            return Err(RecordsError::Full {
                what: "an answer",
                bound: BYTES,
            });
        }
        let key = key(&submission.interaction);
        // Unconditional: a repeated answer to the same question replaces the first one.
        with_retries(|| self.host.put_document(&key, &document, None)).await?;
        Ok(())
    }

    /// Removes a delivered answer. Call it after its graph is stored.
    pub async fn forget_answer(&self, interaction: &str) -> Result<(), RecordsError> {
        self.me.needs_state()?;
        let key = key(interaction);
        with_retries(|| self.host.delete_document(&key)).await?;
        Ok(())
    }

    /// Reads the answers among these documents. Removes expired ones.
    pub(super) async fn read_inbox(
        &self,
        entries: &[StateDocument],
    ) -> Result<Vec<Submission>, RecordsError> {
        let mut found = Vec::new();
        for entry in entries.iter().filter(|entry| entry.key.starts_with(INBOX)) {
            let stored = with_retries(|| self.host.document(&entry.key)).await?;
            let answer = stored.map(|stored| serde_json::from_value::<Submission>(stored.value));
            match answer {
                Some(Ok(one)) if self.now.saturating_sub(one.at) > RETENTION => {
                    with_retries(|| self.host.delete_document(&entry.key)).await?;
                }
                Some(Ok(one)) => found.push(one),
                Some(Err(_)) | None => {}
            }
        }
        Ok(found)
    }
}

/// Key of an answer. The hash bounds its length.
fn key(interaction: &str) -> String {
    format!("{INBOX}{}", &sha256_hex(interaction)[..32])
}
