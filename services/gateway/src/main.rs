//! Reads the command line and runs the command.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    gateway::cli::run().await
}
