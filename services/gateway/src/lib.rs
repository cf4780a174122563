//! The library of the `runnel` binary.
//!
//! `cli → app → api → runs → {outbound, bus, store} → domain → protocol`: imports point down.

pub mod cli;

pub mod api;
mod api_key;
pub mod app;
mod bus;
pub mod clock;
pub mod config;
pub mod conform;
pub mod cursor;
pub mod dev;
pub mod http_server;
pub mod knowledge;
pub mod outbound;
pub mod runs;
pub mod seal;
pub mod shutdown;
pub mod telemetry;
