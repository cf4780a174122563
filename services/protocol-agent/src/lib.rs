//! The protocol agent: a runner whose model declares graphs of actions. It uses only the public host API.
//!
//! The crate `action-graph` decides, this service acts, and the host authorizes every effect again. Reading order:
//! [`agent`] is one run from its start to its terminal result; `turn` calls the model and accepts its declarations;
//! `drive` runs graphs; `execute` calls tools, agents and persons; [`records`] stores graphs between runs. The trait
//! [`host::GraphAgentHost`] abstracts the gateway, so that tests run without a network.

pub mod agent; // start here
pub mod config;
pub mod host;
pub mod manifest;
pub mod records;

mod approvals;
mod catalog;
mod drive;
mod ending;
mod execute;
mod failpoint;
mod failure;
mod history;
mod live;
mod model;
mod observe;
mod plan_approval;
mod program;
mod projection;
mod prompt;
mod resume;
mod run_clock;
mod session;
mod turn;
mod work;
mod writer;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use agent::ProtocolAgent;
