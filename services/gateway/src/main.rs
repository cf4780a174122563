//! Reads the command line and runs the command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Runs allocate much and little at a time, on every thread.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    gateway::cli::run().await
}
