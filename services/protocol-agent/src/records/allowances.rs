//! Approvals of a person for the entire conversation.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::action::Effect;
use action_graph::json::{canonical, leaves};
use action_graph::rules::StandingApproval;
use secrets::digest::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::records::GraphRecords;
use crate::records::error::RecordsError;
use crate::records::host::RecordsHost;

/// State key of the approvals.
pub(super) const KEY: &str = "apd.allow";
/// Maximum approvals of a conversation.
const MAX_APPROVALS: usize = 32;
/// Maximum bytes of all approvals.
const BYTES: usize = 32 << 10;
/// Maximum characters of an argument that an approval fixes. Longer texts may vary.
const SHORT: usize = 120;

/// Approvals of a conversation, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Allowances {
    pub(super) list: Vec<StandingApproval>,
}

impl Allowances {
    /// Adds an approval; false if it exists.
    pub(super) fn add(&mut self, standing: &StandingApproval) -> Result<bool, RecordsError> {
        if self.list.iter().any(|one| one.id == standing.id) {
            return Ok(false);
        }
        self.list.push(standing.clone());
        let bytes = serde_json::to_vec(&self.list).map_or(0, |bytes| bytes.len());
        // No eviction: a silently dropped approval would surprise the user with a question.
        if self.list.len() > MAX_APPROVALS || bytes > BYTES {
            return Err(RecordsError::Full {
                what: "the list of approvals for the conversation",
                bound: MAX_APPROVALS,
            });
        }
        Ok(true)
    }

    /// Removes an approval; false if none has this id.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        let before = self.list.len();
        self.list.retain(|one| one.id != id);
        before != self.list.len()
    }
}

impl<H: RecordsHost> GraphRecords<H> {
    /// All approvals for the conversation.
    pub fn standing(&self) -> Vec<StandingApproval> {
        self.allowances.value.list.clone()
    }

    /// Allows calls of this pattern for the conversation.
    pub async fn allow(&mut self, standing: &StandingApproval) -> Result<(), RecordsError> {
        self.me.needs_state()?;
        let add = |list: &mut Allowances| list.add(standing);
        self.allowances.change(&self.host, add).await
    }

    /// Revokes an approval for the conversation; false if none has this id.
    pub async fn revoke(&mut self, id: &str) -> Result<bool, RecordsError> {
        self.me.needs_state()?;
        let mut is_gone = false;
        let remove = |list: &mut Allowances| {
            let is_here = list.remove(id);
            // `change` may run the closure again after a conflict, on a list without the entry.
            is_gone |= is_here;
            Ok(is_here)
        };
        self.allowances.change(&self.host, remove).await?;
        Ok(is_gone)
    }
}

/// Approval for the conversation that covers a call and similar ones: the same executor, effects and arguments, except
/// for long or multi-line texts, which may vary. Its id is a hash of these parts.
pub fn pattern(target: &str, effects: &BTreeSet<Effect>, input: &Value) -> StandingApproval {
    let mut arguments = BTreeMap::new();
    let mut free = BTreeSet::new();
    for (at, value) in leaves(input) {
        // Empty objects and lists are values of their own: an approval must not cover them filled.
        match value {
            Value::String(text) if text.contains('\n') || text.chars().count() > SHORT => {
                free.insert(at);
            }
            other => {
                arguments.insert(at, other.clone());
            }
        }
    }
    let parts = json!([target, effects, arguments, free]);
    let hash = sha256_hex(canonical(&parts));
    StandingApproval {
        id: format!("s_{}", &hash[..16]),
        target: target.to_owned(),
        effects: effects.clone(),
        arguments,
        free,
        given_by: None,
    }
}
