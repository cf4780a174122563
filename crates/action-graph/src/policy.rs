//! Policies: how results return to the model, and the thirteen kept objects.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

words! {
    /// Form of a result for the model.
    #[derive(Default)]
    pub enum Return {
        /// Only the status.
        None = "none",
        /// A short text, or the complete one when it is short.
        #[default]
        Summary = "summary",
        /// A pruned JSON object.
        Structured = "structured",
        /// Windows around matches of the priority words.
        Excerpt = "excerpt",
        /// The complete text up to the cap.
        Full = "full",
        /// Only details of failures.
        OnFailure = "on_failure",
        /// A line and a reference.
        OnDemand = "on_demand",
        /// The fullest form that fits.
        Adaptive = "adaptive",
    }
}

words! {
    /// Replacement for a text above its cap.
    #[derive(Default)]
    pub enum IfTruncated {
        #[default]
        ProvideRefAndSummary = "provide_ref_and_summary",
        /// The beginning of the text.
        Truncate = "truncate",
        /// Only the status.
        Refuse = "refuse",
    }
}

/// Result form that the model requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultPolicy {
    /// The form.
    pub return_to_model: Return,
    /// Words and keys that come first.
    #[serde(default)]
    pub priority: Vec<String>,
    /// Tokens at most; can only lower the form's cap.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// True if the complete output is stored.
    #[serde(default = "yes")]
    pub store_full: bool,
    /// Replacement for a text above its cap.
    #[serde(default)]
    pub if_truncated: IfTruncated,
}

fn yes() -> bool {
    true
}

impl Default for ResultPolicy {
    fn default() -> Self {
        Self {
            return_to_model: Return::default(),
            priority: Vec::new(),
            max_tokens: None,
            store_full: true,
            if_truncated: IfTruncated::default(),
        }
    }
}

impl From<Return> for ResultPolicy {
    fn from(return_to_model: Return) -> Self {
        Self {
            return_to_model,
            ..Self::default()
        }
    }
}

/// Readers of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    #[default]
    Model,
    /// The user, never the model.
    User,
    /// Only the runtime.
    RuntimeOnly,
}

/// Names of the policies that the protocol reserves.
pub const POLICY_NAMES: [&str; 13] = [
    "permission_policy",
    "budget_policy",
    "cancellation_policy",
    "idempotency",
    "side_effects",
    "data_visibility",
    "privacy",
    "conflict_resolution",
    "schema_evolution",
    "partial_results",
    "approval_gates",
    "result_granularity",
    "ui_projection",
];

/// Reserved policies that the runtime acts on.
pub(crate) const ENFORCED: [&str; 4] = [
    "permission_policy",
    "side_effects",
    "data_visibility",
    "privacy",
];

/// Reserved policies and unknown fields, kept as they came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// The reserved policies by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, Value>,
    /// Unknown fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Value>,
}

impl Policies {
    /// The strictest visibility that these policies ask for.
    pub fn visibility(&self) -> Visibility {
        // Unknown words leave the default: the catalogue's visibility still applies.
        let word = self.named.get("data_visibility").and_then(word_of);
        let wanted = match word {
            Some("runtime_only") => Visibility::RuntimeOnly,
            Some("user") => Visibility::User,
            _ => Visibility::Model,
        };
        // `no_replay` keeps a result out of later requests, so the model must not see it at all.
        let no_replay = self.named.get("privacy").is_some_and(|privacy| {
            privacy.get("no_replay").and_then(Value::as_bool) == Some(true)
                || privacy.as_str() == Some("no_replay")
        });
        wanted.max(if no_replay {
            Visibility::User
        } else {
            Visibility::Model
        })
    }

    /// True if the model itself requests an approval.
    pub fn wants_approval(&self) -> bool {
        let policy = self.named.get("permission_policy");
        policy.is_some_and(|policy| {
            policy.get("requires_approval").and_then(Value::as_bool) == Some(true)
        })
    }
}

/// A policy's word: a text, or the `level` of an object.
fn word_of(value: &Value) -> Option<&str> {
    value
        .as_str()
        .or_else(|| value.get("level").and_then(Value::as_str))
}
