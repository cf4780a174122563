//! The harness runner: coding agents as runners. It uses only runner-kit and the public host API.
//!
//! Reading order: [`settings`] is the operator's file; [`service`] makes a runner of each harness; `run` is one run
//! from its workspace to its terminal result; `acp` is the protocol client; `permission` decides requested actions;
//! [`relay`] opens the models and tools of its run; [`sandbox`] and [`supervisor`] confine and end its processes.

pub mod own_process;
pub mod owner;
pub mod preset;
pub mod protections;
pub mod relay;
pub mod sandbox;
pub mod service;
pub mod settings;
pub mod supervisor;
pub mod workspace;

mod acp;
mod agent;
mod claude;
mod codex;

mod config;
mod diff;
mod directory;
mod executable;
mod failure;
mod files;
mod git_config;
mod hash;
mod input;
mod installation;
mod interpreter;
mod launch;
mod peer;
mod permission;

mod process;
mod rpc;
mod run;
mod runner;
mod shorten;
mod speaker;
mod streamed_text;
mod turn;
mod usage;
