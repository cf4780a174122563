//! Faults of a simulation: those of the network and of the gateways, planted ones, and found ones.

use super::random::Random;

/// A fault that is planted to prove that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    Nothing,
    /// Appends are not compared with the epoch of the row.
    LostFencing,
    /// An end is written whatever the status and the sequence of the row.
    DoubledTerminal,
    /// A task that has lost its run leaves its entry in the registry.
    ForgottenRelease,
}

/// A broken invariant, at a time in milliseconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) at: u64,
    pub(super) text: String,
}

/// Share of operations with a fault, in percent, and an outage of the database. None after the heal.
#[derive(Default)]
pub(super) struct Faults {
    /// Not applied, and answered by an error.
    pub(super) failed: u64,
    /// Applied, and answered by an error.
    pub(super) unknown: u64,
    /// Answered by an error, and applied later.
    pub(super) late: u64,
    /// Applied after a long time.
    pub(super) slow: u64,
    /// Begin and end.
    pub(super) outage: (u64, u64),
}

impl Faults {
    pub(super) fn draw(random: &mut Random) -> Self {
        let is_calm = random.chance(25);
        let mut rate = |high| if is_calm { 0 } else { random.between(0, high) };
        Self {
            failed: rate(6),
            unknown: rate(6),
            late: rate(4),
            slow: rate(6),
            outage: (0, 0),
        }
    }

    /// True while the database cannot be reached.
    pub(super) fn is_away(&self, now: u64) -> bool {
        self.outage.0 <= now && now < self.outage.1
    }
}
