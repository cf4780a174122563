//! The library of the `runnel` binary.
//!
//! `cli → dev → app → {config, shutdown}`: imports point down. Everything below these is a crate of its own.

pub mod cli;

pub mod app;
pub mod config;
pub mod dev;
pub mod shutdown;
