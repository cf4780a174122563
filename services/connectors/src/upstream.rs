//! The parts that platforms share. All are pure.

pub mod config; // start here: how an agent's configuration is read
pub mod failure;
pub mod reader;

pub mod answer;
pub mod conversation;
pub mod question;
pub mod question_queue;
pub mod results;
pub mod tools;
pub mod usage;

pub mod json;
pub mod redact;
mod secret_hosts;
