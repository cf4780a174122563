//! Sandbox of a harness process: a wrapper that confines itself and then executes the command in its place.
//!
//! The service starts each harness by the command line of [`Confinement::stage`]. `docs/security-harness.md` lists the
//! protections and their limits.
//!
//! On Linux, Landlock confines files and TCP, and seccomp closes bypasses of Landlock's TCP rules. On other systems the
//! wrapper executes the command unconfined, and refuses with `--require`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::Uid;

mod command_line;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

pub use command_line::SandboxArgs;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;

/// Exit status when the sandbox cannot be set up: `EX_CONFIG` of `sysexits.h`.
pub const EXIT_CONFIGURATION: u8 = 78;
/// Exit status when the command exists and cannot be executed, as shells report it.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit status when the command does not exist, as shells report it.
pub const EXIT_NOT_FOUND: u8 = 127;

/// First Landlock ABI with TCP rules (Linux 6.7).
const ABI_WITH_TCP: u8 = 4;
/// First Landlock ABI with scopes (Linux 6.12).
const ABI_WITH_SCOPES: u8 = 6;

/// Confinement of one process and all its descendants. The default allows only system directories, denies TCP, and sets
/// no limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Directories to read, write and execute in, with all below them. Each must exist.
    pub read_write: Vec<PathBuf>,
    /// Files and directories to read and execute, in addition to the system's. Each must exist.
    pub read_only: Vec<PathBuf>,
    /// TCP ports to connect to, on any host. Not 0.
    pub connect: Vec<u16>,
    /// TCP ports to bind. Not 0. A harness that serves its own child process needs one, here and in `connect`.
    pub bind: Vec<u16>,
    /// User to run as, by name. Only root changes the user; any other process refuses a name that is not its own.
    pub user: Option<String>,
    /// Limits for each process, and of processes for the user.
    pub limits: ResourceLimits,
    /// Leaves files, TCP, signals and privileges open. User, limits, environment and descriptors are unaffected.
    pub is_open: bool,
    /// Refuses to run with any missing protection ([`Confinement::missing`]).
    pub is_required: bool,
}

/// Resource limits. `None` leaves a limit as it is; no limit is ever raised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Bytes of private writable memory of each process (`RLIMIT_DATA`). Processes do not share it: the tree may use
    /// `memory` × `processes`. Address space is not limited, because V8 reserves far more than it uses.
    pub memory: Option<u64>,
    /// Processes and threads of the user, on the entire machine (`RLIMIT_NPROC`). Linux exempts root.
    pub processes: Option<u64>,
    /// Bytes of one file (`RLIMIT_FSIZE`).
    pub file_size: Option<u64>,
    /// Processor seconds of each process (`RLIMIT_CPU`): `SIGXCPU` at the limit, `SIGKILL` 5 s later.
    pub cpu_seconds: Option<u64>,
}

/// Protections that the kernel offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent parts of the kernel"
)]
pub struct Support {
    /// Landlock ABI version; `None` without Landlock.
    pub abi: Option<u8>,
    /// Confinement of files (Landlock ABI 1, Linux 5.13).
    pub filesystem: bool,
    /// Confinement of TCP (Landlock ABI 4, Linux 6.7, and seccomp filters).
    pub network: bool,
    /// Confinement of signals and abstract Unix sockets (Landlock ABI 6, Linux 6.12).
    pub scopes: bool,
    /// Seccomp filters of system calls.
    pub filters: bool,
}

impl Support {
    /// Support of a kernel with this Landlock ABI and seccomp filters.
    fn of(abi: Option<u8>) -> Self {
        let reaches = |least: u8| abi.is_some_and(|abi| abi >= least);
        Self {
            abi,
            filesystem: reaches(1),
            network: reaches(ABI_WITH_TCP),
            scopes: reaches(ABI_WITH_SCOPES),
            filters: true,
        }
    }
}

/// Tests with processes of this program if harnesses can have their own namespaces and file system view. The program
/// has to call [`crate::own_process::run`].
pub(crate) fn has_namespaces() -> bool {
    system::has_namespaces()
}

/// Probes the kernel's support by a few system calls in a short-lived thread. Constant until a reboot.
pub fn support() -> Support {
    system::support()
}

