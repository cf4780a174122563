//! Reads the command line and runs the command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Runs allocate much and little at a time, on every thread.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Supervisor and sandbox of a harness of the playground: before any thread starts.
    if let Some(code) = harness::own_process::run(std::env::args_os()) {
        return code;
    }
    serve()
}

#[tokio::main]
async fn serve() -> ExitCode {
    gateway::cli::run().await
}
