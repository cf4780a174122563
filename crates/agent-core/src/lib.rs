//! Core of the services that answer runs: what each of them would repeat, above `runner-kit`.
//!
//! A service is a mapping from the context of a run to results, a configuration and a manifest. This crate has the
//! rest: [`program`] and [`service`] start and stop its process; [`host`] is the gateway as a trait; [`model`] calls
//! the models of a grant in fallback order and assembles their answers; [`output`] sends texts within the limits of
//! the gateway; [`usage`] sums tokens; [`failure`] ends failed runs.

pub mod failure;
pub mod host;
pub mod manifest;
pub mod model;
pub mod output;
pub mod program;
pub mod service;
pub mod usage;

pub use failure::RunFailure;