impl Confinement {
    /// Protections of this confinement that the machine lacks, named for logs, manifests and errors. Scopes are
    /// optional and not listed.
    pub fn missing(&self, support: Support) -> Vec<&'static str> {
        self.missing_as(support, rustix::process::geteuid())
    }

    /// Fails like the wrapper would at each run: missing required protections, a user that cannot be changed to, and
    /// absent paths. Confines nothing.
    pub fn check(&self) -> anyhow::Result<()> {
        check_requirement(self, support())?;
        Ok(system::check(self)?)
    }

    fn missing_as(&self, support: Support, own: Uid) -> Vec<&'static str> {
        let needs_user = self.limits.processes.is_some() && own.is_root() && self.user.is_none();
        let protections = [
            (support.filesystem, "files (Landlock, Linux 5.13)"),
            (support.network, "TCP (Landlock, Linux 6.7)"),
            (!needs_user, "processes (root has no limit: name a user)"),
        ];
        let missing = protections.iter().filter(|(is_given, _)| !is_given);
        missing.map(|(_, name)| *name).collect()
    }

    /// Arguments of the helper process that executes a command in this confinement.
    pub(crate) fn stage(&self, stage: Stage, command: &[OsString]) -> Vec<OsString> {
        let mut line = vec![stage.name().into()];
        line.extend(command_line::options(self));
        line.push("--".into());
        line.extend_from_slice(command);
        line
    }
}

/// Helper process that leads to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The first process of the namespaces; it starts the next one.
    Init,
    /// Confines itself and executes the command in its place.
    Sandbox,
}

impl Stage {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Sandbox => "sandbox",
        }
    }
}

/// Moves this process and its children into new namespaces. Call it from `main` before starting threads.
pub(crate) fn enter_namespaces() -> anyhow::Result<()> {
    Ok(system::enter_namespaces()?)
}

/// Runs the first process of the namespaces that the parent has entered: builds the file system view, runs the command,
/// and ends all other processes with it.
pub(crate) fn execute_first(args: &SandboxArgs) -> ExitCode {
    system::run_first(&args.confinement(), &args.command).unwrap_or_else(|error| failed(&error))
}

/// Enters the file system view of a default confinement. Like [`execute_first`] without a command.
pub(crate) fn try_view() -> ExitCode {
    let shown = system::enter_view(&Confinement::default());
    shown.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Confines this process and executes the command in its place. Returns only on failure, with a message on standard
/// error and the exit status: [`EXIT_CONFIGURATION`], [`EXIT_NOT_FOUND`] or [`EXIT_NOT_EXECUTABLE`].
///
/// Closes every inherited file descriptor above 2. Call it from `main` before starting threads or a runtime.
pub fn execute(args: &SandboxArgs) -> ExitCode {
    failed(&run(&args.confinement(), &args.command))
}

#[expect(
    clippy::print_stderr,
    reason = "the wrapper has no log: its standard error is that of the command"
)]
fn failed(error: &SandboxError) -> ExitCode {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        message = format!("{message}: {source}");
        cause = source.source();
    }
    eprintln!("runnel-harness sandbox: {message}");
    ExitCode::from(error.exit_code())
}

/// Returns only when the command was not executed.
fn run(confinement: &Confinement, command: &[OsString]) -> SandboxError {
    if let Err(error) = check_requirement(confinement, support()) {
        return error;
    }
    let account = match system::confine(confinement) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let Some((program, args)) = command.split_first() else {
        return SandboxError::NoCommand;
    };
    let mut replacement = Command::new(program);
    replacement.args(args);
    if let Some(account) = account {
        // The standard library also drops supplementary groups here.
        replacement.uid(account.user).gid(account.group);
    }
    let source = replacement.exec();
    SandboxError::Execute {
        command: program.to_string_lossy().into_owned(),
        source,
    }
}

fn check_requirement(confinement: &Confinement, support: Support) -> Result<(), SandboxError> {
    let missing = confinement.missing(support);
    if confinement.is_required && !missing.is_empty() {
        return Err(SandboxError::Unsupported(missing.join(", ")));
    }
    Ok(())
}

/// User and group to change to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The account of a user by name; `None` to stay as this process's own.
pub(crate) fn account(user: Option<&str>) -> Result<Option<Account>, SandboxError> {
    system::account(user)
}

