//! Complete runs on a scripted host, checked by results and recorded calls.

mod agents;
mod assembly;
mod compaction;
mod effects;
mod endings;
mod models;
mod tools;
