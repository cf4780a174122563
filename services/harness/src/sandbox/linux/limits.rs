//! Resource limits (`setrlimit`). They are only lowered, never raised.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sandbox::{ResourceLimits, SandboxError};

/// Seconds between `SIGXCPU`, which a process may handle, and `SIGKILL`.
const CPU_GRACE: u64 = 5;

/// Sets the limits and disables core dumps.
pub(super) fn set(limits: ResourceLimits) -> Result<(), SandboxError> {
    // A core dump would contain the secrets of the run.
    lower(Resource::Core, 0, 0)?;
    let plain = [
        (Resource::Data, limits.memory),
        (Resource::Nproc, limits.processes),
        (Resource::Fsize, limits.file_size),
    ];
    for (resource, limit) in plain {
        if let Some(limit) = limit {
            lower(resource, limit, limit)?;
        }
    }
    if let Some(seconds) = limits.cpu_seconds {
        lower(Resource::Cpu, seconds, seconds.saturating_add(CPU_GRACE))?;
    }
    Ok(())
}

fn lower(resource: Resource, current: u64, maximum: u64) -> Result<(), SandboxError> {
    let limit = lowered(getrlimit(resource), current, maximum);
    setrlimit(resource, limit).map_err(|error| SandboxError::setup("a resource limit", error))
}

/// Stricter of both limits. Raising a maximum would fail without root.
fn lowered(before: Rlimit, current: u64, maximum: u64) -> Rlimit {
    let stricter = |before: Option<u64>, wanted: u64| before.map_or(wanted, |it| it.min(wanted));
    Rlimit {
        current: Some(stricter(before.current, current)),
        maximum: Some(stricter(before.maximum, maximum)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_raised() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let check = |before, expected| assert_eq!(lowered(before, 10, 15), expected);
        check(limit(None, None), limit(Some(10), Some(15)));
        check(limit(Some(20), Some(30)), limit(Some(10), Some(15)));
        check(limit(Some(5), Some(12)), limit(Some(5), Some(12)));
        check(limit(Some(5), None), limit(Some(5), Some(15)));
    }
}