/// Failures before the execution of the command.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "only Linux confines")
)]
pub(crate) enum SandboxError {
    #[error(
        "cannot enforce the sandbox for {0}; change that, or leave out --require (`sandbox = \"auto\"`) to run without"
    )]
    Unsupported(String),
    #[error("no command was given: name one after --")]
    NoCommand,
    #[error("--user {0}: no such user, create it or name another")]
    UnknownUser(String),
    #[error("--user {0}: this user is root, name one without privileges")]
    RootUser(String),
    #[error(
        "--user {0}: only root changes the user, start the service as root or leave out --user"
    )]
    NotRoot(String),
    #[error("cannot look up --user {name}")]
    UserLookup {
        name: String,
        source: std::io::Error,
    },
    #[error("cannot open {}, create it or leave it out", path.display())]
    Path {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot set up {step}")]
    Setup {
        step: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot execute {command}")]
    Execute {
        command: String,
        source: std::io::Error,
    },
}

impl SandboxError {
    /// Failure of one step of the confinement.
    #[cfg(target_os = "linux")]
    fn setup(step: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Setup {
            step,
            source: Box::new(source),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Execute { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                EXIT_NOT_FOUND
            }
            Self::Execute { .. } => EXIT_NOT_EXECUTABLE,
            _ => EXIT_CONFIGURATION,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited() -> Confinement {
        let limits = ResourceLimits {
            processes: Some(64),
            ..ResourceLimits::default()
        };
        Confinement {
            limits,
            ..Confinement::default()
        }
    }

    #[test]
    fn support_follows_the_landlock_abi() {
        let flags = |abi| {
            let support = Support::of(abi);
            (support.filesystem, support.network, support.scopes)
        };
        assert_eq!(flags(None), (false, false, false));
        assert_eq!(flags(Some(1)), (true, false, false));
        assert_eq!(flags(Some(3)), (true, false, false));
        assert_eq!(flags(Some(4)), (true, true, false));
        assert_eq!(flags(Some(7)), (true, true, true));
    }

    #[test]
    fn names_each_missing_protection() {
        let check = |abi, own, expected: &[&str]| {
            let missing = limited().missing_as(Support::of(abi), own);
            let words = missing.iter().filter_map(|text| text.split(' ').next());
            assert_eq!(words.collect::<Vec<_>>(), expected, "ABI {abi:?}");
        };
        let other = Uid::from_raw(1000);
        check(None, other, &["files", "TCP"]);
        check(Some(3), other, &["TCP"]);
        check(Some(4), other, &[]);
        check(Some(4), Uid::ROOT, &["processes"]);
    }

    #[test]
    fn process_limits_need_named_user() {
        let confinement = Confinement {
            user: Some("nobody".to_owned()),
            ..limited()
        };
        let missing = confinement.missing_as(Support::of(Some(4)), Uid::ROOT);
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn check_rejects_unsupported_sandbox() {
        let nowhere = Confinement {
            read_only: vec!["/nowhere/at-all".into()],
            ..Confinement::default()
        };
        let unknown = Confinement {
            user: Some("no-such-user-of-runnel".to_owned()),
            ..Confinement::default()
        };
        for (refused, part) in [(nowhere, "/nowhere/at-all"), (unknown, "no such user")] {
            let error = format!("{:#}", refused.check().unwrap_err());
            // Systems without Landlock open no path, and change no user.
            assert!(
                error.contains(part) || !cfg!(target_os = "linux"),
                "{error}"
            );
        }
        Confinement::default().check().unwrap();
        let unlimited = Confinement {
            is_required: true,
            ..limited()
        };
        if rustix::process::geteuid().is_root() {
            let error = unlimited.check().unwrap_err().to_string();
            assert!(error.contains("name a user"), "{error}");
        }
    }

    #[test]
    fn require_refuses_kernels_without_landlock() {
        let required = Confinement {
            is_required: true,
            ..Confinement::default()
        };
        for abi in [None, Some(1), Some(3)] {
            let refused = check_requirement(&required, Support::of(abi)).unwrap_err();
            assert_eq!(refused.exit_code(), EXIT_CONFIGURATION);
            assert!(refused.to_string().contains("Linux 6.7"), "{refused}");
        }
        assert!(check_requirement(&required, Support::of(Some(4))).is_ok());
        assert!(check_requirement(&Confinement::default(), Support::of(None)).is_ok());
    }

    #[test]
    fn failures_map_to_exit_codes() {
        let execute = |kind: std::io::ErrorKind| SandboxError::Execute {
            command: "harness".to_owned(),
            source: kind.into(),
        };
        let code = |error: SandboxError| error.exit_code();
        assert_eq!(code(execute(std::io::ErrorKind::NotFound)), 127);
        assert_eq!(code(execute(std::io::ErrorKind::PermissionDenied)), 126);
        assert_eq!(code(SandboxError::Unsupported("files".to_owned())), 78);
        assert_eq!(code(SandboxError::NotRoot("nobody".to_owned())), 78);
    }

    #[test]
    fn probe_leaves_process_unconfined() {
        let first = support();
        assert_eq!(first, support());
        assert!(std::fs::read_dir("/").is_ok());
    }
}
