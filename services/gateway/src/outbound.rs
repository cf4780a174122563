//! Everything that leaves the gateway over HTTP, by the guarded client of `egress`.

pub mod remote_knowledge;
