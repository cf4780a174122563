//! The Local Agent: a whole agent loop as a runner, on nothing but the public host API.
//!
//! Reading order: [`agent`] is one run from its start to its terminal; [`assemble`] puts the first request
//! together; [`turns`] asks the model, runs its tools and asks again; [`context`] keeps all of it within
//! the model's window. The gateway is behind [`host::AgentHost`], so that everything runs without a network.

pub mod agent; // start here
pub mod config;
pub mod context;
pub mod host;
pub mod manifest;

mod acts;
mod assemble;
mod clock;
mod line;
mod model;
mod speaker;
mod tools;
mod turns;
mod usage;
mod window;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use agent::LocalAgent;
