//! Hosts and models for tests.

pub(crate) mod memory;
