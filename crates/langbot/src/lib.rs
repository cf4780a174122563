//! Support for LangBot: converts pipeline queries to events, and pipelines and database rows to tables of
//! `runnel.toml`. Does no I/O.

pub mod adapter;
pub mod migrate;
