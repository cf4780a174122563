//! Whole runs on a scripted host, by what they send and what they ask.

mod agents;
mod assembly;
mod compaction;
mod effects;
mod endings;
mod models;
mod tools;
