//! The sandbox of a harness process.

use std::ffi::OsString;
use std::process::ExitCode;

/// Arguments of `runnel-harness sandbox`.
#[derive(Debug, clap::Args)]
pub struct SandboxArgs {
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Confines this process and executes the command in its place.
pub fn execute(_args: &SandboxArgs) -> ExitCode {
    ExitCode::FAILURE
}
