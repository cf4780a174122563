//! Shared base of the gateway's crates: wall clock, sealing of stored secrets, digests, metric names.

pub mod clock;
pub mod digest;
pub mod metric_names;
pub mod seal;
