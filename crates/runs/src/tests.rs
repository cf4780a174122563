//! Tests that need the insides of this crate.

mod commit_machine;
mod decisions;
mod relay_machine;
mod simulation;
