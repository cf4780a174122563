//! Parses the command line and runs the command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Runs allocate small and large blocks on every thread.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // The playground starts this binary as supervisor and sandbox of a harness. Must run before any thread
    // starts.
    #[cfg(feature = "harness")]
    if let Some(code) = harness::own_process::run(std::env::args_os()) {
        return code;
    }
    serve()
}

#[tokio::main]
async fn serve() -> ExitCode {
    gateway::cli::run().await
}
