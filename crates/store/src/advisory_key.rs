//! Keys of advisory locks.

use aws_lc_rs::digest::{SHA256, digest};

/// Advisory lock key of rows shared by runs of any conversation: a state scope or an agent. Colliding keys wait
/// for each other for one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdvisoryKey(u16);

/// Number of distinct keys. A server holds a few thousand locks, and one commit may need many.
const DISTINCT_KEYS: u16 = 4096;

impl AdvisoryKey {
    /// Second number of the two-part key in `PostgreSQL`.
    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// The key of a scope or an agent, by its identity.
    pub(crate) fn of(identity: &str) -> Self {
        let hash = digest(&SHA256, identity.as_bytes());
        let &[first, second, ..] = hash.as_ref() else {
            return Self(0);
        };
        Self(u16::from_be_bytes([first, second]) % DISTINCT_KEYS)
    }
}
