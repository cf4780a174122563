//! Everything that leaves the gateway over HTTP, by the guarded client of `egress`.

pub mod artifact;
pub mod remote_knowledge;
pub mod runner;
pub mod signature;
