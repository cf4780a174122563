//! The client API: events in, runs and history out.

pub(super) mod events;
pub(super) mod history;
pub(super) mod runs;
