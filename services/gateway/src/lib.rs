//! The Runnel gateway: everything the `runnel` binary is made of.
//!
//! `cli → app → api → runs → {outbound, bus, store} → domain → protocol`: imports point down.

pub mod cli;

pub mod app;
pub mod config;
pub mod dev;
pub mod shutdown;
