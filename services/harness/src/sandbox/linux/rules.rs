//! Landlock rules: files, TCP ports, and scopes.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd,
    PathFdError, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError,
    Scope, path_beneath_rules,
};

use crate::sandbox::{Confinement, SandboxError};

/// Newest supported ABI. Older kernels enforce the rights that they support. Test on a newer kernel before raising it.
const TESTED: ABI = ABI::V7;

/// Programs, libraries and their configuration; `/proc` for runtimes that read their own memory and processors.
/// Secrets of outside processes in `/proc` require the right to trace, which Landlock denies.
pub(super) const SYSTEM: [&str; 10] = [
    "/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/sbin", "/usr",
];

/// Readable and writable devices. Shared memory (`/dev/shm`) is excluded.
pub(super) const DEVICES: [&str; 5] = [
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

/// Pseudo terminals, in which some harnesses run commands. File modes protect those of other users.
const TERMINALS: [&str; 2] = ["/dev/ptmx", "/dev/pts"];

/// Landlock rules with opened paths, not yet in force.
pub(super) struct PathRules(RulesetCreated);

/// Restricts the calling thread and returns the kernel's ABI version; `None` without Landlock.
pub(super) fn probe() -> Option<u8> {
    let restricted = Ruleset::default()
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    let LandlockStatus::Available {
        effective_abi,
        kernel_abi,
    } = restricted.ok()?.landlock
    else {
        return None;
    };
    let version = kernel_abi.unwrap_or(effective_abi as i32);
    Some(u8::try_from(version).unwrap_or(u8::MAX))
}

/// Opens the paths of a confinement. Absent system paths are skipped; each path of the caller must exist.
pub(super) fn open(confinement: &Confinement) -> Result<PathRules, SandboxError> {
    let mut rules = with_system(&confinement.connect, &confinement.bind).map_err(failed)?;
    let paths = [
        (&confinement.read_write, AccessFs::from_all(TESTED)),
        (&confinement.read_only, AccessFs::from_read(TESTED)),
    ];
    for (paths, access) in paths {
        for path in paths {
            rules = with_path(rules, path, access)?;
        }
    }
    Ok(PathRules(rules))
}

fn with_system(connect: &[u16], bind: &[u16]) -> Result<RulesetCreated, RulesetError> {
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    let ports = |ports: &[u16], access: AccessNet| -> Vec<Result<NetPort, RulesetError>> {
        let rule = |port: &u16| Ok(NetPort::new(*port, access));
        ports.iter().map(rule).collect()
    };
    Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(AccessNet::from_all(TESTED))?
        .scope(Scope::from_all(TESTED))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM, AccessFs::from_read(TESTED)))?
        .add_rules(path_beneath_rules(DEVICES, device))?
        .add_rules(path_beneath_rules(TERMINALS, device | AccessFs::IoctlDev))?
        .add_rules(ports(connect, AccessNet::ConnectTcp))?
        .add_rules(ports(bind, AccessNet::BindTcp))
}

fn with_path(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, SandboxError> {
    let opened = PathFd::new(path).map_err(|error| SandboxError::Path {
        path: path.to_owned(),
        source: match error {
            PathFdError::OpenCall { source, .. } => source,
            other => std::io::Error::other(other),
        },
    })?;
    // The crate removes rights of directories from rules for files, which the kernel would reject.
    rules
        .add_rule(PathBeneath::new(opened, access))
        .map_err(failed)
}

impl PathRules {
    /// Enforces the rules, as far as the kernel supports them. Irreversible.
    pub(super) fn restrict(self) -> Result<(), SandboxError> {
        self.0.restrict_self().map(drop).map_err(failed)
    }
}

fn failed(error: RulesetError) -> SandboxError {
    SandboxError::setup("Landlock", error)
}
