//! The protocol agent: a runner whose model declares graphs of actions, on nothing but the public host API.
//!
//! The crate `action-graph` decides, this service acts, and the host authorizes every effect again. Reading order:
//! [`agent`] is one run from its start to its terminal, [`config`] the agent's configuration.

pub mod agent; // start here
pub mod config;
pub mod keep;
pub mod manifest;

mod failpoint;

#[cfg(test)]
mod testing;

pub use agent::ProtocolAgent;
