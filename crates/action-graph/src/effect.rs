//! Effects of actions, and retry classes of attempts.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Change that an action makes outside of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the protocol")]
pub enum Effect {
    None,
    Read,
    Write,
    Send,
    Delete,
    Purchase,
    Publish,
    External,
    Unknown,
}

impl Effect {
    /// All effects.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Read,
        Self::Write,
        Self::Send,
        Self::Delete,
        Self::Purchase,
        Self::Publish,
        Self::External,
        Self::Unknown,
    ];

    /// The name in declarations and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Write => "write",
            Self::Send => "send",
            Self::Delete => "delete",
            Self::Purchase => "purchase",
            Self::Publish => "publish",
            Self::External => "external",
            Self::Unknown => "unknown",
        }
    }

    /// True if two actions with it may share a target.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::None | Self::Read)
    }
}

/// Idempotency as configured by the operator or reported by a trusted tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idempotency {
    /// A second call changes nothing.
    Safe,
    /// A second call with the same key changes nothing.
    Keyed,
    /// A second call acts twice.
    Unsafe,
    /// Not known: treated as unsafe.
    #[default]
    Unknown,
}

/// Retry class of an attempt, from the most to the least lenient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It may run again at any time.
    Replayable,
    /// It may be sent again with the same key.
    Keyed,
    /// It is never sent again after it may have been sent.
    AtMostOnce,
}

impl Class {
    /// The class of these effects with this idempotency.
    // First arm before the others: reading twice is harmless, whatever the tool declares.
    pub fn of(effects: &BTreeSet<Effect>, idempotency: Idempotency) -> Self {
        match idempotency {
            _ if !effects.is_empty() && effects.iter().all(|one| one.is_shared()) => {
                Self::Replayable
            }
            Idempotency::Safe => Self::Replayable,
            Idempotency::Keyed => Self::Keyed,
            // Unknown counts as unsafe: a repeated purchase cannot be undone.
            Idempotency::Unsafe | Idempotency::Unknown => Self::AtMostOnce,
        }
    }
}
