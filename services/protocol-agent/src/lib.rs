//! The protocol agent: a runner whose model declares graphs of actions, on nothing but the public host API.
//!
//! The crate `action-graph` decides, this service acts, and the host authorizes every effect again. Reading order:
//! [`agent`] is one run from its start to its terminal; `turn` asks the model and accepts its declarations; `drive`
//! runs graphs; `execute` calls tools, agents and persons; [`records`] stores graphs between runs. The gateway is behind
//! [`host::GraphAgentHost`], so that everything runs without a network.

pub mod agent; // start here
pub mod config;
pub mod host;
pub mod manifest;
pub mod records;

mod approvals;
mod catalog;
mod clock;
mod drive;
mod ending;
mod execute;
mod failpoint;
mod failure;
mod history;
mod live;
mod model;
mod observe;
mod output_limit;
mod plan_approval;
mod program;
mod projection;
mod prompt;
mod resume;
mod session;
mod turn;
mod usage;
mod work;
mod writer;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use agent::ProtocolAgent;
