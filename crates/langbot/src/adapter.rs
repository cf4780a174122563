//! Entries other than our own envelope: what they bring becomes an envelope, and the rest is the same.

pub mod pipeline;
