//! The library of the `runnel` binary.
//!
//! `cli → app → api → runs → {outbound, bus, store} → domain → protocol`: imports point down.

pub mod cli;

pub mod app;
pub mod config;
pub mod dev;
pub mod shutdown;
