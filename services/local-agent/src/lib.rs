//! Local Agent: an agent loop as a runner, on the public host API only.
//!
//! Reading order: [`agent`] is one run from start to terminal result; [`assemble`] builds the first request;
//! [`turns`] calls the model, executes its tool calls and repeats; [`context`] keeps requests within the model's
//! window. [`host::LocalAgentHost`] abstracts the gateway, so that everything runs without a network.

pub mod agent; // start here
pub mod config;
pub mod context;
pub mod host;
pub mod manifest;

mod assemble;
mod dates;
mod failure;
mod message_writer;
mod model;
mod side_effects;
mod tools;
mod turns;
mod window;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use agent::LocalAgent;
