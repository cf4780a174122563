//! The library of the `runnel` binary.
//!
//! `cli → dev → app → {api, config, shutdown}`: imports point down. Everything below these is a crate of its own.

pub mod cli;

pub mod api;
pub mod app;
mod change_export;
pub mod config;
pub mod dev;
pub mod shutdown;
