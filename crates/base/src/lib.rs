//! The floor of the gateway's crates: the wall clock, the seal of secrets in tables, and names of metrics that two
//! crates share.

pub mod clock;
pub mod digest;
pub mod metric_names;
pub mod seal;
