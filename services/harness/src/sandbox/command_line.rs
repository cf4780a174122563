//! Command line of the wrapper, in both directions: [`options`] writes the format of [`SandboxArgs`].

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::{Confinement, ResourceLimits};

/// Arguments of `runnel-harness sandbox`.
#[derive(Debug, clap::Args)]
pub struct SandboxArgs {
    /// A directory to read, write and execute in; repeatable.
    #[arg(long, value_name = "DIR")]
    read_write: Vec<PathBuf>,
    /// A file or directory to read and execute, in addition to the system's; repeatable.
    #[arg(long, value_name = "PATH")]
    read_only: Vec<PathBuf>,
    /// A TCP port to connect to, on any host; repeatable.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    connect: Vec<u16>,
    /// A TCP port to bind; repeatable.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    bind: Vec<u16>,
    /// The user to run as; takes root.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Bytes of writable memory of each process.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    memory: Option<u64>,
    /// Processes and threads of the user, on the entire machine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    processes: Option<u64>,
    /// Bytes of one file.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    file_size: Option<u64>,
    /// Processor seconds of each process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    cpu_seconds: Option<u64>,
    /// Leave files, TCP, signals and privileges open.
    #[arg(long, conflicts_with = "require")]
    open: bool,
    /// Refuse to run where the machine cannot confine.
    #[arg(long)]
    require: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub(super) command: Vec<OsString>,
}

impl SandboxArgs {
    pub(super) fn confinement(&self) -> Confinement {
        Confinement {
            read_write: self.read_write.clone(),
            read_only: self.read_only.clone(),
            connect: self.connect.clone(),
            bind: self.bind.clone(),
            user: self.user.clone(),
            limits: ResourceLimits {
                memory: self.memory,
                processes: self.processes,
                file_size: self.file_size,
                cpu_seconds: self.cpu_seconds,
            },
            is_open: self.open,
            is_required: self.require,
        }
    }
}

/// Options that [`SandboxArgs`] parses as this confinement.
pub(super) fn options(confinement: &Confinement) -> Vec<OsString> {
    let mut options = Vec::new();
    let mut add = |name: &str, value: &OsStr| {
        // One word with an equals sign: a value with a leading dash is not parsed as an option.
        let mut option = OsString::from(format!("--{name}="));
        option.push(value);
        options.push(option);
    };
    for path in &confinement.read_write {
        add("read-write", path.as_os_str());
    }
    for path in &confinement.read_only {
        add("read-only", path.as_os_str());
    }
    for port in &confinement.connect {
        add("connect", port.to_string().as_ref());
    }
    for port in &confinement.bind {
        add("bind", port.to_string().as_ref());
    }
    if let Some(user) = &confinement.user {
        add("user", user.as_ref());
    }
    let limits = confinement.limits;
    let numbers = [
        ("memory", limits.memory),
        ("processes", limits.processes),
        ("file-size", limits.file_size),
        ("cpu-seconds", limits.cpu_seconds),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            add(name, number.to_string().as_ref());
        }
    }
    if confinement.is_open {
        options.push("--open".into());
    }
    if confinement.is_required {
        options.push("--require".into());
    }
    options
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sandbox::Stage;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Command {
        Sandbox(SandboxArgs),
    }

    fn parsed(line: &[OsString]) -> Result<SandboxArgs, clap::Error> {
        let program = [OsString::from("runnel-harness")];
        let Cli { command } = Cli::try_parse_from(program.iter().chain(line))?;
        let Command::Sandbox(args) = command;
        Ok(args)
    }

    fn round_trip(confinement: &Confinement, command: &str, args: &[&str]) {
        let words = std::iter::once(&command).chain(args);
        let command: Vec<OsString> = words.map(Into::into).collect();
        let line = confinement.stage(Stage::Sandbox, &command);
        let read = parsed(&line).expect("the wrapper reads its own command line");
        assert_eq!(read.confinement(), *confinement);
        assert_eq!(read.command, command);
    }

    #[test]
    fn wrapped_command_lines_parse_back() {
        let full = Confinement {
            read_write: vec!["w/one two".into(), "-w".into()],
            read_only: vec!["--require".into()],
            connect: vec![443, 65535],
            bind: vec![4096],
            user: Some("-agent".to_owned()),
            limits: ResourceLimits {
                memory: Some(u64::MAX),
                processes: Some(1),
                file_size: Some(2),
                cpu_seconds: Some(3),
            },
            is_open: false,
            is_required: true,
        };
        round_trip(&full, "claude", &["--require", "--", "-p", ""]);
        round_trip(&Confinement::default(), "--help", &[]);
        let open = Confinement {
            is_open: true,
            ..Confinement::default()
        };
        round_trip(&open, "claude", &[]);
    }

    #[test]
    fn rejects_port_zero_and_empty_limits() {
        for option in ["--connect=0", "--bind=0", "--memory=0", "--processes=0"] {
            let line = ["sandbox", option, "--", "true"].map(OsString::from);
            assert!(parsed(&line).is_err(), "{option}");
        }
    }

    #[test]
    fn requires_command_after_dashes() {
        for line in [&["sandbox"][..], &["sandbox", "true"], &["sandbox", "--"]] {
            let line: Vec<OsString> = line.iter().map(Into::into).collect();
            assert!(parsed(&line).is_err(), "{line:?}");
        }
    }
}
