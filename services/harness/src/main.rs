//! The binary `runnel-harness`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use harness::sandbox::SandboxArgs;

/// Serves coding agents as runners of Runnel.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Confines itself and executes a command in its place.
    Sandbox(SandboxArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Sandbox(args) => harness::sandbox::execute(&args),
    }
}
