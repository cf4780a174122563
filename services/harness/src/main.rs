//! Command line of `runnel-harness`: serve, health check, sandbox check, and the sandbox wrapper.

mod serve;

use std::process::ExitCode;

use agent_core::service::{exit_code, health};
use clap::{Parser, Subcommand};
use harness::own_process;
use harness::sandbox::SandboxArgs;

/// Serves coding agents as runners of Runnel.
#[derive(Parser)]
#[command(name = "runnel-harness", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the harnesses of a settings file.
    Serve(serve::HarnessServeArgs),
    /// Ask whether the service listens: 0 when it does. For health checks of containers.
    Health(serve::HarnessHealthArgs),
    /// Print what the sandbox closes on this machine, what it leaves open, and what closes that.
    Check(serve::HarnessCheckArgs),
    /// Confines itself and executes a command in its place.
    Sandbox(SandboxArgs),
}

fn main() -> ExitCode {
    if let Some(code) = own_process::run(std::env::args_os()) {
        return code;
    }
    let success = |()| ExitCode::SUCCESS;
    exit_code(match Cli::parse().command {
        Command::Serve(args) => serve::execute(&args).map(success),
        Command::Health(args) => Ok(health(args.port)),
        Command::Check(args) => serve::check(&args).map(success),
        Command::Sandbox(args) => Ok(harness::sandbox::execute(&args)),
    })
}
