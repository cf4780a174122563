//! The binary `runnel-connectors`.

mod options;
mod serve;
mod try_out;

use std::process::ExitCode;

use agent_core::service::{exit_code, health};
use clap::{Parser, Subcommand};

/// Serves agents on other platforms as runners of Runnel.
#[derive(Parser)]
#[command(name = "runnel-connectors", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves all platforms on one port.
    Serve(serve::ConnectorServeArgs),
    /// Checks that the service listens: 0 if it does. For health checks of containers.
    Health(serve::ConnectorHealthArgs),
    /// Runs one agent against its platform without a gateway and prints the results.
    Try(try_out::TryArgs),
    /// Prints the manifests of all platforms, one a line.
    Manifests,
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Serve(args) => serve::execute(&args).map(|()| ExitCode::SUCCESS),
        Command::Health(args) => Ok(health(args.port)),
        Command::Try(args) => try_out::execute(&args),
        Command::Manifests => serve::print_manifests().map(|()| ExitCode::SUCCESS),
    };
    exit_code(ended)
}
