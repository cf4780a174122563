//! Helper processes of the service, which execute its own program: for each harness the supervisor, the first process
//! of its namespaces, and the sandbox.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::sandbox::{self, SandboxArgs};
use crate::supervisor::{self, SuperviseArgs};

/// First argument of a helper process. A program that serves harnesses calls [`run`] before all else.
pub const NAME: &str = "harness-process";

#[derive(Parser)]
#[command(name = NAME)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Supervise(SuperviseArgs),
    Init(SandboxArgs),
    Sandbox(SandboxArgs),
    TryView,
}

/// Runs the helper process that the arguments select; `None` for an ordinary start. Call it before starting threads
/// or a runtime.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1).peekable();
    args.next_if(|arg| arg == NAME)?;
    let args = std::iter::once(NAME.into()).chain(args);
    Some(match Cli::parse_from(args).command {
        Command::Supervise(args) => supervisor::execute(&args),
        Command::Init(args) => sandbox::execute_first(&args),
        Command::Sandbox(args) => sandbox::execute(&args),
        Command::TryView => sandbox::try_view(),
    })
}
