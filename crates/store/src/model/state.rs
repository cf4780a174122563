//! Scopes of state, and their parts for contexts.

use protocol::resources::StateScope;

/// A granted scope: its kind and its canonical identity from the snapshot.
#[derive(Clone, Debug)]
pub struct StateAccess {
    pub scope: StateScope,
    pub identity: String,
}

/// A value without its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEntry {
    pub key: String,
    /// JSON text.
    pub value: String,
    pub version: i64,
}

/// A bounded part of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePart {
    pub entries: Vec<StateEntry>,
    /// True when the part is the complete scope.
    pub is_complete: bool,
}

/// State of one scope for a context.
#[derive(Clone, Debug)]
pub struct ScopeState {
    pub scope: StateScope,
    pub part: StatePart,
}
