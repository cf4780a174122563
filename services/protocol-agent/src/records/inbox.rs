//! Answers that came while another run drove the graph that asked: they wait for the next run.

use action_graph::graph::Millis;
use action_graph::sha256;
use protocol::JsonObject;
use serde::{Deserialize, Serialize};

use crate::records::RunIdentity;
use crate::records::document::{StoredRecord, named, read};
use crate::records::error::RecordsError;
use crate::records::host::{RecordsHost, tried};

/// Beginning of the keys of answers.
const INBOX: &str = "apd.in.";
/// An answer that no graph waited for is removed after 7 days.
const KEPT: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Bytes of an answer.
const BYTES: usize = 64 << 10;

/// An answer of a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// The question's `interaction_id`.
    pub interaction: String,
    /// The button that was taken.
    pub action: Option<String>,
    /// Values by field.
    pub values: JsonObject,
    /// When it came.
    pub at: Millis,
}

/// Answers for graphs that other runs drive.
#[derive(Debug)]
pub struct AnswerInbox<H> {
    pub(super) host: H,
    pub(super) me: RunIdentity,
    pub(super) now: Millis,
}

impl<H: RecordsHost> AnswerInbox<H> {
    /// Leaves an answer for the next run, because a live run drives the graph.
    pub async fn leave(&self, submission: &Submission) -> Result<(), RecordsError> {
        self.me.needs_state()?;
        let value = named(&self.me.conversation(), submission);
        if value.to_string().len() > BYTES {
            return Err(RecordsError::Full {
                what: "an answer",
                most: BYTES,
            });
        }
        let key = key(&submission.interaction);
        tried(|| self.host.state_put(&key, value.clone(), None)).await?;
        Ok(())
    }

    /// Removes an answer that was left, once the graph that it woke is stored.
    pub async fn taken(&self, interaction: &str) -> Result<(), RecordsError> {
        self.me.needs_state()?;
        let key = key(interaction);
        tried(|| self.host.state_delete(&key)).await?;
        Ok(())
    }

    /// Reads the answers under these keys. Expired ones are removed.
    pub(super) async fn read(&self, keys: &[String]) -> Result<Vec<Submission>, RecordsError> {
        let mut found = Vec::new();
        for key in keys.iter().filter(|key| key.starts_with(INBOX)) {
            let Some(entry) = tried(|| self.host.state_get(key)).await? else {
                continue;
            };
            match read::<Submission>(entry.value, &self.me.conversation()) {
                StoredRecord::Here(one) if self.now.saturating_sub(one.at) > KEPT => {
                    tried(|| self.host.state_delete(key)).await?;
                }
                StoredRecord::Here(one) => found.push(one),
                StoredRecord::Absent | StoredRecord::Later(_) => {}
            }
        }
        Ok(found)
    }
}

fn key(interaction: &str) -> String {
    format!("{INBOX}{}", &sha256::hex(interaction)[..32])
}
